"""Agents beside a summariser that takes its time: appends and builds with compaction and without.

1. Sixteen conversations, each on a connection of its own, append one message and build the full
   payload, again and again, at the same moments in every round. They start just below the point
   where compaction is due and never reach `compact_trigger` [compaction.never-blocks].
2. Rounds come in pairs: with compaction off (`compaction.auto` false) and on, with the same
   messages, first one first and then the other. With it on, jobs run all the time: the model
   takes 20 s for each call, and each process works on four conversations at once. Ratios are
   taken inside a pair; the medians of all pairs count.
3. A compacted conversation's payload is smaller, which flatters. So ratios are also taken over
   the steps of conversations that are not compacted yet, against the same steps without.
4. The service runs with its worker inside, as `serve` does by default, then with one beside it.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice

import orjson

from benchmarks.connection import Connection, UnexpectedAnswer, request
from benchmarks.figures import Section, ms, p50, p95, times
from benchmarks.processes import Served, model_server, service, summarised_by, worker
from benchmarks.stage import MODEL, database, report
from benchmarks.workload import Message, conversation

CONVERSATIONS = 16
DELAY_SECONDS, QUICK_DELAY_SECONDS = 20.0, 2.0
CALLS_PER_ROUND = 1.95
"""A round lasts as long as so many calls of the model, one after the other: the third is not begun,
so that as many begin in a second as in the long run."""
MIN_ROUND_SECONDS = 6.0
PAIRS, QUICK_PAIRS = 4, 2
STEPS_PER_SECOND = 2.5
"""Of each conversation; all of them together keep the service about a third busy."""
EFFECTIVE_WINDOW = 128_000 - 4_096
START_SHARE = 0.74
MAX_SHARE = 0.93
LONGEST_MESSAGE = 4_000
"""Characters; a longer tool result would cross both lines at once."""
TOKENS_PER_MESSAGE = 360
"""More than messages of the workload, cut like this, have on average."""
FILL_BATCH = 20
GOAL = 1.2
_TOKENS_USED = re.compile(rb'"tokens_used":\s*(\d+)')
_UNEXPECTED = (b'"compaction":{', b'"degraded":["')
_TAIL_BYTES = 4_000


@dataclass(frozen=True, slots=True)
class Step:
    """One append and one build, in seconds."""

    append: float
    build: float
    tokens: int
    compacted: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """How long a round is, how many pairs there are, and on how many jobs a process works.

    A quick run works on one at a time: with answers that come soon, more would be another load.
    """

    seconds: float
    pairs: int
    concurrency: int

    @property
    def steps(self) -> int:
        """The steps of each conversation in a round."""
        room = int((MAX_SHARE - START_SHARE) * EFFECTIVE_WINDOW / TOKENS_PER_MESSAGE)
        return min(int(self.seconds * STEPS_PER_SECOND), room)


Round = dict[tuple[int, int], Step]
"""Steps by conversation and place."""


@dataclass(slots=True)
class Mode:
    """What was measured with the worker in one place."""

    name: str
    off: list[Round]
    on: list[Round]
    calls: int = 0
    most_waiting: int = 0
    first_call: tuple[float, float] = (0.0, 0.0)


def measure(quick: bool) -> Section:
    """Run the rounds in both modes and report them."""
    delay = QUICK_DELAY_SECONDS if quick else DELAY_SECONDS
    section = Section(
        "slow_model", f"appends and builds beside a summariser that takes {delay:g} s"
    )
    plan = Plan(
        seconds=max(delay * CALLS_PER_ROUND, MIN_ROUND_SECONDS),
        pairs=QUICK_PAIRS if quick else PAIRS,
        concurrency=1 if quick else 4,
    )
    modes = []
    for name, beside in (("inside `serve`", False), ("`context-service worker`", True)):
        with _running(delay, beside, plan) as (served, model):
            modes.append(_measured(name, served, model, plan))
    _say(section, modes, plan)
    return section


@contextmanager
def _running(delay: float, beside: bool, plan: Plan) -> Iterator[tuple[Served, Served]]:
    """Run the model and the service, with a worker process beside it if asked for."""
    with ExitStack() as stack:
        data_dir, url, log = stack.enter_context(database())
        model = stack.enter_context(model_server(delay, log))
        environ = summarised_by(model)
        environ["CONTEXT_WORKER_CONCURRENCY"] = str(plan.concurrency)
        arguments = ["--database-url", url, *(["--no-worker"] if beside else [])]
        served = stack.enter_context(service(data_dir, *arguments, environ=environ, log=log))
        if beside:
            stack.enter_context(worker(url, environ=environ, log=log))
        yield served, model


def _measured(name: str, served: Served, model: Served, plan: Plan) -> Mode:
    mode = Mode(name, [], [])
    report(f"slow_model: worker {name}, first call of the model")
    mode.first_call = _first_call(served.port)
    for place in range(plan.pairs):
        report(f"slow_model: worker {name}, pair {place + 1} of {plan.pairs}")
        for auto in (False, True) if place % 2 == 0 else (True, False):
            before = _figures(model)["calls"]
            agents = _filled(served.port, auto)
            (mode.on if auto else mode.off).append(_round(served.port, agents, plan))
            mode.calls += (_figures(model)["calls"] - before) if auto else 0
            _clear_away(served.port, agents, model)
    mode.most_waiting = _figures(model)["most_waiting"]
    return mode


def _figures(model: Served) -> dict[str, int]:
    with Connection(model.port) as connection:
        figures: dict[str, int] = orjson.loads(connection.get("/figures"))
        return figures


# --- a round ------------------------------------------------------------------------------------


def _messages(seed: int) -> Iterator[Message]:
    """Yield the workload's conversation without its longest tool results."""
    for message in conversation(seed):
        yield {**message, "content": message["content"][:LONGEST_MESSAGE]}


