"""Agent tools: the tools that the service offers to an LLM [agent-tools.definitions].

A tool's JSON schema and the validation of its arguments are made from one list of parameters.
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
from typing import Any, Final, Literal

from app.blobs.preview import COMPACT_CONTEXT, GREP, READ_BYTES, READ_LINES, RECALL, TOOL_SEARCH
from app.common import json_text
from app.common.errors import ValidationError
from app.common.texts import is_sendable, sendable
from app.formats import PROVIDERS, ToolDefinition
from app.formats.message import FormatName
from app.policy.policy import AGENT_TOOL_NAMES

DEFAULT_TOOL_MATCHES: Final = 5
MAX_TOOL_MATCHES: Final = 50
MAX_QUERY_CHARS: Final = 1000
"""The maximum length of a query, in characters."""

MAX_LINES: Final = 2000
MAX_BYTES: Final = 51_200
MAX_MATCHES: Final = 500
MAX_CONTEXT_LINES: Final = 20

_MAX_OFFSET = 2**53 - 1  # the largest integer that every JSON parser reads exactly
_MAX_REF = 256
_MAX_PATTERN = 1000
_MAX_QUOTED = 40
_MAX_UNKNOWN = 5

ArgumentValue = str | int | bool


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a tool; it is required if it has no `default`.

    `minimum` and `maximum` bound an integer, or the length of a string.
    """

    name: str
    kind: Literal["string", "integer", "boolean"]
    description: str
    default: ArgumentValue | None = None
    minimum: int = 0
    maximum: int = _MAX_OFFSET

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema; the default is in the description, which every provider accepts."""
        schema: dict[str, Any] = {"type": self.kind, "description": self.description}
        if self.kind == "integer":
            schema["minimum"] = self.minimum
            if self.maximum != _MAX_OFFSET:
                schema["maximum"] = self.maximum
        return schema

    def parse(self, value: object) -> ArgumentValue:
        """Return the value of an argument; raises ValueError with a text for the model."""
        if value is None:
            raise ValueError(f"{self.name} is required")
        if self.kind != "string" and isinstance(value, str):
            with suppress(ValueError):
                value = json_text.loads(value.strip().lower())
        match self.kind, value:
            case "string", str():
                if self.minimum <= len(value) <= self.maximum and is_sendable(value):
                    return value
            case "boolean", bool():
                return value
            case "integer", int() | float() if not isinstance(value, bool):
                if value >= self.minimum and value % 1 == 0:
                    return min(int(value), self.maximum)
        expected = {
            "string": f"a string of {self.minimum} to {self.maximum:,} characters of plain text",
            "integer": f"a whole number of at least {self.minimum}",
            "boolean": "true or false",
        }
        raise ValueError(f"{self.name} must be {expected[self.kind]}")

    @property
    def usage(self) -> str:
        """The parameter's name, type and default, for an error message to the model."""
        kind = "whole number" if self.kind == "integer" else self.kind
        use = "required" if self.default is None else f"default {json_text.dumps(self.default)}"
        return f"{self.name} ({kind}, {use})"


