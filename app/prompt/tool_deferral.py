"""Deferral of tool definitions: which ones are left out of a payload [tools.deferral].

1. No tool is deferred while all definitions are within their allowed tokens and within the
   provider's maximum number of tools.
2. Otherwise tools are deferred until the rest, with the service's `tool_search`, is within both:
   first `mcp` tools, then `skill` tools; inside a category those never called, then those called
   longest ago; among equals, the last in the list first. `builtin` and promoted tools stay, even
   if they exceed the allowed tokens.
3. The last resort [tools.last-resort]: if the rest exceeds `max_tokens`, which leave room for
   messages, or the provider's maximum, `builtin` tools are deferred too, those called longest ago
   first; among equals, the largest first. If that is not enough, promoted tools are deferred, those
   promoted first before others.
4. No more tools are deferred than needed, so that more allowed tokens never defer more tools.
5. A provider with its own tool search gets all definitions, so that the list does not change when a
   tool is found [tools.native-deferral]. For other providers, deferred tools are absent until a
   search promotes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from app.blobs.preview import TOOL_SEARCH
from app.formats import ToolDefinition
from app.policy.policy import AGENT_TOOL_NAMES

MAX_QUERY: Final = 1000
"""The maximum length of a query, in characters."""
DEFAULT_TOOL_MATCHES: Final = 5
MAX_TOOL_MATCHES: Final = 50

MIN_MESSAGES_SHARE: Final = 0.1
"""The share of the window that sections and tools leave for messages (rule 3)."""

_CATEGORIES = ("mcp", "skill")
"""The categories that are deferred before the last resort, the first ones first."""
_NEVER = -1


@dataclass(frozen=True, slots=True)
class ToolSearchResult:
    """The matches among `total` tools, best first, and all tools promoted now."""

    tools: tuple[ToolDefinition, ...]
    total: int
    promoted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """What the tools of a payload may take: tokens, tokens at the utmost (rule 3), and number."""

    allowed_tokens: int
    max_tokens: int | None = None
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
    max_count = count if limits.max_tools is None else limits.max_tools
    indexes = {tool.name: index for index, tool in enumerate(tools) if can_defer(tool)}
    deferred: set[str] = set()

    def defer(names: Iterable[str], max_tokens: int) -> None:
        nonlocal tokens, count
        for name in names:
            if tokens <= max_tokens and count <= max_count:
                return
            deferred.add(name)
            tokens -= costs[indexes[name]]
            count -= 1

    def order(name: str) -> tuple[int, int, int]:  # rule 2
        index = indexes[name]
        category = _CATEGORIES.index(tools[index].category)
        return category, last_used.get(name, _NEVER), -index

    def last_resort_order(name: str) -> tuple[int, int, int]:  # rule 3
        index = indexes[name]
        return last_used.get(name, _NEVER), -costs[index], -index

    usual = {name for name, index in indexes.items() if not is_fixed(tools[index])}
    max_tokens = tokens if limits.max_tokens is None else limits.max_tokens
    allowed = min(limits.allowed_tokens, max_tokens)
    defer(sorted(usual.difference(promoted), key=order), allowed)
    others = indexes.keys() - usual - set(promoted)
    enough = allowed if tokens > max_tokens else max_tokens
    defer(sorted(others, key=last_resort_order), enough)
    defer((name for name in promoted if name in indexes), max_tokens)
    return tuple(tool.name for tool in tools if tool.name in deferred)


def is_fixed(tool: ToolDefinition) -> bool:
    """Whether a tool is deferred as a last resort only, or never."""
    return tool.category not in _CATEGORIES or not can_defer(tool)


def can_defer(tool: ToolDefinition) -> bool:
    """Whether a tool may be deferred at all: it is not hosted, and not the service's own."""
    return tool.hosted is None and tool.name not in AGENT_TOOL_NAMES


def deferred_note(count: int) -> str:
    """Return the note for the model about deferred tools [tools.deferral-note]."""
    return f"[{count} tools deferred to save context. Use {TOOL_SEARCH} to find them.]"
