"""The wire formats by name, and what each of them provides."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol

from app.common.errors import Problem, ValidationError
from app.formats import anthropic, gemini, openai_chat, openai_responses
from app.formats.message import FormatName, Message
from app.formats.tools import ToolDefinition


class Format(Protocol):
    """What the package of every wire format exports; `render` differs by format.

    `RESULT_KEY` is the field of a result that holds its content.
    """

    RESULT_KEY: str

    def parse(self, raw: Mapping[str, Any], pointer: str) -> tuple[Message, ...]:
        """Read one wire message as neutral ones.

        Raises `ValidationError` at the field below `pointer` that is wrong.
        """

    def split(self, raw: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Return the wire message to store for each of those neutral messages."""

    def results(self, raw: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
        """List the objects of a wire message that are tool results, each with its JSON pointer.

        Some may be malformed; in a message that parses, each is one tool message.
        """

    def adapt(self, message: Message, ids: Mapping[str, str] = ...) -> Message:
        """Return a clean message as the format can carry it, the same object where it can as is.

        `ids` maps call ids to the ids to send; any other becomes `tool_calls.sendable_id`. A label
        replaces a part that only another format has [neutral.opaque-family]. Reasoning stays, since
        it is counted apart.
        """

    def tools_to_wire(self, tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
        """Render tool definitions, in their order."""


FORMATS: Final[Mapping[FormatName, Format]] = MappingProxyType(
    {
        FormatName.OPENAI_CHAT: openai_chat,
        FormatName.OPENAI_RESPONSES: openai_responses,
        FormatName.ANTHROPIC: anthropic,
        FormatName.GEMINI: gemini,
    }
)
_GROUPED = re.compile(r"(.*?)/(\d+)/output/(\d+)(.*)", re.DOTALL)


def group_items(format: FormatName, raws: Sequence[Any]) -> list[tuple[int, Any]]:
    """Join the items of a batch that are one message, each with the index of its first item.

    Only OpenAI Responses has several items in a message; elsewhere each item is returned as it is.
    """
    if format is FormatName.OPENAI_RESPONSES:
        return openai_responses.group_items(raws)
    return list(enumerate(raws))


def with_request_pointers(error: ValidationError) -> ValidationError:
    """Return an error about joined items with JSON pointers to the items of the request."""
    problems = tuple(
        Problem(_GROUPED.sub(_request_pointer, problem.pointer), problem.detail)
        for problem in error.problems
    )
    return ValidationError(error.detail, problems=problems)


def _request_pointer(match: re.Match[str]) -> str:
    start, first, offset, rest = match.groups()
    return f"{start}/{int(first) + int(offset)}{rest}"
