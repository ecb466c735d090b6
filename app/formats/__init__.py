"""The providers by the name of their format: a module for each, and what they share.

`base` says what a provider is. A type of part that no provider lists is accepted: providers add
types, and a part is replayed to its own provider unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from app.common.errors import Problem, ValidationError
from app.formats.anthropic import Anthropic
from app.formats.base import Provider
from app.formats.gemini import Gemini
from app.formats.interactions import Interactions
from app.formats.message import FormatName
from app.formats.openai_chat import OpenAIChat
from app.formats.openai_responses import OpenAIResponses
from app.formats.tools import ToolCategory, ToolDefinition, parse_tool, tool_from, tools_of

__all__ = [
    "LOG_PROVIDER",
    "PROVIDERS",
    "ToolCategory",
    "ToolDefinition",
    "parse_tool",
    "require_own",
    "tool_from",
    "tools_of",
    "with_request_pointers",
]

LOG_PROVIDER: Final = OpenAIChat()
"""The provider of the format of the log."""
PROVIDERS: Final[dict[FormatName, Provider]] = {
    provider.name: provider
    for provider in (LOG_PROVIDER, OpenAIResponses(), Anthropic(), Gemini(), Interactions())
}
_GROUPED = re.compile(r"(.*?)/(\d+)/output/(\d+)(.*)", re.DOTALL)


def with_request_pointers(error: ValidationError) -> ValidationError:
    """Return an error about joined items with JSON pointers to the items of the request."""
    problems: list[Problem] = []
    for problem in error.problems:
        pointer = problem.pointer
        if found := _GROUPED.match(pointer):
            pointer = f"{found[1]}/{int(found[2]) + int(found[3])}{found[4]}"
        problems.append(Problem(pointer, problem.detail))
    return ValidationError(error.detail, problems=tuple(problems))


def require_own(raw: Mapping[str, Any], format: FormatName, pointer: str) -> None:
    """Raise ValidationError at a part of another format, which no payload could have."""
    is_mcp = isinstance(raw.get("data"), str)  # other formats have other fields for media
    kind = None if is_mcp else raw.get("type")
    owners = [item.name for item in PROVIDERS.values() if kind in item.part_types]
    if owners and format not in owners:
        named = " or ".join(owners)
        detail = f"{kind} is a part of {named}, not of {format}: is `format` right?"
        raise ValidationError.at(f"{pointer}/type", detail)
    for key in ("content", "parts", "output"):
        items = raw.get(key)
        for index, part in enumerate(items if isinstance(items, list) else ()):
            if isinstance(part, Mapping):
                require_own(part, format, f"{pointer}/{key}/{index}")
