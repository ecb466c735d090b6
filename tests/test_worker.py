"""The worker: work survives errors, kills and database outages."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from app.common import json_text
from app.composition import Services, new_id
from app.conversations.conversation import StoredSettings as Layer
from app.database.connections import Store
from app.database.embedded import running
from app.jobs.leases import MAX_ATTEMPTS, Leases
from app.jobs.repository import Job
from app.repositories import Database
from app.settings import Settings
from app.worker import Work, Worker, worker_of
from tests.commands import COMMAND, environment
from tests.conftest import execute
from tests.patience import PATIENCE_SECONDS

TENANT = "default"
POLL_SECONDS = 0.1
LEASE_SECONDS = 1.0

Seen = tuple[str, str | None]


class FakeWork:
    """Work that records its calls, waits until `release` is set, and is done."""

    def __init__(self, database: Database, *errors: Exception) -> None:
        self.database = database
        self.started: Counter[Seen] = Counter()
        self.ended: Counter[Seen] = Counter()
        self.cancelled: Counter[Seen] = Counter()
        self.at_once = 0
        self.max_at_once = 0
        self.errors = list(errors)
        self.release = asyncio.Event()
        self.release.set()

    async def __call__(self, tenant_id: str, conversation_id: str, job_id: str | None) -> None:
        """Do the work."""
        assert tenant_id == TENANT
        seen = conversation_id, job_id
        self.started[seen] += 1
        self.at_once += 1
        self.max_at_once = max(self.max_at_once, self.at_once)
        try:
            if self.errors:
                raise self.errors.pop(0)
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled[seen] += 1
            raise
        finally:
            self.at_once -= 1
        async with self.database.session() as session:
            if job_id is None:
                await session.jobs.clear_due(conversation_id, head_seq=0)
            else:
                await session.jobs.change(conversation_id, job_id, "done")
        self.ended[seen] += 1

    def has_ended(self, conversations: int) -> bool:
        """Tell whether work on so many conversations has ended."""
        return len(self.ended) == conversations


async def until(holds: Callable[[], bool | Awaitable[bool]], what: str) -> None:
    """Poll until a condition holds."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                found = holds()
                if found if isinstance(found, bool) else await found:
                    return
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"Not within {PATIENCE_SECONDS} s: {what}") from None


class Place:
    """The database of a test, and operations on it."""

    def __init__(self, url: str, store: Store) -> None:
        self.url = url
        self.store = store
        self.database = Database(store)
        self.leases = Leases(self.database, new_id, LEASE_SECONDS)

    def work(self, *errors: Exception) -> FakeWork:
        """Return work that first raises these errors."""
        return FakeWork(self.database, *errors)

    def worker(
        self, work: Work, *, concurrency: int = 4, poll_seconds: float = POLL_SECONDS, **more: Any
    ) -> Worker:
        """Return a worker on this database, quick to notice."""
        return Worker(self.leases, work, concurrency=concurrency, poll_seconds=poll_seconds, **more)

    async def conversation(self) -> str:
        """Create a conversation."""
        made = new_id()
        async with self.database.session() as session:
            assert await session.conversations.add(TENANT, made, None, "bytes_4", Layer())
        return made

    async def due(self) -> str:
        """Create a conversation whose compaction is due."""
        made = await self.conversation()
        async with self.database.session() as session:
            await session.jobs.set_due(made)
        return made

    async def job(self, conversation_id: str) -> Job:
        """Store a job."""
        job_id = new_id()
        async with self.database.session() as session:
            await session.jobs.add(TENANT, conversation_id, job_id, "compact", "{}")
            job = await session.jobs.find(TENANT, job_id)
        assert job is not None
        return job

    async def is_idle(self) -> bool:
        """Tell whether no work waits or runs."""
        rows = await execute(
            self.url,
            "SELECT conversation_id FROM states WHERE due_at <= now()"
            " UNION ALL SELECT conversation_id FROM jobs WHERE status IN ('queued', 'running')"
            " UNION ALL SELECT conversation_id FROM compaction_leases",
        )
        return not rows


