"""Ratios of a run beside the recorded ones in `ratios.json`, to notice what got worse.

1. What is compared are ratios to something in the same run, mostly of CPU times, and counts. Less
   is better in all of them. No absolute time is among them.
2. A recorded ratio is the median of several quick runs. Its noise is twice the largest distance of
   a run from the median, and at least 5 % of it; 0 where all runs gave the same whole number.
3. A ratio above the recorded one plus its noise is worse. One as far below is better; it does not
   fail, but should be recorded, or the room between hides what gets worse later.
4. A measurement with a worse ratio is run once more, and the lower of both values counts: noise
   rarely raises a ratio twice.
5. A ratio that is recorded and not measured, or measured and not recorded, fails as well: it was
   renamed, removed or added without being recorded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import ceil
from pathlib import Path
from statistics import median

COMPARED = ("append", "one_request", "first_build", "new_epochs", "large_logs", "io")
"""The measurements with such ratios. They take less than ten minutes together."""
MIN_RUNS = 5
NOISE_FACTOR, MIN_NOISE = 2, 0.05
FILE = Path(__file__).with_name("ratios.json")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A ratio as it was recorded; `noise` has the unit of the ratio."""

    ratio: float
    noise: float
    runs: int

    @property
    def allowed(self) -> float:
        """The largest ratio that is not worse."""
        return self.ratio + self.noise


class Result(StrEnum):
    """What the comparison of a ratio says."""

    SAME = "same"
    BETTER = "better: record it"
    WORSE = "WORSE"
    NOT_MEASURED = "NOT MEASURED"
    NOT_RECORDED = "NOT RECORDED"

    @property
    def fails(self) -> bool:
        """Whether a run with it fails."""
        return self not in (Result.SAME, Result.BETTER)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A ratio of a run and its recorded value; one of them may not exist."""

    name: str
    recorded: Recorded | None
    measured: float | None

    @property
    def result(self) -> Result:
        """What rules 3 and 5 say."""
        if self.recorded is None:
            return Result.NOT_RECORDED
        if self.measured is None:
            return Result.NOT_MEASURED
        if self.measured > self.recorded.allowed:
            return Result.WORSE
        is_better = self.measured < self.recorded.ratio - self.recorded.noise
        return Result.BETTER if is_better else Result.SAME


def compare(
    recorded: Mapping[str, Recorded], measured: Mapping[str, float], measurements: Sequence[str]
) -> list[Comparison]:
    """Compare what these measurements gave with what is recorded of them."""
    expected = of_measurements(recorded, measurements)
    return [
        Comparison(name, recorded.get(name), measured.get(name))
        for name in sorted(expected | measured.keys())
    ]


def to_repeat(rows: Iterable[Comparison]) -> list[str]:
    """Return the measurements that have a worse ratio (rule 4)."""
    worse = {row.name.partition(":")[0] for row in rows if row.result is Result.WORSE}
    return [name for name in COMPARED if name in worse]


def lower(first: Mapping[str, float], again: Mapping[str, float]) -> dict[str, float]:
    """Return the lower of two values of each ratio."""
    return {**first, **{name: min(value, first.get(name, value)) for name, value in again.items()}}


def from_runs(values: Sequence[float]) -> Recorded:
    """Return median and noise of the runs (rule 2)."""
    ratio = median(values)
    is_fixed = len(set(values)) == 1 and float(ratio).is_integer()
    noise = NOISE_FACTOR * max(abs(value - ratio) for value in values)
    noise = 0.0 if is_fixed else max(noise, MIN_NOISE * abs(ratio))
    return Recorded(ratio, ceil(noise * 1e4) / 1e4, len(values))


def exit_code(rows: Iterable[Comparison]) -> int:
    """Return 1 if any comparison fails."""
    return int(any(row.result.fails for row in rows))


def of_measurements(names: Iterable[str], measurements: Sequence[str]) -> set[str]:
    """Return the ratios that belong to these measurements."""
    return {name for name in names if name.partition(":")[0] in measurements}


def load(path: Path = FILE) -> dict[str, Recorded]:
    """Read the recorded ratios; there are none without the file."""
    if not path.exists():
        return {}
    return {name: Recorded(**entry) for name, entry in json.loads(path.read_text()).items()}


def save(recorded: Mapping[str, Recorded], path: Path = FILE) -> None:
    """Write the recorded ratios, one a line."""
    lines = [f'  "{name}": {json.dumps(asdict(recorded[name]))}' for name in sorted(recorded)]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def table(rows: Iterable[Comparison]) -> str:
    """Return the comparisons as aligned text."""
    cells: list[tuple[str, ...]] = [("ratio", "recorded", "allowed", "measured", "")]
    for row in rows:
        known = row.recorded
        numbers = (known and known.ratio, known and known.allowed, row.measured)
        cells.append(
            (row.name, *("-" if value is None else f"{value:.3f}" for value in numbers), row.result)
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        f"{line[0]:<{widths[0]}}"
        + "".join(f"  {cell:>{width}}" for cell, width in zip(line[1:4], widths[1:4], strict=True))
        + f"  {line[4]}".rstrip()
        for line in cells
    )
