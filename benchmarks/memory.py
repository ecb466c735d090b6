"""The memory of a process after steps in long logs, compactions and hostile bodies.

1. Four conversations of 100 000 messages are made by another process. The measured
   one is fresh, runs its worker as it is served, and gets one load after another.
2. Before each load the peak (`VmHWM`) is set back. After it the process is idle for some seconds,
   then its resident memory is read.
3. Loads of several connections send all their requests at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from random import Random

import orjson

from benchmarks.connection import Connection, UnexpectedAnswer, request
from benchmarks.figures import Section
from benchmarks.floors import settle
from benchmarks.hostile_bodies import BODY_BYTES, bodies
from benchmarks.processes import Served, service
from benchmarks.stage import create_conversation, database, report
from benchmarks.workload import Message, conversation, plain_message, pool

SIZE, QUICK_SIZE = 100_000, 10_000
CONVERSATIONS = 4
STEPS, QUICK_STEPS = 400, 60
COMPACTIONS, QUICK_COMPACTIONS = 8, 2
BLOCK, BLOCK_CHARS = 1000, 160
IDLE_SECONDS = 5.0
GOAL_BYTES = 180 * 2**20
AT_ONCE, QUICK_AT_ONCE = 8, 2
HOSTILE = (
    "32 MB of `[]`",
    "32 MB of nesting",
    "2.3 million unknown keys",
    "32 MB of digits",
    "32 MB of `\\n`",
    "32 MB of `[]` beside a message",
)
QUICK_HOSTILE = HOSTILE[:3]


@dataclass(frozen=True, slots=True)
class Reading:
    """The memory of the process around one load."""

    load: str
    before: int
    peak: int
    after: int
    seconds: float


def measure(quick: bool) -> Section:
    """Give one process all loads and report its memory."""
    size = QUICK_SIZE if quick else SIZE
    with database() as (data_dir, url, log):
        with service(data_dir, "--no-worker", log=log) as served:
            paths = [_filled(served, size) for _ in range(CONVERSATIONS)]
        asyncio.run(settle(url))
        with service(data_dir, log=log) as served:
            ready, start = served.memory_bytes, served.start_seconds
            readings = [_reading(served, load, work) for load, work in _loads(paths, quick).items()]
    section = Section("memory", "memory of a process after each load")
    section.add_text(
        f"{CONVERSATIONS} conversations of {size:,} messages; one process with its worker,"
        f" {ready >> 20} MiB when ready. MiB of resident memory; `after` is read"
        f" {IDLE_SECONDS:.0f} s after the load."
    )
    section.add_table(
        ("load", "before", "peak", "after", "seconds"),
        (
            (
                each.load,
                *(f"{value >> 20}" for value in (each.before, each.peak, each.after)),
                f"{each.seconds:.1f}",
            )
            for each in readings
        ),
    )
    section.goal(
        "performance.start", "start on existing data ≤ 1.5 s", f"{start:.2f} s", start <= 1.5
    )
    worst = max(readings, key=lambda each: each.after)
    section.goal(
        "performance.memory",
        "resident memory after every load ≤ 180 MiB",
        f"{worst.after >> 20} MiB after {worst.load}",
        worst.after <= GOAL_BYTES,
    )
    highest = max(readings, key=lambda each: each.peak)
    section.add_text(f"Highest peak: {highest.peak >> 20} MiB during {highest.load}.")
    return section


def _filled(served: Served, size: int) -> str:
    """Make a long log, whose active window holds messages of the usual kind; return its path."""
    report(f"memory: filling a log of {size:,} messages")
    block = _plain(BLOCK_CHARS)
    with Connection(served.port) as connection:
        path = f"/v1/conversations/{create_conversation(connection)}"
        for _ in range(size // BLOCK - 1):
            connection.post(f"{path}/messages", {"messages": block})
        connection.post(f"{path}/clear", {})
        shown = [*islice(conversation(seed=1), BLOCK)]
        connection.post(f"{path}/messages", {"messages": shown})
        built = orjson.loads(connection.post(f"{path}/context", {}))
    if built["through_seq"] != size:
        raise UnexpectedAnswer(f"the log has {built['through_seq']} messages, not {size}")
    return path


def _plain(chars: int) -> list[Message]:
    rng = Random(9)
    roles = ("user", "assistant")
    return [plain_message(rng, roles[place % 2], chars) for place in range(BLOCK)]


def _reading(served: Served, load: str, work: Callable[[Served], None]) -> Reading:
    report(f"memory: {load}")
    before = served.memory_bytes
    served.forget_peak()
    began = time.perf_counter()
    work(served)
    seconds = time.perf_counter() - began
    time.sleep(IDLE_SECONDS)
    return Reading(load, before, served.peak_memory_bytes, served.memory_bytes, seconds)


def _loads(paths: Sequence[str], quick: bool) -> dict[str, Callable[[Served], None]]:
    """Return the loads in their order."""
    steps = QUICK_STEPS if quick else STEPS
    compactions = QUICK_COMPACTIONS if quick else COMPACTIONS
    hostile = QUICK_HOSTILE if quick else HOSTILE
    at_once = QUICK_AT_ONCE if quick else AT_ONCE
    loads: dict[str, Callable[[Served], None]] = {
        f"{steps} steps in each": lambda served: _steps(served, paths, steps),
        f"{compactions} extractive compactions": lambda served: _compactions(served, compactions),
        "one message of 4 MB": lambda served: _post(served, *_message(4_000_000)),
        f"{at_once} messages of 4 MB at once": lambda served: _post_at_once(
            served, [_message(4_000_000)] * at_once
        ),
    }
    sent = {name: each for name, each in bodies().items() if name in hostile}
    for name, (path, body) in sent.items():
        loads[name] = lambda served, path=path, body=body: _post(  # type: ignore[misc]
            served, path, body
        )
    loads[f"{at_once} bodies of 32 MB of `[]` at once"] = lambda served: _post_at_once(
        served, [sent[HOSTILE[0]]] * at_once
    )
    loads["steps again"] = lambda served: _steps(served, paths, steps // 4)
    return loads


def _steps(served: Served, paths: Sequence[str], count: int) -> None:
    """Append a message and get the full payload, in each conversation in turn."""
    with Connection(served.port) as connection:
        for message in islice(conversation(seed=2), count):
            for path in paths:
                body = {"append": {"messages": [message]}}
                connection.post(f"{path}/context", body)


def _compactions(served: Served, count: int) -> None:
    """Compact long logs that were never compacted, one after the other."""
    messages = _plain(1000)
    for _ in range(count):
        with Connection(served.port) as connection:
            path = f"/v1/conversations/{create_conversation(connection)}"
            connection.post(f"{path}/messages", {"messages": messages})
            connection.post(f"{path}/compact", {})
            connection.post(f"{path}/context", {})


def _message(size: int) -> tuple[str, bytes]:
    prose = pool("prose")
    text = (prose * (size // len(prose) + 1))[:size]
    body = orjson.dumps({"messages": [{"role": "user", "content": text}]})
    return "/v1/conversations/{id}/messages", body


def _post(served: Served, path: str, body: bytes) -> None:
    """Send a body for a new conversation; the service may refuse it and close the connection."""
    assert len(body) <= BODY_BYTES + 4096
    with Connection(served.port) as connection:
        where = path.format(id=create_conversation(connection))
        raw = request("POST", where, body)
    with Connection(served.port) as connection:
        try:
            connection.exchange(raw)
        except (OSError, UnexpectedAnswer):
            if served.process.poll() is not None:
                raise


def _post_at_once(served: Served, sent: Sequence[tuple[str, bytes]]) -> None:
    with ThreadPoolExecutor(len(sent)) as threads:
        list(threads.map(lambda each: _post(served, *each), sent))
