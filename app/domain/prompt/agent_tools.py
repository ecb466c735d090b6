"""The service's own tools, which an LLM calls, in every provider's words (L1).

1. A tool is declared once: its schema, the check of its arguments and what it asks for come from
   the same parameters and cannot differ.
2. What is no call of its format, or a call of an unknown tool, is the caller's mistake, told with
   a pointer. Wrong arguments are the model's, told in a sentence that the model can act on.
3. Arguments are read generously: numbers and booleans may come as text, null is as good as left
   out, and a number above its maximum becomes the maximum.
4. A call's id goes back as it came; only the text of a result is made sendable (decision 3).
5. What a search found is answered in text, where the provider has nothing better: Anthropic takes
   references to tools it knows of, and OpenAI's own tool search takes definitions (H3).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, assert_never

from app.domain.common import json_text
from app.domain.common.errors import ValidationError
from app.domain.common.messages import FormatName, is_sendable, sendable
from app.domain.conversations.search.query import MAX_QUERY_CHARS as MAX_QUESTION
from app.domain.formats import FORMATS, ToolDefinition, json_fields
from app.domain.formats.tool_calls import arguments_object
from app.domain.prompt.tool_deferral import (
    MAX_FOUND,
    MAX_QUERY,
    USUALLY_FOUND,
    loaded,
    references,
)
from app.domain.tool_output.blobs import encode
from app.domain.tool_output.preview import (
    COMPACT_CONTEXT,
    GREP,
    READ_BYTES,
    READ_LINES,
    RECALL,
    TOOL_SEARCH,
)

MAX_LINES: Final = 2000
MAX_BYTES: Final = 51_200
MAX_MATCHES: Final = 500
MAX_CONTEXT_LINES: Final = 20
NO_TOOL: Final = "[No tool matches.]"

_MAX_OFFSET = 2**53 - 1  # what every JSON reader holds exactly
_MAX_REF = 256
_MAX_PATTERN = 1000
_MAX_ARGUMENTS = 65_536
_MAX_SHOWN = 40
_MAX_UNKNOWN = 5
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,30}(\.0+)?")


@dataclass(frozen=True, slots=True)
class ReadLines:
    """Show up to `limit` lines of an output, from after the first `offset` lines (F4)."""

    ref_id: str
    offset: int
    limit: int


@dataclass(frozen=True, slots=True)
class ReadBytes:
    """Show up to `limit` bytes of an output, from after the first `offset` bytes (F4)."""

    ref_id: str
    offset: int
    limit: int


@dataclass(frozen=True, slots=True)
class GrepLines:
    """Show up to `limit` lines of an output that match a pattern, with those around them (F5)."""

    ref_id: str
    pattern: str
    ignore_case: bool
    before: int
    after: int
    limit: int


@dataclass(frozen=True, slots=True)
class SearchTools:
    """Show up to `limit` tools that a query matches, and have them in the next payloads (H2)."""

    query: str
    limit: int


@dataclass(frozen=True, slots=True)
class CompactContext:
    """Compact the conversation now (E7, G6)."""


@dataclass(frozen=True, slots=True)
class Recall:
    """Show messages of the whole log that a question is about, seen or no longer seen (A6)."""

    query: str


Ask = ReadLines | GrepLines | ReadBytes | SearchTools | CompactContext | Recall
_Value = str | int | bool


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument of a tool; one without a `default` must be given.

    `least` and `most` bound an integer, or the length of a string.
    """

    name: str
    kind: Literal["string", "integer", "boolean"]
    description: str
    default: _Value | None = None
    least: int = 0
    most: int = _MAX_OFFSET

    @property
    def schema(self) -> dict[str, Any]:
        """Its JSON schema; the default stands in the description, where every provider takes it."""
        schema: dict[str, Any] = {"type": self.kind, "description": self.description}
        if self.kind == "integer":
            schema["minimum"] = self.least
            if self.most != _MAX_OFFSET:
                schema["maximum"] = self.most
        return schema

    @property
    def usage(self) -> str:
        """How a refusal tells the model what belongs here."""
        kind = "whole number" if self.kind == "integer" else self.kind
        given = "required" if self.default is None else f"default {json_text.dumps(self.default)}"
        return f"{self.name} ({kind}, {given})"


