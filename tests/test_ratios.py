"""`make bench ARGS="--check"` notices what got worse, and only that."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks import ratios
from benchmarks.ratios import COMPARED, MIN_RUNS, Recorded, Result, compare, from_runs

NAME = "append: batch, CPU / floor B"
figures = st.floats(min_value=0, max_value=1e6).map(lambda value: round(value, 4))
runs = st.lists(figures, min_size=MIN_RUNS, max_size=9)


def result_of(recorded: Recorded, measured: float) -> Result:
    """Compare one ratio of one measurement."""
    (row,) = compare({NAME: recorded}, {NAME: measured}, ["append"])
    return row.result


@given(runs, st.floats(min_value=1e-4, max_value=1e6))
def test_what_is_beyond_the_noise_always_fails(values: list[float], more: float) -> None:
    """A ratio above it is worse, one as far below is better and passes."""
    recorded = from_runs(values)
    worse = result_of(recorded, recorded.allowed + more)
    assert worse is Result.WORSE and worse.fails
    better = result_of(recorded, recorded.ratio - recorded.noise - more)
    assert better is Result.BETTER and not better.fails


def test_only_measurements_with_a_worse_ratio_are_repeated_and_the_lower_value_counts() -> None:
    """A ratio that was high once and not again passes; one that is high twice fails."""
    recorded = {NAME: from_runs([1.0] * 5), "io: trips": from_runs([2.0] * 5)}
    first = {NAME: 1.5, "io: trips": 2.0}
    rows = compare(recorded, first, COMPARED)
    assert ratios.to_repeat(rows) == ["append"]
    for again, code in ((1.0, 0), (1.4, 1)):
        both = ratios.lower(first, {NAME: again})
        assert both == {NAME: again, "io: trips": 2.0}
        assert ratios.exit_code(compare(recorded, both, COMPARED)) == code


def test_a_renamed_ratio_fails_under_both_names() -> None:
    """Neither what is recorded and not measured nor the opposite passes unnoticed."""
    rows = compare({NAME: from_runs([1.0] * 5)}, {"append: batch, CPU": 1.0}, ["append"])
    assert {row.name: row.result for row in rows} == {
        "append: batch, CPU": Result.NOT_RECORDED,
        NAME: Result.NOT_MEASURED,
    }
    assert ratios.exit_code(rows) == 1


def test_the_committed_ratios_are_of_enough_runs_of_what_is_compared() -> None:
    """Every compared measurement has ratios, and no other has any."""
    recorded = ratios.load()
    assert {name.partition(":")[0] for name in recorded} == set(COMPARED)
    assert min(entry.runs for entry in recorded.values()) >= MIN_RUNS
