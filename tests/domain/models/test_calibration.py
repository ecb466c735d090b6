"""Calibration: factors and margins from what providers report. [tokens.method-and-margin]"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.models.calibration import ENOUGH_REPORTS, Calibration, may_correct, safety_margin

RATIOS = st.floats(0.3, 3.5)


@pytest.mark.parametrize(
    ("reported", "counted", "counter", "expected"),
    [
        (199, 199, "tokenizer", False),
        (200, 200, "tokenizer", True),
        (120, 200, "tokenizer", True),
        (119, 200, "tokenizer", False),
        (80, 200, "chars_2_5", True),
        (79, 200, "chars_2_5", False),
        (800, 200, "chars_4", True),
        (801, 200, "tokenizer", False),
    ],
)
def test_doubtful_reports_correct_nothing(
    reported: int, counted: int, counter: str, expected: bool
) -> None:
    """Small payloads, ratios that no tokenizer explains and much reasoning are left out."""
    assert may_correct(reported, counted, 0, counter) is expected
    assert not may_correct(reported, counted, counted // 5, counter)


@given(st.floats(0.3, 4), st.floats(0.3, 4), st.floats(0.02, 0.05))
def test_margins_cover_the_difference_to_a_frozen_factor(
    frozen: float, now: float, margin: float
) -> None:
    """A count by an epoch's factor plus its margin reaches what is expected by now."""
    calibration = Calibration(now, margin, 5)
    covered = frozen * (1 + safety_margin(0.05, frozen, calibration))
    assert covered >= calibration.factor * (1 + margin) - frozen * 1e-3


@given(RATIOS, st.integers(0, 6), st.floats(1, 1.4), st.booleans())
def test_one_report_alone_makes_no_count_smaller(
    ratio: float, reports: int, start: float, exact: bool
) -> None:
    """More than was counted is believed at once, less only of enough reports.

    A count by the model's own tokenizer is never made smaller.
    """
    used = Calibration(ratio, 0.05, reports).applied(start, exact=exact)
    assert used.applied(start, exact=exact) == used
    expected = ratio if reports else start
    if exact or reports < ENOUGH_REPORTS:
        expected = max(1.0, expected)
    assert used.factor == pytest.approx(expected, abs=0.001)
