"""Turns, call groups, and the positions at which a history may be cut.

1. A turn begins at a user message and ends before the next one.
2. A call group is an answer of the assistant with its calls and their results. Each of its messages
   but for the first `joins` it; the append decided that by the ids of the calls. A result that came
   late is in no group with its call.
3. No cut separates a message from the group that it joins.
4. Cuts are at turn starts; inside a single oversized turn, between call groups.
5. A pin protects the whole call group of its message. The policy's `exclude_tools` protects only
   the results of those tools, and only from clearing.

A cut at index `i` splits a history into `[0, i)` and `[i, len)`; `0` and `len` cut nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from app.formats.message import Role


class InLog(Protocol):
    """A message that may belong to the call group before it."""

    @property
    def joins(self) -> bool:
        """Whether it does."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A message as compaction planning reads it.

    `tokens` is its cost, `placeholder_tokens` the cost with a placeholder in place of a tool result
    (equal to `tokens` for other messages). A `pinned` message is never summarised, cleared or
    dropped; an `excluded` one is never cleared. It `joins` the call group before it (rule 2).
    """

    seq: int
    role: Role
    tokens: int
    placeholder_tokens: int
    pinned: bool = False
    excluded: bool = False
    joins: bool = False

    @property
    def clearable(self) -> bool:
        """Whether clearing it frees tokens; a pin on its group may still protect it."""
        return self.placeholder_tokens < self.tokens


OPEN_CALLS_SHARE = 8
"""The messages with open calls that no compaction hides take at most this part of the capacity."""
MAX_PLACEHOLDER_TOKENS = 80
"""Maximum cost of a cleared tool result: placeholder, call id and overhead."""


def entry(
    seq: int,
    role: Role,
    tokens: int,
    pinned: bool = False,
    excluded: bool = False,
    *,
    joins: bool | None = None,
) -> Entry:
    """Return the entry of a stored message; only large tool results can be cleared.

    By default every result joins the call group before it, and nothing else does.
    """
    can_clear = role is Role.TOOL and not (pinned or excluded)
    placeholder_tokens = min(tokens, MAX_PLACEHOLDER_TOKENS) if can_clear else tokens
    joins = role is Role.TOOL if joins is None else joins
    return Entry(seq, role, tokens, placeholder_tokens, pinned, excluded, joins)


def marked(item: Entry, *, pinned: bool = False, excluded: bool = False) -> Entry:
    """Return an entry with exactly these marks."""
    return entry(item.seq, item.role, item.tokens, pinned, excluded, joins=item.joins)


def starts_turn(item: Entry) -> bool:
    """Whether a turn starts at a message; what a user adds to a call group starts none."""
    return item.role is Role.USER and not item.joins


def parse_turn_boundaries(history: Sequence[Entry]) -> list[int]:
    """Return the index at which each turn starts.

    Messages before the first user message belong to a turn that starts at 0.
    """
    return [index for index, item in enumerate(history) if index == 0 or starts_turn(item)]


def is_group_boundary(history: Sequence[Entry], index: int) -> bool:
    """Whether a cut at `index` leaves every call with its results (rule 3)."""
    return index in (0, len(history)) or not history[index].joins


def group_boundary_before(history: Sequence[Entry], index: int) -> int:
    """Return the last legal cut at or before `index`."""
    index = max(0, min(index, len(history)))
    return next(at for at in range(index, -1, -1) if is_group_boundary(history, at))


def group_boundary_after(history: Sequence[Entry], index: int) -> int:
    """Return the first legal cut at or after `index`."""
    index = max(0, min(index, len(history)))
    return next(at for at in range(index, len(history) + 1) if is_group_boundary(history, at))


def call_groups(history: Sequence[InLog]) -> list[tuple[int, int]]:
    """Return the range of every call group; a message in no group is one by itself."""
    cuts = [index for index, item in enumerate(history) if not index or not item.joins]
    return list(pairwise([*cuts, len(history)])) if history else []


def pinned_seqs(history: Sequence[Entry]) -> frozenset[int]:
    """Return the seqs of all messages in call groups with a pin (rule 5)."""
    if not any(entry.pinned for entry in history):
        return frozenset()
    groups = (history[start:end] for start, end in call_groups(history))
    return frozenset(
        entry.seq for group in groups if any(entry.pinned for entry in group) for entry in group
    )


def with_pins(history: Sequence[Entry], seqs: Collection[int] = ()) -> list[Entry]:
    """Return the history with the whole call groups of pins, and of these seqs, pinned."""
    if not (seqs or any(item.pinned for item in history)):
        return list(history)
    pins = [marked(each, pinned=each.pinned or each.seq in seqs) for each in history]
    whole = pinned_seqs(pins)
    return [marked(item, pinned=item.seq in whole, excluded=item.excluded) for item in history]


def open_call_seqs(
    history: Sequence[Entry], open_seqs: Collection[int], max_tokens: int
) -> frozenset[int]:
    """Return which messages with open calls stay: the newest ones, of at most so many tokens.

    The results that came so far count, because they stay with their call.
    """
    staying: set[int] = set()
    for start, end in reversed(call_groups(history) if open_seqs else ()):
        group = history[start:end]
        seqs, tokens = {item.seq for item in group}, sum(item.tokens for item in group)
        if not seqs.isdisjoint(open_seqs) and tokens <= max_tokens:
            max_tokens -= tokens
            staying |= seqs.intersection(open_seqs)
    return frozenset(staying)


def newest_user_message(history: Sequence[Entry]) -> Entry | None:
    """Return the newest user message of a history."""
    return next(filter(starts_turn, reversed(history)), None)


@dataclass(frozen=True, slots=True)
class Protected:
    """What no reduction touches: the seqs that are never hidden, and those never cleared."""

    unhidden: frozenset[int]
    uncleared: frozenset[int]


def protected(history: Sequence[Entry]) -> Protected:
    """Return what may never be touched: pinned groups are neither hidden nor cleared.

    The newest user message is never hidden, the results of excluded tools are never cleared.
    """
    newest, pinned = newest_user_message(history), pinned_seqs(history)
    excluded = {item.seq for item in history if item.excluded}
    return Protected(pinned | {newest.seq} if newest else pinned, pinned | excluded)
