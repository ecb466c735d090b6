"""Steps in one request in conversations of 1000 to a million messages, beside both floors.

The logs end with the same messages (`long_logs`), and the steps alternate between all of them
(`request_steps`). Statistics are those that autovacuum would have made.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import uvloop

from benchmarks.connection import Connection
from benchmarks.figures import Section, times
from benchmarks.floors import FloorA, connect
from benchmarks.log_copies import copying, settle
from benchmarks.long_logs import long_log
from benchmarks.processes import CpuMeter, PostgresProcesses, Served, floor_b, service
from benchmarks.request_steps import Kind, Lane, add_table, run
from benchmarks.stage import database, report

SIZES, QUICK_SIZES = (1_000, 100_000, 1_000_000), (1_000, 100_000)
STEPS, QUICK_STEPS = 400, 60


def measure(quick: bool) -> Section:
    """Run the steps at every length and report them."""
    sizes, steps = (QUICK_SIZES, QUICK_STEPS) if quick else (SIZES, STEPS)
    with database() as (data_dir, url, log), floor_b(url, log) as floor:
        lanes = uvloop.run(_measure(data_dir, url, log, floor, sizes, steps))
    section = Section("large_logs", "steps in one request by the length of the log")
    add_table(
        section,
        lanes,
        f"{steps} steps at each length; times in ms, CPU in ms per step. All logs end with the same"
        " 1000 messages.",
    )
    add_growth(section, lanes, f"step at {sizes[-1]:,} against {sizes[0]:,} messages, p50")
    return section


def add_growth(section: Section, lanes: Sequence[Lane], title: str) -> None:
    """Compare the largest size with the smallest, for each kind of step."""
    first, last = min(lane.size for lane in lanes), max(lane.size for lane in lanes)
    for kind in dict.fromkeys(lane.kind for lane in lanes):
        of_kind = {lane.size: lane for lane in lanes if lane.kind is kind}
        if not {first, last} <= of_kind.keys():
            continue
        short, long = of_kind[first], of_kind[last]
        ratio, cpu = long.step_p50 / short.step_p50, long.cpu_p50 / short.cpu_p50
        told = f"{times(ratio)}, of the CPU {times(cpu)}"
        if kind is Kind.FULL:
            section.goal("performance.log-length", f"{title} ≤ 1.1x", told, ratio <= 1.1)
        else:
            section.add_text(f"The same of {kind}: {told}.")


async def _measure(
    data_dir: Path, url: str, log: Path, floor: Served, sizes: Sequence[int], steps: int
) -> list[Lane]:
    floor_a = FloorA(await connect(url))
    lanes: list[Lane] = []
    with service(data_dir, "--no-worker", log=log) as served:
        for size in sizes:
            bare = Connection(floor.port)
            floors = [
                Lane(Kind.FLOOR_A, size, floor_a, None),
                Lane(Kind.FLOOR_B, size, bare, floor),
            ]
            lanes += [await long_log(served, url, floor_a, floors, size), *floors]
        async with copying(url) as copies:
            await settle(copies)
        await floor_a.settle()
        report(f"large_logs: {steps} steps at each of {len(sizes)} lengths")
        with Connection(served.port) as ours, Connection(floor.port) as bare:
            for lane in lanes:
                if isinstance(lane.through, Connection):
                    lane.through = ours if lane.kind is Kind.FULL else bare
            await run(lanes, CpuMeter(PostgresProcesses(data_dir)), steps)
    return lanes
