"""Run the measurements and print them: `python -m benchmarks [--quick] [--only NAME]`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from datetime import UTC, datetime
from importlib import import_module

from benchmarks.figures import Section

MEASUREMENTS = {
    "append": "benchmarks.append",
    "one_request": "benchmarks.one_request",
    "session": "benchmarks.session",
    "first_build": "benchmarks.first_build",
    "new_epochs": "benchmarks.new_epochs",
    "memory": "benchmarks.memory",
    "stall": "benchmarks.stall",
    "fidelity": "benchmarks.fidelity.measurement",
    "recall": "benchmarks.recall",
}


def main() -> None:
    """Run the selected measurements, and print each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer sizes, steps and rounds")
    parser.add_argument(
        "--only", action="append", choices=[*MEASUREMENTS], help="measure this alone; repeatable"
    )
    arguments = parser.parse_args()
    command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    for name in arguments.only or MEASUREMENTS:
        load = os.getloadavg()[0]
        section: Section = import_module(MEASUREMENTS[name]).measure(quick=arguments.quick)
        print(section.text(command, f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", load), flush=True)


main()
