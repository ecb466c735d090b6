"""Epochs: what breaks a prefix, and that an epoch's start survives storage.

[epochs.extend, epochs.reasons]
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.conversations.conversation import ConversationState
from app.conversations.epochs import (
    NO_REQUESTED_WINDOW,
    Epoch,
    EpochStart,
    break_reason,
    epoch_factor,
    epoch_start_from,
    is_view_current,
    payload_stream_of,
    requested_window,
)
from app.conversations.view import Span, Summary, View, spans_beside
from app.formats.message import FormatName
from app.models.budget import Limits
from app.prompt.resolved_settings import STUB_TOOL, PayloadTools, RequestSettings
from tests.domain.conversations.generated import views
from tests.domain.payload.builders import TOOLS, resolved_of

RESOLVED = resolved_of([], TOOLS, None)
LIMITS = Limits(1000, 100, 0.8, 0.7, 0.95, 0.98)
SUMMARY = Summary(Span(3, 9), "s", tokens=4)
VIEW = View(
    spans=spans_beside(Span(3, 9), (5,)),
    summaries=(SUMMARY,),
    retain="r",
    results_cleared_through=4,
    uncleared_results=(2,),
)
STATE = ConversationState(
    view_version=2, view_cause="compaction", hidden_span=Span(3, 9), kept_seqs=(2, 5)
)
START = EpochStart(VIEW, 1000, 100)
EPOCH = Epoch(
    epoch=4,
    epoch_id="0190f3a0-0000-7000-8000-000000000001",
    payload_stream="openai_chat:some-model",
    format="openai_chat",
    window=NO_REQUESTED_WINDOW,
    reason=None,
    start_seq=9,
    view_version=2,
    start_json=START.as_json(),
    sections_hash="s",
    tools_hash="t",
    policy_hash="p",
)


def reason(**changes: Any) -> str | None:
    """Return why a build breaks the prefix of EPOCH when these things are different."""
    before = changes.pop("before", START)
    resolved, state = changes.pop("resolved", RESOLVED), changes.pop("state", STATE)
    window = changes.pop("window", NO_REQUESTED_WINDOW)
    return break_reason(EPOCH, before, replace(before, **changes), resolved, state, window)


OFFERS = st.builds(
    PayloadTools,
    st.sampled_from([(), (STUB_TOOL.name,), ("read_result",)]),
    st.lists(st.sampled_from(["a", "b"])).map(tuple),
    st.booleans(),
)


@given(
    st.builds(
        EpochStart,
        views(),
        st.integers(1, 2**62),
        st.integers(1, 2**40),
        OFFERS,
        st.lists(st.sampled_from(["a", "b"])).map(tuple),
        st.floats(0.25, 4),
        st.sampled_from(["", "d"]),
    )
)
@settings(deadline=None)
def test_a_start_is_read_as_it_was_stored(start: EpochStart) -> None:
    """A stored start reads back as it was, odd texts included.

    [payload.start-recorded]
    """
    text = start.as_json()
    assert epoch_start_from(text) == start
    assert "\x00" not in text
    text.encode()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"resolved": replace(RESOLVED, tools_hash="x")}, "tools_changed"),
        ({"tools": PayloadTools((STUB_TOOL.name,))}, "tools_changed"),
        ({"tools": PayloadTools(("read_result",))}, "tools_changed"),
        ({"tools": PayloadTools((), ("mcp_tool",))}, "tools_changed"),
        ({"resolved": replace(RESOLVED, sections_hash="x")}, "sections_changed"),
        ({"dynamic_hash": "x"}, "sections_changed"),
        ({"total": 999}, "budget_changed"),
        ({"max_output_tokens": 99}, "budget_changed"),
        ({"factor": 1.3}, "budget_changed"),
        ({"window": 1000}, "budget_changed"),
        ({"resolved": replace(RESOLVED, policy_hash="x")}, "policy_changed"),
        ({"state": replace(STATE, view_version=3)}, "compaction"),
        ({"state": ConversationState(view_version=3)}, "compaction"),
        ({"state": ConversationState(view_version=3, view_cause="undone")}, "undone"),
        ({"state": ConversationState(view_version=3, view_cause="window_moved")}, "window_moved"),
        (
            {"state": ConversationState(view_version=3, view_cause="policy_changed")},
            "policy_changed",
        ),
        ({"state": replace(STATE, view_cause="undone")}, None),
        ({"view": replace(VIEW, summaries=(replace(SUMMARY, text="other"),))}, "compaction"),
        ({"view": replace(VIEW, summaries=(SUMMARY, SUMMARY))}, "compaction"),
        ({"view": replace(VIEW, summaries=())}, "compaction"),
        ({"view": replace(VIEW, retain=None)}, "compaction"),
        ({"view": replace(VIEW, note="[left out]")}, "compaction"),
        ({"view": replace(VIEW, spans=spans_beside(Span(2, 9), (5,)))}, "unpinned"),
        ({"view": replace(VIEW, spans=spans_beside(Span(3, 9), (5, 6)))}, "window_moved"),
        ({"view": replace(VIEW, results_cleared_through=5)}, "tool_results_cleared"),
        ({"view": replace(VIEW, uncleared_results=(2, 3))}, "tool_results_cleared"),
        ({"view": replace(VIEW, summaries=(Summary(Span(4, 9), "s", level=3),))}, None),
        ({"view": replace(VIEW, reasoning_after=9)}, None),
    ],
)
def test_each_change_names_its_reason(changes: dict[str, Any], expected: str | None) -> None:
    """Whatever breaks the cached prefix is named; nothing else breaks it."""
    assert reason(**changes) == expected


def test_an_epoch_keeps_its_factor_while_the_models_is_near() -> None:
    """The factor of an epoch is frozen until the model's differs by more than 5 %."""
    start = replace(START, factor=1.2)
    assert epoch_factor(start, 1.25) == 1.2
    assert epoch_factor(start, 1.15) == 1.2
    assert epoch_factor(start, 1.3) == 1.3
    assert epoch_factor(start, 1.0) == 1.0


