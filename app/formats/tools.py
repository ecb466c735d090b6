"""Tool definitions, reading one from the form of any provider, and what calls of tools consist of.

Hosted tools are definitions that only their provider understands, such as its web search.

1. The `type` of a definition tells its format. Gemini has no types: there a key of the definition
   tells it. Anthropic's types end with a date, so that later versions are recognised as well. Of
   the types that OpenAI and Gemini Interactions share, a field of the latter tells it.
2. A definition is kept as the caller gave it. Only payloads of its own format have it, without
   `category` and `cache_control`: the service places the cache breakpoints.
3. A tool that a model calls by a name has this name, as function tools do. Any other has its format
   and type as its name, which is no name of a function.
4. Ids, names and arguments of calls are sent in a form that every provider accepts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, get_args

import orjson

from app.common import json_text
from app.common.errors import ValidationError
from app.common.json_text import MESSAGE_LIMITS
from app.common.texts import sendable, sendable_json
from app.formats import json_fields
from app.formats.json_fields import Raw, Wire
from app.formats.message import FormatName, Part, ToolCall

Ids = Mapping[str, str]
"""The ids to send by the ids of calls."""
NO_IDS: Final[Ids] = MappingProxyType({})
TOOL_NAME_PATTERN: Final = "^[a-zA-Z0-9_-]{1,64}$"
_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOT_IN_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_NUMBER = re.compile(r"#\d+$")
_LIMITS: Final = replace(MESSAGE_LIMITS, bytes=4 * 2**20)
"""As long as the longest text of a message."""

HOSTED_TYPE_PATTERN: Final = (
    "^([a-z][a-z0-9_]*_20[0-9]{6}|mcp_toolset|tool_search_tool_(bm25|regex)"
    "|web_search(_preview)?(_20[0-9]{2}_[0-9]{2}_[0-9]{2})?|file_search|code_interpreter"
    "|image_generation|mcp|computer|computer_use|computer_use_preview|local_shell|shell"
    "|apply_patch|programmatic_tool_calling|tool_search|namespace|google_search|google_maps"
    "|code_execution|url_context|mcp_server|retrieval)$"
)
"""The types of hosted tools."""
GEMINI_KEYS: Final = (
    *("google_search", "google_search_retrieval", "google_maps", "code_execution", "url_context"),
    *("file_search", "computer_use", "enterprise_web_search", "retrieval", "parallel_ai_search"),
    *("exa_ai_search", "mcp_servers"),
)
"""The keys of Gemini's hosted tools, which it also takes in camel case."""
_HOSTED_TYPE = re.compile(HOSTED_TYPE_PATTERN)
_INTERACTIONS_TYPES: Final = (
    *("google_search", "google_maps", "code_execution", "url_context", "mcp_server", "retrieval"),
    "computer_use",
)
_INTERACTIONS_FIELDS: Final = {"file_search": "file_search_store_names", "tool_search": "name"}
_ANTHROPIC_TYPE = re.compile(r".*_20\d{6}|mcp_toolset|tool_search_tool_(bm25|regex)")
_SNAKE_KEYS: Final = {
    spelling: key for key in GEMINI_KEYS for spelling in (key, json_fields.camel(key))
}
_RUN_BY_CLIENT: Final = re.compile(
    r"(bash|text_editor|computer|memory)_20\d{6}"
    r"|computer|computer_use(_preview)?|local_shell|shell|apply_patch"
)
_OWN_NAMES: Final = ("server_label", "mcp_server_name", "name")
_GEMINI_TYPES = ("STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL")
_SCHEMA_KEYS = (
    *("parameters", "input_schema", "inputSchema"),
    *("parametersJsonSchema", "parameters_json_schema"),
)