def _filled(port: int, auto: bool) -> list[str]:
    """Make the conversations, each filled up to its start; return their paths."""
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda seed: _fill(port, seed, auto), range(CONVERSATIONS)))


def _fill(port: int, seed: int, auto: bool) -> str:
    with Connection(port) as connection:
        body = {"model": MODEL, "policy": {"compaction": {"auto": auto}}}
        created = orjson.loads(connection.post("/v1/conversations", body))
        path = f"/v1/conversations/{created['conversation_id']}"
        stream = _messages(seed)
        used = 0
        while used < START_SHARE * EFFECTIVE_WINDOW - FILL_BATCH * TOKENS_PER_MESSAGE:
            used = _appended(connection, path, list(islice(stream, FILL_BATCH)))
        for message in stream:
            if message["role"] == "user" and used > START_SHARE * EFFECTIVE_WINDOW - 1_500:
                break
            used = _appended(connection, path, [message])
        connection.post(f"{path}/context", {})
    return path


def _appended(connection: Connection, path: str, messages: list[Message]) -> int:
    answer = orjson.loads(connection.post(f"{path}/messages", {"messages": messages}))
    return int(answer["budget"]["used_tokens"])


def _round(port: int, agents: Sequence[str], plan: Plan) -> Round:
    """Run all conversations at once, each in a thread, and return their steps."""
    found: Round = {}
    began = time.perf_counter() + 0.5
    interval = plan.seconds / plan.steps

    def run(place: int) -> None:
        path = agents[place]
        build = request("POST", f"{path}/context", b"{}")
        at = began + interval * place / CONVERSATIONS
        with Connection(port) as connection:
            for number, message in enumerate(islice(_messages(1_000 + place), plan.steps)):
                body = orjson.dumps({"messages": [message]})
                append = request("POST", f"{path}/messages", body)
                time.sleep(max(0.0, at + number * interval - time.perf_counter()))
                found[place, number] = _step(connection, append, build)

    with ThreadPoolExecutor(CONVERSATIONS) as pool:
        list(pool.map(run, range(CONVERSATIONS)))
    return found


def _step(connection: Connection, append: bytes, build: bytes) -> Step:
    began = time.perf_counter()
    connection.send(append)
    stored = time.perf_counter()
    answer = connection.send(build)
    done = time.perf_counter()
    tail = answer[-_TAIL_BYTES:]
    used = _TOKENS_USED.search(tail)
    if used is None or any(text in tail for text in _UNEXPECTED):
        raise UnexpectedAnswer(f"a build that compacted or was reduced: {tail[-1500:]!r}")
    return Step(stored - began, done - stored, int(used[1]), b'"summary_used":true' in tail)


def _clear_away(port: int, agents: Iterable[str], model: Served) -> None:
    """Delete the conversations and wait until no call for them is left."""
    with Connection(port) as connection:
        for path in agents:
            connection.send(request("DELETE", path))
    while _figures(model)["waiting"]:
        time.sleep(0.1)
    time.sleep(1)


