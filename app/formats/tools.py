"""Tool definitions, and reading one from the form of any provider.

Hosted tools are definitions that only their provider understands, such as its web search.

1. The `type` of a definition tells its format. Gemini has no types: there a key of the definition
   tells it. Anthropic's types end with a date, so that later versions are recognised as well.
   OpenRouter's begin with its name; it takes them in both of OpenAI's formats.
2. A definition is kept as the caller gave it. Only payloads of its own format have it, without
   `category` and `cache_control`: the service places the cache breakpoints.
3. A tool that a model calls by a name has this name, as function tools do. Any other has its format
   and type as its name, which is no name of a function.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from app.common.texts import sendable, sendable_json
from app.formats import json_fields, tool_calls
from app.formats.message import OPENAI_FORMATS, FormatName

HOSTED_TYPE_PATTERN: Final = (
    "^([a-z][a-z0-9_]*_20[0-9]{6}|mcp_toolset|tool_search_tool_(bm25|regex)"
    "|web_search(_preview)?(_20[0-9]{2}_[0-9]{2}_[0-9]{2})?|file_search|code_interpreter"
    "|image_generation|mcp|computer|computer_use|computer_use_preview|local_shell|shell"
    "|apply_patch|programmatic_tool_calling|tool_search|namespace|openrouter:[a-z0-9_.-]+)$"
)
"""The types of hosted tools."""
GEMINI_KEYS: Final = (
    *("google_search", "google_search_retrieval", "google_maps", "code_execution", "url_context"),
    *("file_search", "computer_use", "enterprise_web_search", "retrieval", "parallel_ai_search"),
    *("exa_ai_search", "mcp_servers"),
)
"""The keys of Gemini's hosted tools, which it also takes in camel case."""

_HOSTED_TYPE = re.compile(HOSTED_TYPE_PATTERN)
_ANTHROPIC_TYPE = re.compile(r".*_20\d{6}|mcp_toolset|tool_search_tool_(bm25|regex)")
_SNAKE_KEYS: Final = {
    spelling: key
    for key in GEMINI_KEYS
    for spelling in (key, re.sub("_(.)", lambda match: match[1].upper(), key))
}
GEMINI_SPELLINGS: Final = tuple(sorted(_SNAKE_KEYS))
"""The same keys in snake case and in camel case."""
_RUN_BY_CLIENT: Final = re.compile(
    r"(bash|text_editor|computer|memory)_20\d{6}"
    r"|computer|computer_use|computer_use_preview|local_shell|shell|apply_patch"
)
_OWN_NAMES: Final = ("server_label", "mcp_server_name", "name")
_GATEWAY: Final = "openrouter:"
_NOT_SENT: Final = ("category", "cache_control")
ToolCategory = Literal["builtin", "mcp", "skill"]


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool that the model may call; `parameters` is a JSON schema of type object.

    `category` decides which tools are deferred first. `hosted` is the definition of a hosted tool
    as the caller gave it, and `format` the only format that has it. Both are None for a function.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    category: ToolCategory = "builtin"
    strict: bool | None = None
    hosted: Mapping[str, Any] | None = None
    format: FormatName | None = None

    def is_taken_by(self, format: FormatName) -> bool:
        """Whether a format has the tool: those of Chat are a gateway's, which has both OpenAI's."""
        is_gateway = self.format is FormatName.OPENAI_CHAT and format in OPENAI_FORMATS
        return is_gateway or self.format in (None, format)

    def record(self) -> dict[str, Any]:
        """Return it as JSON: a hosted tool as it was given, a function by its fields."""
        if self.hosted is not None:
            return dict(self.hosted)
        names = ("name", "description", "parameters", "category", "strict")
        return {name: getattr(self, name) for name in names}


_GEMINI_TYPES = ("STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL")
_SCHEMA_KEYS = (
    *("parameters", "input_schema", "inputSchema"),
    *("parametersJsonSchema", "parameters_json_schema"),
)
_VALUES_NOT_SCHEMAS = ("enum", "const", "default", "example", "examples", "required")


def parse_tool(raw: Mapping[str, Any], pointer: str) -> ToolDefinition:
    """Read a tool definition of OpenAI Chat, OpenAI Responses, Anthropic, MCP or Gemini.

    Each may have a `category`, too. Raises `ValidationError` at the field that is wrong.
    """
    fields = json_fields.Fields(raw, pointer)
    category = fields.raw.get("category", "builtin")
    if category not in get_args(ToolCategory):
        raise fields.error("category", f"must be one of {', '.join(get_args(ToolCategory))}")
    if (format := hosted_format(raw)) is not None:
        if "name" in raw:
            _name(fields)
        for key in ("function_declarations", "functionDeclarations"):
            if key in raw:
                raise fields.error(key, "a hosted tool has no functions: give each as its own tool")
        return ToolDefinition(
            hosted_name(raw, format), "", {}, category, hosted=fields.raw, format=format
        )
    if fields.get("type") not in (None, "function", "custom") or "custom" in raw:
        raise fields.error("type", "must be function, or the type of a hosted tool of a provider")
    body = fields.object("function") if "function" in raw else fields
    return ToolDefinition(
        name=_name(body),
        description=body.optional_text("description") or "",
        parameters=_parameters(body),
        category=category,
        strict=body.optional_boolean("strict"),
    )


