"""Steps in one request by 1, 2 and 4 processes on one database, beside floor B (wrk).

1. Each process has a port of its own and `wrk` connections of its own, 16 in all. A request appends
   a message of 1 KB to one of 64 conversations and gets the full payload. Each row of the table has
   conversations of its own, which begin with 100 messages, so that payloads are alike in all rows.
2. `kept`: all requests of a conversation go to one process, as with a balancer that hashes its id.
   `spread`: they go to any, so that a process often finds that another one has written meanwhile.
   `cold`: to any, and processes keep no payload in memory, as if each conversation had rested long.
3. The cores are shared with PostgreSQL and `wrk`, so the throughput of more processes is bounded by
   them. What counts is the CPU time of a step, of all processes and of PostgreSQL.
4. Beside the load PostgreSQL is asked again and again which backends wait for a lock, and its
   statistics tell how many rows of the log were read.
5. Floor B has its window cached per process, and reads it from the database when it is not current.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from uuid import UUID, uuid4

import asyncpg
import orjson
import uvloop

from benchmarks import floors
from benchmarks.append import Load, Round
from benchmarks.connection import Connection, request
from benchmarks.figures import Section, p50, times
from benchmarks.processes import CpuMeter, PostgresProcesses, Served, floor_b, service
from benchmarks.stage import create_conversation, database, report
from benchmarks.workload import plain_message

PROCESSES = (1, 2, 4)
CONVERSATIONS = 64
CONNECTIONS = 16
BODIES_EACH = 4
MESSAGES = 100
MESSAGE_CHARS, TOKENS = 1_000, 220
WINDOW_TOKENS = 60_000
FLAT = 1.1
SERVICE, FLOOR = "service", "floor B, cached"
KEPT, SPREAD, COLD = "kept", "spread", "cold"
_WAITING = """
    SELECT count(*) FILTER (WHERE wait_event_type = 'Lock')::float,
        count(*) FILTER (WHERE wait_event_type = 'LWLock')::float, count(*)::float
    FROM pg_stat_activity WHERE state = 'active' AND pid <> pg_backend_pid()
"""
_ROWS = """
    SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint
    FROM pg_stat_user_tables WHERE relname = 'messages'
"""
SAMPLE_SECONDS = 0.02
STATISTICS_SECONDS = 1.5
"""After so long the backends have told the statistics what they read."""


@dataclass(slots=True)
class Waits:
    """How many samples of active backends waited for a lock."""

    locks: float = 0
    latches: float = 0
    active: float = 0


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one round with one number of processes."""

    per_second: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    server_cpu_ms: float
    postgres_cpu_ms: float
    rows_read: float
    lock_share: float
    latch_share: float

    @property
    def cpu_ms(self) -> float:
        """The CPU time of a step, of all processes and of PostgreSQL."""
        return self.server_cpu_ms + self.postgres_cpu_ms


@dataclass(slots=True)
class Row:
    """The rounds of one system with one number of processes."""

    system: str
    routing: str
    processes: int
    lines: list[list[str]] = field(default_factory=list)
    """The requests for each conversation."""
    rounds: list[Run] = field(default_factory=list)

    def own(self, index: int) -> list[list[str]]:
        """Return the requests for the conversations of one process: its share of them, or all."""
        return self.lines[index :: self.processes] if self.routing == KEPT else self.lines

    def middle(self, figure: str) -> float:
        """Return the median of a figure."""
        return p50([getattr(entry, figure) for entry in self.rounds])


def measure(quick: bool) -> Section:
    """Load every number of processes in turns and report the results."""
    if shutil.which("wrk") is None:
        raise SystemExit("scaling: wrk is needed (Debian: apt-get install wrk).")
    seconds, rounds = (2, 1) if quick else (5, 3)
    with ExitStack() as stack:
        data_dir, url, log = stack.enter_context(database())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-scaling-")))
        ours, cold = (
            [
                stack.enter_context(service(data_dir, "--no-worker", environ=environ, log=log))
                for _ in range(max(PROCESSES))
            ]
            for environ in ({}, {"CONTEXT_WINDOW_CACHE_BYTES": "0"})
        )
        bare = [stack.enter_context(floor_b(url, log)) for _ in range(max(PROCESSES))]
        servers = {(SERVICE, KEPT): ours, (SERVICE, SPREAD): ours, (SERVICE, COLD): cold}
        servers |= {(FLOOR, KEPT): bare, (FLOOR, SPREAD): bare}
        rows = _rows(folder, data_dir, url, servers, seconds, rounds)
    return _section(rows, seconds, rounds)


