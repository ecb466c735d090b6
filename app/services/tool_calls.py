"""Calls of the service's own tools: executed by the readers given, answered in text (L1).

1. A call appends nothing: the caller appends the message that comes back (decision 27).
2. What the model can mend is answered to the model: wrong arguments, a bad pattern, a ref that is
   unknown or collected. What only the caller can mend is raised.
3. An answer ends by saying whether there is more, and how to get it. The readers bound what they
   slice; of matches, as many are shown as go into MOST_BYTES.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol, assert_never

from app.domain.agent_tools import (
    MOST_BYTES,
    MOST_MATCHES,
    Ask,
    Call,
    GrepLines,
    ReadBytes,
    ReadLines,
    ask_of,
    parse_call,
    result_message,
)
from app.domain.blobs import encode
from app.domain.errors import Gone, NotFound, ValidationError
from app.domain.grep import GrepMatch, GrepResult
from app.domain.messages import FormatName
from app.domain.slices import Bytes, Lines

END = "[End of output.]"
EMPTY = "[The output is empty.]"
NO_MATCH = "[No line matches.]"

Check = Callable[[str, str], Awaitable[object]]
"""Takes tenant and conversation; raises NotFound where there is no such conversation."""


class LinesOf(Protocol):
    """Reads an output by lines; raises NotFound or Gone."""

    async def __call__(
        self, tenant_id: str, conversation_id: str, ref: str, offset: int, limit: int, /
    ) -> Lines:
        """Return numbered lines from after the first `offset` ones."""
        ...


class BytesOf(Protocol):
    """Reads an output by bytes; raises NotFound or Gone."""

    async def __call__(
        self, tenant_id: str, conversation_id: str, ref: str, offset: int, limit: int, /
    ) -> Bytes:
        """Return whole characters from after the first `offset` bytes."""
        ...


class MatchesOf(Protocol):
    """Searches an output; raises NotFound, Gone, or ValidationError for a bad pattern."""

    async def __call__(
        self,
        tenant_id: str,
        conversation_id: str,
        ref: str,
        pattern: str,
        /,
        *,
        ignore_case: bool,
        before: int,
        after: int,
        limit: int,
    ) -> GrepResult:
        """Return the matching lines with those around them."""
        ...


@dataclass(frozen=True, slots=True)
class Answered:
    """The native message that answers a call; `is_error` where the model has to mend it."""

    message: dict[str, Any]
    is_error: bool


class ToolCallService:
    """Executes one tool call of an LLM and words its result."""

    def __init__(self, lines: LinesOf, bytes: BytesOf, grep: MatchesOf, check: Check) -> None:
        self._lines = lines
        self._bytes = bytes
        self._grep = grep
        self._check = check

    async def answer(
        self,
        tenant_id: str,
        conversation_id: str,
        format: FormatName,
        raw: object,
        pointer: str = "/tool_call",
    ) -> Answered:
        """Execute a native call and return the native message for it.

        Raises ValidationError below `pointer` for what is no call of a tool of ours, NotFound for
        an unknown conversation, and whatever else the readers raise that no model can mend.
        """
        call = parse_call(raw, format, pointer)
        try:
            ask = ask_of(call)
        except ValidationError as refused:
            await self._check(tenant_id, conversation_id)
            return _failed(call, format, refused.detail)
        try:
            text = await self._read(tenant_id, conversation_id, ask)
        except NotFound as error:
            if error.facts.keys() == {"conversation_id"}:
                raise
            return _failed(call, format, _unknown(ask))
        except Gone:
            return _failed(call, format, _collected(ask))
        except ValidationError as error:
            return _failed(call, format, f"{call.name} was not run: {error.detail}")
        return Answered(result_message(call, format, text), is_error=False)

    async def _read(self, tenant_id: str, conversation_id: str, ask: Ask) -> str:
        where = (tenant_id, conversation_id, ask.ref_id)
        match ask:
            case ReadLines():
                return _lines_text(await self._lines(*where, ask.offset, ask.limit), ask)
            case ReadBytes():
                return _bytes_text(await self._bytes(*where, ask.offset, ask.limit), ask)
            case GrepLines():
                found = await self._grep(
                    *where,
                    ask.pattern,
                    ignore_case=ask.ignore_case,
                    before=ask.before,
                    after=ask.after,
                    limit=ask.limit,
                )
                return _matches_text(found, ask)
            case _:
                assert_never(ask)


def _failed(call: Call, format: FormatName, text: str) -> Answered:
    return Answered(result_message(call, format, text, is_error=True), is_error=True)


def _unknown(ask: Ask) -> str:
    return (
        f'This conversation has no tool output with ref_id "{ask.ref_id}".'
        " Give the ref exactly as the conversation names it."
    )


def _collected(ask: Ask) -> str:
    return (
        f'The tool output "{ask.ref_id}" is no longer stored.'
        " If it is still needed, run the tool that made it again."
    )


def _lines_text(lines: Lines, ask: ReadLines) -> str:
    if not lines.line_count:
        past = f"[The output has {lines.total_lines:,} lines; offset={ask.offset} is past its end.]"
        return past if lines.total_lines else EMPTY
    if lines.next_offset is None:
        return _closed(lines.text, END)
    last = lines.first_line + lines.line_count - 1
    shown = f"Lines {lines.first_line}-{last} of {lines.total_lines:,}."
    return _closed(lines.text, f"[{shown} Go on with offset={lines.next_offset}.]")


def _bytes_text(piece: Bytes, ask: ReadBytes) -> str:
    if not piece.byte_count:
        past = f"[The output has {piece.total_bytes:,} bytes; offset={ask.offset} is past its end.]"
        return past if piece.total_bytes else EMPTY
    if piece.next_offset is None:
        return _closed(piece.text, END)
    last = piece.offset + piece.byte_count - 1
    shown = f"Bytes {piece.offset}-{last} of {piece.total_bytes:,}."
    return _closed(piece.text, f"[{shown} Go on with offset={piece.next_offset}.]")


def _closed(text: str, note: str) -> str:
    return f"{text}{note}" if text.endswith("\n") else f"{text}\n{note}"


def _matches_text(found: GrepResult, ask: GrepLines) -> str:
    if not found.matches:
        return NO_MATCH
    numbered, count = _shown_lines(found.matches)
    lines = _grouped(numbered) if ask.before or ask.after else [*numbered.values()]
    if count < len(found.matches):
        lines.append(f"[More matches than these {count:,}; narrow the pattern.]")
    elif found.truncated:
        # At the maximum a higher limit would show no more.
        way = "" if ask.limit >= MOST_MATCHES else " or raise limit"
        lines.append(f"[More matches than {count:,}; narrow the pattern{way}.]")
    return "\n".join(lines)


def _shown_lines(matches: Sequence[GrepMatch]) -> tuple[dict[int, str], int]:
    """Return the lines to show by number, each once, and how many matches they are of."""
    shown: dict[int, str] = {}
    room = MOST_BYTES
    for count, match in enumerate(matches):
        fresh = {number: text for number, text in _around(match) if number not in shown}
        fresh[match.line] = f"{match.line}:{match.text}"
        room -= sum(len(encode(text)) + 1 for text in fresh.values())
        if room < 0:
            # One match is shown at least, if need be without the lines around it.
            return (_sorted(shown), count) if shown else ({match.line: fresh[match.line]}, 1)
        shown |= fresh
    return _sorted(shown), len(matches)


def _around(match: GrepMatch) -> Iterator[tuple[int, str]]:
    first = match.line - len(match.before)
    for number, text in chain(
        enumerate(match.before, first), enumerate(match.after, match.line + 1)
    ):
        yield number, f"{number}-{text}"


def _sorted(lines: Mapping[int, str]) -> dict[int, str]:
    return dict(sorted(lines.items()))


def _grouped(numbered: Mapping[int, str]) -> list[str]:
    """Return the lines as grep prints them: a mark where some between are left out."""
    lines: list[str] = []
    for number, text in numbered.items():
        if lines and number - 1 not in numbered:
            lines.append("--")
        lines.append(text)
    return lines
