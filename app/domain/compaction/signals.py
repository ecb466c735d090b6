"""Signals: what kind of conversation this is, and how the steps of a chain follow from it (D5).

The steps stand in the policy's order at first. Then, in this order:

1. Little tool output: clearing would free next to nothing and is left out, unless it is the
   only step. What it may not touch, the results of excluded tools, does not count (F3).
2. Much tool output, one huge result, or many parallel calls: clearing leaves only the last call
   group its results. Otherwise the last three groups keep theirs.
3. Compactions failed again and again: truncation comes before the summary, which would only
   fail once more. One that succeeds ends that.
4. Long turns: cuts are made inside a turn, between call groups. Otherwise a turn is cut only
   when it does not fit by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.common.messages import Role
from app.domain.common.policy import ChainStep
from app.domain.conversations.turns import Entry, parse_turn_boundaries

LITTLE_TOOL_SHARE = 0.1
MUCH_TOOL_SHARE = 0.6
HUGE_RESULT_SHARE = 0.25
PARALLEL_CALL_DENSITY = 0.6
"""Calls made one at a time give at most one call to two messages."""
LONG_TURN_MESSAGES = 20
MAX_FAILURES = 3
"""After so many in a row the summariser is not asked first any more."""

GROUPS_KEPT = 3
GROUPS_KEPT_DEEP = 1


@dataclass(frozen=True, slots=True)
class ConversationSignals:
    """What a history is made of (S2).

    `tool_share` and `largest_result` are shares of its tokens, excluded results left out,
    `call_density` is calls per message, `turn_length` messages per turn, `failures` compactions
    that failed in a row.
    """

    tool_share: float = 0.0
    largest_result: float = 0.0
    call_density: float = 0.0
    turn_length: float = 0.0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a chain, and how far it goes.

    `groups_kept` of the newest call groups keep their results when clearing; `inside_turns`
    tells whether a turn may be cut.
    """

    name: ChainStep
    groups_kept: int = GROUPS_KEPT
    inside_turns: bool = False


def signals_of(history: Sequence[Entry], failures: int = 0) -> ConversationSignals:
    """Return the signals of what is shown now, results already cleared at their small cost."""
    results = [entry for entry in history if entry.role is Role.TOOL]
    output = [entry.tokens for entry in results if not entry.excluded]
    tokens = sum(entry.tokens for entry in history)
    return ConversationSignals(
        tool_share=sum(output) / max(tokens, 1),
        largest_result=max(output, default=0) / max(tokens, 1),
        call_density=len(results) / max(len(history), 1),
        turn_length=len(history) / max(len(parse_turn_boundaries(history)), 1),
        failures=failures,
    )


def adjust(steps: Sequence[ChainStep], signals: ConversationSignals) -> tuple[Step, ...]:
    """Return the steps to run, in order and depth as the signals want them (rules 1 to 4)."""
    names = list(steps)
    clear, summarize, truncate = ChainStep
    if signals.tool_share < LITTLE_TOOL_SHARE and len(names) > 1 and clear in names:
        names.remove(clear)
    late = names.index(truncate) if truncate in names else 0
    if signals.failures >= MAX_FAILURES and summarize in names[:late]:
        names.insert(names.index(summarize), names.pop(late))
    groups_kept = GROUPS_KEPT_DEEP if _wants_deep_clearing(signals) else GROUPS_KEPT
    inside_turns = signals.turn_length >= LONG_TURN_MESSAGES
    return tuple(Step(name, groups_kept, inside_turns) for name in names)


def _wants_deep_clearing(signals: ConversationSignals) -> bool:
    return (
        signals.tool_share >= MUCH_TOOL_SHARE
        or signals.largest_result >= HUGE_RESULT_SHARE
        or signals.call_density > PARALLEL_CALL_DENSITY
    )
