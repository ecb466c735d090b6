"""Run the command line: `python -m benchmarks.recorded_builds record | compare`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.processes import ROOT, started
from benchmarks.recorded_builds.chat import SUMMARISER, Scenario, Trace
from benchmarks.recorded_builds.comparison import compare, kind_of
from benchmarks.recorded_builds.recorder import ANSWER_SECONDS, Recorder
from benchmarks.recorded_builds.scenarios import background, foreground
from benchmarks.recorded_builds.service import summariser
from tests.commands import COMMAND

PATIENT = (
    "DATABASE_CONNECT",
    "DATABASE_STATEMENT",
    "DATABASE_LONG_STATEMENT",
    "SUMMARIZER_TIMEOUT",
    "SUMMARIZER_DEADLINE",
)
"""Deadlines that are raised, so that no answer depends on how busy the machine is."""
TRACES = ROOT / "tests" / "conversations"
"""Where conversations are taken from without CONTEXT_TRACES_DIR."""
CONNECTIONS = 2
SAMPLE = 30
"""Conversations that are taken, at even distances."""


def record(out: Path, checkout: Path, python: str, traces: Path) -> None:
    """Write the recording of a checkout's service to `out`."""
    conversations = _traces(traces)
    began, counted = time.perf_counter(), Counter[str]()
    with (
        tempfile.TemporaryDirectory(prefix="recorded-builds-") as folder,
        summariser() as api_base,
        out.open("w", encoding="utf-8") as file,
    ):
        environ = {
            "CONTEXT_SUMMARIZER_MODEL": SUMMARISER,
            "CONTEXT_SUMMARIZER_API_BASE": api_base,
            "CONTEXT_SUMMARIZER_API_KEY": "none",
            "CONTEXT_SUMMARIZER_CALLS_PER_HOUR": "1000000",
            "PYTHONPATH": str(checkout),
            **{f"CONTEXT_{name}_SECONDS": str(ANSWER_SECONDS) for name in PATIENT},
        }
        parts: tuple[tuple[list[Scenario], list[str]], ...] = (
            (foreground(conversations), ["--no-worker"]),
            (background(conversations), []),
        )
        for scenarios, flags in parts:
            command = [python, *COMMAND[1:], "serve", "--data-dir", f"{folder}/data", *flags]
            with started(command, environ, Path(folder, "service.log"), checkout) as served:
                for lines in _run_all(scenarios, served.port):
                    file.writelines(lines)
                    counted.update(kind_of(json.loads(line)) for line in lines)
    seconds = time.perf_counter() - began
    print(f"{counted['build']} builds, {counted['answer']} other answers, in {seconds:.0f} s")


def _traces(folder: Path) -> list[Trace]:
    """Return a sample of the Chat conversations in `.json` and `.jsonl` files."""
    found = []
    for path in sorted([*folder.glob("*.json"), *folder.glob("*.jsonl")]):
        text = path.read_text(encoding="utf-8")
        for number, line in enumerate([text] if path.suffix == ".json" else text.splitlines()):
            raw = json.loads(line)
            is_chat = raw.get("format", "openai_chat") == "openai_chat"
            if is_chat and isinstance(raw.get("messages"), list):
                found.append(Trace.of(f"{path.stem}:{number}", raw))
    if not found:
        raise SystemExit(f"No conversations in {folder}; set CONTEXT_TRACES_DIR")
    return found[:: max(1, len(found) // SAMPLE)]


def _run_all(scenarios: Sequence[Scenario], port: int) -> Iterator[list[str]]:
    """Run the scenarios, and yield the lines of each in the order given."""

    def run(scenario: Scenario) -> list[str]:
        recorder = Recorder(scenario.name, port)
        try:
            scenario.run(recorder)
        except Exception as exc:
            raise RuntimeError(f"{scenario.name} after {recorder.lines[-1:]}") from exc
        finally:
            recorder.close()
        return recorder.lines

    pool = ThreadPoolExecutor(CONNECTIONS)
    try:
        for number, lines in enumerate(pool.map(run, scenarios), 1):
            if number % 20 == 0:
                print(f"{number} of {len(scenarios)} scenarios", file=sys.stderr, flush=True)
            yield lines
    finally:
        pool.shutdown(cancel_futures=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recorded_builds")
    commands = parser.add_subparsers(required=True, dest="command")
    recording = commands.add_parser("record", help="record a checkout's service")
    recording.add_argument("out", type=Path, help="file to write, JSON lines")
    recording.add_argument("--checkout", type=Path, default=ROOT, help="folder with app/ in it")
    recording.add_argument("--python", default=sys.executable, help="interpreter of the service")
    comparing = commands.add_parser("compare", help="compare two recordings")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--show", type=int, default=5, help="differences to print (5)")
    given = parser.parse_args()
    if given.command == "compare":
        sys.exit(0 if compare(given.before, given.after, given.show) else 1)
    traces = Path(os.environ.get("CONTEXT_TRACES_DIR") or TRACES)
    record(given.out, given.checkout.resolve(), given.python, traces)


if __name__ == "__main__":
    main()
