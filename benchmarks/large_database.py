"""Steps in one request in a database with millions of messages, beside one with 1000.

1. Two databases on one PostgreSQL server, each with a service process of its own. Both have the
   same conversation of 1000 messages, in which the steps are taken, in turns (`request_steps`).
2. The large one also has thousands of other conversations of 5000 short messages: one is appended
   and compacted over HTTP, and then copied by SQL (`log_copies`). Copies must build the payload of
   their source.
3. The floors have the 1000 messages alone.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from random import Random
from urllib.parse import urlsplit
from uuid import UUID

import asyncpg
import uvloop

from benchmarks.connection import Connection, UnexpectedAnswer
from benchmarks.figures import Section
from benchmarks.floors import FloorA, connect
from benchmarks.large_logs import add_growth
from benchmarks.log_copies import copy_conversations, copying, extend, settle
from benchmarks.long_logs import long_log
from benchmarks.processes import CpuMeter, PostgresProcesses, Served, floor_b, service
from benchmarks.request_steps import Kind, Lane, add_table, run
from benchmarks.stage import create_conversation, database, report
from benchmarks.workload import plain_message

MESSAGES, QUICK_MESSAGES = 10_000_000, 200_000
STEPS, QUICK_STEPS = 400, 60
SMALL = 1000
BLOCK, REPETITIONS = 1000, 5
CHARS = 160
SMALL_DATABASE = "small"


def measure(quick: bool, messages: int | None = None) -> Section:
    """Fill both databases, run the steps and report them."""
    messages = messages or (QUICK_MESSAGES if quick else MESSAGES)
    steps = QUICK_STEPS if quick else STEPS
    with database() as (data_dir, url, log), floor_b(url, log) as floor:
        lanes, told = uvloop.run(_measure(data_dir, url, log, floor, messages, steps))
    section = Section("large_database", "steps in one request in a large database")
    section.add_text(told)
    add_table(section, lanes, f"{steps} steps in each; times in ms, CPU in ms per step.")
    title = f"step in a database of {max(lane.size for lane in lanes):,} messages against {SMALL:,}"
    add_growth(section, lanes, f"{title}, p50")
    return section


async def _measure(
    data_dir: Path, url: str, log: Path, floor: Served, messages: int, steps: int
) -> tuple[list[Lane], str]:
    small_url = await _create(url)
    floor_a = FloorA(await connect(url))
    with ExitStack() as stack:
        small, large = (
            stack.enter_context(service(data_dir, "--no-worker", "--database-url", each, log=log))
            for each in (small_url, url)
        )
        bare = Connection(floor.port)
        floors = [
            Lane(Kind.FLOOR_A, SMALL, floor_a, None),
            Lane(Kind.FLOOR_B, SMALL, bare, floor),
        ]
        lanes = [
            await long_log(small, small_url, floor_a, floors, SMALL),
            *floors,
            await long_log(large, url, floor_a, [], SMALL),
        ]
        lanes[-1].size = messages
        told = await _fill(large, url, messages)
        for each in (small_url, url):
            async with copying(each) as copies:
                await settle(copies)
        await floor_a.settle()
        report(f"large_database: {steps} steps")
        for lane in lanes:
            if lane.served is not None:
                lane.through = stack.enter_context(Connection(lane.served.port))
        await run(lanes, CpuMeter(PostgresProcesses(data_dir)), steps)
    return lanes, told


async def _create(url: str) -> str:
    """Create the small database, and return its URL."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"CREATE DATABASE {SMALL_DATABASE}")
    finally:
        await connection.close()
    return urlsplit(url)._replace(path=f"/{SMALL_DATABASE}").geturl()


async def _fill(served: Served, url: str, messages: int) -> str:
    """Fill the database by copies of one conversation, and build some of them."""
    rng = Random(4)
    block = [
        plain_message(rng, "user" if place % 2 == 0 else "assistant", CHARS)
        for place in range(BLOCK)
    ]
    with Connection(served.port) as ours:
        source = Lane(Kind.FULL, 0, ours, served, UUID(create_conversation(ours)))
        ours.post(f"{source.path}/messages", {"messages": block})
    began = time.perf_counter()
    async with copying(url) as connection:
        head = await extend(connection, source.conversation_id, 1, BLOCK, REPETITIONS - 1)
        with Connection(served.port) as ours:
            source.through = ours
            source.build()  # compacts
            expected = source.build()["payload"]["messages"]
        copies = max(1, messages // head)
        report(f"large_database: copying {copies:,} conversations of {head:,} messages")
        made = await copy_conversations(connection, source.conversation_id, copies)
        size = await connection.fetchval("SELECT pg_database_size(current_database())")
        stored = await connection.fetchval("SELECT count(*) FROM messages")
    seconds = time.perf_counter() - began
    for name in (made[0], made[copies // 2], made[-1]):
        with Connection(served.port) as ours:
            copy = Lane(Kind.FULL, 0, ours, served, name)
            shown = copy.build()["payload"]["messages"]
            if shown != expected or copy.tokens != source.tokens:
                raise UnexpectedAnswer(
                    f"a copy shows {len(shown)} messages of {copy.tokens} tokens, its"
                    f" source {len(expected)} of {source.tokens}"
                )
    return (
        f"The large database has {stored:,} messages in {copies + 2:,} conversations,"
        f" {size / 2**30:.1f} GiB; copying took {seconds:.0f} s. Copies that were built have the"
        f" payload of their source, of {source.tokens:,} tokens."
    )
