"""What a history has decides on the stages of a chain and their depth. [strategy.chain-signals]"""

from __future__ import annotations

import pytest

from app.compaction.strategies import GROUPS_KEPT, MIN_GROUPS_KEPT, signals_of
from app.conversations.turns import Entry, entry
from app.formats.message import Role

SAID = [entry(seq, (Role.USER, Role.ASSISTANT)[seq % 2], 100) for seq in range(2, 20)]
LONG = [entry(seq, Role.ASSISTANT if seq > 1 else Role.USER, 10) for seq in range(1, 30)]


def results(tokens: int, count: int = 4, *, excluded: bool = False) -> list[Entry]:
    """Return this many results after their calls, and what else was said."""
    calls = [entry(seq, Role.ASSISTANT, 20) for seq in range(20, 20 + 2 * count, 2)]
    made = [entry(call.seq + 1, Role.TOOL, tokens // count, excluded=excluded) for call in calls]
    return [*SAID, *(item for pair in zip(calls, made, strict=True) for item in pair)]


@pytest.mark.parametrize(
    ("history", "signals"),
    [
        (results(1000), (True, GROUPS_KEPT, False)),
        (results(100), (False, GROUPS_KEPT, False)),
        (results(1000, excluded=True), (False, GROUPS_KEPT, False)),
        (results(4000), (True, MIN_GROUPS_KEPT, False)),
        (results(1000, 1), (True, MIN_GROUPS_KEPT, False)),
        (LONG, (False, GROUPS_KEPT, True)),
    ],
    ids=["ordinary", "little", "excluded", "much", "one-huge", "long-turn"],
)
def test_steps_suit_the_history(history: list[Entry], signals: tuple[bool, int, bool]) -> None:
    """Little output is not cleared, much of it deeper; long turns may be divided."""
    assert signals_of(history) == signals
