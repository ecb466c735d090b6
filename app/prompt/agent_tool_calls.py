"""Calls of agent tools, and the native messages that answer them [agent-tools.execute].

1. A malformed call, or a call of an unknown tool, is an error for the caller, with a pointer.
   Invalid arguments are an error message for the model [agent-tools.model-errors].
2. Arguments are parsed leniently: numbers and booleans may be strings, null means absent, and a
   number above its maximum is lowered to the maximum.
3. A call's id is returned unchanged; only the text of a result is made sendable.
4. The result of a tool search is text, except where the provider has a type for it: Anthropic takes
   references to known tools, and an output of OpenAI's tool search takes definitions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, assert_never

from app.blobs.blobs import encode
from app.blobs.preview import TOOL_SEARCH
from app.blobs.result_content import result_in
from app.common import json_text
from app.common.errors import ValidationError
from app.common.sendable import is_sendable, sendable
from app.formats import PROVIDERS, ToolDefinition, json_fields
from app.formats.message import FormatName
from app.formats.tools import arguments_object
from app.prompt.agent_tools import AGENT_TOOLS, MAX_BYTES, AgentTool, ArgumentValue, Parameter

NO_TOOL: Final = "[No tool matches.]"

_MAX_ARGUMENTS = 65_536
_MAX_QUOTED = 40
_MAX_UNKNOWN = 5
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,30}(\.0+)?")


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
    return Call(call.id, name, _arguments(fields.raw[key]), call.is_search)


def arguments_of(call: Call) -> dict[str, Any]:
    """Return the arguments of a call, with defaults for those left out.

    Raises ValidationError; its detail is for the model and lists every invalid argument and the
    parameters of the tool.
    """
    tool = AGENT_TOOLS[call.name]
    if call.arguments is None:
        raise _invalid(tool, ["the arguments must be one JSON object"])
    arguments = {name: value for name, value in call.arguments.items() if value is not None}
    names = {item.name for item in tool.parameters}
    unknown = [name for name in arguments if name not in names]
    errors = [f"there is no argument {_quoted(name)}" for name in unknown[:_MAX_UNKNOWN]]
    values: dict[str, ArgumentValue] = {}
    for item in tool.parameters:
        try:
            values[item.name] = _parsed(item, arguments.get(item.name, item.default))
        except ValueError as error:
            errors.append(str(error))
    if errors:
        raise _invalid(tool, errors)
    return values


def _arguments(value: object) -> Mapping[str, Any] | None:
    match value:
        case Mapping():
            return value
        case str() if len(value) <= _MAX_ARGUMENTS:
            return arguments_object(value) if value.strip() else {}
        case _:
            return None


def _invalid(tool: AgentTool, errors: list[str]) -> ValidationError:
    usage = ", ".join(item.usage for item in tool.parameters) or "no arguments"
    return ValidationError(f"{tool.name} was not run: {'; '.join(errors)}. It takes {usage}.")


def _parsed(item: Parameter, value: object) -> ArgumentValue:
    """Return the value of an argument; raises ValueError with an error message for the model."""
    if value is None:
        raise ValueError(f"{item.name} is required")
    match item.kind:
        case "string":
            if not isinstance(value, str):
                kind = json_fields.json_type(value)
                raise ValueError(f"{item.name} must be a string, not {kind}")
            if not item.minimum <= len(value) <= item.maximum or not is_sendable(value):
                length = f"{item.minimum} to {item.maximum:,}"
                raise ValueError(f"{item.name} must be {length} characters of plain text")
            return value
        case "integer":
            number = _whole_number(value)
            if number is None or number < item.minimum:
                expected = "a whole number" if number is None else f"at least {item.minimum}"
                raise ValueError(f"{item.name} must be {expected}, which {_quoted(value)} is not")
            return min(number, item.maximum)
        case "boolean":
            if isinstance(value, bool):
                return value
            text = value.strip().lower() if isinstance(value, str) else None
            if text in ("true", "false"):
                return text == "true"
            raise ValueError(f"{item.name} must be true or false, which {_quoted(value)} is not")
        case _:
            assert_never(item.kind)


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


def _quoted(value: object) -> str:
    """Return an argument's value for an error message, cut to a bounded length."""
    match value:
        case str():
            return json_text.dumps(sendable(value[:_MAX_QUOTED]))
        case bool() | int() | float():
            return json_text.dumps(value)[:_MAX_QUOTED]
        case _:
            return json_fields.json_type(value)


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

    `native` is true if the caller's payloads defer tools with the provider's own mechanism.
    """
    provider = PROVIDERS[format]
    if call.is_search_item:
        return provider.search_output(call.id, tools, "completed")
    message = result_message(call, format, _definitions_text(tools))
    if native and (references := provider.tool_references(tools)):
        result_in(message, format)[provider.result_key] = references
    return message


def _definitions_text(tools: Sequence[ToolDefinition]) -> str:
    """Return one definition a line; beyond MAX_BYTES only names."""
    if not tools:
        return NO_TOOL
    lines: list[str] = []
    remaining_bytes = MAX_BYTES
    for tool in tools:
        definition = {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
        }
        line = json_fields.compact(definition)
        remaining_bytes -= len(encode(line)) + 1
        if remaining_bytes < 0 and lines:
            break
        lines.append(line)
    others = ", ".join(tool.name for tool in tools[len(lines) :])
    return "\n".join([*lines, f"[Found as well: {others}.]"] if others else lines)
