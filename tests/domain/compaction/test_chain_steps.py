"""What a history has decides on the steps of a chain and their depth. [strategy.chain-signals]"""

from __future__ import annotations

import pytest

from app.compaction.strategies import GROUPS_KEPT, MAX_FAILURES, MIN_GROUPS_KEPT, steps_for
from app.conversations.compaction_receipt import ChainStep
from app.conversations.turns import Entry, entry
from app.formats.message import Role

CLEAR, SUMMARIZE, TRUNCATE = STEPS = tuple(ChainStep)
SAID = [entry(seq, (Role.USER, Role.ASSISTANT)[seq % 2], 100) for seq in range(2, 20)]


def results(tokens: int, count: int = 4, *, excluded: bool = False) -> list[Entry]:
    """Return this many results after their calls, and what else was said."""
    calls = [entry(seq, Role.ASSISTANT, 20) for seq in range(20, 20 + 2 * count, 2)]
    made = [entry(call.seq + 1, Role.TOOL, tokens // count, excluded=excluded) for call in calls]
    return [*SAID, *(item for pair in zip(calls, made, strict=True) for item in pair)]


@pytest.mark.parametrize(
    ("history", "failures", "expected"),
    [
        (results(1000), 0, (STEPS, GROUPS_KEPT)),
        (results(100), 0, (STEPS[1:], GROUPS_KEPT)),
        (results(1000, excluded=True), 0, (STEPS[1:], GROUPS_KEPT)),
        (results(4000), 0, (STEPS, MIN_GROUPS_KEPT)),
        (results(1000, 1), 0, (STEPS, MIN_GROUPS_KEPT)),
        (results(1000), MAX_FAILURES, ((CLEAR, TRUNCATE, SUMMARIZE), GROUPS_KEPT)),
    ],
    ids=["ordinary", "little", "excluded", "much", "one-huge", "failed"],
)
def test_steps_suit_the_history(
    history: list[Entry], failures: int, expected: tuple[tuple[ChainStep, ...], int]
) -> None:
    """Little output is not cleared, much of it deeper; after failures truncation comes first."""
    steps, groups_kept, inside_turns = steps_for(history, STEPS, failures)
    assert (tuple(steps), groups_kept) == expected
    assert not inside_turns


def test_long_turns_are_cut_inside() -> None:
    """A turn of many messages may be divided; the only step is never left out."""
    history = [entry(1, Role.USER, 10), *(entry(seq, Role.ASSISTANT, 10) for seq in range(2, 30))]
    assert steps_for(history, [CLEAR]) == ([CLEAR], GROUPS_KEPT, True)