def _rows(
    folder: Path,
    data_dir: Path,
    url: str,
    servers: dict[tuple[str, str], list[Served]],
    seconds: int,
    rounds: int,
) -> list[Row]:
    meter = CpuMeter(PostgresProcesses(data_dir))
    rows = [
        Row(system, routing, processes)
        for system, routing in servers
        for processes in PROCESSES
        if processes > 1 or routing != SPREAD
    ]
    _fill(rows, servers[SERVICE, KEPT][0], url)
    for place in range(rounds):
        for row in rows:
            report(f"scaling: round {place + 1}, {row.processes} of {row.system}, {row.routing}")
            used = servers[row.system, row.routing][: row.processes]
            loads = [
                Load(folder, f"load-{index}", server, _share(row, index))
                for index, server in enumerate(used)
            ]
            name = floors.DATABASE if row.system == FLOOR else None
            _warm_up(row, used)
            row.rounds.append(_run(loads, used, meter, url, name, seconds))
    return rows


def _warm_up(row: Row, servers: Sequence[Served]) -> None:
    """Send each process a request for each of its conversations, so that it knows them.

    The second time is for the statistics: a backend tells what it read only while it works.
    """
    for _ in range(2):
        for index, server in enumerate(servers):
            with Connection(server.port) as connection:
                for lines in row.own(index):
                    method, path, body = lines[0].split(" ", 2)
                    connection.send(request(method, path, body.encode()))
        time.sleep(STATISTICS_SECONDS)


def _share(row: Row, index: int) -> list[str]:
    """Return the requests of one process, in an order of their own."""
    requests = [line for conversation in row.own(index) for line in conversation]
    Random(index).shuffle(requests)
    return requests


def _run(
    loads: Sequence[Load],
    servers: Sequence[Served],
    meter: CpuMeter,
    url: str,
    database_name: str | None,
    seconds: int,
) -> Run:
    waits = Waits()
    rows = asyncio.run(_rows_read(url, database_name))
    before = meter.read(*servers)
    with _sampled(url, waits):
        found = _load(loads, meter, seconds)
    spent = meter.since(before, *servers)
    time.sleep(STATISTICS_SECONDS)
    read = asyncio.run(_rows_read(url, database_name)) - rows
    requests = sum(entry.requests for entry in found)
    return Run(
        per_second=sum(entry.per_second for entry in found),
        p50_ms=p50([entry.p50_ms for entry in found]),
        p95_ms=max(entry.p95_ms for entry in found),
        p99_ms=max(entry.p99_ms for entry in found),
        server_cpu_ms=spent.server * 1000 / requests,
        postgres_cpu_ms=spent.postgres * 1000 / requests,
        rows_read=read / requests,
        lock_share=waits.locks / max(1.0, waits.active),
        latch_share=waits.latches / max(1.0, waits.active),
    )


def _load(loads: Sequence[Load], meter: CpuMeter, seconds: int) -> list[Round]:
    """Run all loads at the same time."""
    connections = CONNECTIONS // len(loads)
    with ThreadPoolExecutor(len(loads)) as pool:
        runs = pool.map(lambda load: load.run(meter.postgres, connections, seconds), loads)
        return list(runs)


@contextmanager
def _sampled(url: str, waits: Waits) -> Iterator[None]:
    """Sample in a thread what backends wait for, while the block runs (rule 4)."""
    stop = threading.Event()

    async def sample() -> None:
        connection = await asyncpg.connect(url)
        while not stop.is_set():
            for locks, latches, active in await connection.fetch(_WAITING):
                waits.locks += locks
                waits.latches += latches
                waits.active += active
            await asyncio.sleep(SAMPLE_SECONDS)
        await connection.close()

    thread = threading.Thread(target=lambda: asyncio.run(sample()))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


