"""The session: append one message, then build the payload of the next call, again and again.

1. Every size has three conversations with the same messages: ours, floor A's and floor B's.
2. Ours is filled through the API in batches of 1000 with a build after each, so that it was
   compacted as in real life; no statistics are forced on it. The floors are filled by COPY.
3. Steps alternate between the systems and the sizes, one by one, so that noise hits all alike.
4. The floors read as many tokens as our last payload of that size held: the same reads.
5. Ours is the whole answer to `POST …/context`, over HTTP, from the really served process.
6. Afterwards the same process is asked for deltas, beside full builds and appends alone (`deltas`).
"""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any
from uuid import UUID, uuid4

import orjson
import uvloop

from app.conversations.messages.draft import make_drafts
from app.formats.message import FormatName
from app.models.tokenizer import TiktokenTokenizer
from benchmarks.connection import Connection, UnexpectedAnswer, request
from benchmarks.deltas import add_deltas, measure_deltas
from benchmarks.figures import Section, kib, ms, p50, p95, percentile, times
from benchmarks.floors import FloorA, connect
from benchmarks.processes import Served, floor_b, service
from benchmarks.stage import create_conversation, database, report
from benchmarks.workload import Message, conversation

BATCH = 1000
DELTA_SIZE = 10_000
EFFECTIVE_WINDOW = 128_000 - 4_096
WARM_UP_STEPS = 5
RESTARTS = 3
SYSTEMS = ("ours", "floor A", "floor B")
_TOKENS_USED = re.compile(rb'"tokens_used":\s*(\d+)')
_COMPACTED = re.compile(rb'"compaction":\s*\{')


@dataclass(slots=True)
class Step:
    """One timed step, in seconds; `tokens` are those of our payload at the time."""

    append: float
    build: float
    size_bytes: int
    tokens: int
    compacted: bool

    @property
    def total(self) -> float:
        """Append and build together."""
        return self.append + self.build


@dataclass(slots=True)
class Lane:
    """One length of history: a conversation for each system, and what was measured on them."""

    size: int
    ours: str
    floor_a: UUID = field(default_factory=uuid4)
    floor_b: UUID = field(default_factory=uuid4)
    tokens: int = 0
    steps: dict[str, list[Step]] = field(default_factory=lambda: {name: [] for name in SYSTEMS})
    cold: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in SYSTEMS})

    def path(self, what: str) -> str:
        """Return the path of our conversation's log or context."""
        return f"/v1/conversations/{self.ours}/{what}"

    def floor_path(self, what: str) -> str:
        """Return the path of floor B's conversation."""
        return f"/conversations/{self.floor_b}/{what}"

    def note(self, answer: bytes) -> None:
        """Remember how many tokens our payload held."""
        found = _TOKENS_USED.search(answer)
        if found is None:
            raise UnexpectedAnswer(f"a build without tokens_used: {answer[:300]!r}")
        self.tokens = int(found[1])


@dataclass(frozen=True, slots=True)
class Appending:
    """One message on its way into all three logs, made ready outside the clock."""

    tokens: int
    body: str
    ours: bytes
    floor: bytes


def measure(quick: bool) -> Section:
    """Run the session at every size and report it."""
    sizes = (100, 1_000, 10_000) if quick else (100, 1_000, 10_000, 100_000)
    with database() as (data_dir, url, log), floor_b(url, log) as floor:
        return uvloop.run(_measure(data_dir, url, log, floor, sizes, 120 if quick else 400))


async def _measure(
    data_dir: Path, url: str, log: Path, floor: Served, sizes: Sequence[int], steps: int
) -> Section:
    floor_a = FloorA(await connect(url))
    with service(data_dir, log=log) as served, Connection(served.port) as ours:
        lanes = [await _filled(size, ours, floor_a) for size in sizes]
        await floor_a.analyze()
        before = served.cpu_seconds, floor.cpu_seconds
        with Connection(floor.port) as bare:
            await _Run(ours, floor_a, bare).steps(lanes, steps)
        after = served.cpu_seconds, floor.cpu_seconds
        memory = served.memory_bytes
        deltas = measure_deltas(ours, DELTA_SIZE, steps)
    for _ in range(RESTARTS):
        with (
            service(data_dir, log=log) as served,
            Connection(served.port) as ours,
            Connection(floor.port) as bare,
        ):
            await _Run(ours, floor_a, bare).cold_builds(lanes)
    section = _section(lanes)
    ran = (WARM_UP_STEPS + steps) * len(lanes)
    ours_cpu, floor_cpu = ((end - start) / ran for start, end in zip(before, after, strict=True))
    section.add_text(
        f"CPU of the server process per step, all sizes together: ours {ms(ours_cpu)} ms,"
        f" floor B {ms(floor_cpu)} ms. Memory of the service process after the steps:"
        f" {memory >> 20} MiB."
    )
    add_deltas(section, deltas)
    return section


