"""Calls of the service's own tools: executed by other services, answered in text.

1. A call appends nothing: the caller appends the message that comes back.
2. Errors that the model can correct are answered to the model: wrong arguments, a bad pattern, an
   unknown or deleted output. Errors that only the caller can correct are raised.
3. Tools that a search finds are promoted, and a compaction changes later payloads. Neither changes
   the log.
4. An answer ends with a note whether there is more, and how to read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, assert_never

from app.domain.common.errors import Conflict, Gone, NotFound, ServiceUnavailable, ValidationError
from app.domain.common.messages import FormatName
from app.domain.compaction.results import CompactResult
from app.domain.conversations.search.recall import Recalled
from app.domain.prompt.agent_tool_calls import Call, parse_call, request_of
from app.domain.prompt.agent_tool_results import result_message, search_result_message
from app.domain.prompt.agent_tools import (
    MAX_BYTES,
    MAX_MATCHES,
    CompactContext,
    GrepLines,
    ReadBytes,
    ReadLines,
    Recall,
    SearchTools,
)
from app.domain.tool_output.blobs import encode
from app.domain.tool_output.grep import GrepResult, MatchedLine
from app.domain.tool_output.slices import OutputBytes, OutputLines
from app.services.compaction.compaction import CompactionService
from app.services.compaction.runs import CompactRequest
from app.services.conversations.search import SearchService
from app.services.prompt.tool_search import ToolSearchService
from app.services.tool_output.reading import BlobReader

END = "[End of output.]"
EMPTY = "[The output is empty.]"
NO_MATCH = "[No line matches.]"
NOTHING_RECALLED = "[No message matches.]"
NOT_NOW = "The context cannot be compacted at the moment. Go on without it."

Reads = ReadLines | ReadBytes | GrepLines

_MAX_NAME = 64


@dataclass(frozen=True, slots=True)
class Answered:
    """The native message that answers a call; `is_error` where the model has to correct it."""

    message: dict[str, Any]
    is_error: bool


class ToolCallService:
    """Executes one tool call of a model and returns its result as a message."""

    def __init__(
        self,
        blobs: BlobReader,
        tools: ToolSearchService,
        compaction: CompactionService,
        messages: SearchService,
    ) -> None:
        self._blobs = blobs
        self._tools = tools
        self._compaction = compaction
        self._messages = messages

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

        With `native` the provider itself defers tools in the caller's payloads. Raises
        ValidationError below `pointer` for a call of another tool, NotFound for an unknown
        conversation, and other errors that a model cannot correct.
        """
        call = parse_call(raw, format, pointer)
        where = (tenant_id, conversation_id)
        try:
            args = request_of(call)
        except ValidationError as refused:
            await self._blobs.check(*where)
            return _failed(call, format, refused.detail)
        match args:
            case SearchTools():
                # A native search result defines the tools itself, so the tool list stays as it is.
                promotes = not (native or call.is_search_item)
                found = await self._tools.search(*where, args.query, args.limit, promotes=promotes)
                message = search_result_message(call, format, found.tools, native=native)
                return Answered(message, is_error=False)
            case CompactContext():
                return await self._answer_compact(*where, call, format)
            case Recall():
                text = _recalled_text(await self._messages.recall(*where, args.query))
                return Answered(result_message(call, format, text), is_error=False)
            case _:
                return await self._answer_read(*where, call, format, args)

    async def _answer_compact(
        self, tenant_id: str, conversation_id: str, call: Call, format: FormatName
    ) -> Answered:
        try:
            result = await self._compaction.compact(tenant_id, conversation_id, CompactRequest())
        except (Conflict, ServiceUnavailable):
            return _failed(call, format, NOT_NOW)
        return Answered(result_message(call, format, _compaction_text(result)), is_error=False)

    async def _answer_read(
        self, tenant_id: str, conversation_id: str, call: Call, format: FormatName, args: Reads
    ) -> Answered:
        try:
            text = await self._read(tenant_id, conversation_id, args)
        except NotFound as error:
            if error.facts.keys() == {"conversation_id"}:
                raise
            return _failed(call, format, _unknown_text(args))
        except Gone:
            return _failed(call, format, _deleted_text(args))
        except ValidationError as error:
            return _failed(call, format, f"{call.name} was not run: {error.detail}")
        return Answered(result_message(call, format, text), is_error=False)

    async def _read(self, tenant_id: str, conversation_id: str, args: Reads) -> str:
        where = (tenant_id, conversation_id, args.ref_id)
        match args:
            case ReadLines():
                return _lines_text(
                    await self._blobs.read_lines(*where, args.offset, args.limit),
                    args,
                )
            case ReadBytes():
                return _bytes_text(
                    await self._blobs.read_bytes(*where, args.offset, args.limit),
                    args,
                )
            case GrepLines():
                found = await self._blobs.grep(
                    *where,
                    args.pattern,
                    ignore_case=args.ignore_case,
                    before=args.before,
                    after=args.after,
                    limit=args.limit,
                )
                return _matches_text(found, args)
            case _:
                assert_never(args)


