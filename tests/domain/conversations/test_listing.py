"""The index that a page of conversations is read from.

[lists.bounded]
"""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from app.domain.conversations.listing import (
    MAX_SCANNED,
    ConversationFilter,
    Lead,
    ListIndex,
    ListOrder,
    TimeRange,
    ordered_lead,
    other_leads,
    rarest,
)

_times = st.sampled_from([TimeRange(), TimeRange(after=datetime(2026, 1, 1, tzinfo=UTC))])
_filters = st.builds(
    ConversationFilter,
    labels=st.dictionaries(st.sampled_from("abc"), st.text(max_size=2), max_size=3),
    agent_id=st.sampled_from([None, "a"]),
    model=st.sampled_from([None, "m"]),
    created=_times,
    active=_times,
)


@given(_filters, st.sampled_from(ListOrder))
def test_a_page_can_always_be_read_in_its_order(
    wanted: ConversationFilter, order: ListOrder
) -> None:
    """One index has the order of the list, and each filter has an index of its own."""
    lead = ordered_lead(wanted, order)
    assert lead.index.is_ordered_by(order)
    others = other_leads(wanted, order)
    assert len(set(others)) == len(others)
    assert {item.label for item in others if item.label} == set(wanted.labels)
    assert (Lead(ListIndex.AGENT) in others) is (wanted.agent_id is not None)
    assert (Lead(ListIndex.MODEL) in others) is (wanted.model is not None)
    has_other_time = bool(wanted.active if order is ListOrder.CREATED else wanted.created)
    times = {ListIndex.CREATED, ListIndex.ACTIVE} & {item.index for item in others}
    assert bool(times) is has_other_time


@given(st.dictionaries(st.sampled_from(ListIndex).map(Lead), st.integers(0, 2 * MAX_SCANNED)))
def test_only_a_rare_filter_is_read_whole(counts: dict[Lead, int]) -> None:
    """It is the one with the fewest entries, if it has no more than a page may read."""
    lead = rarest(counts)
    if lead is None:
        assert all(count > MAX_SCANNED for count in counts.values())
    else:
        assert counts[lead] == min(counts.values()) <= MAX_SCANNED
