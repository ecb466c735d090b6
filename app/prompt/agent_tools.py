"""Agent tools: the tools that the service offers to an LLM [agent-tools.definitions].

Arguments are parsed leniently: numbers and booleans may be strings, null means absent, and a number
above its maximum is lowered to the maximum.

Deferral decides which definitions are left out of a payload [tools.deferral]:

1. No tool is deferred while all definitions are within their allowed tokens and within the
   provider's maximum number of tools.
2. Otherwise tools are deferred until the rest, with the service's `tool_search`, is within both:
   first `mcp` tools, then `skill` tools; inside a category those never called, then those called
   longest ago; among equals, the last in the list first. `builtin` tools stay in any case. Promoted
   tools stay while the rest is within the provider's maximum, those promoted last the longest.
3. No more tools are deferred than needed, so that more allowed tokens never defer more tools.
4. A provider with its own tool search gets all definitions, so that the list does not change when a
   tool is found [tools.native-deferral]. For other providers, deferred tools are absent until a
   search promotes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from app.blobs.preview import (
    COMPACT_CONTEXT,
    GREP,
    PIN_MESSAGES,
    READ_BYTES,
    READ_LINES,
    RECALL,
    TOOL_SEARCH,
)
from app.common import json_text
from app.common.errors import ValidationError
from app.common.texts import is_sendable, sendable
from app.formats import PROVIDERS, ToolDefinition
from app.formats.message import FormatName
from app.policy.policy import AGENT_TOOL_NAMES

DEFAULT_TOOL_MATCHES: Final = 5
MAX_TOOL_MATCHES: Final = 50
MAX_QUERY_CHARS: Final = 1000
"""The maximum length of a query and of any other text in arguments, in characters."""

MAX_PINS: Final = 20
"""Messages that one call pins at most."""
MAX_LINES: Final = 2000
MAX_BYTES: Final = 51_200
MAX_MATCHES: Final = 500

_MAX_OFFSET = 2**53 - 1  # the largest integer that every JSON parser reads exactly
_MAX_QUOTED, _MAX_UNKNOWN = 40, 5
_EXPECTED = {
    "string": f"a string of 1 to {MAX_QUERY_CHARS:,} characters of plain text",
    "integer": "a whole number of at least {minimum}",
    "boolean": "true or false",
    "array": "a list of 1 to {maxItems} texts",
}

# --- definitions ----------------------------------------------------------------------------------
# A default is in the text of its parameter as well, which every provider accepts.

_DEFAULTS: Final[Mapping[str, Mapping[str, int | bool]]] = {
    READ_LINES: {"offset": 0, "limit": MAX_LINES},
    GREP: {"ignore_case": False, "before": 0, "after": 0, "limit": 100},
    READ_BYTES: {"offset": 0, "limit": 4096},
    TOOL_SEARCH: {"limit": DEFAULT_TOOL_MATCHES},
    COMPACT_CONTEXT: {},
    RECALL: {"offset": 0},
    PIN_MESSAGES: {},
}


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _count(description: str, minimum: int, **maximum: int) -> dict[str, Any]:
    return {"type": "integer", "description": description, "minimum": minimum, **maximum}


def _tool(name: str, description: str, **properties: dict[str, Any]) -> ToolDefinition:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": [item for item in properties if item not in _DEFAULTS[name]],
        "additionalProperties": False,
    }
    return ToolDefinition(name, description, schema)


_REF = _text("The output's ref, exactly as its result gives it.")
_WHOLE = "the whole output of an earlier tool call whose result was cut, stored or trimmed."
_TOOLS = (
    _tool(
        READ_LINES,
        f"Read, by numbered lines, {_WHOLE} The answer's end says how to go on.",
        ref_id=_REF,
        offset=_count("Lines to skip; 0 by default.", 0),
        limit=_count(f"Most lines; {MAX_LINES} by default.", 1, maximum=MAX_LINES),
    ),
    _tool(
        GREP,
        f"Search, line by line, {_WHOLE} Answers as grep -n does.",
        ref_id=_REF,
        pattern=_text("Regular expression (RE2: no look-arounds, no backreferences)."),
        ignore_case={"type": "boolean", "description": "false by default."},
        before=_count("Lines before each match; 0 by default.", 0, maximum=20),
        after=_count("Lines after each match; 0 by default.", 0, maximum=20),
        limit=_count("Most matches; 100 by default.", 1, maximum=MAX_MATCHES),
    ),
    _tool(
        READ_BYTES,
        f"Read, by bytes, {_WHOLE} Fit for very long lines. The answer's end says how to go on.",
        ref_id=_REF,
        offset=_count("Bytes to skip; 0 by default.", 0),
        limit=_count("Most bytes; 4096 by default.", 1, maximum=MAX_BYTES),
    ),
    _tool(
        TOOL_SEARCH,
        "Find tools that are not listed here, by what they do. Answers with their definitions; the"
        " tools found can be called from then on.",
        query=_text("What the tool should do, in a few words; or its exact name."),
        limit=_count(
            f"Most tools; {DEFAULT_TOOL_MATCHES} by default.", 1, maximum=MAX_TOOL_MATCHES
        ),
    ),
    _tool(
        COMPACT_CONTEXT,
        "Free space in the context: a summary takes the place of earlier messages. Call it when a"
        " sub-task is finished, before the next one begins. Do not call it in the middle of one,"
        " while you still need exact texts of files, results or errors.",
    ),
    _tool(
        RECALL,
        "Search the whole conversation, with all that was summarised or is no longer shown. Answers"
        " with excerpts of the messages that fit best, and of those around them. The answer's end"
        " says how to go on.",
        query=_text("A question, or the words that stood there; names and times help."),
        offset=_count("Messages to skip; 0 by default.", 0),
    ),
    _tool(
        PIN_MESSAGES,
        "Keep messages verbatim in the context, each with its tool calls and results, for as long"
        " as the conversation lasts. Pin only what must not be summarised, such as requirements.",
        messages={
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "maxItems": MAX_PINS,
            "description": "Numbers of messages, such as #12, or their ids.",
        },
    ),
)
AGENT_TOOLS: Final[Mapping[str, ToolDefinition]] = MappingProxyType(
    {tool.name: tool for tool in _TOOLS}
)
"""Every agent tool, by name; `ToolCallService` executes them."""


def parse_arguments(name: str, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments of a tool with defaults for those left out; None are no JSON object.

    Raises ValidationError; its detail is for the model and lists every invalid argument.
    """
    properties: Mapping[str, Any] = AGENT_TOOLS[name].parameters["properties"]
    problems = [] if arguments is not None else ["the arguments must be one JSON object"]
    given = {key: value for key, value in (arguments or {}).items() if value is not None}
    for key in sorted(given.keys() - properties.keys())[:_MAX_UNKNOWN]:
        problems.append(f"there is no argument {json_text.dumps(sendable(key[:_MAX_QUOTED]))}")
    values: dict[str, Any] = {}
    for key, schema in properties.items() if arguments is not None else ():
        value = given.get(key, _DEFAULTS[name].get(key))
        values[key] = _parsed(value, schema)
        if values[key] is None:
            expected = _EXPECTED[schema["type"]].format_map(schema)
            problems.append(
                f"{key} must be {expected}" if value is not None else f"{key} is required"
            )
    if problems:
        raise ValidationError(f"{name} was not run: {'; '.join(problems)}.")
    return values