@dataclass(frozen=True, slots=True)
class AgentTool:
    """A tool the service offers to an LLM; `ask` takes its parameters by name."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    ask: Callable[..., Ask]

    @property
    def definition(self) -> ToolDefinition:
        """Its definition, to be rendered like any other tool's."""
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {item.name: item.schema for item in self.parameters},
            "required": [item.name for item in self.parameters if item.default is None],
            "additionalProperties": False,
        }
        return ToolDefinition(self.name, self.description, schema)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool of ours; `arguments` is None where the model sent no JSON object.

    Only Gemini's calls may lack an `id`. `is_search_item` marks a call of OpenAI's own tool
    search, which is answered by an item of its own kind (C7).
    """

    id: str | None
    name: str
    arguments: Mapping[str, Any] | None
    is_search_item: bool = False


_REF = Parameter(
    "ref_id",
    "string",
    "The output's ref, exactly as its result gives it.",
    least=1,
    most=_MAX_REF,
)
_WHOLE = "the whole output of an earlier tool call whose result was cut, stored or trimmed."

AGENT_TOOLS: Final[Mapping[str, AgentTool]] = MappingProxyType(
    {
        tool.name: tool
        for tool in (
            AgentTool(
                READ_LINES,
                f"Read, by numbered lines, {_WHOLE} The answer's end says how to go on.",
                (
                    _REF,
                    Parameter(
                        "offset",
                        "integer",
                        "Lines to skip; 0 by default.",
                        default=0,
                    ),
                    Parameter(
                        "limit",
                        "integer",
                        f"Most lines; {MAX_LINES} by default.",
                        default=MAX_LINES,
                        least=1,
                        most=MAX_LINES,
                    ),
                ),
                ReadLines,
            ),
            AgentTool(
                GREP,
                f"Search, line by line, {_WHOLE} Answers as grep -n does.",
                (
                    _REF,
                    Parameter(
                        "pattern",
                        "string",
                        "Regular expression (RE2: no look-arounds, no backreferences).",
                        least=1,
                        most=_MAX_PATTERN,
                    ),
                    Parameter(
                        "ignore_case",
                        "boolean",
                        "false by default.",
                        default=False,
                    ),
                    Parameter(
                        "before",
                        "integer",
                        "Lines before each match; 0 by default.",
                        default=0,
                        most=MAX_CONTEXT_LINES,
                    ),
                    Parameter(
                        "after",
                        "integer",
                        "Lines after each match; 0 by default.",
                        default=0,
                        most=MAX_CONTEXT_LINES,
                    ),
                    Parameter(
                        "limit",
                        "integer",
                        "Most matches; 100 by default.",
                        default=100,
                        least=1,
                        most=MAX_MATCHES,
                    ),
                ),
                GrepLines,
            ),
            AgentTool(
                READ_BYTES,
                f"Read, by bytes, {_WHOLE} Fit for very long lines. The answer's end says how to"
                " go on.",
                (
                    _REF,
                    Parameter(
                        "offset",
                        "integer",
                        "Bytes to skip; 0 by default.",
                        default=0,
                    ),
                    Parameter(
                        "limit",
                        "integer",
                        "Most bytes; 4096 by default.",
                        default=4096,
                        least=1,
                        most=MAX_BYTES,
                    ),
                ),
                ReadBytes,
            ),
            AgentTool(
                TOOL_SEARCH,
                "Find tools that are not listed here, by what they do. Answers with their"
                " definitions; the tools found can be called from then on.",
                (
                    Parameter(
                        "query",
                        "string",
                        "What the tool should do, in a few words; or its exact name.",
                        least=1,
                        most=MAX_QUERY,
                    ),
                    Parameter(
                        "limit",
                        "integer",
                        f"Most tools; {USUALLY_FOUND} by default.",
                        default=USUALLY_FOUND,
                        least=1,
                        most=MAX_FOUND,
                    ),
                ),
                SearchTools,
            ),
            AgentTool(
                COMPACT_CONTEXT,
                "Free space in the context: a summary takes the place of earlier messages.",
                (),
                CompactContext,
            ),
            AgentTool(
                RECALL,
                "Search the whole conversation, with all that was summarised or is no longer"
                " shown. Answers with excerpts of the messages that fit best.",
                (
                    Parameter(
                        "query",
                        "string",
                        "What to look for: the words that stood there, names above all.",
                        least=1,
                        most=MAX_QUESTION,
                    ),
                ),
                Recall,
            ),
        )
    }
)
"""Every tool that can be called, by name; a new one is added here and to `Ask`."""


def definitions_in(format: FormatName) -> list[dict[str, Any]]:
    """Return the definitions as a call of that provider takes them in `tools` (L1)."""
    return FORMATS[format].tools_to_wire([tool.definition for tool in AGENT_TOOLS.values()])


def parse_call(raw: object, format: FormatName, pointer: str) -> Call:
    """Read one native call of a tool of ours; fields nobody knows are tolerated (rule 2).

    Chat: an element of `tool_calls`. Responses: a `function_call` item, or a `tool_search_call`
    for the client. Anthropic: a `tool_use` block. Gemini: a part with a `functionCall`. Raises
    ValidationError at the field below `pointer` that is malformed, and at the name of a tool that
    is none of ours.
    """
    given = json_fields.object_at(raw, pointer)
    match format:
        case FormatName.OPENAI_CHAT:
            _expect_type(given.get("type", "function"), "function", pointer)
            at = f"{pointer}/function"
            function = json_fields.object_at(given.get("function"), at)
            return _call(
                json_fields.filled_text_at(given, "id", pointer), function, "arguments", at
            )
        case FormatName.OPENAI_RESPONSES if given.get("type") == "tool_search_call":
            return _search_item(given, pointer)
        case FormatName.OPENAI_RESPONSES:
            _expect_type(given.get("type"), "function_call", pointer)
            return _call(
                json_fields.filled_text_at(given, "call_id", pointer), given, "arguments", pointer
            )
        case FormatName.ANTHROPIC:
            _expect_type(given.get("type"), "tool_use", pointer)
            return _call(json_fields.filled_text_at(given, "id", pointer), given, "input", pointer)
        case FormatName.GEMINI:
            key = "function_call" if "function_call" in given else "functionCall"
            at = f"{pointer}/{key}"
            function = json_fields.object_at(given.get(key), at)
            call_id = json_fields.optional_text_at(function, "id", at)
            return _call(call_id or None, {"args": {}, **function}, "args", at)
        case _:
            assert_never(format)


def ask_of(call: Call) -> Ask:
    """Return what a call asks for.

    Raises ValidationError whose detail tells the model all that is wrong with its arguments, and
    what is wanted (rule 2).
    """
    tool = AGENT_TOOLS[call.name]
    if call.arguments is None:
        raise _refused(tool, ["the arguments must be one JSON object"])
    given = {name: value for name, value in call.arguments.items() if value is not None}
    known = {item.name for item in tool.parameters}
    unknown = [name for name in given if name not in known]
    wrong = [f"there is no argument {_shown(name)}" for name in unknown[:_MAX_UNKNOWN]]
    values: dict[str, _Value] = {}
    for item in tool.parameters:
        try:
            values[item.name] = _read(item, given.get(item.name, item.default))
        except ValueError as problem:
            wrong.append(str(problem))
    if wrong:
        raise _refused(tool, wrong)
    return tool.ask(**values)


def result_message(
    call: Call, format: FormatName, text: str, *, is_error: bool = False
) -> dict[str, Any]:
    """Return the native message that answers a call, ready to be appended and sent (K1).

    OpenAI's formats have no mark for a failed tool: there the text says it. An output of OpenAI's
    own tool search takes no text at all, and has no tools then.
    """
    if call.is_search_item:
        return _search_output(call, (), "incomplete" if is_error else "completed")
    text = sendable(text)
    marked = f"Error: {text}" if is_error else text
    match format:
        case FormatName.OPENAI_CHAT:
            return {"role": "tool", "tool_call_id": call.id, "content": marked}
        case FormatName.OPENAI_RESPONSES:
            return {"type": "function_call_output", "call_id": call.id, "output": marked}
        case FormatName.ANTHROPIC:
            block: dict[str, Any] = {"type": "tool_result", "tool_use_id": call.id, "content": text}
            block |= {"is_error": True} if is_error else {}
            return {"role": "user", "content": [block]}
        case FormatName.GEMINI:
            answer: dict[str, Any] = {} if call.id is None else {"id": call.id}
            answer |= {"name": call.name, "response": {"error" if is_error else "output": text}}
            return {"role": "user", "parts": [{"functionResponse": answer}]}
        case _:
            assert_never(format)


def found_message(
    call: Call, format: FormatName, found: Sequence[ToolDefinition], *, native: bool
) -> dict[str, Any]:
    """Return the native message that shows the model the tools a search found (rule 5, H2).

    `native` tells that the payloads of the caller hold tools back in the provider's own way.
    """
    if call.is_search_item:
        return _search_output(call, found, "completed")
    message = result_message(call, format, _found_text(found))
    if native and found and format is FormatName.ANTHROPIC:
        message["content"][0]["content"] = references(found)
    return message


def _found_text(found: Sequence[ToolDefinition]) -> str:
    """Return definitions, one a line; those that go beyond MAX_BYTES by their names alone."""
    if not found:
        return NO_TOOL
    lines: list[str] = []
    room = MAX_BYTES
    for tool in found:
        shown = {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
        }
        line = json_fields.compact(shown)
        room -= len(encode(line)) + 1
        if room < 0 and lines:
            break
        lines.append(line)
    others = ", ".join(tool.name for tool in found[len(lines) :])
    return "\n".join([*lines, f"[Found as well: {others}.]"] if others else lines)


def _search_item(given: Mapping[str, Any], pointer: str) -> Call:
    if given.get("execution", "client") != "client":
        detail = 'must be "client": any other search has been executed already'
        raise ValidationError.at(f"{pointer}/execution", detail)
    call_id = json_fields.filled_text_at(given, "call_id", pointer)
    if "arguments" not in given:
        raise ValidationError.at(f"{pointer}/arguments", "is required")
    return Call(call_id, TOOL_SEARCH, _arguments(given["arguments"]), is_search_item=True)


def _search_output(
    call: Call, found: Sequence[ToolDefinition], status: Literal["completed", "incomplete"]
) -> dict[str, Any]:
    return {
        "type": "tool_search_output",
        "call_id": call.id,
        "execution": "client",
        "status": status,
        "tools": loaded(found),
    }


def _expect_type(given: object, wanted: str, pointer: str) -> None:
    if given != wanted:
        raise ValidationError.at(f"{pointer}/type", f'must be "{wanted}"')


def _call(call_id: str | None, function: Mapping[str, Any], key: str, pointer: str) -> Call:
    name = json_fields.filled_text_at(function, "name", pointer)
    if name not in AGENT_TOOLS:
        detail = f"is no tool of this service; there are {', '.join(AGENT_TOOLS)}"
        raise ValidationError.at(f"{pointer}/name", detail)
    if key not in function:
        raise ValidationError.at(f"{pointer}/{key}", "is required")
    return Call(call_id, name, _arguments(function[key]))


def _arguments(value: object) -> Mapping[str, Any] | None:
    match value:
        case Mapping():
            return value
        case str() if len(value) <= _MAX_ARGUMENTS:
            return arguments_object(value) if value.strip() else {}
        case _:
            return None


def _refused(tool: AgentTool, wrong: list[str]) -> ValidationError:
    takes = ", ".join(item.usage for item in tool.parameters) or "no arguments"
    return ValidationError(f"{tool.name} was not run: {'; '.join(wrong)}. It takes {takes}.")


def _read(item: Parameter, value: object) -> _Value:
    """Return the value of an argument (rule 3); raises ValueError that says what is wrong."""
    if value is None:
        raise ValueError(f"{item.name} is required")
    match item.kind:
        case "string":
            return _read_text(item, value)
        case "integer":
            return _read_number(item, value)
        case "boolean":
            return _read_flag(item, value)
        case _:
            assert_never(item.kind)


def _read_text(item: Parameter, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{item.name} must be a string, not {json_fields.json_type(value)}")
    if not item.least <= len(value) <= item.most or not is_sendable(value):
        most = f"{item.most:,}"
        raise ValueError(f"{item.name} must be {item.least} to {most} characters of plain text")
    return value


def _read_number(item: Parameter, value: object) -> int:
    number = _whole_number(value)
    if number is None:
        raise ValueError(f"{item.name} must be a whole number, which {_shown(value)} is not")
    if number < item.least:
        raise ValueError(f"{item.name} must be at least {item.least}, which {_shown(value)} is not")
    return min(number, item.most)


def _whole_number(value: object) -> int | None:
    match value:
        case bool():
            return None
        case int():
            return value
        case float() if value.is_integer():
            return int(value)
        case str() if _WHOLE_NUMBER.fullmatch(value.strip()):
            return int(value.strip().partition(".")[0])
        case _:
            return None


def _read_flag(item: Parameter, value: object) -> bool:
    match value:
        case bool():
            return value
        case str() if value.strip().lower() in ("true", "false"):
            return value.strip().lower() == "true"
        case _:
            raise ValueError(f"{item.name} must be true or false, which {_shown(value)} is not")


def _shown(value: object) -> str:
    """Quote a value of the model's in a refusal, whatever its size."""
    match value:
        case str():
            return json_text.dumps(sendable(value[:_MAX_SHOWN]))
        case bool() | int() | float():
            return json_text.dumps(value)[:_MAX_SHOWN]
        case _:
            return json_fields.json_type(value)
