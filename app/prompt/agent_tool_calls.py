"""Parsing of calls of agent tools [agent-tools.execute].

1. A malformed call, or a call of an unknown tool, is an error for the caller, with a pointer.
   Invalid arguments are an error message for the model [agent-tools.model-errors].
2. Arguments are parsed leniently: numbers and booleans may be strings, null means absent, and a
   number above its maximum is lowered to the maximum.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from app.blobs.preview import TOOL_SEARCH
from app.common import json_text
from app.common.errors import ValidationError
from app.common.sendable import is_sendable, sendable
from app.formats import json_fields
from app.formats.message import FormatName
from app.formats.tool_calls import arguments_object
from app.prompt.agent_tools import (
    AGENT_TOOLS,
    AgentTool,
    AgentToolRequest,
    ArgumentValue,
    Parameter,
)

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

    Chat: an element of `tool_calls`. Responses: a `function_call` item, or a `tool_search_call`
    for the client. Anthropic: a `tool_use` block. Gemini: a part with a `functionCall`. Raises
    ValidationError below `pointer` for a malformed field or an unknown tool.
    """
    call = json_fields.object_at(raw, pointer)
    match format:
        case FormatName.OPENAI_CHAT:
            _expect_type(call.get("type", "function"), "function", pointer)
            at = f"{pointer}/function"
            function = json_fields.object_at(call.get("function"), at)
            call_id = json_fields.filled_text_at(call, "id", pointer)
            return _call(call_id, function, "arguments", at)
        case FormatName.OPENAI_RESPONSES if call.get("type") == "tool_search_call":
            return _search_item(call, pointer)
        case FormatName.OPENAI_RESPONSES:
            _expect_type(call.get("type"), "function_call", pointer)
            call_id = json_fields.filled_text_at(call, "call_id", pointer)
            return _call(call_id, call, "arguments", pointer)
        case FormatName.ANTHROPIC:
            _expect_type(call.get("type"), "tool_use", pointer)
            call_id = json_fields.filled_text_at(call, "id", pointer)
            return _call(call_id, call, "input", pointer)
        case FormatName.GEMINI:
            key = "function_call" if "function_call" in call else "functionCall"
            at = f"{pointer}/{key}"
            function = json_fields.object_at(call.get(key), at)
            optional_id = json_fields.optional_text_at(function, "id", at)
            return _call(optional_id or None, {"args": {}, **function}, "args", at)
        case _:
            assert_never(format)


def request_of(call: Call) -> AgentToolRequest:
    """Return the request of a call.

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
    return tool.request_type(**values)


def _expect_type(value: object, expected: str, pointer: str) -> None:
    if value != expected:
        raise ValidationError.at(f"{pointer}/type", f'must be "{expected}"')


def _call(call_id: str | None, function: Mapping[str, Any], key: str, pointer: str) -> Call:
    name = json_fields.filled_text_at(function, "name", pointer)
    if name not in AGENT_TOOLS:
        detail = f"is no tool of this service; there are {', '.join(AGENT_TOOLS)}"
        raise ValidationError.at(f"{pointer}/name", detail)
    if key not in function:
        raise ValidationError.at(f"{pointer}/{key}", "is required")
    return Call(call_id, name, _arguments(function[key]))


def _search_item(item: Mapping[str, Any], pointer: str) -> Call:
    if item.get("execution", "client") != "client":
        detail = 'must be "client": any other search has been executed already'
        raise ValidationError.at(f"{pointer}/execution", detail)
    call_id = json_fields.filled_text_at(item, "call_id", pointer)
    if "arguments" not in item:
        raise ValidationError.at(f"{pointer}/arguments", "is required")
    return Call(call_id, TOOL_SEARCH, _arguments(item["arguments"]), is_search_item=True)


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
