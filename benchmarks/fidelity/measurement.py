"""The runs of the benchmark, the service they are sent to, and the section that reports them.

1. Without a model: every session at every budget with every strategy.
2. With the scripted models: half of the sessions, at one budget.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.fidelity.client import run_all
from benchmarks.fidelity.drive import EXTRACTIVE, Job, Results, run, session_of
from benchmarks.fidelity.overview import add_overview, lost_lines
from benchmarks.fidelity.scripted_model import (
    DROPPING,
    FAITHFUL,
    PROVIDER,
    ScriptedModel,
    serving,
    summarised_by,
)
from benchmarks.figures import Section
from benchmarks.recorded_builds.service import served

STRATEGIES = ("sandwich", "retain_summary", "chain", "tree_summary")
BUDGETS = (0.1, 0.2, 0.3)
MODEL_BUDGET = 0.2
SESSIONS, QUICK_SESSIONS = 12, 2
ROOT = Path(__file__).parents[2]


def measure(quick: bool, checkout: Path = ROOT, lost: Path | None = None) -> Section:
    """Judge the service in a folder; a line of `lost` is what was lost or wrong."""
    began = time.monotonic()
    seeds = [f"report-{number}" for number in range(1, (QUICK_SESSIONS if quick else SESSIONS) + 1)]
    of_models = [] if quick else seeds[::2]
    model, results = ScriptedModel([session_of(seed) for seed in of_models]), Results()
    jobs = [*_jobs(seeds, of_models)]
    with _service(checkout, model) as url:
        for found in run_all(url, run, jobs):
            results.add(found)
    section = Section("fidelity", "what a payload states after five compactions")
    section.add_text(
        f"{len(seeds)} sessions with planted statements, {len(jobs)} runs of five compactions in"
        f" {time.monotonic() - began:.0f} s. The budget is `target_tokens` as a share of the"
        " conversation's tokens; tokens are counted apart from the service."
    )
    add_overview(section, results)
    if model.figures:
        section.add_text(
            f"The scripted models counted {model.figures['calls']:,} calls with"
            f" {model.figures['input_tokens']:,} input tokens; receipts say"
            f" {sum(seen.sent_tokens for seen in results.rows.values()):,}."
        )
    if lost is not None:
        lost.write_text("\n".join(lost_lines(results)), encoding="utf-8")
    return section


def _jobs(seeds: list[str], of_models: list[str]) -> Iterator[Job]:
    for strategy in STRATEGIES:
        for seed in seeds:
            for share in BUDGETS:
                yield Job(seed, strategy, share, EXTRACTIVE)
        for seed in of_models:
            for name in (FAITHFUL, DROPPING):
                yield Job(seed, strategy, MODEL_BUDGET, f"{PROVIDER}/{name}")


@contextmanager
def _service(checkout: Path, model: ScriptedModel) -> Iterator[str]:
    """Serve the service of a checkout, which may call the scripted models; yield its URL."""
    command = [sys.executable, "-c", "from app.cli import main; main()", "serve", "--no-worker"]
    with (
        tempfile.TemporaryDirectory(prefix="context-service-bench-") as folder,
        serving(model) as api_base,
        served(command, checkout.resolve(), Path(folder), summarised_by(api_base)) as port,
    ):
        yield f"http://127.0.0.1:{port}"