def _failed(call: Call, format: FormatName, text: str) -> Answered:
    return Answered(result_message(call, format, text, is_error=True), is_error=True)


def _unknown_text(args: Reads) -> str:
    return (
        f'This conversation has no tool output with ref_id "{args.ref_id}".'
        " Give the ref exactly as the conversation names it."
    )


def _deleted_text(args: Reads) -> str:
    return (
        f'The tool output "{args.ref_id}" is no longer stored.'
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


def _lines_text(lines: OutputLines, args: ReadLines) -> str:
    if not lines.line_count:
        past = (
            f"[The output has {lines.total_lines:,} lines; offset={args.offset} is past its end.]"
        )
        return past if lines.total_lines else EMPTY
    if lines.next_offset is None:
        return _with_note(lines.text, END)
    last = lines.first_line + lines.line_count - 1
    shown = f"Lines {lines.first_line}-{last} of {lines.total_lines:,}."
    return _with_note(lines.text, f"[{shown} Go on with offset={lines.next_offset}.]")


def _bytes_text(piece: OutputBytes, args: ReadBytes) -> str:
    if not piece.byte_count:
        past = (
            f"[The output has {piece.total_bytes:,} bytes; offset={args.offset} is past its end.]"
        )
        return past if piece.total_bytes else EMPTY
    if piece.next_offset is None:
        return _with_note(piece.text, END)
    last = piece.offset + piece.byte_count - 1
    shown = f"Bytes {piece.offset}-{last} of {piece.total_bytes:,}."
    return _with_note(piece.text, f"[{shown} Go on with offset={piece.next_offset}.]")


def _with_note(text: str, note: str) -> str:
    return f"{text}{note}" if text.endswith("\n") else f"{text}\n{note}"


def _matches_text(found: GrepResult, args: GrepLines) -> str:
    if not found.matches:
        return NO_MATCH
    numbered, count = _shown_lines(found.matches)
    lines = _grouped(numbered) if args.before or args.after else [*numbered.values()]
    if count < len(found.matches):
        lines.append(f"[More matches than these {count:,}; narrow the pattern.]")
    elif found.truncated:
        # At the maximum a higher limit has no effect.
        way = "" if args.limit >= MAX_MATCHES else " or raise limit"
        lines.append(f"[More matches than {count:,}; narrow the pattern{way}.]")
    return "\n".join(lines)


def _shown_lines(matches: Sequence[MatchedLine]) -> tuple[dict[int, str], int]:
    """Return the lines to show by number, each once, and the number of their matches."""
    shown: dict[int, str] = {}
    room = MAX_BYTES
    for count, match in enumerate(matches):
        fresh = {number: text for number, text in _around(match) if number not in shown}
        fresh[match.line] = f"{match.line}:{match.text}"
        room -= sum(len(encode(text)) + 1 for text in fresh.values())
        if room < 0:
            # At least one match is shown, without its context where that is too long.
            return (_sorted(shown), count) if shown else ({match.line: fresh[match.line]}, 1)
        shown |= fresh
    return _sorted(shown), len(matches)


def _around(match: MatchedLine) -> Iterator[tuple[int, str]]:
    first = match.line - len(match.before)
    for number, text in chain(
        enumerate(match.before, first), enumerate(match.after, match.line + 1)
    ):
        yield number, f"{number}-{text}"


def _sorted(lines: Mapping[int, str]) -> dict[int, str]:
    return dict(sorted(lines.items()))


def _grouped(numbered: Mapping[int, str]) -> list[str]:
    """Return the lines as grep prints them, with `--` between groups."""
    lines: list[str] = []
    for number, text in numbered.items():
        if lines and number - 1 not in numbered:
            lines.append("--")
        lines.append(text)
    return lines
