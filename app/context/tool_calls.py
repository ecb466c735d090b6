"""Calls of agent tools: executed by other services, answered in text.

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
from typing import Any

from app.blobs.blobs import encode
from app.blobs.preview import COMPACT_CONTEXT, GREP, READ_LINES, RECALL, TOOL_SEARCH
from app.common.errors import Conflict, Gone, NotFound, ServiceUnavailable, ValidationError
from app.compaction.schemas import CompactionRequest
from app.compaction.service import CompactionService
from app.conversations.compaction_results import CompactResult
from app.conversations.search.recall import Recalled, RecallPage
from app.conversations.search.service import SearchService
from app.formats.message import FormatName
from app.prompt.agent_tool_calls import (
    arguments_of,
    parse_call,
    result_message,
    search_result_message,
)
from app.prompt.agent_tools import MAX_BYTES, MAX_MATCHES
from app.tool_output.grep import GrepResult, MatchedLine
from app.tool_output.reading import BlobReader
from app.tool_output.tool_search import ToolSearchService

END = "[End of output.]"
EMPTY = "[The output is empty.]"
NO_MATCH = "[No line matches.]"
NOTHING_RECALLED = "[No message matches.]"
NOT_NOW = "The context cannot be compacted at the moment. Go on without it."

_MAX_NAME = 64


@dataclass(frozen=True, slots=True)
class ToolCallResult:
    """The native message that answers a call; `is_error` where the model has to correct it."""

    message: dict[str, Any]
    is_error: bool


class _ModelError(Exception):
    """An error that the model can correct, with the text for it (rule 2)."""


@dataclass(eq=False, repr=False)
class ToolCallService:
    """Executes one tool call of a model and returns its result as a message."""

    _blobs: BlobReader
    _tools: ToolSearchService
    _compaction: CompactionService
    _messages: SearchService

    async def answer(
        self,
        tenant_id: str,
        conversation_id: str,
        format: FormatName,
        raw: object,
        *,
        native: bool = False,
    ) -> ToolCallResult:
        """Execute a native call and return the native message for it.

        With `native` the provider itself defers tools in the caller's payloads. Raises
        ValidationError for a call of another tool, NotFound for an unknown
        conversation, and other errors that a model cannot correct.
        """
        call = parse_call(raw, format, "/tool_call")
        where = (tenant_id, conversation_id)
        try:
            try:
                arguments = arguments_of(call)
            except ValidationError as error:
                await self._blobs.check(*where)
                raise _ModelError(error.detail) from error
            if call.name == TOOL_SEARCH:
                # A native search result defines the tools itself, so the tool list stays as it is.
                promotes = not (native or call.is_search_item)
                matches = await self._tools.search(
                    *where, arguments["query"], arguments["limit"], promotes=promotes
                )
                message = search_result_message(call, format, matches.tools, native=native)
                return ToolCallResult(message, is_error=False)
            text = await self._answer_text(*where, call.name, arguments)
        except _ModelError as error:
            return ToolCallResult(
                result_message(call, format, str(error), is_error=True), is_error=True
            )
        return ToolCallResult(result_message(call, format, text), is_error=False)

    async def _answer_text(
        self, tenant_id: str, conversation_id: str, name: str, arguments: dict[str, Any]
    ) -> str:
        if name == COMPACT_CONTEXT:
            try:
                result = await self._compaction.compact(
                    tenant_id, conversation_id, CompactionRequest()
                )
            except (Conflict, ServiceUnavailable) as error:
                raise _ModelError(NOT_NOW) from error
            return _compaction_text(result)
        if name == RECALL:
            page = await self._messages.recall(
                tenant_id, conversation_id, arguments["query"], arguments["offset"]
            )
            return _recalled_text(page)
        ref = arguments.pop("ref_id")
        try:
            return await self._read(name, (tenant_id, conversation_id, ref), arguments)
        except NotFound as error:
            if error.facts.keys() == {"conversation_id"}:
                raise
            raise _ModelError(
                f'This conversation has no tool output with ref_id "{ref}".'
                " Give the ref exactly as the conversation names it."
            ) from error
        except Gone as error:
            raise _ModelError(
                f'The tool output "{ref}" is no longer stored.'
                " If it is still needed, run the tool that made it again."
            ) from error
        except ValidationError as error:
            raise _ModelError(f"{name} was not run: {error.detail}") from error

    async def _read(self, name: str, where: tuple[str, str, str], arguments: dict[str, Any]) -> str:
        if name == GREP:
            return _matches_text(await self._blobs.grep(*where, **arguments), arguments)
        if name == READ_LINES:
            lines = await self._blobs.read_lines(*where, **arguments)
            unit, text, next_offset = "lines", lines.text, lines.next_offset
            numbers = lines.first_line, lines.line_count, lines.total_lines
        else:
            slice_ = await self._blobs.read_bytes(*where, **arguments)
            unit, text, next_offset = "bytes", slice_.text, slice_.next_offset
            numbers = slice_.offset, slice_.byte_count, slice_.total_bytes
        return _slice_text(unit, text, *numbers, arguments["offset"], next_offset)


def _compaction_text(result: CompactResult) -> str:
    if not result.compacted:
        return f"[Nothing was compacted: {result.reason}.]"
    return (
        f"[Compacted: {result.before_tokens:,} tokens became {result.after_tokens:,},"
        f" {result.before_msg_count:,} messages became {result.after_msg_count:,}.]"
    )


def _recalled_text(page: RecallPage) -> str:
    """Return a page's messages, best first, and a note whether there are more."""
    if not page.messages:
        past = f"[{page.total} messages are ranked; offset={page.offset} is past the last.]"
        return past if page.total else NOTHING_RECALLED
    lines = [line for item in page.messages for line in _recalled_lines(item)]
    next_offset = page.offset + len(page.messages)
    if next_offset < page.total:
        shown = f"{page.offset + 1}-{next_offset} of {page.total}"
        lines.append(f"[Messages {shown}, the best first. Go on with offset={next_offset}.]")
    return "\n".join(lines)


