"""Epochs: what breaks a prefix, and that an epoch's start survives storage (G3, decision 16)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.budget import Limits
from app.domain.epochs import (
    OWN_WINDOW,
    Start,
    break_reason,
    lane_of,
    same_ground,
    start_from,
    window_of,
)
from app.domain.frames import Ask
from app.domain.messages import FormatName
from app.domain.prompt import View
from app.domain.records import Epoch
from app.domain.strategies import ENDLESS, Span
from tests.domain.strategies_messages import texts
from tests.domain.test_payload import TOOLS, frame_of

FRAME = frame_of([], TOOLS, None)
LIMITS = Limits(1000, 100, 0.8, 0.7, 0.95, 0.98)
VIEW = View(spans=(Span(1, 3), Span(7, ENDLESS)), summary="s", summary_span=Span(3, 7))
START = Start(VIEW, 1000, 100, False)
EPOCH = Epoch(
    epoch=4,
    epoch_id="0190f3a0-0000-7000-8000-000000000001",
    lane="openai_chat:some-model",
    format="openai_chat",
    window=OWN_WINDOW,
    reason=None,
    start_seq=9,
    view_version=2,
    frame=START.as_json(),
    sections_hash="s",
    tools_hash="t",
    policy_hash="p",
)

SPANS = st.builds(Span, st.integers(1, 50), st.just(ENDLESS) | st.integers(1, 90))
VIEWS = st.builds(
    View,
    spans=st.lists(SPANS, min_size=1, max_size=3).map(tuple),
    summary=st.none() | texts(),
    summary_span=st.none() | SPANS,
    note=st.none() | texts(),
    trimmed_through=st.integers(0, 2**60),
    reasoning_after=st.integers(0, 2**60),
    summary_as_system=st.booleans(),
)


def reason(**changes: Any) -> str | None:
    """Return why a build breaks the prefix of EPOCH when these things are different."""
    defaults: dict[str, Any] = {
        "last": EPOCH,
        "before": START,
        "frame": FRAME,
        "limits": LIMITS,
        "version": 2,
        "view": VIEW,
        "stub_tools": False,
    }
    return break_reason(**(defaults | changes))


@given(
    st.builds(
        Start,
        VIEWS,
        st.integers(1, 2**62),
        st.integers(1, 2**40),
        st.booleans(),
        st.lists(st.sampled_from(["a", "b"])).map(tuple),
    )
)
@settings(deadline=None)
def test_a_start_comes_back_from_storage(start: Start) -> None:
    """A stored frame reads back as the start it was, odd texts included (I5, decision 19)."""
    text = start.as_json()
    assert start_from(text) == start
    assert "\x00" not in text
    text.encode()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"frame": replace(FRAME, tools_hash="x")}, "tools_changed"),
        ({"stub_tools": True}, "tools_changed"),
        ({"frame": replace(FRAME, sections_hash="x")}, "sections_changed"),
        ({"limits": replace(LIMITS, total=999)}, "budget_changed"),
        ({"limits": replace(LIMITS, max_output_tokens=99)}, "budget_changed"),
        ({"frame": replace(FRAME, policy_hash="x")}, "policy_changed"),
        ({"version": 3}, "compaction"),
        ({"view": replace(VIEW, summary="other")}, "compaction"),
        ({"view": replace(VIEW, note="[left out]")}, "compaction"),
        ({"view": replace(VIEW, spans=(Span(2, 3), Span(7, ENDLESS)))}, "window_moved"),
        ({"view": replace(VIEW, summary_span=Span(3, 6))}, "window_moved"),
        ({"view": replace(VIEW, trimmed_through=5)}, "tool_results_cleared"),
        ({"view": replace(VIEW, reasoning_after=9)}, None),
    ],
)
def test_each_change_names_its_reason(changes: dict[str, Any], expected: str | None) -> None:
    """Whatever breaks the cached prefix is named; nothing else breaks it (G3, decision 16)."""
    assert reason(**changes) == expected


def test_the_prefix_breaks_at_its_earliest_change() -> None:
    """Of several changes the one nearest to the payload's start is named: tools come first."""
    both = replace(FRAME, tools_hash="x", sections_hash="x")
    assert reason(frame=both, version=3) == "tools_changed"
    assert reason(frame=replace(FRAME, sections_hash="x"), version=3) == "sections_changed"


@pytest.mark.parametrize(
    ("frame", "limits", "version", "same"),
    [
        (FRAME, LIMITS, 2, True),
        (FRAME, LIMITS, 3, False),
        (replace(FRAME, policy_hash="x"), LIMITS, 2, False),
        (FRAME, replace(LIMITS, total=1), 2, False),
        (FRAME, replace(LIMITS, max_output_tokens=1), 2, False),
        (replace(FRAME, sections_hash="x", tools_hash="x"), LIMITS, 2, True),
        (FRAME, replace(LIMITS, notice_at=0.5), 2, True),
    ],
)
def test_a_view_holds_while_state_policy_and_window_do(
    frame: Any, limits: Limits, version: int, same: bool
) -> None:
    """Other sections or tools start an epoch, but the view they show stays (decision 16)."""
    assert same_ground(EPOCH, START, frame, limits, version) is same


def test_lanes_and_windows() -> None:
    """A lane is a format and a model; a request's own window stands apart (decisions 13, 16)."""
    ask = Ask(FormatName.ANTHROPIC, "claude", max_context_tokens=500)
    assert lane_of(ask, "claude") == "anthropic:claude"
    assert window_of(ask) == 500
    assert window_of(Ask()) == OWN_WINDOW
