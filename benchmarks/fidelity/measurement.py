"""The runs of the benchmark, the service they are sent to, and the section that reports them.

1. Without a model: every session at every budget with every strategy.
2. With the scripted models: half of the sessions, at one budget.
3. Seeds and recorded conversations of one set are never those of the other.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fidelity import latency, updates
from benchmarks.fidelity.client import run_all
from benchmarks.fidelity.drive import EXTRACTIVE, Job, Results, run, session_of, wording_of
from benchmarks.fidelity.overview import add_overview
from benchmarks.fidelity.planted.generated import Session
from benchmarks.fidelity.planted.recorded import names
from benchmarks.fidelity.scripted_model import (
    DROPPING,
    FAITHFUL,
    PROVIDER,
    ScriptedModel,
    serving,
    summarised_by,
)
from benchmarks.fidelity.tables import add_tables, lost_lines
from benchmarks.figures import Section
from benchmarks.recorded_builds.service import served

STRATEGIES = ("sandwich", "retain_summary", "chain", "tree_summary")
BUDGETS = (0.1, 0.2, 0.3)
MODEL_BUDGET = 0.2
SESSIONS, RECORDED = 6, 6
QUICK_SESSIONS = 2
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Choice:
    """What to run; `checkout` is the folder of the service that is judged."""

    wording: str = "tune"
    quick: bool = False
    sessions: int = SESSIONS
    recorded: int = RECORDED
    strategies: tuple[str, ...] = STRATEGIES
    budgets: tuple[float, ...] = BUDGETS
    parts: tuple[str, ...] = ("extractive", "models", "updates", "latency")
    checkout: Path = ROOT
    lost: Path | None = None

    @property
    def seeds(self) -> list[str]:
        """The seeds of the generated sessions."""
        count = min(self.sessions, QUICK_SESSIONS) if self.quick else self.sessions
        return [f"{self.wording}-{number}" for number in range(1, count + 1)]

    @property
    def recordings(self) -> list[str]:
        """The names of the recorded conversations."""
        return [] if self.quick else names(self.wording, self.recorded)


def section_of(choice: Choice) -> Section:
    """Run everything and report it."""
    began = time.monotonic()
    jobs, results, model = _jobs(choice), Results(), ScriptedModel(_model_sessions(choice))
    times: list[list[str]] = []
    outcomes: list[list[str]] = []
    with _service(choice.checkout, model) as url:
        if jobs:
            for found in run_all(url, run, jobs):
                results.add(found)
        if "updates" in choice.parts:
            outcomes = list(updates.rows(url, choice.wording, choice.quick))
        if "latency" in choice.parts:
            words = wording_of(choice.wording)
            times = list(latency.rows(url, words, choice.strategies, choice.quick))
    section = Section("fidelity", "what a payload states after five compactions")
    section.add_text(
        f"Set `{choice.wording}`: {len(choice.seeds)} generated sessions,"
        f" {len(choice.recordings)} recorded ones with planted statements, {len(jobs)} runs of"
        f" five compactions in {time.monotonic() - began:.0f} s. The budget is `target_tokens` as"
        " a share of the conversation's tokens; tokens are counted apart from the service."
    )
    add_overview(section, results)
    add_tables(section, results)
    if model.figures:
        section.add_text(
            f"The scripted models counted {model.figures['calls']:,} calls with"
            f" {model.figures['input_tokens']:,} input tokens; receipts say"
            f" {sum(seen.sent_tokens for seen in results.rows.values()):,}."
        )
    if outcomes:
        section.add_text("Pairs of statements: where the summary has the older one of each.")
        section.add_table(("the newer one", "pairs", *updates.OUTCOMES), outcomes)
    if times:
        section.add_text("One extractive compaction over HTTP; times in ms.")
        heading = ("strategy", "messages", "tokens", "dry run, median", "compaction", "receipt")
        section.add_table(heading, times)
    if choice.lost is not None:
        choice.lost.write_text("\n".join(lost_lines(results)), encoding="utf-8")
    return section


def measure(quick: bool) -> Section:
    """Report the figures of the wordings that no summariser was tuned on."""
    return section_of(Choice("report", quick))


def _model_sessions(choice: Choice) -> list[Session]:
    if choice.quick or "models" not in choice.parts:
        return []
    chosen = (*choice.seeds[::2], *choice.recordings[::2])
    return [session_of(choice.wording, name) for name in chosen]


def _jobs(choice: Choice) -> list[Job]:
    jobs = []
    if "extractive" in choice.parts:
        jobs += [
            Job(choice.wording, session, strategy, share, EXTRACTIVE)
            for session in (*choice.seeds, *choice.recordings)
            for share in choice.budgets
            for strategy in choice.strategies
        ]
    jobs += [
        Job(choice.wording, session.name, strategy, MODEL_BUDGET, f"{PROVIDER}/{name}")
        for session in _model_sessions(choice)
        for name in (FAITHFUL, DROPPING)
        for strategy in choice.strategies
    ]
    return jobs


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
