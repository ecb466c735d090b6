"""The budget's arithmetic and the pressure it makes.

[budget.of-the-payload, budget.levels, tokens.pure-estimates]
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.models.budget import Limits, scaled

TOKENS = st.integers(0, 300_000)
RATIOS = st.integers(1, 100).map(lambda percent: percent / 100)


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


@given(TOKENS, st.sampled_from((1.0, 0.9, 1.3)))
def test_the_factor_rounds_up(tokens: int, factor: float) -> None:
    """A corrected count is never below the product, and is the count itself at 1."""
    assert scaled(tokens, factor) >= tokens * factor
    assert scaled(tokens, factor) < tokens * factor + 1
    assert scaled(tokens, 1.0) == tokens
