"""Deferral: which tool definitions are held back, and how providers are told of them (H).

1. Nothing is held back while all definitions together cost no more than they may, and are no more
   than a provider takes.
2. Else so much is held back that the rest costs no more than that, the service's `tool_search`
   with it: `mcp` goes first, then `skill`; inside a category what was never called, then what was
   called longest ago; of equals the last in the list. `builtin` and what is promoted stay, and
   may cost more.
3. No more is held back than needed, so that a larger allowance never holds back more.
4. A provider that searches by itself knows the tools held back, which leaves the list as it is
   when one is found; to others they are absent until a search promotes them (H3).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.domain.common.messages import FormatName, sendable, sendable_json
from app.domain.formats import FORMATS, ToolDefinition
from app.domain.tool_output.preview import TOOL_NAMES, TOOL_SEARCH

MAX_QUERY: Final = 1000
"""Characters of a search."""
USUALLY_FOUND: Final = 5
MAX_FOUND: Final = 50

_HELD_BACK = {"mcp": 0, "skill": 1}
_NEVER = -1


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found among `total` tools, best first, and all that is promoted now (H2)."""

    tools: tuple[ToolDefinition, ...]
    total: int
    promoted: tuple[str, ...]


def plan_deferral(
    tools: Sequence[ToolDefinition],
    costs: Sequence[int],
    allowed_tokens: int,
    last_used: Mapping[str, int],
    promoted: Sequence[str],
    most_tools: int | None = None,
) -> tuple[str, ...]:
    """Return the names of the tools to hold back, in the order of `tools` (H1).

    `promoted` are those found in this turn, the first found first.

    `costs` are the tools' tokens, `last_used` the seqs at which they were last called; what is
    left may be at most `most_tools`. Where all that may go is not enough, all of it goes.
    """
    tokens, count = sum(costs), len(tools)
    most = count if most_tools is None else most_tools
    held: set[str] = set()
    movable = {tool.name for tool in tools if not is_fixed(tool)}
    for place in _order(tools, last_used, promoted):
        if tokens <= allowed_tokens and count <= most:
            break
        held.add(tools[place].name)
        tokens -= costs[place]
        count -= 1
    for name in (name for name in promoted if name in movable and count > most):
        held.add(name)  # more was found in this turn than the provider takes: the oldest goes
        count -= 1
    return tuple(tool.name for tool in tools if tool.name in held)


def is_fixed(tool: ToolDefinition) -> bool:
    """Whether a tool is never held back: a builtin one, and every one of the service's own (H1)."""
    return tool.category not in _HELD_BACK or tool.name in TOOL_NAMES


def deferred_note(count: int) -> str:
    """Return the note that tells the model of tools held back (H2)."""
    return f"[{count} tools deferred to save context. Use {TOOL_SEARCH} to find them.]"


def with_deferred(
    format: FormatName, tools: Sequence[ToolDefinition], deferred: Collection[str]
) -> list[dict[str, Any]]:
    """Return a payload's tool list that holds some back in the provider's own way (rule 4, H3).

    Anthropic gets all of them, marked, and wants one at least that is not; OpenAI Responses gets
    its own search in the place of the function `tool_search`, and the others without a trace.
    """
    if format is FormatName.ANTHROPIC:
        shown = FORMATS[format].tools_to_wire(tools)
        return [
            {**wire, "defer_loading": True} if tool.name in deferred else wire
            for tool, wire in zip(tools, shown, strict=True)
        ]
    kept = [tool for tool in tools if tool.name not in deferred]
    shown = FORMATS[format].tools_to_wire(kept)
    if format is FormatName.OPENAI_RESPONSES:
        return [
            _client_search(tool) if tool.name == TOOL_SEARCH else wire
            for tool, wire in zip(kept, shown, strict=True)
        ]
    return shown


def references(found: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """Return the blocks with which a tool result names tools that Anthropic knows already (A6)."""
    return [{"type": "tool_reference", "tool_name": tool.name} for tool in found]


def loaded(found: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """Return definitions as an output of OpenAI's tool search hands them to the model (C7)."""
    shown = FORMATS[FormatName.OPENAI_RESPONSES].tools_to_wire(found)
    return [{**wire, "defer_loading": True} for wire in shown]


def _order(
    tools: Sequence[ToolDefinition], last_used: Mapping[str, int], promoted: Collection[str]
) -> list[int]:
    """Return the places of the tools that may be held back, the first to go first (rule 2)."""
    places = [
        place
        for place, tool in enumerate(tools)
        if not is_fixed(tool) and tool.name not in promoted
    ]

    def rank(place: int) -> tuple[int, int, int]:
        tool = tools[place]
        return _HELD_BACK[tool.category], last_used.get(tool.name, _NEVER), -place

    return sorted(places, key=rank)


def _client_search(tool: ToolDefinition) -> dict[str, Any]:
    return {
        "type": "tool_search",
        "execution": "client",
        "description": sendable(tool.description),
        "parameters": sendable_json(tool.parameters),
    }
