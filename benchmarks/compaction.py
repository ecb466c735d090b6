"""Every recorded conversation driven through five compactions, per strategy and window.

`python -m benchmarks.compaction --limit 3` takes three conversations of each file;
`--extractive` lets the built-in summariser write instead of a model's server.

1. Messages are appended in order, with a build before each answer an agent would ask for. A
   conversation that is too short goes on from its start, with new call ids.
2. Compactions are made in turn in the background, inside a build and by force.
3. After each: payloads valid in both formats, within the window, counted right; every message of
   the receipt's range read by paging; compacting again to the same target does nothing; undo
   gives the payload from before byte for byte. Then it is compacted again, and goes on.
4. What a strategy costs is counted along the chain of receipts that are still shown.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import click
import orjson

from app.demo import Client, Trace
from app.formats.message import FormatName
from benchmarks.connection import Connection, UnexpectedAnswer
from benchmarks.figures import Section
from benchmarks.processes import model_server, service, summarised_by
from benchmarks.recorded import Conversation, budget_of, recorded, run_all, without_end
from benchmarks.stage import MODEL
from tests.recorded import source
from tests.replay import MAX_OUTPUT_TOKENS, Build, Judge, Tally

STRATEGIES = ("sandwich", "retain_summary", "tree_summary", "chain")
WINDOWS = (8_192, 32_768)
TRIGGERS = ("background", "proactive", "forced")
COMPACTIONS = 5
MAX_WINDOWS = 15
"""A run ends, finished or not, once it appended so many windows' worth of tokens."""
BATCH_SHARE = 0.05
"""Messages go in batches of about this share of the window."""
CHARS_PER_TOKEN = 4
MAX_BATCH = 1000
TARGET = 0.5
MIN_FORCED_PERCENT = 50
"""Percent of the window in use from which a compaction is forced."""
QUICK_LIMIT = 2
"""Conversations of each file in a quick run."""
WAIT_SECONDS = 1.5
POLL_SECONDS = 0.01
PAGE = 500
FIXED_PARTS = ("system_prompt", "skill_prompts", "tool_descriptions")
MODELS = {FormatName.OPENAI_CHAT: MODEL, FormatName.ANTHROPIC: "claude-sonnet-4-5"}
_SHOWN = 20


@dataclass(slots=True)
class RunResults:
    """The results of the runs of one strategy and window; `faults` is empty on success."""

    runs: int = 0
    compactions: int = 0
    unfinished: Counter[str] = field(default_factory=Counter)
    triggers: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    messages: int = 0
    builds: int = 0
    expanded: int = 0
    repeated: int = 0
    undone: int = 0
    raced: int = 0
    grown: int = 0
    over: int = 0
    refused: int = 0
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    hidden: int = 0
    sent: int = 0
    passed: int = 0
    levels: Counter[int] = field(default_factory=Counter)
    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    judged: Tally = field(default_factory=Tally)

    def add(self, other: RunResults) -> None:
        """Add the results of another run."""
        for entry in fields(self):
            mine, theirs = getattr(self, entry.name), getattr(other, entry.name)
            if entry.name == "judged":
                mine.add(theirs)
            else:
                setattr(self, entry.name, mine + theirs)


@dataclass(slots=True)
class Table:
    """The results by strategy and window."""

    results: dict[tuple[str, int], RunResults] = field(default_factory=dict)

    def add(self, other: Table) -> None:
        """Add the results of another run."""
        for key, results in other.results.items():
            self.results.setdefault(key, RunResults()).add(results)


@dataclass(frozen=True, slots=True)
class Run:
    """One conversation to drive; `first` is the trigger its first compaction has."""

    trace: Trace
    strategy: str
    window: int
    first: int


class Exhausted(Exception):
    """The run appended its maximum of tokens, and ends."""


@dataclass(slots=True)
class _Payloads:
    """A payload in each format; `reduced` if one of them did not fit as it was."""

    bodies: dict[FormatName, bytes] = field(default_factory=dict)
    reduced: bool = False


@dataclass(frozen=True, slots=True)
class _Event:
    """A compaction that happened, and the payloads from right before, where they could be had."""

    receipt: Mapping[str, Any]
    before: _Payloads | None