def _first_call(port: int) -> tuple[float, float]:
    """Return the slowest append and build while a process calls a model for the first time."""
    slowest = [0.0, 0.0]
    with Connection(port) as connection, Connection(port) as other:
        paths = []
        for seed in (1, 2):
            created = orjson.loads(connection.post("/v1/conversations", {"model": MODEL}))
            paths.append(f"/v1/conversations/{created['conversation_id']}")
            _appended(connection, paths[-1], list(islice(_messages(seed), 41)))
        first, second = paths
        connection.post(f"{second}/context", {})
        job = orjson.loads(other.post(f"{first}/compact?wait=false", {}))["job_id"]
        build = request("POST", f"{second}/context", b"{}")
        for message in _messages(3):
            body = orjson.dumps({"messages": [message]})
            step = _step(connection, request("POST", f"{second}/messages", body), build)
            slowest = [max(slowest[0], step.append), max(slowest[1], step.build)]
            if orjson.loads(other.get(f"/v1/jobs/{job}"))["status"] in ("done", "failed"):
                break
            threading.Event().wait(0.1)
    return slowest[0], slowest[1]


# --- the report ---------------------------------------------------------------------------------


def _say(section: Section, modes: Sequence[Mode], plan: Plan) -> None:
    section.add_text(
        f"{CONVERSATIONS} conversations in a window of 128 000 tokens, strategy `sandwich`"
        f" (due at 0.75), from {START_SHARE:.0%} of it on; {plan.steps} steps each in a round of"
        f" {plan.seconds:g} s; {plan.pairs} pairs of rounds, the same messages in all; times in ms,"
        " medians of the rounds. Ratios: medians of the pairs. Alike: only steps of conversations"
        " that are not compacted yet, against the same steps of the other round."
    )
    section.add_table(
        (
            "worker",
            "request",
            "off p50",
            "off p95",
            "on p50",
            "on p95",
            "on / off p50",
            "p95",
            "alike p50",
            "p95",
        ),
        [_row(mode, name, part) for mode in modes for name, part in _PARTS],
    )
    for mode in modes:
        _say_mode(section, mode, plan)
    for mode in modes:
        worst = max(max(_ratios(mode, part)) for _, part in _PARTS)
        goal = f"worker {mode.name}: p50 and p95 of append and build ≤ {GOAL}x of those without"
        section.goal("compaction.never-blocks", goal, f"{times(worst)} at most", worst <= GOAL)


def _say_mode(section: Section, mode: Mode, plan: Plan) -> None:
    fullest = max(step.tokens for found in (*mode.on, *mode.off) for step in found.values())
    last = plan.steps - 1
    compacted = sum(found[place, last].compacted for found in mode.on for place in _PLACES)
    section.add_text(
        f"Worker {mode.name}: {mode.calls} calls of the model in {plan.pairs} rounds, at most"
        f" {mode.most_waiting} at once; {compacted} of {plan.pairs * CONVERSATIONS} conversations"
        f" compacted before their round's end; the fullest payload took"
        f" {fullest / EFFECTIVE_WINDOW:.1%} of the window. While the first call of all was"
        f" made, before the rounds, the slowest append took {ms(mode.first_call[0])} ms, the"
        f" slowest build {ms(mode.first_call[1])} ms."
    )


def _append_of(step: Step) -> float:
    return step.append


def _build_of(step: Step) -> float:
    return step.build


_PARTS: tuple[tuple[str, Callable[[Step], float]], ...] = (
    ("append", _append_of),
    ("build", _build_of),
)
_PLACES = range(CONVERSATIONS)


def _row(mode: Mode, name: str, part: Callable[[Step], float]) -> tuple[str, ...]:
    figures = [
        p50([figure(_values(found, part)) for found in rounds])
        for rounds in (mode.off, mode.on)
        for figure in (p50, p95)
    ]
    return (mode.name, name, *map(ms, figures), *map(times, _ratios(mode, part)))


def _ratios(mode: Mode, part: Callable[[Step], float]) -> list[float]:
    """Return on against off at p50 and p95: over all steps, then over those alike (rule 3)."""
    ratios = []
    for is_alike in (False, True):
        pairs = [_pair(on, off, is_alike) for on, off in zip(mode.on, mode.off, strict=True)]
        for figure in (p50, p95):
            each = (figure(_values(on, part)) / figure(_values(off, part)) for on, off in pairs)
            ratios.append(p50(list(each)))
    return ratios


def _pair(on: Round, off: Round, is_alike: bool) -> tuple[Round, Round]:
    if not is_alike:
        return on, off
    keys = [key for key, step in on.items() if not step.compacted]
    return {key: on[key] for key in keys}, {key: off[key] for key in keys}


def _values(found: Round, part: Callable[[Step], float]) -> list[float]:
    return [part(step) for step in found.values()]