def test_the_prefix_breaks_at_its_earliest_change() -> None:
    """Of several changes the one nearest to the payload's start is named: tools come first.

    [compaction.new-epoch]
    """
    undone = ConversationState(view_version=3, view_cause="undone")
    both = replace(RESOLVED, tools_hash="x", sections_hash="x")
    assert reason(resolved=both, state=undone) == "tools_changed"
    assert reason(resolved=replace(RESOLVED, sections_hash="x"), state=undone) == "sections_changed"
    changed = replace(VIEW, retain=None, results_cleared_through=9)
    assert reason(state=undone, view=changed) == "undone"
    assert reason(view=changed) == "compaction"


@pytest.mark.parametrize(
    ("resolved", "limits", "version", "same"),
    [
        (RESOLVED, LIMITS, 2, True),
        (RESOLVED, LIMITS, 3, False),
        (replace(RESOLVED, policy_hash="x"), LIMITS, 2, False),
        (RESOLVED, replace(LIMITS, total=1), 2, False),
        (RESOLVED, replace(LIMITS, max_output_tokens=1), 2, False),
        (replace(RESOLVED, sections_hash="x", tools_hash="x"), LIMITS, 2, True),
        (RESOLVED, replace(LIMITS, notice_at=0.5), 2, True),
    ],
)
def test_a_view_is_valid_until_state_policy_or_window_changes(
    resolved: Any, limits: Limits, version: int, same: bool
) -> None:
    """Other sections or tools start an epoch, but its view stays."""
    assert is_view_current(EPOCH, START, resolved, limits, version) is same


def test_payload_streams_and_requested_windows_are_named() -> None:
    """A payload stream is a format and a model; a requested window is separate."""
    settings = RequestSettings(FormatName.ANTHROPIC, "claude", max_context_tokens=500)
    assert payload_stream_of(settings, "claude") == "anthropic:claude"
    assert requested_window(settings) == 500
    assert requested_window(RequestSettings()) == NO_REQUESTED_WINDOW