class _Driver:
    """Drives one conversation."""

    def __init__(self, client: Client, run: Run) -> None:
        self._run = run
        self._name = f"{run.trace.name} {run.strategy} {run.window}"
        self._effective = run.window - MAX_OUTPUT_TOKENS
        policy = {
            "strategy": run.strategy,
            "budget": budget_of(run.window),
            "tool_output": {"enabled": False},  # its clearings leave receipts as well
        }
        self._conversation = Conversation(client, run.trace, policy)
        self._messages = without_end(run.trace)
        self._next = next(self._messages)
        self._user_tokens = 0
        self._results = RunResults(runs=1)
        self._judge = judge()
        self._judge.forget()

    def drive(self) -> RunResults:
        """Compact five times, or until too much was appended, and return the results."""
        results = self._results
        for number in range(COMPACTIONS):
            trigger = TRIGGERS[(self._run.first + number) % len(TRIGGERS)]
            try:
                event = self._compact(trigger)
            except Exhausted:
                results.unfinished[f"{number} compactions"] += 1
                break
            results.compactions += 1
            results.triggers[event.receipt["trigger"]] += 1
            results.before.append(event.receipt["before_tokens"])
            results.after.append(event.receipt["after_tokens"])
            self._check(event, event.receipt["trigger"] == "forced")
        results.messages = len(self._conversation.ids)
        results.rounds = -(-results.messages // len(self._run.trace.messages))
        self._account()
        return results

    # --- until a compaction ----------------------------------------------------------------

    def _compact(self, trigger: str) -> _Event:
        match trigger:
            case "background":
                self._conversation.set_policy(auto=True, mode="background")
                return self._in_background()
            case "proactive":
                self._conversation.set_policy(auto=False, mode="inline")
                return self._on_demand(lambda answer: answer["pressure"] != "ok", self._by_build)
            case _:
                self._conversation.set_policy(auto=False, mode="background")
                return self._on_demand(_half_full, self._by_force)

    def _in_background(self) -> _Event:
        """Append until the worker has compacted; a build that must may come before it."""
        last = self._newest()
        while True:
            if self._append()["pressure"] == "ok":
                self._build(FormatName.OPENAI_CHAT)
                continue
            before = self._payloads()
            if (made := self._newest()) != last:
                return self._event(made, None)
            if (made := self._wait(last)) != last:
                return self._event(made, before)

    def _on_demand(
        self, enough: Callable[[Mapping[str, Any]], bool], compact: Callable[[], bool]
    ) -> _Event:
        """Append with automatic compaction off, then compact, again until that does something."""
        while True:
            answer = self._append()
            built = self._build(FormatName.OPENAI_CHAT)
            made = built and built["compaction"]
            if made:  # over the hard block a build compacts anyway
                return self._event(made["compaction_id"], None)
            if not enough(answer):
                continue
            before = self._payloads()
            if compact():
                return self._event(self._newest(), before)

    def _by_build(self) -> bool:
        self._conversation.set_policy(auto=True)
        built = self._build(FormatName.OPENAI_CHAT)
        self._conversation.set_policy(auto=False)
        return bool(built and built["compaction"])

    def _by_force(self) -> bool:
        return bool(self._conversation.ask("POST", "/compact", {})["compacted"])

    def _event(self, compaction_id: str | None, before: _Payloads | None) -> _Event:
        receipt = self._conversation.ask("GET", f"/compactions/{compaction_id}")
        return _Event(receipt, before)

    def _append(self) -> Any:
        """Append the next messages, up to where an agent would call its model."""
        if self._conversation.tokens > MAX_WINDOWS * self._run.window:
            raise Exhausted
        batch: list[dict[str, Any]] = []
        size = 0
        enough = BATCH_SHARE * self._run.window * CHARS_PER_TOKEN
        while len(batch) < MAX_BATCH:
            batch.append(self._next)
            size += len(orjson.dumps(self._next))
            self._next = next(self._messages)
            if size >= enough and self._next["role"] == "assistant":
                break
        answer = self._conversation.append(batch)
        for message in answer["messages"]:
            if message["role"] == "user":
                self._user_tokens = message["token_count"]
        return answer

    def _build(self, format: FormatName) -> Any:
        """Return a build, None where the newest user message cannot fit, which is never cut."""
        self._results.builds += 1
        body = {"format": format, "model": MODELS[format]}
        answer = self._conversation.send("POST", "/context", body)
        if answer.accepted:
            return answer.body
        budget = answer.body.get("budget") or {}
        fixed = sum(budget.get(part, 0) for part in FIXED_PARTS)
        if answer.body.get("code") != "CONTEXT_OVERFLOW" or (
            fixed + self._user_tokens < self._effective
        ):
            raise UnexpectedAnswer(f"{format} build: {answer.reason}, {budget}")
        self._results.refused += 1
        return None

    def _payloads(self, *, judged: bool = False) -> _Payloads:
        """Build in both formats, and judge what comes."""
        payloads = _Payloads()
        for format in MODELS:
            answer = self._build(format)
            if answer is None:
                payloads.reduced = True
                continue
            payloads.bodies[format] = orjson.dumps(answer["payload"])
            tight = answer["pressure"] in ("compact", "blocked")
            payloads.reduced |= tight or bool(answer["degraded"])
            if judged:
                build = Build(answer, self._effective, self._conversation.path, self._name)
                self._judge.judge(build, self._results.judged)
        return payloads

    def _newest(self) -> str | None:
        page = self._conversation.ask("GET", "/compactions?limit=1")["data"]
        return page[0]["compaction_id"] if page else None

    def _wait(self, last: str | None) -> str | None:
        deadline = time.monotonic() + WAIT_SECONDS
        while (made := self._newest()) == last and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return made

    # --- after a compaction ----------------------------------------------------------------

    def _check(self, event: _Event, forced: bool) -> None:
        """Check what has to hold, undo, and compact again as it was (rule 3)."""
        self._conversation.set_policy(auto=False)
        self._payloads(judged=True)
        self._expand(event.receipt)
        again = {} if forced else {"target_tokens": int(self._effective * TARGET)}
        result = self._conversation.ask("POST", "/compact", again)
        if result["before_tokens"] != event.receipt["after_tokens"]:
            self._results.grown += 1  # the background planned before the last messages came
            return
        self._results.repeated += 1
        if result["compacted"]:
            self._fault(f"compacted again: {_brief(event.receipt)}, then {_brief(result)}")
            return
        if event.before is None:
            self._results.raced += 1
            return
        if event.before.reduced:
            self._results.over += 1
            return
        path = f"/compactions/{event.receipt['compaction_id']}/undo"
        self._conversation.ask("POST", path)
        self._results.undone += 1
        for format, payload in self._payloads().bodies.items():
            before = event.before.bodies[format]
            if payload != before:
                self._fault(f"undo changed {format}: {_difference(before, payload)}")
        if not self._conversation.ask("POST", "/compact", again)["compacted"]:
            self._fault(f"not compacted again after undo: {_brief(event.receipt)}")

    def _expand(self, receipt: Mapping[str, Any]) -> None:
        start, end = receipt["hidden_range"]
        got: list[str] = []
        cursor = ""
        while True:
            path = f"/compactions/{receipt['compaction_id']}/messages?limit={PAGE}{cursor}"
            page = self._conversation.ask("GET", path)
            got += [message["id"] for message in page["data"]]
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        self._results.expanded += len(got)
        if got != self._conversation.ids[start - 1 : end - 1]:
            self._fault(f"expansion of {start} to {end} gives {len(got)} other messages")

    def _fault(self, text: str) -> None:
        self._results.faults.append(f"{self._name} at {len(self._conversation.ids)}: {text}")

    # --- what it cost ----------------------------------------------------------------------

    def _account(self) -> None:
        """Add up the receipts that lead to what is shown (rule 4)."""
        results, receipts = self._results, list(self._chain())
        if not receipts:
            return
        parents: list[Mapping[str, Any] | None] = [*receipts[1:], None]
        summarised: set[int] = set()
        by_level: dict[int, list[tuple[int, int]]] = {}
        for receipt, parent in zip(receipts, parents, strict=True):
            results.calls += receipt["calls"]
            results.input_tokens += receipt["input_tokens"]
            results.output_tokens += receipt["output_tokens"]
            known = _ranges(parent["summaries"]) if parent else set()
            for made in receipt["made"]:
                start, end = made["summary_range"]
                summarised |= set(range(start, end))
                by_level.setdefault(made["level"], []).append((start, end))
                results.passed += end - start
                fresh = {tuple(source) for source in made["sources"]} - known
                if made["level"] == 1 or self._run.strategy != "tree_summary":
                    results.sent += sum(last - first for first, last in fresh)
        results.hidden += len(summarised)
        if self._run.strategy == "tree_summary":
            for level, ranges in by_level.items():
                results.levels[level] += len(ranges)
                self._check_level(level, sorted(ranges))

    def _check_level(self, level: int, ranges: Sequence[tuple[int, int]]) -> None:
        for (_, end), (start, _) in pairwise(ranges):
            if start < end:
                self._fault(f"messages {start} to {end} are summarised twice at level {level}")

    def _chain(self) -> Iterator[Mapping[str, Any]]:
        receipts = {}
        for receipt in self._conversation.ask("GET", "/compactions?limit=1000")["data"]:
            receipts[receipt["compaction_id"]] = receipt
        last = next((item for item in receipts.values() if item["status"] == "active"), None)
        while last is not None:
            yield last
            last = receipts.get(last["parent_id"])


def _half_full(answer: Mapping[str, Any]) -> bool:
    return bool(answer["budget"]["used_percentage"] >= MIN_FORCED_PERCENT)


def _ranges(summaries: Sequence[Mapping[str, Any]]) -> set[tuple[int, ...]]:
    return {tuple(summary["summary_range"]) for summary in summaries}


def _brief(result: Mapping[str, Any]) -> str:
    what = result.get("hidden_range") or result.get("summary_range")
    sizes = f"{result['before_tokens']} to {result['after_tokens']} tokens"
    return f"{result.get('trigger', 'again')} {result['strategies_run']} {what}, {sizes}"


def _difference(before: bytes, after: bytes) -> str:
    old, new = orjson.loads(before), orjson.loads(after)
    keys = [key for key in old if key != "messages" and old[key] != new.get(key)]
    pairs = zip(old["messages"], new["messages"], strict=False)
    at = next((at for at, (one, two) in enumerate(pairs) if one != two), None)
    lengths = f"{len(old['messages'])} and {len(new['messages'])} messages"
    return f"keys {keys}, {lengths}, first at {at}"


@cache
def judge() -> Judge:
    """Return this process's judge, which takes a while to load."""
    return Judge()


def drive(client: Client, run: Run) -> Table:
    """Drive one conversation; whatever goes wrong is a fault of it."""
    key = (run.strategy, run.window)
    driver = None
    try:
        driver = _Driver(client, run)
        return Table({key: driver.drive()})
    except Exception as error:
        text = f"{run.trace.name} {run.strategy} {run.window}: {type(error).__name__}: {error}"
        return Table({key: RunResults(runs=1, faults=[text[:600]])})


def runs(limit: int | None, strategies: Sequence[str], windows: Sequence[int]) -> list[Run]:
    """Return every run of so many conversations of each file."""
    return [
        Run(trace, strategy, window, place % len(TRIGGERS))
        for place, trace in enumerate(recorded(limit))
        for window in windows
        for strategy in strategies
    ]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of all runs, the counts of the model's server, and the duration."""

    table: Table
    figures: Mapping[str, int]
    seconds: float
    extractive: bool

    @property
    def total(self) -> RunResults:
        """All runs together."""
        total = RunResults()
        for results in self.table.results.values():
            total.add(results)
        return total

    @property
    def faults(self) -> list[str]:
        """All errors."""
        total = self.total
        return [*total.faults, *total.judged.faults]


def drive_all(jobs: list[Run], *, extractive: bool) -> Outcome:
    """Drive conversations against a service started for it."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="context-service-bench-") as folder:
        log = Path(folder, "processes.log")
        with model_server(0, log) as model:
            environ = {} if extractive else summarised_by(model)
            with service(Path(folder, "data"), environ=environ, log=log) as served:
                url = f"http://127.0.0.1:{served.port}"
                table = run_all("compaction", url, drive, jobs, Table())
            with Connection(model.port) as connection:
                figures = orjson.loads(connection.get("/figures"))
    return Outcome(table, figures, time.monotonic() - began, extractive)


def measure(quick: bool) -> Section:
    """Drive the conversations and report the results."""
    jobs = runs(QUICK_LIMIT if quick else None, STRATEGIES, WINDOWS)
    return section_of(drive_all(jobs, extractive=False))


def section_of(outcome: Outcome) -> Section:
    """Report the results of the runs."""
    total = outcome.total
    section = Section("compaction", f"every conversation of {source()} through five compactions")
    model = "a model that answers at once"
    by = "the built-in summariser" if outcome.extractive else model
    section.add_text(
        f"{total.runs:,} runs, summaries by {by}, {MAX_OUTPUT_TOKENS:,} tokens kept for the answer:"
        f" {total.messages:,} messages, {total.builds:,} builds, {outcome.seconds / 60:.0f} min. A"
        f" run ends unfinished after {MAX_WINDOWS} windows of tokens. Calls, tokens and messages"
        " are per run, along the receipts still shown; tokens before and after are medians."
    )
    section.add_table(
        (
            "strategy",
            "window",
            "runs, finished",
            "compactions: background, proactive, forced",
            "LLM calls",
            "input tokens",
            "messages summarised",
            "sent as text",
            "inside a summary made",
            "tokens before → after",
        ),
        (_row(*key, results) for key, results in sorted(outcome.table.results.items(), key=_order)),
    )
    _add_checks(section, outcome)
    return section


def _order(item: tuple[tuple[str, int], RunResults]) -> tuple[int, int]:
    (strategy, window), _ = item
    return window, STRATEGIES.index(strategy)


def _row(strategy: str, window: int, results: RunResults) -> tuple[str, ...]:
    hidden = max(1, results.hidden)
    finished = results.runs - results.unfinished.total()
    before, after = (median(values) if values else 0 for values in (results.before, results.after))
    return (
        strategy,
        f"{window:,}",
        f"{results.runs}, {finished}",
        f"{results.compactions}: "
        + ", ".join(str(results.triggers[trigger]) for trigger in TRIGGERS),
        f"{results.calls / results.runs:.1f}",
        f"{results.input_tokens / results.runs:,.0f}",
        f"{results.hidden / results.runs:,.0f}",
        f"{results.sent / hidden:.2f}x",
        f"{results.passed / hidden:.2f}x",
        f"{before:,.0f} → {after:,.0f}",
    )


def _add_checks(section: Section, outcome: Outcome) -> None:
    total, figures, faults = outcome.total, outcome.figures, outcome.faults
    section.add_table(("checked", "times"), _checks(total))
    section.add_text(
        f"The model's server counted {figures['calls']:,} calls with {figures['input_tokens']:,}"
        f" input tokens, {figures['refused']:,} refused: undone compactions are among them, and not"
        " in the table."
    )
    section.goal("strategy.pure, compaction.receipt", "violations 0", str(len(faults)), not faults)
    if faults:
        section.add_text("\n".join(f"- {fault}" for fault in faults[:_SHOWN]))


def _checks(total: RunResults) -> Iterator[tuple[str, str]]:
    yield "compactions, with valid payloads in both formats afterwards", f"{total.compactions:,}"
    yield "messages read by expanding a receipt", f"{total.expanded:,}"
    yield "second compactions that do nothing", f"{total.repeated:,}"
    yield "… not asked for, since the log had grown", f"{total.grown:,}"
    yield "undone, both payloads as before byte for byte", f"{total.undone:,}"
    yield "… not so, since a build over the hard block had compacted at once", f"{total.raced:,}"
    yield "… not so, since the payload before did not fit and was reduced", f"{total.over:,}"
    yield "builds refused, since the newest user message alone did not fit", f"{total.refused:,}"
    yield "times a conversation was gone through, mean", f"{total.rounds / total.runs:.1f}"
    for what, count in sorted(total.unfinished.items()):
        yield f"runs that ended after {what}", f"{count:,}"
    for level, count in sorted(total.levels.items()):
        yield f"summaries of a tree at level {level}, no message in two", f"{count:,}"


@click.command()
@click.option("--limit", type=int, help="so many conversations of each file")
@click.option("--strategy", multiple=True, default=STRATEGIES, type=click.Choice(STRATEGIES))
@click.option("--window", multiple=True, default=WINDOWS, type=int)
@click.option("--extractive", is_flag=True, help="the built-in summariser writes")
def main(
    limit: int | None, strategy: tuple[str, ...], window: tuple[int, ...], extractive: bool
) -> None:
    """Drive recorded conversations through five compactions each; exit code 1 for any fault."""
    outcome = drive_all(runs(limit, strategy, window), extractive=extractive)
    click.echo("\n\n".join(section_of(outcome).parts))
    sys.exit(1 if outcome.faults else 0)


if __name__ == "__main__":
    main()