def _name(fields: json_fields.Fields) -> str:
    if not tool_calls.is_name(name := fields.text("name")):
        raise fields.error("name", f"a tool name must match {tool_calls.TOOL_NAME_PATTERN}")
    return name


def tool_from(record: Mapping[str, Any]) -> ToolDefinition:
    """Read a definition back from `ToolDefinition.record`."""
    if hosted_format(record) is not None:
        return parse_tool(record, "")
    return ToolDefinition(**record)


def tools_of(
    tools: Sequence[ToolDefinition], format: FormatName
) -> tuple[tuple[ToolDefinition, ...], tuple[str, ...]]:
    """Return the tools that a format has, and the kinds of the hosted tools of other formats."""
    taken = tuple(tool for tool in tools if tool.is_taken_by(format))
    others = (tool.hosted for tool in tools if not tool.is_taken_by(format))
    return taken, tuple(hosted_kind(raw) for raw in others if raw is not None)


def _parameters(body: json_fields.Fields) -> Mapping[str, Any]:
    key = next((key for key in _SCHEMA_KEYS if body.get(key) is not None), None)
    if key is None:
        return {"type": "object", "properties": {}}
    schema: Mapping[str, Any] = body.object(key).json()
    if schema.get("type") == "OBJECT":
        schema = _lower_types(schema)
    if schema.get("type", "object") != "object":
        raise body.error(f"{key}/type", 'the parameters of a tool must have type "object"')
    if "type" in schema and "properties" in schema:
        return schema
    return {"type": "object", "properties": {}} | dict(schema)


def _lower_types(value: Any) -> Any:
    """Write schema types in lower case: Gemini's capitals are accepted by no other provider."""
    if isinstance(value, list):
        return [_lower_types(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    lowered = dict(value)
    for key, item in value.items():
        if key == "type" and item in _GEMINI_TYPES:
            lowered[key] = item.lower()
        elif key not in _VALUES_NOT_SCHEMAS or isinstance(item, Mapping):
            lowered[key] = _lower_types(item)
    return lowered


def wire_fields(
    tool: ToolDefinition, schema_key: str, *, strict: bool | None = None
) -> dict[str, Any]:
    """Render the fields of all formats: name, description, and the schema by its key."""
    fields: dict[str, Any] = {"name": tool.name}
    if tool.description:
        fields["description"] = sendable(tool.description)
    fields[schema_key] = sendable_json(tool.parameters)
    return fields if strict is None else fields | {"strict": strict}


def hosted_format(raw: Mapping[str, Any]) -> FormatName | None:
    """Return the format of a hosted tool, None for any other definition."""
    kind = raw.get("type")
    if kind is None:
        is_function = "name" in raw or "function" in raw
        is_gemini = not is_function and any(key in _SNAKE_KEYS for key in raw)
        return FormatName.GEMINI if is_gemini else None
    if not isinstance(kind, str) or not _HOSTED_TYPE.fullmatch(kind):
        return None
    if kind.startswith(_GATEWAY):
        return FormatName.OPENAI_CHAT
    is_anthropic = _ANTHROPIC_TYPE.fullmatch(kind) is not None
    return FormatName.ANTHROPIC if is_anthropic else FormatName.OPENAI_RESPONSES


def hosted_kind(raw: Mapping[str, Any]) -> str:
    """Return the type of a hosted tool; of Gemini's, its keys."""
    kind = raw.get("type")
    if isinstance(kind, str):
        return kind
    return "+".join(sorted(_SNAKE_KEYS[key] for key in raw if key in _SNAKE_KEYS))


def is_run_by_client(raw: Mapping[str, Any]) -> bool:
    """Whether a hosted tool is defined by its provider, and run by the caller."""
    return _RUN_BY_CLIENT.fullmatch(hosted_kind(raw)) is not None


def hosted_name(raw: Mapping[str, Any], format: FormatName) -> str:
    """Return the name of a hosted tool, by which another definition replaces it (rule 3)."""
    name = raw.get("name")
    if format is FormatName.ANTHROPIC and isinstance(name, str):
        return name
    parts = [format.value, hosted_kind(raw)]
    parts += [raw[key] for key in _OWN_NAMES if isinstance(raw.get(key), str)]
    return ":".join(parts)


def hosted_definition(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a hosted tool as it is sent (rule 2)."""
    sent: dict[str, Any] = sendable_json(
        {key: value for key, value in raw.items() if key not in _NOT_SENT}
    )
    return sent