async def _filled(size: int, ours: Connection, floor_a: FloorA) -> Lane:
    report(f"session: filling {size} messages")
    lane = Lane(size, create_conversation(ours))
    await floor_a.start(lane.floor_a)
    await floor_a.start(lane.floor_b)
    stream = conversation(seed=1)
    for start in range(0, size, BATCH):
        batch = list(islice(stream, min(BATCH, size - start)))
        answer = orjson.loads(ours.post(lane.path("messages"), {"messages": batch}))
        tokens = [message["token_count"] for message in answer["messages"]]
        bodies = [orjson.dumps(message).decode() for message in batch]
        await floor_a.preload(lane.floor_a, tokens, bodies)
        await floor_a.preload(lane.floor_b, tokens, bodies)
        lane.note(ours.post(lane.path("context"), {}))
    return lane


def _counted(messages: Iterable[Message]) -> list[tuple[Message, int]]:
    """Count messages as the service will, for the floors to store."""
    count = TiktokenTokenizer().count
    return [
        (message, make_drafts(message, FormatName.OPENAI_CHAT, count, "")[0].tokens)
        for message in messages
    ]


class _Run:
    """The connections of one run, and its steps."""

    def __init__(self, ours: Connection, floor_a: FloorA, floor_b: Connection) -> None:
        self._ours, self._floor_a, self._floor_b = ours, floor_a, floor_b

    async def steps(self, lanes: Sequence[Lane], count: int) -> None:
        """Run the warm-up and `count` timed steps on every lane, interleaved (rule 3)."""
        report(f"session: {count} steps at each of {len(lanes)} sizes")
        messages = _counted(islice(conversation(seed=2), WARM_UP_STEPS + count))
        gc.collect()
        gc.freeze()
        for index, (message, tokens) in enumerate(messages):
            for lane in lanes:
                appending = _ready(lane, message, tokens)
                for place in range(len(SYSTEMS)):
                    name = SYSTEMS[(index + place) % len(SYSTEMS)]
                    step = await self._step(name, lane, appending)
                    if index >= WARM_UP_STEPS:
                        lane.steps[name].append(step)
        for lane in lanes:
            await self._check(lane, messages[-1][0])

    async def cold_builds(self, lanes: Sequence[Lane]) -> None:
        """Time the first build of each lane in a process that has built something else."""
        other = create_conversation(self._ours)
        path = f"/v1/conversations/{other}"
        for text in ("first", "second"):
            said = {"messages": [{"role": "user", "content": text}]}
            self._ours.post(f"{path}/messages", said)
            self._ours.post(f"{path}/context", {})
        for lane in lanes:
            for name in SYSTEMS:
                began = time.perf_counter()
                await self._build(name, lane)
                lane.cold[name].append(time.perf_counter() - began)

    async def _step(self, name: str, lane: Lane, appending: Appending) -> Step:
        began = time.perf_counter()
        match name:
            case "ours":
                self._ours.send(appending.ours)
            case "floor A":
                await self._floor_a.append(lane.floor_a, appending.tokens, appending.body)
            case _:
                self._floor_b.send(appending.floor)
        stored = time.perf_counter()
        answer = await self._build(name, lane)
        done = time.perf_counter()
        size = sum(map(len, answer))
        compacted = False
        if name == "ours":
            lane.note(answer[0])
            compacted = bool(_COMPACTED.search(answer[0]))
        return Step(stored - began, done - stored, size, lane.tokens, compacted)

    async def _build(self, name: str, lane: Lane) -> Sequence[Any]:
        """Return the answer's body; of floor A the messages, each by itself."""
        match name:
            case "ours":
                return [self._ours.send(request("POST", lane.path("context"), b"{}"))]
            case "floor A":
                return await self._floor_a.window(lane.floor_a, lane.tokens)
        path = f"{lane.floor_path('context')}?tokens={lane.tokens}"
        return [self._floor_b.send(request("GET", path))]

    async def _check(self, lane: Lane, last: Message) -> None:
        """Make sure that all three return what was appended last."""
        [ours] = await self._build("ours", lane)
        [floor_b] = await self._build("floor B", lane)
        floor_a = await self._build("floor A", lane)
        shown = [
            orjson.loads(ours)["payload"]["messages"],
            [orjson.loads(body) for body in floor_a],
            orjson.loads(floor_b),
        ]
        for messages in shown:
            if not any(item.get("content") == last["content"] for item in messages[-4:]):
                raise UnexpectedAnswer(f"the last message is not in the payload of {lane.size}")