def _recalled_lines(item: Recalled) -> Iterator[str]:
    """Yield a message's line, and below it one for each message around it."""
    ref = item.output_ref
    more = f' [{ref.byte_size:,} bytes; ref_id="{ref.id}"]' if ref is not None else ""
    who = _who(item.role, item.tool_name)
    yield f"#{item.seq} {who} {item.time:%Y-%m-%d %H:%M}: {item.excerpt}{more}"
    for place, beside in (("before", item.before), ("after", item.after)):
        if beside is not None:
            yield f"  {place}, {_who(beside.role, beside.tool_name)}: {beside.excerpt}"


def _who(role: str, tool_name: str | None) -> str:
    return f"{role} {tool_name[:_MAX_NAME]}" if tool_name else role


def _slice_text(
    unit: str, text: str, first: int, count: int, total: int, offset: int, next_offset: int | None
) -> str:
    """Return `count` lines or bytes of an output, and a note on how to read on."""
    if not count:
        past = f"[The output has {total:,} {unit}; offset={offset} is past its end.]"
        return past if total else EMPTY
    note = END
    if next_offset is not None:
        shown = f"{unit.capitalize()} {first}-{first + count - 1} of {total:,}."
        note = f"[{shown} Go on with offset={next_offset}.]"
    return f"{text}{note}" if text.endswith("\n") else f"{text}\n{note}"


def _matches_text(result: GrepResult, arguments: Mapping[str, Any]) -> str:
    if not result.matches:
        return NO_MATCH
    numbered, count = _lines_to_show(result.matches)
    lines = (
        _with_group_separators(numbered)
        if arguments["before"] or arguments["after"]
        else [*numbered.values()]
    )
    if count < len(result.matches):
        lines.append(f"[More matches than these {count:,}; narrow the pattern.]")
    elif result.truncated:
        # At the maximum a higher limit has no effect.
        way = "" if arguments["limit"] >= MAX_MATCHES else " or raise limit"
        lines.append(f"[More matches than {count:,}; narrow the pattern{way}.]")
    return "\n".join(lines)


def _lines_to_show(matches: Sequence[MatchedLine]) -> tuple[dict[int, str], int]:
    """Return the lines to show by number, each once, and the number of their matches."""
    shown: dict[int, str] = {}
    remaining_bytes = MAX_BYTES
    count = 0
    for match in matches:
        context_lines = chain(
            enumerate(match.before, match.line - len(match.before)),
            enumerate(match.after, match.line + 1),
        )
        new_lines = {
            number: f"{number}-{text}" for number, text in context_lines if number not in shown
        }
        new_lines[match.line] = f"{match.line}:{match.text}"
        remaining_bytes -= sum(len(encode(text)) + 1 for text in new_lines.values())
        if remaining_bytes < 0:
            # At least one match is shown, without its context where that is too long.
            if not shown:
                return {match.line: new_lines[match.line]}, 1
            break
        shown |= new_lines
        count += 1
    return dict(sorted(shown.items())), count


def _with_group_separators(numbered: Mapping[int, str]) -> list[str]:
    """Return the lines as grep prints them, with `--` between groups."""
    lines: list[str] = []
    for number, text in numbered.items():
        if lines and number - 1 not in numbered:
            lines.append("--")
        lines.append(text)
    return lines
