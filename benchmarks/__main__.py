"""Run the measurements: `python -m benchmarks [--quick] [--only NAME] [--out FILE]`.

`--check` and `--record` run quick ones and write no results (`ratios`).
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

from benchmarks import ratios
from benchmarks.figures import Section, write
from benchmarks.stage import report

MEASUREMENTS = {
    "append": "benchmarks.append",
    "one_request": "benchmarks.one_request",
    "first_build": "benchmarks.first_build",
    "new_epochs": "benchmarks.new_epochs",
    "large_logs": "benchmarks.large_logs",
    "scaling": "benchmarks.scaling",
    "memory": "benchmarks.memory",
    "start": "benchmarks.start",
    "stall": "benchmarks.stall",
    "io": "benchmarks.database_work",
    "disk": "benchmarks.disk",
    "slow_model": "benchmarks.slow_model",
    "fidelity": "benchmarks.fidelity.measurement",
    "prefix": "benchmarks.prefix",
    "calibration": "benchmarks.calibration",
    "outputs": "benchmarks.outputs",
    "tool_search": "benchmarks.tool_search",
    "recall": "benchmarks.recall",
}

LARGE = {"large_database": "benchmarks.large_database"}
"""Those that run only when they are named."""


def main() -> None:
    """Run the selected measurements, and write the results after each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer sizes, steps and rounds")
    parser.add_argument(
        "--only",
        action="append",
        choices=[*MEASUREMENTS, *LARGE],
        help="measure this alone; repeatable",
    )
    parser.add_argument(
        "--messages", type=int, help="messages in the database of large_database (10 000 000)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).with_name("results.md"),
        help="results file, whose other sections are kept (benchmarks/results.md)",
    )
    parser.add_argument(
        "--check", action="store_true", help="compare the ratios of quick runs with recorded ones"
    )
    parser.add_argument(
        "--record", type=int, metavar="RUNS", help="record the ratios of so many quick runs"
    )
    arguments = parser.parse_args()
    if arguments.check or arguments.record:
        names = [name for name in arguments.only or ratios.COMPARED if name in ratios.COMPARED]
        if not names or (arguments.record and arguments.record < ratios.MIN_RUNS):
            parser.error(
                f"--record takes at least {ratios.MIN_RUNS} runs, and ratios are those of"
                f" {', '.join(ratios.COMPARED)}"
            )
        sys.exit(_record(names, arguments.record) if arguments.record else _check(names))
    command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    for name in arguments.only or MEASUREMENTS:
        load = os.getloadavg()[0]
        options = {"messages": arguments.messages} if name in LARGE else {}
        section = _measure(name, quick=arguments.quick, **options)
        text = section.text(command, f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", load)
        write(arguments.out, [(name, text)])
        print(text, flush=True)


def _measure(name: str, *, quick: bool, **options: int | None) -> Section:
    section: Section = import_module((MEASUREMENTS | LARGE)[name]).measure(quick=quick, **options)
    return section


def _check(names: Sequence[str]) -> int:
    """Measure, and return 1 if anything is worse than recorded, or has another name."""
    measured: dict[str, float] = {}
    recorded = ratios.load()
    for name in names:
        measured |= _measure(name, quick=True).ratios
    rows = ratios.compare(recorded, measured, names)
    for name in ratios.to_repeat(rows):
        measured = ratios.lower(measured, _measure(name, quick=True).ratios)
    rows = ratios.compare(recorded, measured, names)
    print(ratios.table(rows))
    return ratios.exit_code(rows)


def _record(names: Sequence[str], runs: int) -> int:
    """Measure several times, and replace what is recorded of these measurements."""
    values: dict[str, list[float]] = {}
    for run in range(runs):
        for name in names:
            measured = _measure(name, quick=True).ratios
            report(f"run {run + 1} of {runs}, {measured}")
            for ratio, value in measured.items():
                values.setdefault(ratio, []).append(value)
    recorded = ratios.load()
    for ratio in ratios.of_measurements(recorded, names):
        del recorded[ratio]
    recorded |= {ratio: ratios.from_runs(found) for ratio, found in values.items()}
    ratios.save(recorded)
    rows = ratios.compare(recorded, {}, names)
    print(ratios.table(rows))
    return 0


main()