ToolCategory = Literal["builtin", "mcp", "skill"]


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool that the model may call; `parameters` is a JSON schema of type object.

    `category` decides which tools are deferred first. `hosted` is the definition of a hosted tool
    as the caller gave it, and `format` the only format that has it. Both are None for a function.
    The model of OpenAI Responses goes on without the result of one that `is_async`.
    """

    name: str
    description: str
    parameters: Raw
    category: ToolCategory = "builtin"
    strict: bool | None = None
    hosted: Raw | None = None
    format: FormatName | None = None
    is_async: bool = False

    def is_taken_by(self, format: FormatName) -> bool:
        """Whether a format has the tool."""
        return self.format in (None, format)

    def record(self) -> Wire:
        """Return it as JSON: a hosted tool as it was given, a function by its fields."""
        if self.hosted is not None:
            return dict(self.hosted)
        names = ("name", "description", "parameters", "category", "strict", "is_async")
        return {name: getattr(self, name) for name in names}


Tools = Sequence[ToolDefinition]


class ToolChange(NamedTuple):
    """What differs between two sets of tools."""

    added: Tools = ()
    redefined: Tools = ()
    removed: tuple[str, ...] = ()


def tool_change(old: Tools, new: Tools) -> ToolChange:
    """Return what differs for a model: the order and the categories do not."""
    before = {tool.name: tool for tool in old}
    common = [tool for tool in new if tool.name in before]
    return ToolChange(
        tuple(tool for tool in new if tool.name not in before),
        tuple(it for it in common if replace(before[it.name], category=it.category) != it),
        tuple(name for name in before if all(tool.name != name for tool in new)),
    )


def parse_tool(raw: Raw, pointer: str) -> ToolDefinition:
    """Read a tool definition of OpenAI Chat, OpenAI Responses, Anthropic, MCP or Gemini.

    Each may have a `category`, too. Raises `ValidationError` at the field that is wrong.
    """
    fields = json_fields.Fields(raw, pointer)
    category = fields.raw.get("category", "builtin")
    if category not in get_args(ToolCategory):
        raise fields.error("category", f"must be one of {', '.join(get_args(ToolCategory))}")
    if (format := _hosted_format(raw)) is not None:
        if "name" in raw:
            _name(fields)
        for key in ("function_declarations", "functionDeclarations"):
            if key in raw:
                raise fields.error(key, "a hosted tool has no functions: give each as its own tool")
        name = _hosted_name(raw, format)
        return ToolDefinition(name, "", {}, category, hosted=fields.raw, format=format)
    if fields.get("type") not in (None, "function", "custom") or "custom" in raw:
        raise fields.error("type", "must be function, or the type of a hosted tool of a provider")
    body = fields.object("function") if "function" in raw else fields
    return ToolDefinition(
        name=_name(body),
        description=body.optional_text("description") or "",
        parameters=_parameters(body),
        category=category,
        strict=body.optional_boolean("strict"),
        is_async=bool(body.optional_boolean("async")),
    )


def _name(fields: json_fields.Fields) -> str:
    if not _NAME.fullmatch(name := fields.text("name")):
        raise fields.error("name", f"a tool name must match {TOOL_NAME_PATTERN}")
    return name


def tool_from(record: Raw) -> ToolDefinition:
    """Read a definition back from `ToolDefinition.record`."""
    is_hosted = _hosted_format(record) is not None
    return parse_tool(record, "") if is_hosted else ToolDefinition(**record)


def tools_of(
    tools: Tools, format: FormatName
) -> tuple[tuple[ToolDefinition, ...], tuple[str, ...]]:
    """Return the tools that a format has, and the kinds of the hosted tools of other formats."""
    taken = tuple(tool for tool in tools if tool.is_taken_by(format))
    others = (tool.hosted for tool in tools if not tool.is_taken_by(format))
    return taken, tuple(_hosted_kind(raw) for raw in others if raw is not None)


def _parameters(body: json_fields.Fields) -> Raw:
    key = next((key for key in _SCHEMA_KEYS if body.get(key) is not None), None)
    schema: Raw = body.object(key).json() if key is not None else {}
    if schema.get("type") == "OBJECT":
        schema = _lower_types(schema)
    if schema.get("type", "object") != "object":
        raise body.error(f"{key}/type", 'the parameters of a tool must have type "object"')
    has_both = "type" in schema and "properties" in schema
    return schema if has_both else {"type": "object", "properties": {}} | dict(schema)


def _lower_types(value: Any) -> Any:
    """Write schema types in lower case: Gemini's capitals are accepted by no other provider."""
    if isinstance(value, list):
        return [_lower_types(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    return {
        key: item.lower() if key == "type" and item in _GEMINI_TYPES else _lower_types(item)
        for key, item in value.items()
    }


def wire_fields(tool: ToolDefinition, schema_key: str, *, strict: bool | None = None) -> Wire:
    """Render the fields of all formats: name, description, and the schema by its key."""
    described = {"description": sendable(tool.description)} if tool.description else {}
    fields = {"name": tool.name, **described, schema_key: sendable_json(tool.parameters)}
    return fields if strict is None else fields | {"strict": strict}


def hosted_definition(raw: Raw) -> Wire:
    """Return a hosted tool as it is sent (rule 2)."""
    sent = {key: value for key, value in raw.items() if key not in ("category", "cache_control")}
    return sendable_json(sent)  # type: ignore[no-any-return]


def is_run_by_client(raw: Raw) -> bool:
    """Whether a hosted tool is defined by its provider, and run by the caller."""
    return _RUN_BY_CLIENT.fullmatch(_hosted_kind(raw)) is not None


def _hosted_format(raw: Raw) -> FormatName | None:
    """Return the format of a hosted tool, None for any other definition (rule 1)."""
    kind = raw.get("type")
    if kind is None:
        is_function = "name" in raw or "function" in raw
        return None if is_function or _SNAKE_KEYS.keys().isdisjoint(raw) else FormatName.GEMINI
    if not isinstance(kind, str) or not _HOSTED_TYPE.fullmatch(kind):
        return None
    if kind in _INTERACTIONS_TYPES or _INTERACTIONS_FIELDS.get(kind) in raw:
        return FormatName.INTERACTIONS
    is_anthropic = _ANTHROPIC_TYPE.fullmatch(kind) is not None
    return FormatName.ANTHROPIC if is_anthropic else FormatName.OPENAI_RESPONSES


def _hosted_kind(raw: Raw) -> str:
    """Return the type of a hosted tool; of Gemini's, its keys."""
    of_gemini = "+".join(sorted(_SNAKE_KEYS[key] for key in raw if key in _SNAKE_KEYS))
    return json_fields.text_in(raw, "type") or of_gemini


def _hosted_name(raw: Raw, format: FormatName) -> str:
    """Return the name of a hosted tool, by which another definition replaces it (rule 3)."""
    name = raw.get("name")
    if format is FormatName.ANTHROPIC and isinstance(name, str):
        return name
    parts = [format.value, _hosted_kind(raw)]
    parts += [raw[key] for key in _OWN_NAMES if isinstance(raw.get(key), str)]
    return ":".join(parts)


def sendable_id(call_id: str) -> str:
    """Map a call id to one that every provider accepts: at most 40 of `[a-zA-Z0-9_-]`
    [neutral.unique-call-ids, openai-chat.sizes].

    The result depends on the id alone, so a call and its result keep the same id.
    """
    return call_id if _ID.fullmatch(call_id) else f"call_{_digest(call_id)[:24]}"


def short_id(call_id: str) -> str:
    """Map a call id to one that Mistral accepts: nine letters or digits."""
    return call_id if _SHORT_ID.fullmatch(call_id) else _digest(call_id)[:9]


def _digest(call_id: str) -> str:
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()


def unnumbered(call_id: str) -> str:
    """Return a call id as the caller gave it: of several equal ones, later ones have a number."""
    return _NUMBER.sub("", call_id)


def own_id(call_id: str, taken: Container[str]) -> str:
    """Return the id of a call beside others: a number is added to an id that is `taken`."""
    numbered = chain((call_id,), (f"{call_id}#{number}" for number in count(2)))
    return next(id for id in numbered if id not in taken)


def with_own_ids(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return the parts of a message, of whose calls each has an id of its own."""
    found = list(parts)
    taken: set[str] = set()
    for index, part in enumerate(found):
        if isinstance(part, ToolCall):
            call_id = own_id(part.id, taken)
            taken.add(call_id)
            found[index] = part if call_id == part.id else replace(part, id=call_id)
    return tuple(found)


def tool_name(name: str) -> str:
    """Return the name of a called tool in a form that every provider accepts [anthropic.sizes]."""
    return name if _NAME.fullmatch(name) else _NOT_IN_NAME.sub("_", name[:64]) or "tool"


def is_json(text: str) -> bool:
    """Return whether a text is strict JSON: finite numbers, at most `MAX_DEPTH` levels, `_LIMITS`.

    What orjson accepts is such JSON; what it refuses may still be.
    """
    try:
        json_fields.json_at(json_text.loads_within(text, _LIMITS, orjson.loads), "")
    except orjson.JSONDecodeError:
        return bool(_read_json(text))
    except (json_text.ExceedsLimits, ValidationError):
        return False
    return True


def arguments_object(text: str) -> Wire | None:
    """Parse arguments that are a JSON object; None for any others."""
    value = next(iter(_read_json(text)), None) if text.lstrip()[:1] == "{" else None
    return value if isinstance(value, dict) else None


def sent_as_object(text: str) -> str:
    """Return arguments as text the way a format sends them that sends an object."""
    arguments = arguments_object(text)
    return text if arguments is None else json_fields.compact(arguments)


def object_arguments(text: str) -> str:
    """Return arguments for a format that sends an object [anthropic.input-object].

    Characters that JSON escapes stand for must be sendable, too.
    """
    arguments = arguments_object(text)
    if arguments is None:
        return wrapped_arguments(text)
    cleaned = sendable_json(arguments) if "\\u" in text else arguments
    return text if cleaned is arguments else json_fields.compact(cleaned)


def wrapped_arguments(text: str) -> str:
    """Put arguments that are not JSON into an object, so that every provider accepts them."""
    return json_fields.compact({"arguments": text}) if text.strip() else "{}"


def _read_json(text: str) -> list[Any]:
    """Return the value of a text in a list, which is empty where it is no strict JSON."""
    try:
        value = json_text.loads_within(text, _LIMITS, json_text.loads_exact)
        return [json_fields.json_at(value, "")]
    except (ValueError, ValidationError):
        return []
