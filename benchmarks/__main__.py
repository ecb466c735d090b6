"""Run the measurements: `python -m benchmarks [--quick] [--only NAME] [--out FILE]`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

from benchmarks.figures import write

MEASUREMENTS = {
    "session": "benchmarks.session",
    "append": "benchmarks.append",
    "steps": "benchmarks.steps",
    "one_request": "benchmarks.one_request",
    "first_build": "benchmarks.first_build",
    "new_epochs": "benchmarks.new_epochs",
    "large_logs": "benchmarks.large_logs",
    "archive": "benchmarks.archive",
    "scaling": "benchmarks.scaling",
    "memory": "benchmarks.memory",
    "start": "benchmarks.start",
    "stall": "benchmarks.stall",
    "io": "benchmarks.database_work",
    "slow_model": "benchmarks.slow_model",
    "compaction": "benchmarks.compaction",
    "fidelity": "benchmarks.fidelity.measurement",
    "prefix": "benchmarks.prefix",
    "calibration": "benchmarks.calibration",
    "outputs": "benchmarks.outputs",
    "offloading": "benchmarks.offloading",
    "tool_search": "benchmarks.tool_search",
    "transcript_search": "benchmarks.transcript_search",
    "recall": "benchmarks.recall",
    "resume": "benchmarks.resume",
    "load": "benchmarks.load",
    "faults": "benchmarks.faults",
    "page_memory": "benchmarks.page_memory",
    "hostile": "benchmarks.hostile",
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
    arguments = parser.parse_args()
    command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    for name in arguments.only or MEASUREMENTS:
        load = os.getloadavg()[0]
        options = {"messages": arguments.messages} if name in LARGE else {}
        module = import_module((MEASUREMENTS | LARGE)[name])
        section = module.measure(quick=arguments.quick, **options)
        text = section.text(command, f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", load)
        write(arguments.out, [(name, text)])
        print(text, flush=True)


main()
