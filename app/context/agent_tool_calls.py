"""Calls of agent tools, and the native messages that answer them [agent-tools.execute].

1. A call appends nothing: the caller appends the message that comes back. Its id is the call's.
2. Errors that the model can correct are answered to the model: wrong arguments, a bad pattern, an
   unknown or deleted output. Errors that only the caller can correct are raised.
   [agent-tools.model-errors]
3. Tools that a search finds are promoted, and a compaction changes later payloads. Neither changes
   the log.
4. An answer ends with a note whether there is more, and how to read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from app.blobs.chunks import encode
from app.blobs.offloading import result_in
from app.blobs.preview import COMPACT_CONTEXT, GREP, PIN_MESSAGES, READ_LINES, RECALL, TOOL_SEARCH
from app.common.errors import (
    Conflict,
    ContextError,
    Gone,
    NotFound,
    ServiceUnavailable,
    ValidationError,
)
from app.common.texts import sendable
from app.compaction.run import CompactionRequest
from app.compaction.service import CompactionService
from app.conversations.messages.transcripts import TranscriptService
from app.conversations.search.service import SearchService
from app.formats import PROVIDERS, ToolDefinition, json_fields
from app.formats.message import FormatName
from app.formats.tools import arguments_object
from app.prompt.agent_tools import AGENT_TOOLS, MAX_BYTES, MAX_MATCHES, parse_arguments
from app.tool_output.grep import GrepResult, MatchedLine
from app.tool_output.reading import BlobReader
from app.tool_output.tool_search import ToolSearchService

_MAX_ARGUMENTS = 65_536


@dataclass(frozen=True, slots=True)
class ToolCallResult:
    """The native message that answers a call; `is_error` where the model has to correct it."""

    message: dict[str, Any]
    is_error: bool


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an agent tool.

    `arguments` is None if the model did not send a JSON object. Only Gemini's calls may lack an
    `id`. `is_search_item` is true for a `tool_search_call` of OpenAI Responses, whose result is an
    item of its own type.
    """

    id: str | None
    name: str
    arguments: Mapping[str, Any] | None
    is_search_item: bool = False


