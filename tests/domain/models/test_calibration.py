"""Calibration: factors and margins from what providers report. [tokens.method-and-margin]"""

from __future__ import annotations

from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.models.calibration import (
    ENOUGH_REPORTS,
    MAX_RATIO,
    MIN_COUNTED,
    MIN_MARGIN,
    MIN_SEALED,
    NO_REPORTS,
    SEALED_PRIOR,
    Calibration,
    Lesson,
    Tally,
    estimate_of,
    lesson_of,
    safety_margin,
)
from app.models.limits import INEXACT_MARGIN

RATIOS = st.floats(0.3, 3.5)
NOISE = st.floats(-0.03, 0.03)
COUNTS = st.integers(MIN_COUNTED, 200_000)
ALIKE = st.integers(10_000, 30_000)


def told(tally: Tally, ratio: float, counts: list[int], noise: list[float]) -> Tally:
    """Return the tally after payloads of these counts, reported at a ratio and some noise."""
    for counted, off in zip(counts, noise, strict=True):
        tally = tally.with_report(round(ratio * (1 + off) * counted), counted)
    return tally


@given(RATIOS, st.lists(COUNTS, min_size=5, max_size=5), st.lists(NOISE, min_size=5, max_size=5))
def test_five_reports_are_enough(ratio: float, counts: list[int], noise: list[float]) -> None:
    """From nothing, the factor is within 5 % of the truth after 5 reports, noise and all."""
    factor = told(Tally(), ratio, counts, noise).calibration.factor
    assert factor == pytest.approx(ratio, rel=0.05)


@given(st.floats(0.7, 1.5), st.data())
def test_a_new_truth_is_learnt(change: float, data: st.DataObject) -> None:
    """When a model's tokenizer changes, 12 reports of like payloads bring the factor near."""
    old = data.draw(st.lists(ALIKE, min_size=20, max_size=20))
    new = data.draw(st.lists(ALIKE, min_size=12, max_size=12))
    tally = told(Tally(), 1.2, old, [0.0] * 20)
    tally = told(tally, 1.2 * change, new, [0.0] * 12)
    assert tally.calibration.factor == pytest.approx(1.2 * change, rel=0.1)
    distance = abs(tally.calibration.factor / (1.2 * change) - 1)
    assert distance < abs(1 / change - 1) + 0.001  # reports are whole tokens


@given(st.lists(st.tuples(COUNTS, RATIOS), max_size=30))
def test_a_calibration_is_within_the_range_of_its_reports(reports: list[tuple[int, float]]) -> None:
    """A factor lies among the ratios reported, a margin within its bounds."""
    tally = reduce(
        lambda made, report: made.with_report(round(report[0] * report[1]), report[0]),
        reports,
        Tally(),
    )
    made = tally.calibration
    assert made.reports == len(reports)
    ratios = [round(counted * ratio) / counted for counted, ratio in reports] or [1.0]
    assert min(ratios) - 1e-9 <= made.factor <= max(ratios) + 1e-9
    assert MIN_MARGIN <= made.margin <= INEXACT_MARGIN
    if made.reports < ENOUGH_REPORTS:
        assert made.margin == INEXACT_MARGIN


def test_a_steady_provider_earns_a_small_margin() -> None:
    """The margin is the widest until there are enough reports, and then what they stray by."""
    for noise, margin in (([0.0] * 15, MIN_MARGIN), ([0.2, -0.2, 0.2] * 5, INEXACT_MARGIN)):
        assert told(Tally(), 1.3, [5_000] * 15, noise).calibration.margin == margin
    assert Tally().calibration == Calibration(1.0, INEXACT_MARGIN, 0)


@pytest.mark.parametrize(
    ("reported", "counted", "counter", "expected"),
    [
        (199, 199, "tokenizer", "payload_too_small"),
        (200, 200, "tokenizer", None),
        (120, 200, "tokenizer", None),
        (119, 200, "tokenizer", "implausible_ratio"),
        (80, 200, "chars_2_5", None),
        (79, 200, "chars_2_5", "implausible_ratio"),
        (800, 200, "chars_4", None),
        (801, 200, "tokenizer", "implausible_ratio"),
    ],
)
def test_doubtful_reports_teach_nothing(
    reported: int, counted: int, counter: str, expected: str | None
) -> None:
    """Small payloads and ratios that no tokenizer explains are left out."""
    lesson = lesson_of(reported, counted, 0, counter, NO_REPORTS)
    assert lesson == (expected or Lesson(reported, counted))


