"""Turns, call groups, and where a history may be cut.

1. A turn begins at a user message and runs up to the next one (vocabulary).
2. A call group is an assistant message with tool calls and all their results. Results follow
   their calls directly, so a position is inside a group exactly when a tool message stands there.
3. No cut separates a call from its result (A4, N1, N2).
4. Cuts are made at turn starts; inside one oversized turn, between call groups (N4).
5. A pin protects the whole call group its message belongs to (D8), the policy's `exclude_tools`
   the results of those tools alone, and from clearing alone (F3).

A cut at index `i` splits a history into `[0, i)` and `[i, len)`; `0` and `len` cut nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from app.domain.common.messages import Role


class HasRole(Protocol):
    """Anything that stands in a history."""

    @property
    def role(self) -> Role:
        """Who speaks."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """What planning needs to know of one message.

    `tokens` is its cost as it would be sent, `trimmed_tokens` the cost once a tool result has
    given way to its placeholder (equal to `tokens` for everything else). A `pinned` one is
    neither summarised nor cleared nor dropped (D8), an `excluded` one is not cleared (F3).
    """

    seq: int
    role: Role
    tokens: int
    trimmed_tokens: int
    pinned: bool = False
    excluded: bool = False

    @property
    def clearable(self) -> bool:
        """Whether clearing it frees anything; a pin on another of its group may forbid it."""
        return self.trimmed_tokens < self.tokens


TRIMMED_TOKENS = 80
"""The most a trimmed tool result costs: its placeholder, its call's id, its overhead."""


def entry(seq: int, role: Role, tokens: int, pinned: bool = False, excluded: bool = False) -> Entry:
    """Return the entry of a stored message; only larger tool results can be trimmed."""
    can_trim = role is Role.TOOL and not (pinned or excluded)
    trimmed_tokens = min(tokens, TRIMMED_TOKENS) if can_trim else tokens
    return Entry(seq, role, tokens, trimmed_tokens, pinned, excluded)


def parse_turn_boundaries(history: Sequence[HasRole]) -> list[int]:
    """Return the index at which each turn starts (A4).

    Messages before the first user message belong to a turn that starts at 0.
    """
    starts = [index for index, item in enumerate(history) if item.role is Role.USER]
    if history and (not starts or starts[0] != 0):
        starts.insert(0, 0)
    return starts


def is_group_boundary(history: Sequence[HasRole], index: int) -> bool:
    """Whether a cut at `index` leaves every call with its results (rule 3)."""
    return index in (0, len(history)) or history[index].role is not Role.TOOL


def group_boundary_before(history: Sequence[HasRole], index: int) -> int:
    """Return the last legal cut at or before `index`."""
    index = max(0, min(index, len(history)))
    while not is_group_boundary(history, index):
        index -= 1
    return index


def group_boundary_after(history: Sequence[HasRole], index: int) -> int:
    """Return the first legal cut at or after `index`."""
    index = max(0, min(index, len(history)))
    while not is_group_boundary(history, index):
        index += 1
    return index


def call_groups(history: Sequence[HasRole]) -> list[tuple[int, int]]:
    """Return the range of every call group; a message without results is a group by itself."""
    cuts = [index for index, item in enumerate(history) if not index or item.role is not Role.TOOL]
    return list(pairwise([*cuts, len(history)])) if history else []


def pinned_seqs(history: Sequence[Entry]) -> frozenset[int]:
    """Return the seqs that pins protect: every message of a group with a pinned one (rule 5)."""
    if not any(entry.pinned for entry in history):
        return frozenset()
    groups = (history[start:end] for start, end in call_groups(history))
    return frozenset(
        entry.seq for group in groups if any(entry.pinned for entry in group) for entry in group
    )


def never_cleared(history: Sequence[Entry]) -> frozenset[int]:
    """Return the seqs that no step clears: those that pins protect, and excluded results."""
    return pinned_seqs(history) | {entry.seq for entry in history if entry.excluded}


def find_safe_boundary(history: Sequence[HasRole], target: int) -> int:
    """Return the legal cut nearest to `target` (A4, S3).

    Turn starts come first, the earlier of two equally near ones. A history that is a single
    turn is cut between call groups, at or before the target.
    """
    target = max(0, min(target, len(history)))
    inner = [start for start in parse_turn_boundaries(history) if start > 0]
    if inner and 0 < target < len(history):
        return min(inner, key=lambda start: (abs(start - target), start))
    return group_boundary_before(history, target)