def _parsed(value: object, schema: Mapping[str, Any]) -> Any:
    """Return the value of an argument, None for a wrong one."""
    kind = schema["type"]
    if kind != "string" and isinstance(value, str):
        with suppress(ValueError):
            value = json_text.loads(value.strip().lower())
    match kind, value:
        case "string", str() if 0 < len(value) <= MAX_QUERY_CHARS and is_sendable(value):
            return value
        case "boolean", bool():
            return value
        case "array", list() if 0 < len(value) <= schema["maxItems"]:
            items = [str(item) if type(item) is int else item for item in value]
            parsed = [_parsed(item, schema["items"]) for item in items]
            return None if None in parsed else parsed
        case "integer", int() | float() if not isinstance(value, bool):
            if value >= schema["minimum"] and value % 1 == 0:
                return min(int(value), schema.get("maximum", _MAX_OFFSET))
    return None


def definitions_in(format: FormatName) -> list[dict[str, Any]]:
    """Return the definitions of all tools in a provider's format."""
    return PROVIDERS[format].tools_to_wire(list(AGENT_TOOLS.values()))


# --- deferral -------------------------------------------------------------------------------------

_CATEGORIES = ("mcp", "skill")
"""The categories that are deferred the first ones first."""
_NEVER = -1


@dataclass(frozen=True, slots=True)
class ToolSearchResult:
    """The matches among `total` tools, best first, and all tools promoted now."""

    tools: tuple[ToolDefinition, ...]
    total: int
    promoted: tuple[str, ...]


def plan_deferral(
    tools: Sequence[ToolDefinition],
    costs: Sequence[int],
    allowed_tokens: int,
    most: int | None,
    last_used: Mapping[str, int],
    promoted: Sequence[str],
) -> tuple[str, ...]:
    """Return the names of the tools to defer, in the order of `tools`.

    The rest takes the allowed tokens, and is no more than `most`; if deferring every possible tool
    is not enough, all of them are deferred. `costs` are the tools' tokens, `last_used` the seqs of
    their last calls. `promoted` are the tools that searches of this turn matched, the oldest first.
    """
    tokens, count = sum(costs), len(tools)
    indexes = {tool.name: index for index, tool in enumerate(tools) if can_defer(tool)}
    deferred: set[str] = set()

    def order(name: str) -> tuple[int, int, int]:  # rule 2
        index = indexes[name]
        category = _CATEGORIES.index(tools[index].category)
        return category, last_used.get(name, _NEVER), -index

    stay = [name for name in promoted if name in indexes]
    for name in (*sorted(indexes.keys() - set(stay), key=order), *stay):
        has_room = most is None or count <= most
        if has_room and (tokens <= allowed_tokens or name in stay):
            break
        deferred.add(name)
        tokens -= costs[indexes[name]]
        count -= 1
    return tuple(tool.name for tool in tools if tool.name in deferred)


def can_defer(tool: ToolDefinition) -> bool:
    """Whether a tool may be deferred: it is not builtin, not hosted, and not the service's own."""
    is_own = tool.name in AGENT_TOOL_NAMES
    return tool.category in _CATEGORIES and tool.hosted is None and not is_own


def deferred_note(count: int) -> str:
    """Return the note for the model about deferred tools [tools.deferral-note]."""
    return f"[{count} tools deferred to save context. Use {TOOL_SEARCH} to find them.]"