@pytest.mark.parametrize(
    ("own", "factor", "calibration", "expected"),
    [
        (0.0, 1.0, NO_REPORTS, 0.0),
        (0.05, 1.0, NO_REPORTS, 0.05),
        (0.0, 1.02, Calibration(1.02, 0.02, 9), 0.02),
        (0.05, 1.31, Calibration(1.31, 0.03, 9), 0.03),
        (0.05, 1.25, Calibration(1.3, 0.03, 9), 0.071),
        (0.0, 1.0, Calibration(1.3, 0.05, 1), 0.365),
    ],
)
def test_margins(own: float, factor: float, calibration: Calibration, expected: float) -> None:
    """Only an exact count that needs no correction has no margin; a stale factor widens it."""
    assert safety_margin(own, factor, calibration) == expected


@given(st.floats(0.3, 4), st.floats(0.3, 4), st.floats(0.02, 0.05))
def test_margins_cover_the_difference_to_a_frozen_factor(
    frozen: float, now: float, margin: float
) -> None:
    """A count by an epoch's factor plus its margin reaches what is expected by now."""
    calibration = Calibration(now, margin, 5)
    covered = frozen * (1 + safety_margin(0.05, frozen, calibration))
    assert covered >= calibration.factor * (1 + margin) - frozen * 1e-3


@pytest.mark.parametrize(
    ("factor", "calibration", "method"),
    [
        (1.0, None, "tokenizer"),
        (1.31, Calibration(1.3101, 0.02, 5), "tokenizer x 1.31 (5 reports)"),
        (1.0, Calibration(1.2, 0.05, 1), "tokenizer x 1 (1 report)"),
        (1.2, NO_REPORTS, "tokenizer x 1.2"),
    ],
)
def test_estimates_tell_their_method(
    factor: float, calibration: Calibration | None, method: str
) -> None:
    """Every estimate says how it was made, how sure it is, and what corrected it."""
    estimate = estimate_of(100, "tokenizer", factor, 0.05, calibration)
    assert (estimate.tokens, estimate.method) == (100, method)
    assert (estimate.margin, estimate.factor) == (0.05, factor)


@given(RATIOS, st.integers(0, 6), st.floats(1, 1.4), st.booleans())
def test_one_report_alone_makes_no_count_smaller(
    ratio: float, reports: int, start: float, exact: bool
) -> None:
    """More than was counted is believed at once, less only of enough reports.

    A count by the model's own tokenizer is never made smaller.
    """
    tally = told(Tally(), ratio, [10_000] * reports, [0.0] * reports)
    used = tally.calibration.applied(start, exact=exact)
    assert used.applied(start, exact=exact) == used
    expected = ratio if reports else start
    if exact or reports < ENOUGH_REPORTS:
        expected = max(1.0, expected)
    assert used.factor == pytest.approx(expected, abs=0.001)


@given(
    st.sampled_from([1.0, 1.2]),
    st.floats(0.3, 3),
    st.integers(500, 100_000),
    st.floats(0.15, 0.95),
)
def test_the_factor_of_sealed_text_is_learnt_beside_the_models(
    factor: float, truth: float, counted: int, share: float
) -> None:
    """Reports of payloads with much of it bring its factor near the truth, and touch no other."""
    sealed = round(share * counted)
    reported = round(factor * (counted - sealed + truth * sealed))
    sums = [float(SEALED_PRIOR)] * 2
    for _ in range(12):
        applied = Calibration(factor, 0.05, 9, sums[0] / sums[1]).applied(factor, exact=True)
        lesson = lesson_of(reported, counted, sealed, "tokenizer", applied)
        assert isinstance(lesson, Lesson) and lesson.is_sealed
        assert lesson.counted <= SEALED_PRIOR
        sums = [0.8 * sums[0] + lesson.reported, 0.8 * sums[1] + lesson.counted]
    weight = min(SEALED_PRIOR, sealed * factor) / SEALED_PRIOR
    if weight > 0.9:
        assert sums[0] / sums[1] == pytest.approx(truth, rel=0.12)
    assert min(1, truth) - 0.05 <= sums[0] / sums[1] <= max(1, truth) + 0.05


def test_what_says_nothing_of_sealed_text() -> None:
    """A report below the text alone, and one above all bounds, are no reports of sealed text."""
    told = [lesson_of(tokens, 2_000, 1_000, "tokenizer", NO_REPORTS) for tokens in (599, 5_001)]
    assert told == ["implausible_ratio"] * 2
    assert lesson_of(600, 2_000, 1_000, "tokenizer", NO_REPORTS) == Lesson(0, 1_000, True)
    little = lesson_of(2_050, 2_000, 100, "tokenizer", NO_REPORTS)
    assert little == Lesson(1_950, 1_900)  # the text alone, at the price of the rest so far
    low, high = (Calibration(1.0, 0.05, 0, sealed).applied(1, exact=True) for sealed in (0.01, 9))
    assert (low.sealed, high.sealed) == (MIN_SEALED, MAX_RATIO)
