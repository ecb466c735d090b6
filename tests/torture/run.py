"""Runs lives and faults together, and reports what was done and what is broken."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from pathlib import Path
from threading import Event, Lock
from typing import Any

import asyncpg

from app.database.embedded import running
from app.database.migrate import migrate
from tests.database_proxy import ProxyThread
from tests.fake_llm import (
    Behaviour,
    FakeLLM,
    Request,
    answer,
    connection_reset,
    empty,
    status,
    truncated_body,
)
from tests.replay import Launched, Served
from tests.torture.admin import Admin
from tests.torture.faults import Progress, World, inject, plan
from tests.torture.forked import forked
from tests.torture.life import Life, Surroundings
from tests.torture.operations import live, look_again
from tests.torture.wire import MARK

SETTINGS = (
    "fsync = off",  # processes are killed, the machine is not
    "full_page_writes = off",
    "log_min_messages = fatal",
)
BUSY = """
    SELECT count(*) FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND state <> 'idle'
        AND query_start < $1
"""
LEAKS = {
    "transactions that are open and idle": """
        SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'
    """,
    "statements that still run": """
        SELECT count(*) FROM pg_stat_activity WHERE state = 'active'
            AND backend_type = 'client backend' AND pid <> pg_backend_pid()
    """,
    "jobs that have not ended": """
        SELECT count(*) FROM jobs WHERE status IN ('queued', 'running')
    """,
    "logs that have not as many messages as seqs": """
        SELECT count(*) FROM states h JOIN conversations c USING (conversation_id) LEFT JOIN (
            SELECT conversation_id, count(*) AS there FROM messages GROUP BY 1
        ) AS m USING (conversation_id)
        WHERE h.head_seq <> coalesce(m.there, 0)
    """,
    "times two compactions after the same one": """
        SELECT count(*) FROM (
            SELECT conversation_id, parent_id FROM compactions
            WHERE parent_id IS NOT NULL AND undone_at IS NULL GROUP BY 1, 2 HAVING count(*) > 1
        ) AS twice
    """,
    "messages whose blob is not there": """
        SELECT count(*) FROM blob_uses u LEFT JOIN blobs b USING (conversation_id, blob_id)
        WHERE b.blob_id IS NULL OR b.collected_at IS NOT NULL
    """,
    "chunks of blobs that belong to nobody": """
        SELECT count(*) FROM blob_chunks c
        WHERE NOT EXISTS (SELECT FROM blobs b
                WHERE b.conversation_id = c.conversation_id AND b.content_id = c.content_id)
            AND NOT EXISTS (SELECT FROM blob_uploads u
                WHERE u.conversation_id = c.conversation_id AND u.content_id = c.content_id)
    """,
}
"""What must become none within seconds, once nobody sends any more."""
HEAL_SECONDS = 60.0


@dataclass(slots=True)
class Report:
    """What a run did, and what it found."""

    seed: int
    tally: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    lives: int = 0
    seconds: float = 0.0
    healed: float = 0.0
    logs: str = ""

    def lines(self) -> Iterator[str]:
        """Yield the report line by line."""
        tally = self.tally
        acts = {key[3:]: tally[key] for key in sorted(tally) if key.startswith("op ")}
        main = ("operations", "requests", "kills", "cuts", "hang-ups", "checks")
        yield (
            f"seed {self.seed}: {self.lives} lives in {self.seconds:.0f} s; "
            + ", ".join(f"{tally[name]:,} {name}" for name in main)
            + f"; {len(self.failures)} failures"
        )
        yield "operations: " + ", ".join(f"{name} {many:,}" for name, many in acts.items())
        others = sorted(key for key in tally if key not in main and not key.startswith("op "))
        yield "also: " + ", ".join(f"{name} {tally[name]:,}" for name in others)
        yield f"nothing was left open {self.healed:.1f} s after the end; all was read once more"
        for failure in self.failures:
            yield f"BROKEN: {failure}"


@dataclass(slots=True)
class Lives:
    """The lives of a run, taken up one by one by its threads, in the order of their numbers."""

    report: Report
    around: Surroundings
    operations: int
    numbers: Iterator[int]
    tell: Callable[[str], None]
    ended: list[Life] = field(default_factory=list)
    _well: list[Life] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def work(self) -> None:
        """Live one life after the other, until there are no more."""
        while (life := self._next()) is not None:
            failure = live(life, self.operations)
            with self._lock:
                self.ended.append(life)
                if failure is None:
                    self._well.append(life)
                else:
                    self.report.failures.append(failure)
                self.tell(f"{len(self.ended)} lives, {len(self.report.failures)} failures")

    def look_again(self) -> None:
        """Look once more at all of which nothing is broken yet."""
        for life in self._well:
            if (failure := look_again(life)) is not None:
                self.report.failures.append(f"at the end: {failure}")

    def _next(self) -> Life | None:
        with self._lock:
            number = next(self.numbers, None)
        return None if number is None else Life(self.report.seed, number, self.around)


def run(
    folder: Path,
    seed: int,
    numbers: Iterator[int],
    *,
    operations: int = 60,
    threads: int = 3,
    gap: tuple[int, int] | None = None,
    longest_fault: float = 3.0,
    tell: Callable[[str], None] = lambda line: None,
) -> Report:
    """Live the lives with these numbers while faults happen; then look at all of them again.

    `gap` is how many operations there are between two faults, at least and at most; None is none.
    """
    report, began = Report(seed), time.monotonic()
    with world_of(folder, seed) as (world, url):
        urls, progress = [api.url for api in world.apis], Progress()
        around = Surroundings(urls, world.outages, progress, lambda: settle(url), Admin(url))
        lives = Lives(report, around, operations, numbers, tell)
        faults = plan(seed, gap, longest_fault) if gap is not None else iter(())
        with ThreadPoolExecutor(threads + 1) as pool:
            breaking = pool.submit(inject, world, faults, progress, report.tally)
            living = [pool.submit(lives.work) for _ in range(threads)]
            wait(living)
            progress.end()
            breaking.result()
            for one in living:
                one.result()
        ended = time.monotonic()
        report.failures += asyncio.run(leaks(url))
        report.healed = time.monotonic() - ended
        lives.look_again()
        for life in lives.ended:
            report.tally.update(life.tally)
    report.tally["checks"] += len(LEAKS)
    report.lives, report.seconds = len(lives.ended), time.monotonic() - began
    return report


@contextmanager
def world_of(folder: Path, seed: int) -> Iterator[tuple[World, str]]:
    """Run PostgreSQL, its proxy, a model, two API processes and two workers.

    An odd seed has an object store as well.
    """
    with ExitStack() as stack:
        data_dir = folder / "data"
        url = stack.enter_context(running(data_dir))
        for setting in SETTINGS:
            asyncio.run(_execute(url, f"ALTER SYSTEM SET {setting}"))
        asyncio.run(_execute(url, "SELECT pg_reload_conf()"))
        migrate(url)
        model = FakeLLM()
        stack.callback(model.stop)
        model.always(scripted(seed, model))
        proxy = ProxyThread(url)
        environ = {
            "CONTEXT_DATABASE_URL": proxy.url,
            "CONTEXT_WORKER": "false",
            "CONTEXT_POOL_MAX_SIZE": "6",
            "CONTEXT_POLL_SECONDS": "1",
            "CONTEXT_SUMMARIZER_MODEL": "openai/fake",
            "CONTEXT_SUMMARIZER_API_BASE": model.api_base,
            "CONTEXT_SUMMARIZER_API_KEY": "test",
            "CONTEXT_SUMMARIZER_TIMEOUT_SECONDS": "3",
            "CONTEXT_SUMMARIZER_CALLS_PER_HOUR": "1000000",
        }
        if seed % 2:
            environ["CONTEXT_BLOB_STORE_URL"] = (folder / "objects").as_uri()
        apis = [Served(folder / f"api {number}", environ, launch=forked) for number in (1, 2)]
        workers = [
            Launched(folder / f"worker {number}.log", environ, "worker", launch=forked)
            for number in (1, 2)
        ]
        for process in (*apis, *workers):
            stack.callback(process.stop)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda process: process.start(), (*apis, *workers)))
        yield World(data_dir, proxy, apis, workers, stack), url


def scripted(seed: int, model: FakeLLM) -> Callable[[Request], Behaviour]:
    """Return a model that quotes the marks it reads, and fails as often as models do."""
    numbers, slow = count(), Event()

    def reply(request: Request) -> Behaviour:
        digest = blake2b(f"{seed} {next(numbers)}".encode(), digest_size=1).digest()[0]
        del model.requests[:-10]
        if digest < 40:
            failures = (status(500), status(429), connection_reset(), truncated_body(), empty())
            return failures[digest % len(failures)]
        if digest < 60:
            slow.wait(1.5)
        text = json_text(request.body)
        marks = list(dict.fromkeys(MARK.findall(text)))[:12]
        return answer(f"<summary>It was about {' '.join(marks)} and more.</summary>")

    return reply


def json_text(body: dict[str, Any]) -> str:
    """Return all that a request says."""
    return "\n".join(str(message.get("content")) for message in body.get("messages", []))


def settle(url: str) -> None:
    """Wait until all statements that run now have ended; a database that is away runs none."""
    asyncio.run(_settle(url))


async def _settle(url: str) -> None:
    with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection = await asyncpg.connect(url, timeout=10)
        try:
            await asyncio.sleep(0.1)
            now = await connection.fetchval("SELECT clock_timestamp()")
            while await connection.fetchval(BUSY, now):
                await asyncio.sleep(0.05)
        finally:
            await connection.close()


async def leaks(url: str) -> list[str]:
    """Return what has not become none in time."""
    connection = await asyncpg.connect(url)
    try:
        deadline = time.monotonic() + HEAL_SECONDS
        while True:
            counts = {what: await connection.fetchval(sql) for what, sql in LEAKS.items()}
            found = [f"{many} {what}" for what, many in counts.items() if many]
            if not found or time.monotonic() > deadline:
                return found
            await asyncio.sleep(0.2)
    finally:
        await connection.close()


async def _execute(url: str, sql: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()
