"""The notes of the service itself: how full the context is, and which tools are held back (G6, H2).

1. A note's words are fixed, so that a model learns them once.
2. A note names a tool only where the payload has it (L1).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from app.domain.models.budget import Limits, Usage
from app.domain.prompt.resolved_settings import ResolvedSettings
from app.domain.prompt.tool_deferral import deferred_note
from app.domain.tool_output.preview import COMPACT_CONTEXT, TOOL_SEARCH

MAX_ROUNDS = 3
"""Rounds after which the percentage in a note counts itself."""


def usage_note(percent: int, *, named: bool = True) -> str:
    """Return the note that tells how full the context is, in whole percent (G6)."""
    if not named:
        return f"[Context: {percent}% used.]"
    return (
        f"[Context: {percent}% used. You can call {COMPACT_CONTEXT} to free space before"
        " continuing with large operations.]"
    )


def percent_of(used: int, limits: Limits) -> int:
    """Return which whole percent of the effective window is used."""
    return math.floor(100 * used / limits.effective_window)


@dataclass(frozen=True, slots=True)
class Notes:
    """Which notes a payload has: `percent` used from `notice_at` on, and tools held back."""

    percent: int | None = None
    deferred: int = 0
    names_compaction: bool = True

    @property
    def texts(self) -> tuple[str, ...]:
        """The notes in their order."""
        found = []
        if self.deferred:
            found.append(deferred_note(self.deferred))
        if self.percent is not None:
            found.append(usage_note(self.percent, named=self.names_compaction))
        return tuple(found)

    @property
    def mentions(self) -> frozenset[str]:
        """The own tools that the notes name."""
        found = {TOOL_SEARCH} if self.deferred else set()
        if self.percent is not None and self.names_compaction:
            found.add(COMPACT_CONTEXT)
        return frozenset(found)


def noted(
    resolved: ResolvedSettings,
    limits: Limits,
    conversation: int,
    summary: int,
    mentions: Iterable[str],
) -> Usage:
    """Return the usage of a payload with its notes, from raw counts; own tools are those named.

    It counts what a build puts into a payload of its own accord (C3, G6): the notes in a message
    behind the history, and the tools that they and the messages mention.
    """
    named = frozenset(mentions)
    own = resolved.extra_tokens(resolved.agent_tools(named))
    usage = resolved.usage(conversation, summary, own)
    names = COMPACT_CONTEXT in resolved.nameable
    notes = Notes(None, 0, names)
    for _ in range(MAX_ROUNDS):
        if notes.percent is None and not limits.reached(usage.total, limits.notice_at):
            return usage
        notes = Notes(percent_of(usage.total, limits), 0, names)
        own = resolved.extra_tokens(resolved.agent_tools(named | notes.mentions))
        more = resolved.usage(conversation, summary, own, resolved.system_tokens(notes.texts))
        if more.total > limits.capacity:
            return usage
        if more == usage:
            break
        usage = more
    return usage
