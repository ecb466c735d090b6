"""Usage: what a provider reported, and when it says that it is time to compact (E2)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.budget import Limits
from app.domain.policy import CompactionPolicy
from app.domain.usage import ReportedUsage, TokenUsage, should_compact

LIMITS = Limits(1100, 100, 0.8, 0.7, 0.95, 0.98)
"""Compaction is due at 700 of 1000 tokens."""

POLICY = CompactionPolicy()
TOKENS = st.integers(0, 1500)


def reported(total: int, *, epoch: int = 4, appended: int = 0) -> ReportedUsage:
    """Return a call's usage of so many tokens."""
    return ReportedUsage(TokenUsage(input_tokens=total), epoch, appended)


def is_due(estimate: int, usage: ReportedUsage | None, limits: Limits = LIMITS) -> bool:
    """Return the judgement on a payload of epoch 4."""
    return should_compact(POLICY, limits, estimate, usage, 4)


@given(TOKENS, TOKENS, TOKENS, TOKENS)
def test_all_tokens_of_a_call_count_once(fresh: int, output: int, write: int, read: int) -> None:
    """The total is the sum of four disjoint parts, cached input among them (E2)."""
    usage = TokenUsage(fresh, output, write, read)
    assert usage.total_tokens == fresh + output + write + read
    assert TokenUsage().total_tokens == 0


@pytest.mark.parametrize(
    ("estimate", "usage", "due"),
    [
        (699, None, False),
        (700, None, True),
        (0, reported(699), False),
        (0, reported(700), True),
        (0, reported(600, appended=99), False),
        (0, reported(600, appended=100), True),
        (700, reported(10), True),
        (10, reported(700, epoch=3), False),
        (700, reported(10, epoch=3), True),
        (0, reported(700, epoch=5), True),
    ],
)
def test_the_larger_of_report_and_estimate_is_judged(
    estimate: int, usage: ReportedUsage | None, due: bool
) -> None:
    """Reported plus appended tokens or the own count; an older epoch's report is ignored (E2)."""
    assert is_due(estimate, usage) is due


def test_cached_tokens_fill_the_window_too() -> None:
    """What the cache gave or took was in the payload like any other token (E2)."""
    usage = ReportedUsage(TokenUsage(100, 100, 200, 300), 4)
    assert is_due(0, usage)
    assert not is_due(0, replace(usage, usage=TokenUsage(100, 100, 200, 299)))


@given(TOKENS, TOKENS, TOKENS, st.integers(1, 8))
def test_a_report_never_makes_a_due_payload_less_due(
    estimate: int, total: int, appended: int, epoch: int
) -> None:
    """A report can only raise what the own count says, and only that of this epoch (E2)."""
    usage = reported(total, epoch=epoch, appended=appended)
    current = epoch >= 4 and total + appended >= 700
    assert is_due(estimate, usage) is (estimate >= 700 or current)


@pytest.mark.parametrize("policy", [CompactionPolicy(enabled=False), CompactionPolicy(auto=False)])
def test_nothing_is_due_unless_compaction_is_automatic(policy: CompactionPolicy) -> None:
    """`enabled: false` or `auto: false` never asks for a compaction (E1)."""
    assert not should_compact(policy, LIMITS, 10**6, reported(10**6), 4)


def test_nothing_is_due_for_a_strategy_without_a_trigger() -> None:
    """A sliding window and a full history are never due, whatever was reported (decision 11)."""
    assert not is_due(10**6, reported(10**6), replace(LIMITS, due_at=None))