@dataclass(frozen=True, slots=True)
class AgentTool:
    """An agent tool."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]

    @property
    def definition(self) -> ToolDefinition:
        """The tool definition, rendered like a caller's."""
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {item.name: item.schema for item in self.parameters},
            "required": [item.name for item in self.parameters if item.default is None],
            "additionalProperties": False,
        }
        return ToolDefinition(self.name, self.description, schema)

    def parse(self, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return arguments with defaults for those left out; None are no JSON object.

        Raises ValidationError; its detail is for the model and lists every invalid argument and the
        parameters of the tool.
        """
        problems = [] if arguments is not None else ["the arguments must be one JSON object"]
        given = {name: value for name, value in (arguments or {}).items() if value is not None}
        unknown = given.keys() - {item.name for item in self.parameters}
        for name in sorted(unknown)[:_MAX_UNKNOWN]:
            quoted = json_text.dumps(sendable(name[:_MAX_QUOTED]))
            problems.append(f"there is no argument {quoted}")
        values: dict[str, ArgumentValue] = {}
        for item in self.parameters if arguments is not None else ():
            try:
                values[item.name] = item.parse(given.get(item.name, item.default))
            except ValueError as error:
                problems.append(str(error))
        if problems:
            takes = ", ".join(item.usage for item in self.parameters) or "no arguments"
            reason = "; ".join(problems)
            raise ValidationError(f"{self.name} was not run: {reason}. It takes {takes}.")
        return values


def _count(name: str, description: str, default: int, maximum: int) -> Parameter:
    return Parameter(name, "integer", description, default, minimum=1, maximum=maximum)


def _context_lines(name: str) -> Parameter:
    description = f"Lines {name} each match; 0 by default."
    return Parameter(name, "integer", description, default=0, maximum=MAX_CONTEXT_LINES)


def _text(name: str, description: str, maximum: int) -> Parameter:
    return Parameter(name, "string", description, minimum=1, maximum=maximum)


_REF = _text("ref_id", "The output's ref, exactly as its result gives it.", _MAX_REF)
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
                    Parameter("offset", "integer", "Lines to skip; 0 by default.", default=0),
                    _count("limit", f"Most lines; {MAX_LINES} by default.", MAX_LINES, MAX_LINES),
                ),
            ),
            AgentTool(
                GREP,
                f"Search, line by line, {_WHOLE} Answers as grep -n does.",
                (
                    _REF,
                    _text(
                        "pattern",
                        "Regular expression (RE2: no look-arounds, no backreferences).",
                        _MAX_PATTERN,
                    ),
                    Parameter("ignore_case", "boolean", "false by default.", default=False),
                    _context_lines("before"),
                    _context_lines("after"),
                    _count("limit", "Most matches; 100 by default.", 100, MAX_MATCHES),
                ),
            ),
            AgentTool(
                READ_BYTES,
                f"Read, by bytes, {_WHOLE} Fit for very long lines. The answer's end says how to"
                " go on.",
                (
                    _REF,
                    Parameter("offset", "integer", "Bytes to skip; 0 by default.", default=0),
                    _count("limit", "Most bytes; 4096 by default.", 4096, MAX_BYTES),
                ),
            ),
            AgentTool(
                TOOL_SEARCH,
                "Find tools that are not listed here, by what they do. Answers with their"
                " definitions; the tools found can be called from then on.",
                (
                    _text(
                        "query",
                        "What the tool should do, in a few words; or its exact name.",
                        MAX_QUERY_CHARS,
                    ),
                    _count(
                        "limit",
                        f"Most tools; {DEFAULT_TOOL_MATCHES} by default.",
                        DEFAULT_TOOL_MATCHES,
                        MAX_TOOL_MATCHES,
                    ),
                ),
            ),
            AgentTool(
                COMPACT_CONTEXT,
                "Free space in the context: a summary takes the place of earlier messages.",
                (),
            ),
            AgentTool(
                RECALL,
                "Search the whole conversation, with all that was summarised or is no longer"
                " shown. Answers with excerpts of the messages that fit best, and of those around"
                " them. The answer's end says how to go on.",
                (
                    _text(
                        "query",
                        "A question, or the words that stood there; names and times help.",
                        MAX_QUERY_CHARS,
                    ),
                    Parameter("offset", "integer", "Messages to skip; 0 by default.", default=0),
                ),
            ),
        )
    }
)
"""Every agent tool, by name; `ToolCallService` executes them."""


def definitions_in(format: FormatName) -> list[dict[str, Any]]:
    """Return the definitions of all tools in a provider's format."""
    return PROVIDERS[format].tools_to_wire([tool.definition for tool in AGENT_TOOLS.values()])


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
