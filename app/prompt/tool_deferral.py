"""Deferral of tool definitions: which ones are left out of a payload [tools.deferral].

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
from dataclasses import dataclass
from typing import Final

from app.blobs.preview import TOOL_SEARCH
from app.formats import ToolDefinition
from app.policy.policy import AGENT_TOOL_NAMES

MAX_QUERY: Final = 1000
"""The maximum length of a query, in characters."""
DEFAULT_TOOL_MATCHES: Final = 5
MAX_TOOL_MATCHES: Final = 50

_CATEGORIES = ("mcp", "skill")
"""The categories that are deferred the first ones first."""
_NEVER = -1


@dataclass(frozen=True, slots=True)
class ToolSearchResult:
    """The matches among `total` tools, best first, and all tools promoted now."""

    tools: tuple[ToolDefinition, ...]
    total: int
    promoted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """What the tools of a payload may take: tokens, and number."""

    allowed_tokens: int
    max_tools: int | None = None


def plan_deferral(
    tools: Sequence[ToolDefinition],
    costs: Sequence[int],
    limits: ToolLimits,
    last_used: Mapping[str, int],
    promoted: Sequence[str],
) -> tuple[str, ...]:
    """Return the names of the tools to defer, in the order of `tools`.

    `costs` are the tools' tokens, `last_used` the seqs of their last calls. `promoted` are the
    tools that searches of this turn matched, the oldest first. If deferring every possible tool is
    not enough, all of them are deferred.
    """
    tokens, count = sum(costs), len(tools)
    most = count if limits.max_tools is None else limits.max_tools
    indexes = {tool.name: index for index, tool in enumerate(tools) if can_defer(tool)}
    deferred: set[str] = set()

    def order(name: str) -> tuple[int, int, int]:  # rule 2
        index = indexes[name]
        category = _CATEGORIES.index(tools[index].category)
        return category, last_used.get(name, _NEVER), -index

    stay = [name for name in promoted if name in indexes]
    for name in (*sorted(indexes.keys() - set(stay), key=order), *stay):
        if count <= most and (tokens <= limits.allowed_tokens or name in stay):
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
