"""The wire formats, and the tool definitions they share (A5, H1, decision 21)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol, get_args

from app.domain.common.errors import Problem, ValidationError
from app.domain.common.messages import FormatName, Message
from app.domain.formats import anthropic, gemini, json_fields, openai_chat, openai_responses

ToolCategory = Literal["builtin", "mcp", "skill"]


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool the model may call; `parameters` is a JSON schema of type object.

    `category` decides which tools are held back first (H1).
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    category: ToolCategory = "builtin"
    strict: bool | None = None


class Format(Protocol):
    """What every wire format module offers under the same name; `render` differs by shape.

    `RESULT_KEY` is the field of a result that holds its content.
    """

    RESULT_KEY: str

    def parse(self, raw: Mapping[str, Any], pointer: str) -> tuple[Message, ...]:
        """Read one wire message as neutral ones."""

    def split(self, raw: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Give the raw to store for each of those neutral messages."""

    def results(self, raw: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
        """List the objects of a raw that hold a tool's result, with their places in it.

        There may be malformed ones among them; in a raw that parses, each is one tool message.
        """

    def adapt(self, message: Message, ids: Mapping[str, str] = ...) -> Message:
        """Return a clean message as the format can say it."""

    def tools_to_wire(self, tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
        """Render tool definitions."""


FORMATS: Final[Mapping[FormatName, Format]] = MappingProxyType(
    {
        FormatName.OPENAI_CHAT: openai_chat,
        FormatName.OPENAI_RESPONSES: openai_responses,
        FormatName.ANTHROPIC: anthropic,
        FormatName.GEMINI: gemini,
    }
)

_GATHERED = re.compile(r"(.*?)/(\d+)/output/(\d+)(.*)", re.DOTALL)
_GEMINI_TYPES = ("STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL")
_SCHEMA_KEYS = (
    "parameters",
    "input_schema",
    "inputSchema",
    "parametersJsonSchema",
    "parameters_json_schema",
)
_VALUES_NOT_SCHEMAS = ("enum", "const", "default", "example", "examples", "required")


def gather(format: FormatName, raws: Sequence[Any]) -> list[tuple[int, Any]]:
    """Put the raws of a batch together as messages, each with the index of its first raw.

    Only where a format has several raws to one message is a message another object than that raw.
    """
    if format is FormatName.OPENAI_RESPONSES:
        return openai_responses.gather(raws)
    return list(enumerate(raws))


def as_given(error: ValidationError) -> ValidationError:
    """Return a refusal of gathered raws that points at the raw as it was given."""
    problems = tuple(
        Problem(_GATHERED.sub(_unfolded, problem.pointer), problem.detail)
        for problem in error.problems
    )
    return ValidationError(error.detail, problems=problems)


def _unfolded(found: re.Match[str]) -> str:
    head, first, further, rest = found.groups()
    return f"{head}/{int(first) + int(further)}{rest}"


def parse_tool(raw: Mapping[str, Any], pointer: str) -> ToolDefinition:
    """Read a tool definition in any provider's shape (decision 21).

    Accepts OpenAI Chat, OpenAI Responses, Anthropic, MCP and Gemini function declarations;
    `category` stands beside them. Raises `ValidationError` at the field that is wrong.
    """
    raw = json_fields.object_at(raw, pointer)
    if raw.get("type") not in (None, "function", "custom") or "custom" in raw:
        detail = "only tools defined by a JSON schema are accepted (type function)"
        raise ValidationError.at(f"{pointer}/type", detail)
    at, body = pointer, raw
    if "function" in raw:
        at = f"{pointer}/function"
        body = json_fields.object_at(raw["function"], at)
    return ToolDefinition(
        name=_name(body, at),
        description=json_fields.optional_text_at(body, "description", at) or "",
        parameters=_parameters(body, at),
        category=_category(raw, pointer),
        strict=_strict(body, at),
    )


def _name(body: Mapping[str, Any], pointer: str) -> str:
    name = json_fields.text_at(body, "name", pointer)
    if not json_fields.is_name(name):
        detail = f"a tool name must match {json_fields.TOOL_NAME_PATTERN}"
        raise ValidationError.at(f"{pointer}/name", detail)
    return name


def _category(raw: Mapping[str, Any], pointer: str) -> ToolCategory:
    given = raw.get("category", "builtin")
    for category in get_args(ToolCategory):
        if given == category:
            return category  # type: ignore[no-any-return]  # get_args forgets the literals
    detail = f"must be one of {', '.join(get_args(ToolCategory))}"
    raise ValidationError.at(f"{pointer}/category", detail)


def _strict(body: Mapping[str, Any], pointer: str) -> bool | None:
    strict = body.get("strict")
    if not isinstance(strict, bool | None):
        detail = f"must be a boolean, not {json_fields.json_type(strict)}"
        raise ValidationError.at(f"{pointer}/strict", detail)
    return strict


def _parameters(body: Mapping[str, Any], pointer: str) -> Mapping[str, Any]:
    key = next((key for key in _SCHEMA_KEYS if body.get(key) is not None), None)
    if key is None:
        return {"type": "object", "properties": {}}
    at = f"{pointer}/{key}"
    schema: Mapping[str, Any] = json_fields.json_at(json_fields.object_at(body[key], at), at)
    if schema.get("type") == "OBJECT":
        schema = _lower_types(schema)
    if schema.get("type", "object") != "object":
        raise ValidationError.at(f"{at}/type", 'the parameters of a tool must have type "object"')
    if "type" in schema and "properties" in schema:
        return schema
    return {"type": "object", "properties": {}} | dict(schema)


def _lower_types(value: Any) -> Any:
    """Gemini writes schema types in capitals, which no other provider takes."""
    match value:
        case Mapping():
            return {key: _lower_type(key, item) for key, item in value.items()}
        case list():
            return [_lower_types(item) for item in value]
        case _:
            return value


def _lower_type(key: str, item: Any) -> Any:
    if key in _VALUES_NOT_SCHEMAS and not isinstance(item, Mapping):
        return item
    if key == "type" and item in _GEMINI_TYPES:
        return item.lower()
    return _lower_types(item)
