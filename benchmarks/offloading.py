"""What becomes of a session's input tokens when tool output is offloaded and trimmed.

`python -m benchmarks.offloading --limit 3 --window 32000` takes three conversations of each file.

1. Every recorded conversation is appended message by message, with a build before each message
   of the assistant, as an agent calls its model, and one at the end, once for each way of
   keeping tool output. Due compactions run inside the build.
2. Each payload is built in both formats and judged: the provider's types and rules, a count of it
   from scratch, its window, and the prefix promised by the build before it.
3. Tokens are o200k over the JSON of each item of the OpenAI Chat payload. What two payloads
   share ends at the first item that differs; the best possible is the history that only grows.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import click

from app.conversations.plans import ChainStep
from app.conversations.view import SUMMARY_PREFIX
from app.demo import Client, Trace
from app.formats.message import FormatName
from app.models.tokenizer import TiktokenTokenizer
from benchmarks.compaction import MODELS, judge
from benchmarks.connection import UnexpectedAnswer
from benchmarks.figures import Section
from benchmarks.prefix import BEST, BEST_MODEL, BEST_WINDOW, GOAL
from benchmarks.processes import service
from benchmarks.provider_cache import items_of, shared_prefix
from benchmarks.recorded import Conversation, budget_of, recorded, run_all
from tests.recorded import source
from tests.replay import MAX_OUTPUT_TOKENS, Build, Tally

WINDOW = 32_000
OFF = "off"
SMALL_BUDGET = 4_000
MODES: dict[str, dict[str, Any]] = {
    OFF: {"enabled": False},
    "defaults": {},
    "`view` reference": {"view": "reference"},
    f"`context_budget_tokens` {SMALL_BUDGET:,}": {"context_budget_tokens": SMALL_BUDGET},
}
"""The policy of `tool_output` in each mode."""
QUICK_LIMIT = 2
_SHOWN = 20


@dataclass(slots=True)
class RunResults:
    """The results of the builds of one mode; tokens are the sum over all builds."""

    builds: int = 0
    refused: int = 0
    tokens: int = 0
    shared: int = 0
    stored: int = 0
    shown: int = 0
    results: int = 0
    offloaded: int = 0
    compactions: int = 0
    clearings: int = 0
    breaks: Counter[str] = field(default_factory=Counter)
    judged: int = 0
    tally: Tally = field(default_factory=Tally)

    @property
    def share(self) -> float:
        """The share of the input tokens that a prefix cache could serve."""
        return self.shared / max(1, self.tokens)

    @property
    def shown_share(self) -> float:
        """The share of the messages so far that a payload shows, a placeholder being one too."""
        return self.shown / max(1, self.stored)

    def add(self, other: RunResults) -> None:
        """Add the results of another conversation."""
        for entry in fields(self):
            mine, theirs = getattr(self, entry.name), getattr(other, entry.name)
            if entry.name == "tally":
                mine.add(theirs)
            else:
                setattr(self, entry.name, mine + theirs)


@dataclass(slots=True)
class Table:
    """The results by mode and conversation."""

    by_run: dict[tuple[str, str], RunResults] = field(default_factory=dict)

    def add(self, other: Table) -> None:
        """Add the results of another run."""
        self.by_run.update(other.by_run)

    def total(self, mode: str, names: Sequence[str]) -> RunResults:
        """Return the results of a mode over these conversations."""
        total = RunResults()
        for name in names:
            total.add(self.by_run[mode, name])
        return total


@dataclass(frozen=True, slots=True)
class Run:
    """One conversation in one mode."""

    mode: str
    trace: Trace
    window: int


def policy_of(run: Run) -> dict[str, Any]:
    """Return the policy of a run; the best possible is never cut, cleared or compacted."""
    if run.mode == BEST:
        off = {"tool_output": MODES[OFF]}
        return {"strategy": "full_history", "budget": budget_of(BEST_WINDOW), **off}
    budget, inline = budget_of(run.window), {"mode": "inline"}
    return {"budget": budget, "compaction": inline, "tool_output": MODES[run.mode]}


class _Replay:
    """Replays one conversation in one mode."""

    def __init__(self, client: Client, run: Run) -> None:
        self._run = run
        self._conversation = Conversation(client, run.trace, policy_of(run))
        self._run_results = RunResults()
        self._judge = judge()
        self._judge.forget()
        self._before: list[bytes] = []
        self._epoch = 0

    def play(self) -> RunResults:
        """Append and build as an agent would, and return the results (rule 1)."""
        messages = self._run.trace.messages
        for place, message in enumerate(messages):
            self._append(message)
            if place + 1 < len(messages) and messages[place + 1]["role"] != "assistant":
                continue
            if self._run.mode == BEST:
                self._build({"model": BEST_MODEL})
                continue
            self._build({"model": MODELS[FormatName.OPENAI_CHAT]})
            self._send(FormatName.ANTHROPIC, {"model": MODELS[FormatName.ANTHROPIC]})
        for receipt in self._conversation.ask("GET", "/compactions?limit=1000")["data"]:
            is_clearing = receipt["strategies_run"] == [ChainStep.CLEAR_TOOL_RESULTS]
            self._run_results.clearings += is_clearing
            self._run_results.compactions += not is_clearing
        _tokens.cache_clear()
        return self._run_results

    def _append(self, message: Mapping[str, Any]) -> None:
        [stored] = self._conversation.append([dict(message)])["messages"]
        if (ref := stored["output_ref"]) is not None:
            self._run_results.results += 1
            self._run_results.offloaded += ref["id"] != stored["id"]

    def _build(self, body: Mapping[str, Any]) -> None:
        """Build in the format whose tokens are counted, and add up what is shared (rule 3)."""
        results = self._run_results
        built = self._send(FormatName.OPENAI_CHAT, body)
        if built is None:
            results.refused += 1
            return
        items = items_of(built["payload"])
        sizes = [_tokens(item) for item in items]
        results.builds += 1
        results.stored += len(self._conversation.ids)
        results.shown += messages_shown(built["payload"])
        results.tokens += sum(sizes)
        results.shared += sum(sizes[: shared_prefix(self._before, items)])
        if self._epoch and built["epoch"] != self._epoch:
            results.breaks[built["cache_break_reason"]] += 1
        self._before, self._epoch = items, built["epoch"]

    def _send(self, format: FormatName, body: Mapping[str, Any]) -> Any:
        """Return a build that was judged, None where it was refused (rule 2)."""
        answer = self._conversation.send("POST", "/context", {"format": format, **body})
        if not answer.accepted:
            if answer.body.get("code") != "CONTEXT_OVERFLOW":
                raise UnexpectedAnswer(f"{self._run.trace.name}: {answer.reason}")
            return None
        if self._run.mode != BEST:
            path, through = self._conversation.path, answer.body["through_seq"]
            place = f"{self._run.trace.name} through {through}, {format}, {self._run.mode}"
            build = Build(answer.body, self._run.window - MAX_OUTPUT_TOKENS, path, place)
            self._judge.judge(build, self._run_results.tally)
            self._run_results.judged += 1
        return answer.body


def replay(client: Client, run: Run) -> Table:
    """Replay one conversation in one mode."""
    return Table({(run.mode, run.trace.name): _Replay(client, run).play()})


def messages_shown(payload: Mapping[str, Any]) -> int:
    """Return how many messages of the log a payload shows: all but the system's and summaries."""
    return sum(
        item["role"] != "system" and not str(item["content"]).startswith(SUMMARY_PREFIX)
        for item in payload["messages"]
    )


