"""Builds that start an epoch with an inline compaction, without a model.

1. A conversation of 10 000 messages and a window of 128 000 tokens compacts inline
   (`compaction.mode`). Before each build messages of some thousand tokens are appended, so that
   every few builds start an epoch: with a compaction, or because results are cleared.
2. One process serves them through a proxy that counts round trips, another one without it is timed.
   Both read the same database, one after the other.
3. Beside each timed build floor A reads as many tokens as the payload then has.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
import uvloop

from benchmarks.connection import Connection
from benchmarks.figures import SAMPLE_HEADS, Samples, Section, ms, p50, p95, p99, times
from benchmarks.floors import FloorA, connect, settle
from benchmarks.one_request import Kind, Lane, fill
from benchmarks.processes import CpuMeter, Served, service
from benchmarks.stage import MODEL, database, report
from benchmarks.workload import Message, conversation
from tests.database_proxy import ProxyThread

SIZE, QUICK_SIZE = 10_000, 2_000
STEP_TOKENS = 8_000
"""How much is appended before each build: that of a step with several large results."""
EPOCHS, QUICK_EPOCHS = 200, 8
COUNTED_EPOCHS, QUICK_COUNTED_EPOCHS = 30, 4
_COMPACTED = re.compile(rb'"compaction":\s*\{')
COMPACTING, OTHER, IN_EPOCH = "compaction", "new epoch, no compaction", "same epoch"
ROUND_TRIPS = {COMPACTING: 40, OTHER: 16}
P99_SECONDS = {OTHER: 0.05}


@dataclass(slots=True)
class Builds:
    """Builds of one kind, their round trips, and the floor beside them."""

    samples: Samples = field(default_factory=Samples)
    floor: Samples = field(default_factory=Samples)
    round_trips: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Run:
    """The conversation and what is appended to it."""

    lane: Lane
    floor: Lane
    floor_a: FloorA
    messages: Iterator[Message]
    builds: dict[str, Builds] = field(
        default_factory=lambda: {name: Builds() for name in (COMPACTING, OTHER, IN_EPOCH)}
    )

    async def append(self) -> None:
        """Append as many messages as a step has, to the service and to the floor."""
        tokens = 0
        while tokens < STEP_TOKENS:
            batch = list(islice(self.messages, 20))
            body = {"messages": batch}
            assert isinstance(self.lane.through, Connection)
            answer = orjson.loads(self.lane.through.post(f"{self.lane.path}/messages", body))
            costs = [message["token_count"] for message in answer["messages"]]
            bodies = [orjson.dumps(message).decode() for message in batch]
            await self.floor_a.preload(self.floor.conversation_id, costs, bodies)
            tokens += sum(costs)

    def build(self) -> tuple[str, float]:
        """Build, and return the kind of the build and its time."""
        assert isinstance(self.lane.through, Connection)
        epoch = self.lane.epoch_id
        began = time.perf_counter()
        answer = self.lane.through.post(f"{self.lane.path}/context", {})
        seconds = time.perf_counter() - began
        self.lane.note(answer)
        if _COMPACTED.search(answer):
            return COMPACTING, seconds
        return (IN_EPOCH if epoch == self.lane.epoch_id else OTHER), seconds


def measure(quick: bool) -> Section:
    """Compact inline again and again and report the builds that did."""
    epochs, counted = (QUICK_EPOCHS, QUICK_COUNTED_EPOCHS) if quick else (EPOCHS, COUNTED_EPOCHS)
    size = QUICK_SIZE if quick else SIZE
    with database() as (data_dir, url, log):
        builds = uvloop.run(_measure(data_dir, url, log, size, epochs, counted))
    return _section(builds)


async def _measure(
    data_dir: Path, url: str, log: Path, size: int, epochs: int, counted: int
) -> dict[str, Builds]:
    proxy = ProxyThread(url)
    with (
        service(data_dir, "--no-worker", "--database-url", proxy.url, log=log) as served,
        Connection(served.port) as ours,
    ):
        run = await _filled(ours, served, url, size)
        report(f"new_epochs: counting {counted} compactions")
        builds = run.builds[COMPACTING].round_trips
        while len(builds) < counted:
            await run.append()
            before = proxy.round_trips
            kind, _ = run.build()
            run.builds[kind].round_trips.append(proxy.round_trips - before)
    with service(data_dir, "--no-worker", log=log) as served, Connection(served.port) as ours:
        run.lane.through, run.lane.served = ours, served
        meter = CpuMeter(data_dir)
        report(f"new_epochs: timing {epochs} compactions")
        await run.append()
        run.build()
        while len(run.builds[COMPACTING].samples.seconds) < epochs:
            await run.append()
            await _timed(run, meter, served)
    return run.builds


async def _timed(run: _Run, meter: CpuMeter, served: Served) -> None:
    before = meter.read(served)
    kind, seconds = run.build()
    spent = meter.since(before, served)
    run.builds[kind].samples.add(seconds, spent.server, spent.postgres)
    before, own = meter.read(), time.process_time()
    began = time.perf_counter()
    await run.floor_a.window(run.floor.conversation_id, run.lane.tokens)
    seconds, own = time.perf_counter() - began, time.process_time() - own
    run.builds[kind].floor.add(seconds, own, meter.since(before).postgres)


async def _filled(ours: Connection, served: Served, url: str, size: int) -> _Run:
    floor_a = FloorA(await connect(url))
    report(f"new_epochs: filling {size} messages")
    body: dict[str, Any] = {"model": MODEL, "policy": {"compaction": {"mode": "inline"}}}
    made = orjson.loads(ours.post("/v1/conversations", body))["conversation_id"]
    lane = Lane(Kind.FULL, ours, served, UUID(made))
    floor = Lane(Kind.FLOOR_A, floor_a, None)
    stream = conversation(seed=1)
    await fill([lane], floor_a, [floor], islice(stream, size))
    await settle(url)
    return _Run(lane, floor, floor_a, stream)


def _section(builds: dict[str, Builds]) -> Section:
    section = Section("new_epochs", "builds that start an epoch with an inline compaction")
    section.add_text(
        f"Before each build about {STEP_TOKENS} tokens are appended; window 128 000 tokens,"
        " `compaction.mode: inline`, extractive summaries; times and CPU in ms. Floor A reads its"
        " window after each build, and compacts nothing."
    )
    rows = []
    for name, found in builds.items():
        for title, samples in ((name, found.samples), (f"{name}: floor A", found.floor)):
            if samples.seconds:
                rows.append((title, f"{len(samples.seconds)}", *samples.cells()))
    section.add_table(("build", "builds", *SAMPLE_HEADS), rows)
    section.add_table(
        ("build", "builds", "round trips p50", "p95", "most"),
        (
            (name, f"{len(trips)}", *(f"{way(trips):.0f}" for way in (p50, p95, max)))
            for name, found in builds.items()
            if (trips := found.round_trips)
        ),
    )
    for name in (COMPACTING, OTHER):
        _add_goals(section, name, builds[name])
    compacting = builds[COMPACTING]
    floor = p50(compacting.floor.seconds)
    section.add_text(
        "A build that compacts, against floor A's read of the window, p50:"
        f" {times(p50(compacting.samples.seconds) / floor)}."
    )
    return section


def _add_goals(section: Section, name: str, builds: Builds) -> None:
    if builds.round_trips:
        trips = p95(builds.round_trips)
        most = ROUND_TRIPS[name]
        goal = f"{name}: round trips of the build, p95 ≤ {most}"
        section.goal("performance.new-epoch", goal, f"{trips:.0f}", trips <= most)
    if builds.samples.seconds and name in P99_SECONDS:
        slow, limit = p99(builds.samples.seconds), P99_SECONDS[name]
        goal = f"{name}: build, p99 ≤ {limit * 1000:.0f} ms"
        section.goal("performance.new-epoch", goal, f"{ms(slow)} ms", slow <= limit)
