"""The steps of a chain in the order and depth that suit a conversation. [strategy.chain-signals]

The steps stand in the policy's order at first. Then, in this order:

1. Little tool output: clearing would free next to nothing and is left out, unless it is the only
   step. Results of excluded tools do not count, because clearing leaves them alone.
2. Much tool output, one huge result, or many parallel calls: clearing keeps the results of the
   last call group only. Otherwise it keeps those of the last three.
3. Several compactions failed in a row: truncation comes before the summary, which would probably
   fail again. One success ends that.
4. Long turns: cuts are made inside a turn, between call groups. Otherwise a turn is cut only when
   it does not fit by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.common.messages import Role
from app.domain.common.policy import ChainStep
from app.domain.compaction.plans import tokens_of
from app.domain.conversations.turns import Entry, parse_turn_boundaries

LITTLE_TOOL_SHARE = 0.1
MUCH_TOOL_SHARE = 0.6
HUGE_RESULT_SHARE = 0.25
PARALLEL_CALL_DENSITY = 0.6
"""Calls made one at a time give at most one call to two messages."""
LONG_TURN_MESSAGES = 20
MAX_FAILURES = 3
"""After so many failures in a row the summariser is not called first any more."""

GROUPS_KEPT = 3
GROUPS_KEPT_DEEP = 1


@dataclass(frozen=True, slots=True)
class ConversationSignals:
    """What a history consists of.

    `tool_share` and `largest_result` are shares of its tokens, excluded results left out.
    `call_density` is calls per message, `turn_length` messages per turn. `failures` counts the
    compactions that failed in a row.
    """

    tool_share: float = 0.0
    largest_result: float = 0.0
    call_density: float = 0.0
    turn_length: float = 0.0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step of a chain, and how far it goes.

    Clearing keeps the results of the `groups_kept` newest call groups. With `inside_turns` a turn
    may be cut.
    """

    name: ChainStep
    groups_kept: int = GROUPS_KEPT
    inside_turns: bool = False


def signals_of(history: Sequence[Entry], failures: int = 0) -> ConversationSignals:
    """Return the signals of what is shown now, cleared results at the cost of a placeholder."""
    results = [entry for entry in history if entry.role is Role.TOOL]
    output = [entry.tokens for entry in results if not entry.excluded]
    tokens = max(tokens_of(history), 1)
    return ConversationSignals(
        tool_share=sum(output) / tokens,
        largest_result=max(output, default=0) / tokens,
        call_density=len(results) / max(len(history), 1),
        turn_length=len(history) / max(len(parse_turn_boundaries(history)), 1),
        failures=failures,
    )


def plan_steps(steps: Sequence[ChainStep], signals: ConversationSignals) -> tuple[PlannedStep, ...]:
    """Return the steps to run, ordered and adjusted by the signals."""
    names = list(steps)
    clear, summarize, truncate = ChainStep
    if signals.tool_share < LITTLE_TOOL_SHARE and len(names) > 1 and clear in names:
        names.remove(clear)
    late = names.index(truncate) if truncate in names else 0
    if signals.failures >= MAX_FAILURES and summarize in names[:late]:
        names.insert(names.index(summarize), names.pop(late))
    clears_deep = (
        signals.tool_share >= MUCH_TOOL_SHARE
        or signals.largest_result >= HUGE_RESULT_SHARE
        or signals.call_density > PARALLEL_CALL_DENSITY
    )
    groups_kept = GROUPS_KEPT_DEEP if clears_deep else GROUPS_KEPT
    inside_turns = signals.turn_length >= LONG_TURN_MESSAGES
    return tuple(PlannedStep(name, groups_kept, inside_turns) for name in names)
