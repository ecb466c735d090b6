"""Signals of a conversation, and how they order the steps of a chain.

[strategy.chain-signals]
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.compaction.strategies.chain import (
    GROUPS_KEPT,
    MAX_FAILURES,
    MIN_GROUPS_KEPT,
    ConversationSignals,
    PlannedStep,
    plan_steps,
    signals_of,
)
from app.conversations.plans import ChainStep
from app.conversations.turns import Entry, entry
from app.formats.message import Role
from tests.domain.histories import entries

U, A, T = Role.USER, Role.ASSISTANT, Role.TOOL
CLEAR, SUMMARIZE, TRUNCATE = ChainStep
ALL = tuple(ChainStep)
MIXED = ConversationSignals(tool_share=0.3, largest_result=0.1, call_density=0.3, turn_length=4)


def names(steps: tuple[PlannedStep, ...]) -> tuple[ChainStep, ...]:
    """Return the steps without their depth."""
    return tuple(step.name for step in steps)


def signals() -> st.SearchStrategy[ConversationSignals]:
    """Draw signals, likely or not."""
    share = st.floats(0, 1)
    return st.builds(ConversationSignals, share, share, share, st.floats(0, 500), st.integers(0, 9))


def test_results_of_excluded_tools_are_no_output_to_clear() -> None:
    """They count as calls, but not as output that clearing could free [strategy.chain-signals]."""
    history = [entry(1, U, 100), entry(2, A, 50), entry(3, T, 750, excluded=True), entry(4, T, 100)]
    assert signals_of(history) == ConversationSignals(0.1, 0.1, 0.5, 4.0)


@given(entries(), st.integers(0, 5))
def test_signals_stay_within_their_ranges(history: list[Entry], failures: int) -> None:
    """Each signal stays within its range for any history."""
    signals_found = signals_of(history, failures)
    assert 0 <= signals_found.largest_result <= signals_found.tool_share <= 1
    assert 0 <= signals_found.call_density < 1
    assert 1 <= signals_found.turn_length <= len(history)
    assert signals_found.failures == failures


def test_an_ordinary_history_leaves_the_steps_unchanged() -> None:
    """The policy's own order runs at its usual depth."""
    for steps in (ALL, (TRUNCATE, CLEAR), (SUMMARIZE,)):
        assert plan_steps(steps, MIXED) == tuple(PlannedStep(name) for name in steps)


def test_little_tool_output_is_not_cleared() -> None:
    """Clearing is left out where it frees nothing, unless there is nothing else (rule 1)."""
    talk = ConversationSignals(tool_share=0.05, turn_length=2)
    assert names(plan_steps(ALL, talk)) == (SUMMARIZE, TRUNCATE)
    assert names(plan_steps((CLEAR,), talk)) == (CLEAR,)


@pytest.mark.parametrize(
    "signals_found",
    [
        ConversationSignals(tool_share=0.7, turn_length=4),
        ConversationSignals(tool_share=0.3, largest_result=0.3, turn_length=4),
        ConversationSignals(tool_share=0.3, call_density=0.7, turn_length=4),
    ],
)
def test_much_tool_output_is_cleared_deeper(signals_found: ConversationSignals) -> None:
    """A lot of it, one huge result, or many parallel ones: one group keeps its results (rule 2)."""
    assert plan_steps(ALL, signals_found)[0] == PlannedStep(CLEAR, MIN_GROUPS_KEPT)
    assert plan_steps(ALL, MIXED)[0] == PlannedStep(CLEAR, GROUPS_KEPT)


@pytest.mark.parametrize(
    ("steps", "adjusted"),
    [
        (ALL, (CLEAR, TRUNCATE, SUMMARIZE)),
        ((SUMMARIZE, CLEAR, TRUNCATE), (TRUNCATE, SUMMARIZE, CLEAR)),
        ((TRUNCATE, SUMMARIZE), (TRUNCATE, SUMMARIZE)),
        ((CLEAR, SUMMARIZE), (CLEAR, SUMMARIZE)),
        ((CLEAR, TRUNCATE), (CLEAR, TRUNCATE)),
    ],
)
def test_after_failures_truncation_comes_first(
    steps: tuple[ChainStep, ...], adjusted: tuple[ChainStep, ...]
) -> None:
    """After three failures in a row truncation comes before the summary (rule 3)."""
    failing = ConversationSignals(tool_share=0.3, turn_length=4, failures=MAX_FAILURES)
    assert names(plan_steps(steps, failing)) == adjusted
    twice = ConversationSignals(tool_share=0.3, turn_length=4, failures=MAX_FAILURES - 1)
    assert names(plan_steps(steps, twice)) == steps


@given(st.lists(st.sampled_from(ChainStep), min_size=1, unique=True), signals())
def test_steps_are_only_reordered_or_lose_clearing(
    steps: list[ChainStep], signals_found: ConversationSignals
) -> None:
    """Only order and depth change; clearing alone may be left out; something always runs."""
    adjusted = names(plan_steps(steps, signals_found))
    assert adjusted
    assert len(set(adjusted)) == len(adjusted)
    assert set(adjusted) <= set(steps)
    assert set(steps) - set(adjusted) <= {CLEAR}
