"""The service with everything on, under load: keys, limits, logs and metrics (wrk).

1. One uvicorn worker, an API key with a limit of its own, a log line and metrics for each request,
   beside floor B, which does none of that, in alternating rounds.
2. Appends are single messages of 1 KB to 16 conversations that grow meanwhile. Builds are of 16
   others that stand still: whole payloads, which floor B answers from as many stored messages, and
   deltas on the build before.
3. Then the same process goes on until it has answered as many requests as an hour at 50 a second
   would be, and its memory is looked at on the way.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from uuid import UUID, uuid4

import asyncpg
import orjson
import uvloop

from app.cli.api_keys import create, set_limits
from app.settings import Settings
from app.tenancy.api_keys import DEFAULT_TENANT
from app.tenancy.repository import TenantLimits
from benchmarks import floors
from benchmarks.append import Load, Round
from benchmarks.connection import Connection
from benchmarks.figures import Section, p50, times
from benchmarks.processes import PostgresProcesses, Served, floor_b, service
from benchmarks.stage import MODEL, database, report
from benchmarks.workload import Message, plain_message

CONVERSATIONS = 16
MESSAGE_CHARS = 1_000
MESSAGES = 100
"""How many messages a conversation has that is built from."""
TOKENS = 220
HOUR = 50 * 3600
CONNECTIONS = (1, 16, 64)
KINDS = ("append", "build", "delta build")


def measure(quick: bool) -> Section:
    """Run all loads, then the long one, and report the results."""
    if shutil.which("wrk") is None:
        raise SystemExit("load: wrk is needed (Debian: apt-get install wrk).")
    seconds, rounds, most = (2, 1, 10_000) if quick else (4, 3, HOUR)
    section = Section("load", "requests per second with everything on, one uvicorn worker")
    with ExitStack() as stack:
        data_dir, url, log = stack.enter_context(database())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-load-")))
        ours = stack.enter_context(service(data_dir, "--no-worker", log=log))
        floor = stack.enter_context(floor_b(url, log))
        loads = _loads(folder, ours, floor, url)
        postgres = PostgresProcesses(data_dir)
        started = ours.memory_bytes
        answered = _compare(section, loads, postgres, seconds, rounds)
        _continue_load(section, loads, postgres, ours, started, answered, most)
    return section


async def _key(url: str) -> str:
    settings = Settings(database_url=url)
    await set_limits(DEFAULT_TENANT, TenantLimits(requests_per_minute=10_000_000), True, settings)
    return await create(DEFAULT_TENANT, "load", None, settings)


def _loads(folder: Path, ours: Served, floor: Served, url: str) -> dict[str, Load]:
    rng = Random(6)
    with Connection(ours.port) as connection:
        growing = [_conversation(connection) for _ in range(CONVERSATIONS)]
        standing = [_conversation(connection) for _ in range(CONVERSATIONS)]
        logs = [_messages(rng, MESSAGES) for _ in standing]
        known = [_fill(connection, path, log) for path, log in zip(standing, logs, strict=True)]
    floor_growing, floor_standing = ([uuid4() for _ in range(CONVERSATIONS)] for _ in range(2))
    uvloop.run(_fill_floor(url, floor_growing, floor_standing, logs))
    key = asyncio.run(_key(url))  # only now: until there is one, filling needs none
    one = [orjson.dumps({"messages": _messages(rng, 1)}).decode() for _ in range(CONVERSATIONS * 4)]
    counted = [f'{body[:-1]},"tokens":[{TOKENS}]}}' for body in one]
    lines = {
        "ours append": [
            f"POST {growing[place % CONVERSATIONS]}/messages {body}"
            for place, body in enumerate(one)
        ],
        "floor B append": [
            f"POST /conversations/{floor_growing[place % CONVERSATIONS]}/messages {body}"
            for place, body in enumerate(counted)
        ],
        "ours build": [f"POST {path}/context {{}}" for path in standing],
        "floor B build": [
            f"GET /conversations/{name}/context?tokens={TOKENS * MESSAGES * 2} "
            for name in floor_standing
        ],
        "ours delta build": [
            f"POST {path}/context {orjson.dumps({'known': held}).decode()}"
            for path, held in zip(standing, known, strict=True)
        ],
    }
    return {
        name: Load(folder, name.replace(" ", "-"), ours if "ours" in name else floor, some, key)
        for name, some in lines.items()
    }


def _conversation(connection: Connection) -> str:
    answer = orjson.loads(connection.post("/v1/conversations", {"model": MODEL}))
    return f"/v1/conversations/{answer['conversation_id']}"


def _fill(connection: Connection, path: str, messages: Sequence[Message]) -> dict[str, int]:
    """Append the messages, and return what a client holds after a build."""
    connection.post(f"{path}/messages", {"messages": list(messages)})
    built = orjson.loads(connection.post(f"{path}/context", {}))
    return {"epoch": built["epoch"], "through_seq": built["through_seq"]}


async def _fill_floor(
    url: str, growing: Sequence[UUID], standing: Sequence[UUID], logs: Sequence[Sequence[Message]]
) -> None:
    connection: asyncpg.Connection = await floors.connect(url)
    floor = floors.FloorA(connection)
    for conversation_id in (*growing, *standing):
        await floor.start(conversation_id)
    for conversation_id, messages in zip(standing, logs, strict=True):
        for message in messages:
            await floor.append(conversation_id, TOKENS, orjson.dumps(message).decode())
    await connection.close()


def _messages(rng: Random, count: int) -> list[Message]:
    return [
        plain_message(rng, "user" if place % 2 == 0 else "assistant", MESSAGE_CHARS)
        for place in range(count)
    ]


def _compare(
    section: Section,
    loads: dict[str, Load],
    postgres: PostgresProcesses,
    seconds: int,
    rounds: int,
) -> int:
    """Run every load at every number of connections; return how much ours has answered."""
    section.add_text(
        f"An API key with a limit, a log line and metrics for every request. Builds answer"
        f" {MESSAGES} messages of 1 KB. Medians of {rounds} alternating rounds of {seconds} s under"
        " wrk; CPU in ms per request, of the server and of PostgreSQL."
    )
    rows, answered = [], 0
    goals: list[tuple[int, list[Round], list[Round]]] = []
    for kind in KINDS:
        names = [name for name in (f"ours {kind}", f"floor B {kind}") if name in loads]
        for connections in CONNECTIONS:
            report(f"load: {kind} at {connections}")
            found: dict[str, list[Round]] = {name: [] for name in names}
            for name in names:
                loads[name].run(postgres, connections, 1)
            for _ in range(rounds):
                for name, results in found.items():
                    results.append(loads[name].run(postgres, connections, seconds))
            answered += sum(entry.requests for entry in found[names[0]])
            if kind == "append" and connections > 1:
                goals.append((connections, found["ours append"], found["floor B append"]))
            rows += [_row(kind, connections, name, found, names[0]) for name in names]
    heads = ("request", "connections", "system", "requests/s", "p50 ms", "p95 ms", "p99 ms")
    section.add_table((*heads, "CPU", "PostgreSQL CPU", "ours / it"), rows)
    for connections, ours, floor in goals:
        _add_goals(section, connections, ours, floor)
    return answered


def _add_goals(
    section: Section, connections: int, ours: Sequence[Round], floor: Sequence[Round]
) -> None:
    pairs = zip(ours, floor, strict=True)
    ratio = p50([one.per_second / other.per_second for one, other in pairs])
    goal = f"appends on {connections} connections, everything on, against floor B ≥ 0.75x"
    section.goal("performance.append", goal, times(ratio), ratio >= 0.75)
    spent = p50([entry.postgres_cpu_ms for entry in ours])
    beside = p50([entry.postgres_cpu_ms for entry in floor])
    section.goal(
        "performance.append",
        f"appends on {connections} connections, PostgreSQL's CPU per message ≤ 0.25 ms",
        f"{spent:.2f} ms (floor B {beside:.2f})",
        spent <= 0.25,
    )


def _row(
    kind: str, connections: int, name: str, found: dict[str, list[Round]], ours: str
) -> tuple[str, ...]:
    def middle(of: str, figure: str) -> float:
        return p50([getattr(entry, figure) for entry in found[of]])

    return (
        kind,
        str(connections),
        name.removesuffix(f" {kind}"),
        f"{middle(name, 'per_second'):.0f}",
        f"{middle(name, 'p50_ms'):.2f}",
        f"{middle(name, 'p95_ms'):.2f}",
        f"{middle(name, 'p99_ms'):.2f}",
        f"{middle(name, 'server_cpu_ms'):.3f}",
        f"{middle(name, 'postgres_cpu_ms'):.3f}",
        times(middle(ours, "per_second") / middle(name, "per_second")),
    )


def _continue_load(
    section: Section,
    loads: dict[str, Load],
    postgres: PostgresProcesses,
    ours: Served,
    started: int,
    answered: int,
    most: int,
) -> None:
    """Go on with all kinds in turn until so many requests are answered; tell the memory."""
    mib = [started >> 20, ours.memory_bytes >> 20]
    marks, counts = 4, [answered]
    for mark in range(1, marks + 1):
        goal = answered + (most - answered) * mark // marks
        while counts[-1] < goal:
            report(f"load: {counts[-1]:,} of {most:,} requests")
            done = sum(loads[f"ours {kind}"].run(postgres, 16, 4).requests for kind in KINDS)
            counts.append(counts[-1] + done)
        mib.append(ours.memory_bytes >> 20)
    section.add_text(
        f"Memory of the process (one of {MESSAGES * CONVERSATIONS:,} messages built from again and"
        f" again, its window cache 64 MiB at most): {mib[0]} MiB at the start, {mib[1]} after"
        f" {answered:,} requests, then at quarters of the way to {counts[-1]:,}, an hour at 50 a"
        f" second: {', '.join(map(str, mib[2:]))} MiB."
    )