def _ready(lane: Lane, message: Message, tokens: int) -> Appending:
    body = orjson.dumps(message)
    return Appending(
        tokens,
        body.decode(),
        request("POST", lane.path("messages"), b'{"messages":[%b]}' % body),
        request(
            "POST",
            lane.floor_path("messages"),
            b'{"messages":[%b],"tokens":[%d]}' % (body, tokens),
        ),
    )


def _section(lanes: Sequence[Lane]) -> Section:
    section = Section("session", "append one message, build the full payload")
    count = len(lanes[0].steps["ours"])
    section.add_text(
        f"{count} steps at each size, o200k, window 128 000 tokens, strategy `sandwich` with"
        " extractive summaries, defaults otherwise; times in ms. Both floors read as many tokens"
        " as our payload holds at that step."
    )
    section.add_table(
        (
            "messages",
            "system",
            "append p50",
            "p95",
            "build p50",
            "p95",
            "step p50",
            "p95",
            "steps/s",
            "KiB p50",
            "ours / it, step p50",
            "of the means",
        ),
        (_step_row(lane, name) for lane in lanes for name in SYSTEMS),
    )
    _say_compactions(section, lanes)
    section.add_text(
        "First build after a restart of the service (PostgreSQL kept running; the process has"
        " answered one other conversation), median:"
    )
    section.add_table(
        ("messages", "ours", "floor A", "floor B", "ours / A"),
        (
            (
                str(lane.size),
                *(ms(p50(lane.cold[name])) for name in SYSTEMS),
                times(p50(lane.cold["ours"]) / p50(lane.cold["floor A"])),
            )
            for lane in lanes
        ),
    )
    _add_goals(section, {lane.size: lane for lane in lanes})
    return section


def _step_row(lane: Lane, name: str) -> tuple[str, ...]:
    steps, ours = lane.steps[name], lane.steps["ours"]
    totals, our_totals = [step.total for step in steps], [step.total for step in ours]
    columns = [
        figure([getattr(step, part) for step in steps])
        for part in ("append", "build", "total")
        for figure in (p50, p95)
    ]
    return (
        str(lane.size),
        name,
        *(ms(value) for value in columns),
        f"{1 / mean(totals):.0f}",
        kib(p50([step.size_bytes for step in steps])),
        times(p50(our_totals) / p50(totals)),
        times(mean(our_totals) / mean(totals)),
    )


def _say_compactions(section: Section, lanes: Sequence[Lane]) -> None:
    steps = [step for lane in lanes for step in lane.steps["ours"]]
    compacting = [step.build for step in steps if step.compacted]
    if compacting:
        section.add_text(
            f"{len(compacting)} of our {len(steps)} builds compacted inline;"
            f" those took p50 {ms(p50(compacting))} ms, at most {ms(max(compacting))} ms."
        )
    quiet = [step.build for step in steps if not step.compacted]
    section.add_text(f"p99 of the builds that did not compact: {ms(percentile(quiet, 0.99))} ms.")


def _add_goals(section: Section, lanes: dict[int, Lane]) -> None:
    def step_p50(size: int, name: str, least_tokens: int = 0) -> float:
        pairs = zip(lanes[size].steps[name], lanes[size].steps["ours"], strict=True)
        return p50([step.total for step, ours in pairs if ours.tokens >= least_tokens])

    def build_p50(size: int) -> float:
        return p50([step.build for step in lanes[size].steps["ours"]])

    ratio = step_p50(10_000, "ours") / step_p50(10_000, "floor A")
    section.goal(
        "performance.step", "step at 10 000 messages against floor A ≤ 3x", times(ratio), ratio <= 3
    )
    full = int(0.75 * EFFECTIVE_WINDOW)
    if any(step.tokens >= full for step in lanes[10_000].steps["ours"]):
        fuller = step_p50(10_000, "ours", full) / step_p50(10_000, "floor A", full)
        section.add_text(
            f"P1 over the steps whose payload held at least {full} tokens: {times(fuller)}"
        )
    ratio = build_p50(10_000) / build_p50(1_000)
    goal = "build at 10 000 against 1 000 messages ≤ 1.2x"
    section.goal("payload.build-log-independent", goal, times(ratio), ratio <= 1.2)
    longest = max(lanes)
    ratio = p50(lanes[longest].cold["ours"]) / p50(lanes[1_000].cold["ours"])
    goal = f"first build after a restart, {longest} against 1000 messages, about 1x"
    section.goal("compaction.resume", goal, times(ratio), ratio <= 1.5)
    if 100_000 in lanes:
        ratio = step_p50(100_000, "ours") / step_p50(1_000, "ours")
        goal = "step at 100 000 against 1 000 messages ≤ 1.1x"
        section.goal("performance.log-length", goal, times(ratio), ratio <= 1.1)
        floor = step_p50(100_000, "floor A") / step_p50(1_000, "floor A")
        section.add_text(f"The same ratio for floor A in this run: {times(floor)}")