@pytest_asyncio.fixture
async def place(database_url: str, store: Store) -> Place:
    """The database of this test."""
    return Place(database_url, store)


async def test_due_work_is_done_once(place: Place) -> None:
    """Of two workers on one database, one does each piece of work once [compaction.background]."""
    work = place.work()
    async with place.worker(work).running(), place.worker(work).running():
        requested = [await place.due() for _ in range(20)]
        await until(place.is_idle, "all is done")
    assert work.started == {(conversation_id, None): 1 for conversation_id in requested}


async def test_one_conversation_is_worked_on_once_at_a_time(place: Place) -> None:
    """A job waits while other work on its conversation runs [compaction.one-at-a-time]."""
    work = place.work()
    work.release.clear()
    async with place.worker(work).running(), place.worker(work).running():
        conversation_id = await place.due()
        await until(lambda: work.at_once == 1, "the work has started")
        job = await place.job(conversation_id)
        other = await place.due()
        await until(lambda: work.at_once == 2, "other work has started")
        assert set(work.started) == {(conversation_id, None), (other, None)}
        work.release.set()
        await until(place.is_idle, "all is done")
    assert work.max_at_once == 2
    assert work.started == {
        (conversation_id, None): 1,
        (other, None): 1,
        (conversation_id, job.job_id): 1,
    }