async def _rows_read(url: str, database_name: str | None) -> int:
    connection = await asyncpg.connect(url, database=database_name)
    try:
        return int(await connection.fetchval(_ROWS) or 0)
    finally:
        await connection.close()


def _fill(rows: Sequence[Row], served: Served, url: str) -> None:
    """Fill the conversations of each row, and make the requests for them."""
    rng = Random(8)
    roles = ("user", "assistant")
    history = [plain_message(rng, roles[place % 2], MESSAGE_CHARS) for place in range(MESSAGES)]
    new = [
        orjson.dumps(plain_message(rng, roles[place % 2], MESSAGE_CHARS)).decode()
        for place in range(BODIES_EACH)
    ]
    counts = f'"tokens":{TOKENS},"window_tokens":{WINDOW_TOKENS}'
    bare: list[UUID] = []
    with Connection(served.port) as connection:
        for row in rows:
            report(f"scaling: filling {row.processes} of {row.system}, {row.routing}")
            if row.system == FLOOR:
                names = [uuid4() for _ in range(CONVERSATIONS)]
                bare += names
                row.lines = [
                    [
                        f'POST /conversations/{name}/step {{"message":{body},{counts}}}'
                        for body in new
                    ]
                    for name in names
                ]
                continue
            for _ in range(CONVERSATIONS):
                path = f"/v1/conversations/{create_conversation(connection)}"
                connection.post(f"{path}/messages", {"messages": history})
                row.lines.append(
                    [f'POST {path}/context {{"append":{{"messages":[{body}]}}}}' for body in new]
                )
    uvloop.run(_fill_floor(url, bare, [orjson.dumps(message).decode() for message in history]))


async def _fill_floor(url: str, names: Sequence[UUID], bodies: Sequence[str]) -> None:
    connection: asyncpg.Connection = await floors.connect(url)
    floor = floors.FloorA(connection)
    for name in names:
        await floor.start(name)
        await floor.preload(name, [TOKENS] * len(bodies), bodies)
    await floor.settle()
    await connection.close()


def _section(rows: Sequence[Row], seconds: int, rounds: int) -> Section:
    section = Section("scaling", "steps in one request by the number of processes")
    section.add_text(
        f"{CONNECTIONS} connections in all, {CONVERSATIONS} conversations, messages of 1 KB;"
        f" medians of {rounds} rounds of {seconds} s; CPU in ms per step. Waits are shares of the"
        " samples of active backends: for a lock, and for an inner lock of PostgreSQL, mostly while"
        " the log file is flushed."
    )
    single = {(row.system, row.routing): row for row in rows if row.processes == 1}
    single |= {(system, SPREAD): single[system, KEPT] for system in (SERVICE, FLOOR)}
    heads = ("system", "requests of a conversation", "processes", "steps/s", "of one", "p50 ms")
    cpu = ("p95", "p99", "server CPU", "PostgreSQL CPU", "CPU, of one", "rows read per step")
    section.add_table((*heads, *cpu, "lock", "inner lock"), (_cells(row, single) for row in rows))
    for row in rows:
        if row.processes == 1 or row.system == FLOOR:
            continue
        ratio = row.middle("cpu_ms") / single[row.system, row.routing].middle("cpu_ms")
        goal = f"CPU per step, {row.processes} processes against 1, {row.routing} ≤ {FLAT}x"
        section.goal("performance.processes", goal, times(ratio), ratio <= FLAT)
    return section


def _cells(row: Row, single: dict[tuple[str, str], Row]) -> tuple[str, ...]:
    one = single[row.system, row.routing]
    return (
        row.system,
        row.routing,
        f"{row.processes}",
        f"{row.middle('per_second'):.0f}",
        times(row.middle("per_second") / one.middle("per_second")),
        *(f"{row.middle(name):.1f}" for name in ("p50_ms", "p95_ms", "p99_ms")),
        *(f"{row.middle(name):.2f}" for name in ("server_cpu_ms", "postgres_cpu_ms")),
        times(row.middle("cpu_ms") / one.middle("cpu_ms")),
        f"{row.middle('rows_read'):.1f}",
        *(f"{row.middle(name):.1%}" for name in ("lock_share", "latch_share")),
    )