@dataclass(eq=False, repr=False)
class ToolCallService:
    """Executes one tool call of a model and returns its result as a message."""

    _blobs: BlobReader
    _tools: ToolSearchService
    _compaction: CompactionService
    _messages: SearchService
    _transcripts: TranscriptService

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
        ValidationError for a call of another tool, NotFound for an unknown conversation, and other
        errors that a model cannot correct.
        """
        call, where = parse_call(raw, format, "/tool_call"), (tenant_id, conversation_id)
        try:
            arguments = parse_arguments(call.name, call.arguments)
        except ValidationError as error:
            await self._blobs.check(*where)
            return ToolCallResult(result_message(call, format, error.detail, is_error=True), True)
        if call.name == TOOL_SEARCH:
            # A native search result defines the tools itself, so the tool list stays as it is.
            promotes = not (native or call.is_search_item)
            matches = await self._tools.search(
                *where, arguments["query"], arguments["limit"], promotes=promotes
            )
            message = search_result_message(call, format, matches.tools, native=native)
            return ToolCallResult(message, is_error=False)
        ref = arguments.pop("ref_id", None)
        try:
            text, is_error = await self._text(where, call.name, ref, arguments), False
        except ContextError as error:
            correctable = _correctable(error, call.name, ref)
            if correctable is None:
                raise
            text, is_error = correctable, True
        return ToolCallResult(result_message(call, format, text, is_error=is_error), is_error)

    async def _text(
        self, where: tuple[str, str], name: str, ref: str | None, arguments: dict[str, Any]
    ) -> str:
        if ref is not None:
            return await self._read(name, (*where, ref), arguments)
        if name == RECALL:
            return (await self._messages.recall(*where, *arguments.values()))[1]
        if name == PIN_MESSAGES:
            seqs = await self._transcripts.pin_all(*where, arguments["messages"])
            return f"[Pinned: {', '.join(f'#{seq}' for seq in seqs)}.]"
        done = await self._compaction.compact(*where, CompactionRequest())
        if not done.compacted:
            return f"[Nothing was compacted: {done.reason}.]"
        return (
            f"[Compacted: {done.before_tokens:,} tokens became {done.after_tokens:,},"
            f" {done.before_messages:,} messages became {done.after_messages:,}.]"
        )

    async def _read(self, name: str, where: tuple[str, str, str], arguments: dict[str, Any]) -> str:
        if name == GREP:
            return _matches_text(await self._blobs.grep(*where, **arguments), arguments)
        if name == READ_LINES:
            lines = await self._blobs.read_lines(*where, **arguments)
            unit, text, next_offset = "lines", lines.text, lines.next_offset
            offset, total, first = lines.offset, lines.line_count, lines.offset + 1
        else:
            slice_ = await self._blobs.read_bytes(*where, **arguments)
            unit, text, next_offset = "bytes", slice_.text, slice_.next_offset
            offset, total, first = slice_.offset, slice_.byte_size, slice_.offset
        end = total if next_offset is None else next_offset
        if end <= offset:
            past = f"[The output has {total:,} {unit}; offset={offset} is past its end.]"
            return past if total else "[The output is empty.]"
        note = "[End of output.]"
        if next_offset is not None:
            shown = f"{unit.capitalize()} {first}-{first + end - offset - 1} of {total:,}."
            note = f"[{shown} Go on with offset={next_offset}.]"
        return f"{text}{note}" if text.endswith("\n") else f"{text}\n{note}"


# --- calls and their messages ---------------------------------------------------------------------


def parse_call(raw: object, format: FormatName, pointer: str) -> Call:
    """Parse a call of an agent tool in a provider's format; unknown fields are ignored.

    Raises ValidationError below `pointer` for a malformed field or an unknown tool.
    """
    call = PROVIDERS[format].read_call(json_fields.Fields(raw, pointer))
    fields, key = call.fields, call.key
    name = TOOL_SEARCH if call.is_search else fields.filled_text("name")
    if name not in AGENT_TOOLS:
        raise fields.error(
            "name", f"is no tool of this service; there are {', '.join(AGENT_TOOLS)}"
        )
    if key not in fields.raw:
        raise fields.error(key, "is required")
    arguments = fields.raw[key]
    if isinstance(arguments, str):
        is_short = len(arguments) <= _MAX_ARGUMENTS
        arguments = (arguments_object(arguments) if arguments.strip() else {}) if is_short else None
    is_object = isinstance(arguments, Mapping)
    return Call(call.id, name, arguments if is_object else None, call.is_search)


def result_message(
    call: Call, format: FormatName, text: str, *, is_error: bool = False
) -> dict[str, Any]:
    """Return the native message that answers a call.

    OpenAI's formats have no error flag: there the text begins with "Error:". The output of OpenAI's
    tool search takes no text; an error is an empty list with the status `incomplete`.
    """
    if call.is_search_item:
        status = "incomplete" if is_error else "completed"
        return PROVIDERS[format].search_output(call.id, (), status)
    return PROVIDERS[format].result(call.id, call.name, sendable(text), is_error=is_error)


def search_result_message(
    call: Call, format: FormatName, tools: Sequence[ToolDefinition], *, native: bool
) -> dict[str, Any]:
    """Return the native message with the tools that a search found.

    It is text, one definition a line, and beyond MAX_BYTES only names. An output of OpenAI's tool
    search takes definitions. `native` is true if the caller's payloads defer tools with the
    provider's own mechanism: Anthropic takes references then.
    """
    provider = PROVIDERS[format]
    if call.is_search_item:
        return provider.search_output(call.id, tools, "completed")
    lines: list[str] = []
    remaining_bytes = MAX_BYTES
    for tool in tools:
        definition = {"name": tool.name, "description": tool.description}
        line = json_fields.compact(definition | {"parameters": tool.parameters})
        remaining_bytes -= len(encode(line)) + 1
        if remaining_bytes < 0 and lines:
            others = ", ".join(tool.name for tool in tools[len(lines) :])
            lines.append(f"[Found as well: {others}.]")
            break
        lines.append(line)
    message = result_message(call, format, "\n".join(lines) or "[No tool matches.]")
    if native and (references := provider.tool_references(tools)):
        result_in(message, format)[provider.result_key] = references
    return message


# --- texts for the model --------------------------------------------------------------------------


def _correctable(error: ContextError, name: str, ref: str | None) -> str | None:
    """Return the text of an error that the model can correct (rule 2), None for another one."""
    if name == COMPACT_CONTEXT and isinstance(error, Conflict | ServiceUnavailable):
        return "The context cannot be compacted at the moment. Go on without it."
    if name == PIN_MESSAGES and isinstance(error, ValidationError):
        return f"Nothing was pinned: {error.detail}."
    if ref is None or error.facts.keys() == {"conversation_id"}:
        return None
    if isinstance(error, NotFound):
        return (
            f'This conversation has no tool output with ref_id "{ref}".'
            " Give the ref exactly as the conversation names it."
        )
    if isinstance(error, Gone):
        return (
            f'The tool output "{ref}" is no longer stored.'
            " If it is still needed, run the tool that made it again."
        )
    return f"{name} was not run: {error.detail}" if isinstance(error, ValidationError) else None


def _matches_text(result: GrepResult, arguments: Mapping[str, Any]) -> str:
    """Return matches as grep prints them, with `--` between groups of lines around them."""
    if not result.matches:
        return "[No line matches.]"
    numbered, count = _lines_to_show(result.matches)
    lines: list[str] = []
    for number, text in numbered.items():
        is_apart = number - 1 not in numbered and (arguments["before"] or arguments["after"])
        lines += ["--", text] if lines and is_apart else [text]
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
    for count, match in enumerate(matches):
        around = chain(
            enumerate(match.before, match.line - len(match.before)),
            enumerate(match.after, match.line + 1),
        )
        new = {number: f"{number}-{text}" for number, text in around if number not in shown}
        new[match.line] = f"{match.line}:{match.text}"
        remaining_bytes -= sum(len(encode(text)) + 1 for text in new.values())
        if remaining_bytes < 0:
            # At least one match is shown, without its context where that is too long.
            if not shown:
                return {match.line: new[match.line]}, 1
            return dict(sorted(shown.items())), count
        shown |= new
    return dict(sorted(shown.items())), len(matches)