async def test_a_worker_deletes_expired_rows(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Expired rows are deleted; a failure ends no worker and logs no content."""
    given = Settings(database_url=place.url, retention_event_days=1)
    await place.conversation()
    old = "UPDATE {} SET {} = now() - interval '2 days'"
    await execute(place.url, old.format("conversations", "expires_at"))
    await execute(place.url, old.format("events", "created_at"))
    parts = Services(given)
    with caplog.at_level(logging.INFO):
        async with parts.opened(), worker_of(given, parts).running():
            await until(lambda: "expired_data_deleted" in caplog.messages, "it is told of")

            async def is_gone() -> bool:
                return not await execute(place.url, "SELECT FROM conversations")

            await until(is_gone, "it is deleted")

    async def delete_expired() -> Mapping[str, int]:
        raise ValueError("secret words")

    async with place.worker(place.work(), chores={"fails": (delete_expired, 60.0)}).running():
        await until(lambda: "chore_failed" in caplog.messages, "it is told of")
    assert "secret words" not in caplog.text


async def test_a_shutdown_releases_work(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Work that cannot end in time is cancelled and released [operation.shutdown]."""
    work = place.work()
    work.release.clear()
    stack = AsyncExitStack()
    await stack.enter_async_context(place.worker(work).running(grace_seconds=0.05))
    requested = [await place.due() for _ in range(3)]
    await until(lambda: work.at_once == 3, "the work has started")
    with caplog.at_level(logging.INFO):
        await stack.aclose()
    assert "jobs_released" in caplog.messages
    assert work.cancelled.total() == 3
    assert await execute(place.url, "SELECT * FROM compaction_leases") == []
    work.release.set()
    async with place.worker(work).running():
        await until(place.is_idle, "all is done")
    assert work.ended == {(conversation_id, None): 1 for conversation_id in requested}


async def test_failed_work_is_retried(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Work that raised any error runs again, and the log does not quote the error."""
    secret = "what somebody said"
    work = place.work(ValueError(secret))
    with caplog.at_level(logging.INFO):
        async with place.worker(work).running():
            await place.due()
            await until(place.is_idle, "it is done")
    assert (work.started.total(), work.ended.total()) == (2, 1)
    told = [record for record in caplog.records if record.getMessage() == "job_interrupted"]
    assert [record.data["error"] for record in told] == ["ValueError"]  # type: ignore[attr-defined]
    assert secret not in caplog.text


@pytest.mark.parametrize("attempts", [MAX_ATTEMPTS - 1, MAX_ATTEMPTS])
async def test_repeatedly_failing_work_is_given_up(place: Place, attempts: int) -> None:
    """Attempts are bounded, also those that killed their process."""
    work = place.work(*(ValueError() for _ in range(2)))
    due = await place.due()
    job = await place.job(await place.conversation())
    await execute(
        place.url,
        "INSERT INTO compaction_leases (conversation_id, holder, expires_at, attempts)"
        " SELECT conversation_id, conversation_id, now(), $1 FROM states",
        attempts,
    )
    async with place.worker(work).running():
        await until(place.is_idle, "both are given up")
    assert work.started.total() == (2 if attempts < MAX_ATTEMPTS else 0)
    async with place.database.session() as session:
        ended = await session.jobs.find(TENANT, job.job_id)
        assert not await session.jobs.set_due(due), "it is due later"
    assert ended is not None
    assert ended.status == "failed"
    assert json_text.loads(ended.error or "")["code"] == "SERVICE_UNAVAILABLE"


@asynccontextmanager
async def database_running(data_dir: Path) -> AsyncIterator[str]:
    """Run a database of its own for the block, letting others go on while it starts and stops."""
    stack = ExitStack()
    url = await asyncio.to_thread(stack.enter_context, running(data_dir))
    try:
        yield url
    finally:
        await asyncio.to_thread(stack.close)


async def test_a_worker_outlives_its_database(
    data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It starts without a database, works once there is one, and after a restart."""

    def said(event: str, times: int) -> bool:
        return [record.getMessage() for record in caplog.records].count(event) == times

    async with database_running(data_dir) as url:
        pass
    stores = [Store(url, max_size=2) for _ in range(3)]
    place = Place(url, stores[0])
    work = place.work()
    worker = place.worker(work)
    with caplog.at_level(logging.INFO):
        async with worker.running():
            for number in (1, 2):
                await until(partial(said, "worker_disconnected", number), "away")
                async with database_running(data_dir):
                    await Place(url, stores[number]).due()
                    await until(partial(said, "worker_reconnected", number), "back")
                    await until(partial(work.has_ended, number), "it is done")
    for store in stores:
        await store.close()


PROCESS = """
import asyncio, sys
from app.repositories import Database
from app.database.connections import Store
from app.composition import new_id
from app.jobs.leases import Leases
from app.worker import Worker

async def work(tenant_id, conversation_id, job_id):
    print("started", conversation_id, flush=True)
    await asyncio.Event().wait()

async def main(url):
    store = Store(url, max_size=2)
    database = Database(store)
    worker = Worker(Leases(database, new_id, 1.0), work, poll_seconds=0.1)
    async with worker.running():
        await asyncio.Event().wait()

asyncio.run(main(sys.argv[1]))
"""


@asynccontextmanager
async def working_elsewhere(url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a worker in another process, whose work never ends."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(PROCESS), url, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_a_killed_workers_job_is_done_by_another(place: Place) -> None:
    """After a kill -9 another worker does the work again [compaction.at-most-once]."""
    work, conversation_id = place.work(), await place.due()
    async with working_elsewhere(place.url) as process:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await process.stdout.readline()).decode().split() == [
                "started",
                conversation_id,
            ]
        async with place.worker(work).running():
            process.kill()
            await process.wait()
            await until(place.is_idle, "the other worker has done it")
    assert work.started == {(conversation_id, None): 1}


def command(data_dir: Path) -> subprocess.Popen[str]:
    """Start `context-service worker` on a data directory, and return once it works."""
    process = subprocess.Popen(
        (*COMMAND, "worker", "--data-dir", str(data_dir)),
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    log = []
    for line in process.stderr:
        log.append(line)
        if '"worker_started"' in line:
            return process
    process.kill()
    raise AssertionError("".join(log))


def test_the_command_starts_and_exits_on_a_signal(data_dir: Path) -> None:
    """It starts its own database, and exits after a signal."""
    process = command(data_dir)
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert '"worker_stopped"' in log
    assert "Traceback" not in log
    assert not (data_dir / "postgres" / "postmaster.pid").exists()
