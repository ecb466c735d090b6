"""The budget's arithmetic and the pressure it makes (C1, C3, C5, decision 11)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.common.policy import BudgetPolicy
from app.domain.models.budget import (
    Limits,
    Pressure,
    Usage,
    history_budget,
    is_over_context_budget,
    limits_for,
    measure,
    read_pressure,
    scaled,
)

TOKENS = st.integers(0, 300_000)
RATIOS = st.integers(1, 100).map(lambda percent: percent / 100)
RISING = (Pressure.OK, Pressure.DUE, Pressure.COMPACT, Pressure.BLOCKED)


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    """Draw limits whose output reserve leaves room for input."""
    total = draw(st.integers(2, 300_000))
    return Limits(
        total=total,
        max_output_tokens=draw(st.integers(1, total - 1)),
        notice_at=draw(RATIOS),
        due_at=draw(st.none() | RATIOS),
        compact_trigger=draw(RATIOS),
        hard_block=draw(RATIOS),
        margin=draw(st.sampled_from((0.0, 0.05))),
    )


@given(st.builds(Usage, TOKENS, TOKENS, TOKENS, TOKENS, TOKENS), limits())
def test_components_sum_to_used_tokens(usage: Usage, bounds: Limits) -> None:
    """The components of a budget sum to its used tokens, and the derived numbers agree (C1)."""
    budget = measure(usage, bounds)
    parts = (
        budget.system_prompt,
        budget.skill_prompts,
        budget.tool_descriptions,
        budget.summary,
        budget.conversation,
    )
    assert sum(parts) == budget.used_tokens == usage.total
    assert budget.effective_window == budget.total - budget.max_output_tokens
    assert budget.remaining_tokens == budget.effective_window - budget.used_tokens
    share = 100 * budget.used_tokens / budget.effective_window
    assert budget.used_percentage == pytest.approx(share, abs=0.006)


@given(limits(), st.integers(0, 320_000))
def test_pressure_is_the_highest_level_reached(bounds: Limits, used: int) -> None:
    """A level is reached at used >= ratio x effective window; the highest wins (C3)."""
    window = bounds.effective_window
    reached = [Pressure.OK]
    for level, ratio in (
        (Pressure.DUE, bounds.due_at),
        (Pressure.COMPACT, bounds.compact_trigger),
        (Pressure.BLOCKED, bounds.hard_block),
    ):
        if ratio is not None and used >= ratio * window:
            reached.append(level)
    reading = read_pressure(used, bounds)
    assert reading.pressure is max(reached, key=RISING.index)
    assert reading.notice is (used >= bounds.notice_at * window)


@given(limits(), st.integers(0, 320_000))
def test_the_distance_leads_exactly_to_the_next_threshold(bounds: Limits, used: int) -> None:
    """With `tokens_to_next` more tokens, and no fewer, another threshold is reached (C3)."""

    def crossed(tokens: int) -> int:
        ratios = (
            bounds.notice_at,
            bounds.compact_trigger,
            bounds.hard_block,
            *(() if bounds.due_at is None else (bounds.due_at,)),
        )
        return sum(tokens >= ratio * bounds.effective_window for ratio in ratios)

    reading = read_pressure(used, bounds)
    if reading.tokens_to_next is None:
        assert reading.next_threshold is None
        assert crossed(10**9) == crossed(used)
        return
    assert reading.tokens_to_next > 0
    assert crossed(used + reading.tokens_to_next) > crossed(used)
    assert crossed(used + reading.tokens_to_next - 1) == crossed(used)


@pytest.mark.parametrize(
    ("used", "pressure", "notice", "to_next"),
    [
        (699, Pressure.OK, False, ("due", 1)),
        (700, Pressure.DUE, False, ("notice", 100)),
        (800, Pressure.DUE, True, ("compact", 150)),
        (949, Pressure.DUE, True, ("compact", 1)),
        (950, Pressure.COMPACT, True, ("blocked", 30)),
        (980, Pressure.BLOCKED, True, (None, None)),
        (5000, Pressure.BLOCKED, True, (None, None)),
    ],
)
def test_default_thresholds(
    used: int, pressure: Pressure, notice: bool, to_next: tuple[str | None, int | None]
) -> None:
    """The defaults stand at 0.70, 0.80, 0.95 and 0.98, each reached exactly (C3, decision 11)."""
    bounds = limits_for(BudgetPolicy(), 1100, 100, 0.7, 0.0)
    reading = read_pressure(used, bounds)
    assert (reading.pressure, reading.notice) == (pressure, notice)
    assert (reading.next_threshold, reading.tokens_to_next) == to_next


def test_strategies_without_a_trigger_are_never_due() -> None:
    """Without `due_at` the pressure goes from ok straight to compact (decision 11)."""
    bounds = limits_for(BudgetPolicy(), 1100, 100, None, 0.0)
    assert read_pressure(949, bounds).pressure is Pressure.OK
    assert read_pressure(949, bounds).notice is True
    assert read_pressure(950, bounds).pressure is Pressure.COMPACT


@given(limits())
def test_capacity_keeps_the_margin(bounds: Limits) -> None:
    """What fits the capacity fits the effective window with the margin added (C4)."""
    assert bounds.capacity * (1 + bounds.margin) <= bounds.effective_window + 1e-6
    assert (bounds.capacity + 1) * (1 + bounds.margin) > bounds.effective_window - 1e-6
    if not bounds.margin:
        assert bounds.capacity == bounds.effective_window


@given(TOKENS, TOKENS, TOKENS, TOKENS)
def test_over_budget_counts_tools_and_reserve(
    messages: int, tools: int, output: int, total: int
) -> None:
    """Messages, tools and the output reserve are judged together, never history alone (C5)."""
    over = is_over_context_budget(messages, tools, output, total)
    assert over is (messages + tools + output > total)


@given(st.builds(Usage, TOKENS, TOKENS, TOKENS, TOKENS, TOKENS), limits())
def test_history_budget_is_what_the_rest_leaves(usage: Usage, bounds: Limits) -> None:
    """History plus everything else is within capacity exactly up to its budget (C5)."""
    left = history_budget(usage, bounds)
    rest = usage.system_prompt + usage.skill_prompts + usage.tool_descriptions + usage.summary
    assert left + rest == bounds.capacity


@given(TOKENS, st.sampled_from((1.0, 0.9, 1.3)))
def test_the_factor_rounds_up(tokens: int, factor: float) -> None:
    """A corrected count is never below the product, and is the count itself at 1 (decision 12)."""
    assert scaled(tokens, factor) >= tokens * factor
    assert scaled(tokens, factor) < tokens * factor + 1
    assert scaled(tokens, 1.0) == tokens
