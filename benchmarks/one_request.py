"""A step in one request at 10 000 messages, beside both floors (`request_steps`).

The service runs as it is served, with its worker. Its three conversations are one, copied: one gets
full payloads, one deltas, and one is only appended to.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from uuid import UUID

import uvloop

from benchmarks.connection import Connection
from benchmarks.figures import Section, times
from benchmarks.floors import FloorA, connect
from benchmarks.log_copies import copy_conversations, copying, settle
from benchmarks.processes import CpuMeter, PostgresProcesses, Served, floor_b, service
from benchmarks.request_steps import Kind, Lane, add_table, fill, run
from benchmarks.stage import create_conversation, database, report
from benchmarks.workload import conversation

SIZE = 10_000
STEPS, QUICK_STEPS = 400, 80


def measure(quick: bool) -> Section:
    """Run the steps of all lanes and report them."""
    steps = QUICK_STEPS if quick else STEPS
    with database() as (data_dir, url, log), floor_b(url, log) as floor:
        lanes = uvloop.run(_measure(data_dir, url, log, floor, steps))
    section = Section("one_request", "append one message and get the payload, in one request")
    add_table(
        section,
        lanes,
        f"{steps} steps of each, o200k, window 128 000 tokens, defaults otherwise; times in ms, CPU"
        " in ms per step. Of floor A the server is its client.",
    )
    _add_goals(section, {lane.kind: lane for lane in lanes})
    return section


async def _measure(data_dir: Path, url: str, log: Path, floor: Served, steps: int) -> list[Lane]:
    floor_a = FloorA(await connect(url))
    with service(data_dir, log=log) as served:
        with Connection(served.port) as ours:
            full = Lane(Kind.FULL, SIZE, ours, served, UUID(create_conversation(ours)))
            floors = [
                Lane(Kind.FLOOR_A, SIZE, floor_a, None),
                *(
                    Lane(kind, SIZE, Connection(floor.port), floor)
                    for kind in (Kind.FLOOR_B, Kind.FLOOR_B_DELTA)
                ),
            ]
            report(f"one_request: filling {SIZE} messages")
            for lane in floors:
                await floor_a.start(lane.conversation_id)
            await fill(full, floor_a, floors, islice(conversation(seed=1), SIZE))
        async with copying(url) as copies:
            made = await copy_conversations(copies, full.conversation_id, 2)
            await settle(copies)
        await floor_a.analyze()
        report(f"one_request: {steps} steps")
        with Connection(served.port) as ours:
            full.through = ours
            kinds = zip((Kind.DELTA, Kind.APPEND), made, strict=True)
            lanes = [full, *(Lane(kind, SIZE, ours, served, name) for kind, name in kinds)]
            lanes += floors
            for lane in floors[1:]:
                lane.through = Connection(floor.port)
            await run(lanes, CpuMeter(PostgresProcesses(data_dir)), steps)
    return lanes


def _add_goals(section: Section, lanes: dict[Kind, Lane]) -> None:
    def ratio(of: Kind, to: Kind) -> float:
        return lanes[of].step_p50 / lanes[to].step_p50

    value = ratio(Kind.FULL, Kind.FLOOR_A)
    goal = "full payload against floor A, p50 ≤ 1.5x"
    section.goal("performance.step", goal, times(value), value <= 1.5)
    value = ratio(Kind.FULL, Kind.FLOOR_B)
    goal = "full payload against floor B with its window cached, p50 ≤ 1.3x"
    section.goal("performance.step", goal, times(value), value <= 1.3)
    value = ratio(Kind.DELTA, Kind.FLOOR_B_DELTA)
    goal = "delta against floor B's delta, p50 ≤ 1.5x"
    section.goal("performance.delta", goal, times(value), value <= 1.5)
    value = ratio(Kind.DELTA, Kind.APPEND)
    goal = "delta against the append alone, p50 ≤ 1.15x"
    section.goal("performance.delta", goal, times(value), value <= 1.15)
