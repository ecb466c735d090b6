"""The budget's arithmetic and the pressure it makes.

[budget.of-the-payload, budget.levels, tokens.pure-estimates]
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.models.budget import scaled


@given(st.integers(0, 300_000), st.sampled_from((1.0, 0.9, 1.3)))
def test_the_factor_rounds_up(tokens: int, factor: float) -> None:
    """A corrected count is never below the product, and is the count itself at 1."""
    assert scaled(tokens, factor) >= tokens * factor
    assert scaled(tokens, factor) < tokens * factor + 1
    assert scaled(tokens, 1.0) == tokens
