"""The runs of the benchmark, the service they are sent to, and the section that reports them.

1. Without a model: every session at every budget with every strategy.
2. With the scripted models: half of the sessions, at one budget.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context

from benchmarks.fidelity.drive import Job, Seen, run, session_of
from benchmarks.fidelity.planted.wording import Kind
from benchmarks.fidelity.scripted_model import MODELS, ScriptedModel, summarised_by
from benchmarks.figures import Section
from benchmarks.processes import service
from benchmarks.stage import database, report

STRATEGIES = ("sandwich", "retain_summary", "chain", "tree_summary")
BUDGETS = (0.1, 0.2, 0.3)
MODEL_BUDGET = 0.2
"""The budget of all columns but those that name theirs."""
SESSIONS, QUICK_SESSIONS = 12, 2
PROCESSES = 2
STANDING = (Kind.STANDING, Kind.STANDING_OTHER)
TYPED = (Kind.SAFETY, Kind.CONSTRAINT, Kind.FACT, Kind.GOAL, Kind.PREFERENCE)
"""The kinds whose mean is the share of typed facts that survive."""
HEADER = (
    "summaries by",
    "strategy",
    "typed facts",
    "standing instructions",
    "newest of updated",
    "stale",
    "within target",
    "over, and said",
    "longer than half of the source",
    "todo items",
    "first request whole",
    "tokens sent, of the conversation's",
)
Rows = dict[tuple[str, str], dict[float, Seen]]
"""What was seen, by who summarises and strategy, then by budget."""


def measure(quick: bool) -> Section:
    """Drive and judge every session."""
    began = time.monotonic()
    seeds = [f"report-{number}" for number in range(1, (QUICK_SESSIONS if quick else SESSIONS) + 1)]
    of_models = [] if quick else seeds[::2]
    jobs = [*_jobs(seeds, of_models)]
    rows: Rows = defaultdict(lambda: defaultdict(Seen))
    with (
        ScriptedModel([session_of(seed) for seed in of_models]) as model,
        database() as (data_dir, _, log),
        service(data_dir, "--no-worker", environ=summarised_by(model.api_base), log=log) as served,
        ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool,
    ):
        found = pool.map(run, repeat(f"http://127.0.0.1:{served.port}"), jobs)
        for number, (job, seen) in enumerate(zip(jobs, found, strict=True), 1):
            rows[job.writer.rpartition("/")[2], job.strategy][job.share].add(seen)
            if number % 24 == 0:
                report(f"fidelity: {number} of {len(jobs)} runs")
    section = Section("fidelity", "what a payload states after five compactions")
    section.add_text(
        f"{len(seeds)} sessions with planted statements, {len(jobs)} runs of five compactions in"
        f" {time.monotonic() - began:.0f} s. The budget is `target_tokens` as a share of the"
        " conversation's tokens; tokens are counted apart from the service. Survival is given for"
        f" each budget ({' · '.join(f'{share:.0%}' for share in BUDGETS)}), the other columns at"
        f" {MODEL_BUDGET:.0%}."
    )
    section.add_table(HEADER, _cells(rows))
    if of_models:
        section.add_text(
            f"The scripted models counted {model.figures['calls']:,} calls with"
            f" {model.figures['input_tokens']:,} input tokens."
        )
    return section


def _jobs(seeds: list[str], of_models: list[str]) -> Iterator[Job]:
    for strategy in STRATEGIES:
        for seed in seeds:
            for share in BUDGETS:
                yield Job(seed, strategy, share)
        for seed in of_models:
            for name in MODELS:
                yield Job(seed, strategy, MODEL_BUDGET, name)


def _cells(rows: Rows) -> Iterator[list[str]]:
    for (writer, strategy), by_budget in sorted(rows.items()):
        found = [by_budget[share] for share in sorted(by_budget)]
        seen = by_budget[MODEL_BUDGET]
        kinds = (TYPED, STANDING, (Kind.UPDATE,))
        yield [
            writer,
            strategy,
            *(" · ".join(_survival(each, kind) for each in found) for kind in kinds),
            f"{seen.stale} of {seen.old_values}",
            f"{seen.within} of {seen.compactions}",
            f"{seen.said}",
            f"{sum(ratio > 0.5 for ratio in seen.of_source)} of {len(seen.of_source)}",
            f"{seen.todos_kept} of {seen.todos}",
            f"{seen.whole_requests} of {seen.runs}",
            f"{seen.sent_tokens / seen.conversation_tokens:.2f}" if seen.sent_tokens else "-",
        ]


def _survival(seen: Seen, kinds: Sequence[Kind]) -> str:
    planted = sum(seen.planted[kind] for kind in kinds)
    return f"{sum(seen.survived[kind] for kind in kinds) / planted:.0%}"
