"""Calls of the service's own tools: executed by the readers given, answered in text (L1).

1. A call appends nothing: the caller appends the message that comes back (decision 27).
2. What the model can mend is answered to the model: wrong arguments, a bad pattern, a ref that is
   unknown or collected. What only the caller can mend is raised.
3. What a search finds is promoted by it, and a compaction changes what later payloads show:
   neither touches the log.
4. An answer ends by saying whether there is more, and how to get it. The readers bound what they
   slice; of matches, as many are shown as go into MAX_BYTES.
5. What is recalled are a few excerpts, each with its seq: the log itself is read by others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol, assert_never

from app.domain.common.errors import Conflict, Gone, NotFound, ServiceUnavailable, ValidationError
from app.domain.common.messages import FormatName
from app.domain.compaction.planning import CompactResult
from app.domain.conversations.search.recall import Recalled
from app.domain.prompt.agent_tools import (
    MAX_BYTES,
    MAX_MATCHES,
    Call,
    CompactContext,
    GrepLines,
    ReadBytes,
    ReadLines,
    Recall,
    SearchTools,
    ask_of,
    found_message,
    parse_call,
    result_message,
)
from app.domain.prompt.tool_deferral import Found
from app.domain.tool_output.blobs import encode
from app.domain.tool_output.grep import GrepMatch, GrepResult
from app.domain.tool_output.slices import Bytes, Lines

END = "[End of output.]"
EMPTY = "[The output is empty.]"
NO_MATCH = "[No line matches.]"
NOTHING_RECALLED = "[No message matches.]"
NOT_NOW = "The context cannot be compacted at the moment. Go on without it."

Reads = ReadLines | ReadBytes | GrepLines

_MAX_NAME = 64

Check = Callable[[str, str], Awaitable[object]]
"""Takes tenant and conversation; raises NotFound where there is no such conversation."""

Compact = Callable[[str, str], Awaitable[CompactResult]]
"""Takes tenant and conversation, and compacts it whatever the pressure."""

RecallOf = Callable[[str, str, str], Awaitable[Sequence[Recalled]]]
"""Takes tenant, conversation and a question; raises NotFound where there is no conversation."""


class Search(Protocol):
    """Finds tools; raises NotFound where there is no such conversation."""

    async def __call__(
        self, tenant_id: str, conversation_id: str, query: str, limit: int, /, *, promotes: bool
    ) -> Found:
        """Return the definitions that match, best first, and promote them if that is wanted."""
        ...


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

    def __init__(
        self,
        lines: LinesOf,
        bytes: BytesOf,
        grep: MatchesOf,
        check: Check,
        search: Search,
        compact: Compact,
        recall: RecallOf,
    ) -> None:
        self._lines = lines
        self._bytes = bytes
        self._grep = grep
        self._check = check
        self._search = search
        self._compact = compact
        self._recall = recall

    async def answer(
        self,
        tenant_id: str,
        conversation_id: str,
        format: FormatName,
        raw: object,
        pointer: str = "/tool_call",
        *,
        native: bool = False,
    ) -> Answered:
        """Execute a native call and return the native message for it.

        `native` tells that the caller's payloads hold tools back in the provider's own way (H3).
        Raises ValidationError below `pointer` for what is no call of a tool of ours, NotFound for
        an unknown conversation, and whatever else no model can mend.
        """
        call = parse_call(raw, format, pointer)
        where = (tenant_id, conversation_id)
        try:
            ask = ask_of(call)
        except ValidationError as refused:
            await self._check(*where)
            return _failed(call, format, refused.detail)
        match ask:
            case SearchTools():
                # Natively the message itself makes known what was found, and no tool list changes.
                promotes = not (native or call.is_search_item)
                found = await self._search(*where, ask.query, ask.limit, promotes=promotes)
                message = found_message(call, format, found.tools, native=native)
                return Answered(message, is_error=False)
            case CompactContext():
                return await self._compacted(*where, call, format)
            case Recall():
                text = _recalled_text(await self._recall(*where, ask.query))
                return Answered(result_message(call, format, text), is_error=False)
            case _:
                return await self._read_out(*where, call, format, ask)

    async def _compacted(
        self, tenant_id: str, conversation_id: str, call: Call, format: FormatName
    ) -> Answered:
        try:
            result = await self._compact(tenant_id, conversation_id)
        except (Conflict, ServiceUnavailable):
            return _failed(call, format, NOT_NOW)
        return Answered(result_message(call, format, _compaction_text(result)), is_error=False)

    async def _read_out(
        self, tenant_id: str, conversation_id: str, call: Call, format: FormatName, ask: Reads
    ) -> Answered:
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

    async def _read(self, tenant_id: str, conversation_id: str, ask: Reads) -> str:
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


def _unknown(ask: Reads) -> str:
    return (
        f'This conversation has no tool output with ref_id "{ask.ref_id}".'
        " Give the ref exactly as the conversation names it."
    )


def _collected(ask: Reads) -> str:
    return (
        f'The tool output "{ask.ref_id}" is no longer stored.'
        " If it is still needed, run the tool that made it again."
    )


def _compaction_text(result: CompactResult) -> str:
    if not result.compacted:
        return f"[Nothing was compacted: {result.reason}.]"
    return (
        f"[Compacted: {result.before_tokens:,} tokens became {result.after_tokens:,},"
        f" {result.before_msg_count:,} messages became {result.after_msg_count:,}.]"
    )


def _recalled_text(found: Sequence[Recalled]) -> str:
    return "\n".join(map(_recalled_line, found)) or NOTHING_RECALLED


def _recalled_line(item: Recalled) -> str:
    who = f"{item.role} {item.tool_name[:_MAX_NAME]}" if item.tool_name else item.role
    ref = item.output_ref
    more = f' [{ref.byte_size:,} bytes; ref_id="{ref.id}"]' if ref is not None else ""
    return f"#{item.seq} {who} {item.created_at:%Y-%m-%d %H:%M}: {item.excerpt}{more}"


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
        way = "" if ask.limit >= MAX_MATCHES else " or raise limit"
        lines.append(f"[More matches than {count:,}; narrow the pattern{way}.]")
    return "\n".join(lines)


def _shown_lines(matches: Sequence[GrepMatch]) -> tuple[dict[int, str], int]:
    """Return the lines to show by number, each once, and how many matches they are of."""
    shown: dict[int, str] = {}
    room = MAX_BYTES
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
