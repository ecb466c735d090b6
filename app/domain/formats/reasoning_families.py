"""Families of models that accept each other's reasoning.

The name of a model tells whose reasoning it accepts. Where it does not, none is replayed.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from app.domain.common.messages import FormatName

ANTHROPIC: Final = "anthropic"
GEMINI: Final = "gemini"
OPENAI: Final = "openai"
XAI: Final = "xai"
MISTRAL: Final = "mistral"
PLAIN: Final = "plain"
"""Models that read each other's unsigned text."""
SEALED: Final = "sealed"
"""Encrypted details without the name of their family, which only their router can read."""
UNBOUND: Final = frozenset((PLAIN, MISTRAL))
"""Families whose reasoning is not bound to the messages before it."""

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
_REASONING_MODEL: Final = re.compile(r"(?:^|[/.])o[1-9](?:-|$)")


@lru_cache(maxsize=1024)
def accepted_families(model: str, format: FormatName) -> tuple[str, ...]:
    """Return the families whose reasoning a model accepts in a format.

    An unknown name in the format of a provider is treated as a model of that provider.
    """
    name = model.lower()
    family = next((family for words, family in _FAMILIES if any(w in name for w in words)), "")
    if not family and _REASONING_MODEL.search(name):
        family = OPENAI
    if not family:
        family = {FormatName.ANTHROPIC: ANTHROPIC, FormatName.GEMINI: GEMINI}.get(format, "")
    routed = (SEALED,) if name.startswith("openrouter/") else ()
    return (family, *routed) if family else routed


def is_same_family(model: str, other: str, format: FormatName) -> bool:
    """Whether two models of a format read each other's encrypted items.

    Names of unknown models have to be equal.
    """
    family = accepted_families(model, format)[:1]
    return model == other or (family != () and family == accepted_families(other, format)[:1])
