"""Hosted tools: definitions that only their provider understands, such as its web search.

1. The `type` of a definition tells its format. Gemini has no types: there a key of the definition
   tells it. Anthropic's types end with a date, so that later versions are recognised as well.
   OpenRouter's begin with its name; it takes them in both of OpenAI's formats.
2. A definition is kept as the caller gave it. Only payloads of its own format have it, without
   `category` and `cache_control`: the service places the cache breakpoints.
3. A tool that a model calls by a name has this name, as function tools do. Any other has its format
   and type as its name, which is no name of a function.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from app.common.sendable import sendable_json
from app.formats.message import FormatName

HOSTED_TYPE_PATTERN: Final = (
    "^([a-z][a-z0-9_]*_20[0-9]{6}|mcp_toolset|tool_search_tool_(bm25|regex)"
    "|web_search(_preview)?(_20[0-9]{2}_[0-9]{2}_[0-9]{2})?|file_search|code_interpreter"
    "|image_generation|mcp|computer|computer_use|computer_use_preview|local_shell|shell"
    "|apply_patch|programmatic_tool_calling|tool_search|namespace|openrouter:[a-z0-9_.-]+)$"
)
"""The types of hosted tools."""
GEMINI_KEYS: Final = (
    "google_search",
    "google_search_retrieval",
    "google_maps",
    "code_execution",
    "url_context",
    "file_search",
    "computer_use",
    "enterprise_web_search",
    "retrieval",
    "parallel_ai_search",
    "exa_ai_search",
    "mcp_servers",
)
"""The keys of Gemini's hosted tools, which it also takes in camel case."""

_HOSTED_TYPE = re.compile(HOSTED_TYPE_PATTERN)
_ANTHROPIC_TYPE = re.compile(r".*_20\d{6}|mcp_toolset|tool_search_tool_(bm25|regex)")
_SNAKE_KEYS: Final = {
    spelling: key
    for key in GEMINI_KEYS
    for spelling in (key, re.sub("_(.)", lambda match: match[1].upper(), key))
}
GEMINI_SPELLINGS: Final = tuple(sorted(_SNAKE_KEYS))
"""The same keys in snake case and in camel case."""
_RUN_BY_CLIENT: Final = re.compile(
    r"(bash|text_editor|computer|memory)_20\d{6}"
    r"|computer|computer_use|computer_use_preview|local_shell|shell|apply_patch"
)
_OWN_NAMES: Final = ("server_label", "mcp_server_name", "name")
_GATEWAY: Final = "openrouter:"
_NOT_SENT: Final = ("category", "cache_control")


def hosted_format(raw: Mapping[str, Any]) -> FormatName | None:
    """Return the format of a hosted tool, None for any other definition."""
    kind = raw.get("type")
    if kind is None:
        is_function = "name" in raw or "function" in raw
        is_gemini = not is_function and any(key in _SNAKE_KEYS for key in raw)
        return FormatName.GEMINI if is_gemini else None
    if not isinstance(kind, str) or not _HOSTED_TYPE.fullmatch(kind):
        return None
    if kind.startswith(_GATEWAY):
        return FormatName.OPENAI_CHAT
    is_anthropic = _ANTHROPIC_TYPE.fullmatch(kind) is not None
    return FormatName.ANTHROPIC if is_anthropic else FormatName.OPENAI_RESPONSES


def hosted_kind(raw: Mapping[str, Any]) -> str:
    """Return the type of a hosted tool; of Gemini's, its keys."""
    kind = raw.get("type")
    if isinstance(kind, str):
        return kind
    return "+".join(sorted(_SNAKE_KEYS[key] for key in raw if key in _SNAKE_KEYS))


def is_run_by_client(raw: Mapping[str, Any]) -> bool:
    """Whether a hosted tool is defined by its provider, and run by the caller."""
    return _RUN_BY_CLIENT.fullmatch(hosted_kind(raw)) is not None


def hosted_name(raw: Mapping[str, Any], format: FormatName) -> str:
    """Return the name of a hosted tool, by which another definition replaces it (rule 3)."""
    name = raw.get("name")
    if format is FormatName.ANTHROPIC and isinstance(name, str):
        return name
    parts = [format.value, hosted_kind(raw)]
    parts += [raw[key] for key in _OWN_NAMES if isinstance(raw.get(key), str)]
    return ":".join(parts)


def hosted_definition(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a hosted tool as it is sent (rule 2)."""
    sent: dict[str, Any] = sendable_json(
        {key: value for key, value in raw.items() if key not in _NOT_SENT}
    )
    return sent
