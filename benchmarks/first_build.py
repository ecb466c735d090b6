"""The first build of a conversation of 10 000 messages in a fresh process, beside both floors.

1. Each round starts every server anew; PostgreSQL keeps running, so that its cache is warm.
2. The service builds as the first request of a process, and in another process after one other
   conversation. Floor A reads its window first on a fresh connection, then again. Floor B reads its
   window as the first request of a process.
3. Starting and connecting is not part of any figure.
"""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path
from uuid import UUID

import uvloop

from benchmarks.connection import Connection, request
from benchmarks.figures import SAMPLE_HEADS, Samples, Section, p50, times
from benchmarks.floors import FloorA, connect, settle
from benchmarks.one_request import Kind, Lane, fill
from benchmarks.processes import CpuMeter, Served, floor_b, service
from benchmarks.stage import create_conversation, database, report
from benchmarks.workload import conversation

SIZE = 10_000
ROUNDS, QUICK_ROUNDS = 15, 4
FIRST, SECOND = "service, first request", "service, after another conversation"
FLOOR_A, FLOOR_A_AGAIN = "floor A, first", "floor A, again"
FLOOR_B = "floor B, first request"


def measure(quick: bool) -> Section:
    """Restart the servers several times and report their first builds."""
    rounds = QUICK_ROUNDS if quick else ROUNDS
    with database() as (data_dir, url, log):
        samples = uvloop.run(_measure(data_dir, url, log, rounds))
    section = Section("first_build", "the first build of a conversation in a fresh process")
    section.add_text(
        f"{SIZE} messages, {rounds} rounds, each with fresh processes; times and CPU in ms. Both"
        " floors read as many tokens as the payload has."
    )
    floor = p50(samples[FLOOR_A].seconds)
    section.add_table(
        ("build", *SAMPLE_HEADS, "it / floor A, first", "of the CPU"),
        (
            (
                name,
                *found.cells(),
                times(p50(found.seconds) / floor),
                times(p50(found.cpu) / p50(samples[FLOOR_A].cpu)),
            )
            for name, found in samples.items()
        ),
    )
    for name in (FIRST, SECOND):
        ratio = p50(samples[name].seconds) / floor
        goal = f"{name}: against floor A on a fresh connection, p50 ≤ 3x"
        section.goal("performance.first-build", goal, times(ratio), ratio <= 3)
    ratio = p50(samples[FIRST].seconds) / p50(samples[FLOOR_B].seconds)
    section.add_text(f"{FIRST}, against that of floor B, p50: {times(ratio)}.")
    return section


async def _measure(data_dir: Path, url: str, log: Path, rounds: int) -> dict[str, Samples]:
    filling = FloorA(await connect(url))
    with service(data_dir, "--no-worker", log=log) as served, Connection(served.port) as ours:
        lane = Lane(Kind.FULL, ours, served, UUID(create_conversation(ours)))
        floor = Lane(Kind.FLOOR_A, filling, None)
        report(f"first_build: filling {SIZE} messages")
        await fill([lane], filling, [floor], islice(conversation(seed=1), SIZE))
    await settle(url)
    names = (FIRST, SECOND, FLOOR_A, FLOOR_A_AGAIN, FLOOR_B)
    samples = {name: Samples() for name in names}
    meter = CpuMeter(data_dir)
    path = f"/conversations/{floor.conversation_id}/context?tokens={lane.tokens}"
    build = request("POST", f"{lane.path}/context", b"{}")
    for place in range(rounds):
        report(f"first_build: {place + 1} of {rounds}")
        with service(data_dir, "--no-worker", log=log) as served:
            _sample(samples[FIRST], meter, served, build)
        with service(data_dir, "--no-worker", log=log) as served:
            _use(served)
            _sample(samples[SECOND], meter, served, build)
        with floor_b(url, log) as bare:
            _sample(samples[FLOOR_B], meter, bare, request("GET", path))
        raw = await connect(url)
        fresh = FloorA(raw)
        for name in (FLOOR_A, FLOOR_A_AGAIN):
            before, own = meter.read(), time.process_time()
            began = time.perf_counter()
            await fresh.window(floor.conversation_id, lane.tokens)
            seconds, own = time.perf_counter() - began, time.process_time() - own
            samples[name].add(seconds, own, meter.since(before).postgres)
        await raw.close()
    return samples


def _sample(samples: Samples, meter: CpuMeter, served: Served, raw: bytes) -> None:
    with Connection(served.port) as connection:
        before, began = meter.read(served), time.perf_counter()
        connection.send(raw)
        seconds = time.perf_counter() - began
        spent = meter.since(before, served)
    samples.add(seconds, spent.server, spent.postgres)


def _use(served: Served) -> None:
    """Build one other conversation."""
    with Connection(served.port) as connection:
        path = f"/v1/conversations/{create_conversation(connection)}"
        for text in ("first", "second"):
            message = {"role": "user", "content": text}
            connection.post(f"{path}/context", {"append": {"messages": [message]}})
