"""Notes that the service adds to a payload: the use of the context window, and deferred tools.

1. The text of a note is fixed.
2. A note names a tool only where the payload has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from app.blobs.preview import COMPACT_CONTEXT, TOOL_SEARCH
from app.models.budget import Limits, Usage
from app.prompt.resolved_settings import ResolvedSettings
from app.prompt.tool_deferral import deferred_note

MAX_ROUNDS = 3
"""Rounds after which the percentage in a note includes the note."""


def usage_note(percent: int, *, named: bool = True) -> str:
    """Return the note about the used share of the context window, in whole percent."""
    if not named:
        return f"[Context: {percent}% used.]"
    return (
        f"[Context: {percent}% used. You can call {COMPACT_CONTEXT} to free space before"
        " continuing with large operations.]"
    )


def percent_of(used: int, limits: Limits) -> int:
    """Return the used share of the effective window in whole percent."""
    return math.floor(100 * used / limits.effective_window)


@dataclass(frozen=True, slots=True)
class Notes:
    """The notes of a payload: the percentage used, from `notice_at` on, and deferred tools."""

    percent: int | None = None
    deferred: int = 0
    names_compaction: bool = True

    @property
    def texts(self) -> tuple[str, ...]:
        """The notes in their order."""
        notes = []
        if self.deferred:
            notes.append(deferred_note(self.deferred))
        if self.percent is not None:
            notes.append(usage_note(self.percent, named=self.names_compaction))
        return tuple(notes)

    @property
    def mentions(self) -> frozenset[str]:
        """The agent tools that the notes name."""
        names = {TOOL_SEARCH} if self.deferred else set()
        if self.percent is not None and self.names_compaction:
            names.add(COMPACT_CONTEXT)
        return frozenset(names)


def usage_with_notes(
    resolved: ResolvedSettings,
    limits: Limits,
    conversation: int,
    summary: int,
    mentions: Iterable[str],
) -> Usage:
    """Return the usage of a payload with its notes, from counts before the factor.

    It counts what a build adds to a payload: the notes after the history, and the agent tools that
    notes and messages mention.
    """
    named = frozenset(mentions)
    own = resolved.agent_tool_tokens(resolved.agent_tools(named))
    usage = resolved.usage(conversation, summary, own)
    names = COMPACT_CONTEXT in resolved.named_agent_tools(resolved.agent_tools((COMPACT_CONTEXT,)))
    notes = Notes(None, 0, names)
    for _ in range(MAX_ROUNDS):
        if notes.percent is None and not limits.reached(usage.total, limits.notice_at):
            return usage
        notes = Notes(percent_of(usage.total, limits), 0, names)
        own = resolved.agent_tool_tokens(resolved.agent_tools(named | notes.mentions))
        more = resolved.usage(conversation, summary, own, resolved.system_tokens(notes.texts))
        if more.total > limits.capacity:
            return usage
        if more == usage:
            break
        usage = more
    return usage
