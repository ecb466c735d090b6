"""Families of models that accept each other's reasoning.

The name of a model tells whose reasoning it accepts. Where it does not, none is replayed.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

ANTHROPIC: Final = "anthropic"
GEMINI: Final = "gemini"
OPENAI: Final = "openai"
XAI: Final = "xai"
MISTRAL: Final = "mistral"
PLAIN: Final = "plain"
"""Models that read each other's unsigned text."""
DEMANDING: Final = "demanding"
"""Models of the PLAIN family that refuse a tool loop in which a message has no reasoning."""
SEALED: Final = "sealed"
"""Encrypted details without the name of their family, which only their router can read."""
_FAMILIES: Final = (
    (
        (
            *("deepseek", "qwen", "qwq", "kimi", "moonshot", "glm", "z-ai", "zai", "zhipu"),
            *("minimax", "gpt-oss", "nemotron", "ernie", "hunyuan", "mimo", "longcat", "vllm"),
        ),
        PLAIN,
    ),
    (("claude", "anthropic"), ANTHROPIC),
    (("gemini",), GEMINI),
    (("mistral", "magistral", "ministral", "devstral"), MISTRAL),
    (("grok", "xai/"), XAI),
    (("gpt-", "openai/", "codex"), OPENAI),
)
"""Substrings of model names and their family; the first row with a match counts."""
_DEMANDING: Final = ("deepseek", "kimi", "moonshot")
_REASONING_MODEL: Final = re.compile(r"(?:^|[/.])o[1-9](?:-|$)")
_CLAUDE_VERSION: Final = re.compile(r"claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")
_FIRST_BOUND: Final = (5, 1)
"""The first version of Claude that refuses thinking behind another prefix."""


@lru_cache(maxsize=1024)
def accepted_families(model: str, default: str) -> tuple[str, ...]:
    """Return the families whose reasoning a model accepts; an unknown name has the default one."""
    name = model.lower()
    family = next((family for words, family in _FAMILIES if any(w in name for w in words)), "")
    if not family and _REASONING_MODEL.search(name):
        family = OPENAI
    if not family:
        family = default
    if name.startswith("openrouter/"):
        return (family, SEALED) if family else (SEALED,)
    if any(word in name for word in _DEMANDING) and not name.endswith("deepseek-chat"):
        return family, DEMANDING
    return (family,) if family else ()


def binds_reasoning(model: str) -> bool:
    """Whether a model takes reasoning back only while nothing before it has changed."""
    found = _CLAUDE_VERSION.search(model.lower())
    return found is not None and (int(found[1]), int(found[2] or 0)) >= _FIRST_BOUND