@cache
def _tokens(item: bytes) -> int:
    return _counter()(item.decode())


@cache
def _counter() -> Callable[[str], int]:
    return TiktokenTokenizer().count


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of all runs, and their duration."""

    table: Table
    traces: Sequence[Trace]
    window: int
    seconds: float

    @property
    def names(self) -> list[str]:
        """The conversations that were replayed."""
        return [trace.name for trace in self.traces]

    @property
    def faults(self) -> list[str]:
        """All errors."""
        return [
            fault for mode in MODES for fault in self.table.total(mode, self.names).tally.faults
        ]


def replay_all(limit: int | None, window: int) -> Outcome:
    """Replay so many conversations of each file against a service started for it."""
    began = time.monotonic()
    traces = recorded(limit)
    jobs = [Run(mode, trace, window) for trace in traces for mode in (BEST, *MODES)]
    with (
        tempfile.TemporaryDirectory(prefix="context-service-bench-") as folder,
        service(Path(folder, "data"), log=Path(folder, "processes.log")) as served,
    ):
        url = f"http://127.0.0.1:{served.port}"
        table = run_all("offloading", url, replay, jobs, Table())
    return Outcome(table, traces, window, time.monotonic() - began)


def measure(quick: bool) -> Section:
    """Replay the conversations and report the results."""
    return section_of(replay_all(QUICK_LIMIT if quick else None, WINDOW))


def section_of(outcome: Outcome) -> Section:
    """Report the results of the runs."""
    names, table = outcome.names, outcome.table
    longest = [name for name in names if table.by_run[OFF, name].compactions]
    section = Section(
        "offloading", f"input tokens by `tool_output`, window {outcome.window:,}, {source()}"
    )
    total = table.total("defaults", names)
    section.add_text(
        f"{len(names)} recorded conversations with {total.results:,} tool results, of which"
        f" {total.offloaded:,} are kept in blobs by default; a build in each format before each"
        " message of the assistant and one at the end; strategy `sandwich` with extractive"
        f" summaries, {MAX_OUTPUT_TOKENS:,} tokens kept for the answer; {outcome.seconds / 60:.0f}"
        " min. Tokens are o200k over each item's JSON of the OpenAI Chat payloads, added up over"
        " all builds; shares are of those. The best possible is the history that only grows, in a"
        " window that holds it all. Shown: messages of the log in a payload against all so far,"
        " placeholders included. Clearings: old tool results give way by the sum rule. A break"
        " is an epoch after the first."
    )
    section.add_text(f"The {len(longest)} conversations that are compacted without offloading:")
    _table(section, table, longest)
    others = [name for name in names if name not in longest]
    section.add_text(f"The other {len(others)}, which fit their window:")
    _table(section, table, others)
    section.add_text("All of them:")
    _table(section, table, names)
    best = table.total(BEST, longest).share
    for mode in MODES:
        ratio = table.total(mode, longest).share / max(best, 1e-9)
        goal = f"{mode}, compacted conversations, share against append-only history ≥ {GOAL}"
        section.goal("performance.cacheable-prefix", goal, f"{ratio:.3f}", ratio >= GOAL)
    _add_checks(section, outcome)
    return section


def _table(section: Section, table: Table, names: Sequence[str]) -> None:
    best = table.total(BEST, names)
    off = table.total(OFF, names)
    rows = []
    for mode in (BEST, *MODES):
        total = table.total(mode, names)
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in total.breaks.most_common())
        rows.append(
            (
                mode,
                f"{total.tokens / 1e6:.2f}",
                f"{total.tokens / max(1, off.tokens):.3f}x",
                f"{total.share:.3f}",
                f"{total.share / max(best.share, 1e-9):.3f}",
                f"{total.shown_share:.2f}",
                f"{total.builds:,}",
                f"{total.refused:,}",
                f"{total.compactions:,}",
                f"{total.clearings:,}",
                reasons or "none",
            )
        )
    header = ("tool output", "million tokens", "against off", "share", "of the best", "shown")
    section.add_table((*header, "builds", "refused", "compactions", "clearings", "breaks"), rows)


def _add_checks(section: Section, outcome: Outcome) -> None:
    faults = outcome.faults
    totals = [outcome.table.total(mode, outcome.names) for mode in MODES]
    judged = sum(total.judged for total in totals)
    section.goal(
        "tool-output.byte-exact, payload.valid",
        f"{judged:,} payloads judged, faults 0",
        str(len(faults)),
        not faults,
    )
    if faults:
        section.add_text("\n".join(f"- {fault}" for fault in faults[:_SHOWN]))


@click.command()
@click.option("--limit", type=int, help="so many conversations of each file")
@click.option("--window", default=WINDOW, show_default=True, help="tokens of the window")
def main(limit: int | None, window: int) -> None:
    """Replay recorded conversations with tool output kept in several ways; 1 for any fault."""
    outcome = replay_all(limit, window)
    click.echo("\n\n".join(section_of(outcome).parts))
    sys.exit(1 if outcome.faults else 0)


if __name__ == "__main__":
    main()
