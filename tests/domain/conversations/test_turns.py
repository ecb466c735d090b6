"""Turns and cuts: no cut ever separates a call from its result. [log.safe-cuts]"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.conversations.turns import (
    Entry,
    call_groups,
    group_boundary_after,
    group_boundary_before,
    marked,
    parse_turn_boundaries,
    pinned_seqs,
)
from app.formats.message import Role
from tests.domain.histories import entries

U, A, T = Role.USER, Role.ASSISTANT, Role.TOOL


def legal_cuts(items: list[Entry]) -> list[int]:
    """Return by brute force every cut that leaves results with their calls."""
    return [i for i in range(len(items) + 1) if i == len(items) or i == 0 or not items[i].joins]


@given(entries(), st.integers(-3, 60))
def test_group_boundaries_are_the_nearest_legal_cuts(items: list[Entry], index: int) -> None:
    """One is the last legal cut before an index, the other the first after it."""
    legal = legal_cuts(items)
    inside = max(0, min(index, len(items)))
    assert group_boundary_before(items, index) == max(cut for cut in legal if cut <= inside)
    assert group_boundary_after(items, index) == min(cut for cut in legal if cut >= inside)


@given(entries())
def test_turns_partition_a_history(items: list[Entry]) -> None:
    """Turn starts ascend from 0, and only the first turn may lack its user message."""
    starts = parse_turn_boundaries(items)
    assert starts == sorted(set(starts))
    assert starts[0] == 0
    assert all(items[start].role is U for start in starts[1:])
    users = {index for index, item in enumerate(items) if item.role is U and not item.joins}
    assert users <= set(starts)


@given(entries(), st.sets(st.integers(1, 60)))
def test_pins_protect_call_groups_and_nothing_else(items: list[Entry], pins: set[int]) -> None:
    """Groups partition a history, and each is protected whole if one of it is pinned."""
    items = [marked(item, pinned=item.seq in pins) for item in items]
    groups = [items[start:end] for start, end in call_groups(items)]
    assert [item for group in groups for item in group] == items
    protected = pinned_seqs(items)
    for group in groups:
        assert [item.joins for item in group] == [False] + [True] * (len(group) - 1)
        pinned = any(item.pinned for item in group)
        assert {item.seq in protected for item in group} == {pinned}
