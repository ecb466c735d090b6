"""Archived conversations return as they were, whatever happens on the way. [operation.archive]"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from app.adapters.blobs.archives import ArchiveObjects
from app.adapters.blobs.object_store import ObjectStore
from app.adapters.postgres.common.connections import Session
from app.adapters.postgres.common.conversation_tables import ARCHIVED_TABLES, CONVERSATION_TABLES
from app.adapters.postgres.database import PostgresDatabase
from app.domain.common.errors import NotFound, ServiceUnavailable
from app.services.compaction.receipts import ReceiptService
from app.services.conversations.archives import ArchiveService
from app.services.conversations.log import LogService
from app.services.conversations.search import SearchService
from app.services.payload.call_history import CallHistoryService
from app.services.payload.reported_usage import Report, UsageService
from app.services.ports import ArchiveFile
from app.services.tool_output.collection import BlobCollector
from tests.conftest import execute
from tests.services.conversations.test_events import events_of
from tests.services.fakes import (
    ARCHIVED_AFTER,
    TENANT,
    Harness,
    WatchedDatabase,
    _open_sessions,
    asks,
    in_two_weeks,
    new_id,
    result,
    user,
)
from tests.services.snapshots.test_forks import CLEARING, PLAIN, SHORT, built, live, stories

OWN_TABLES = ("archives", "archived_heads", "log_sizes")
"""The tables that an archive itself changes."""
HOUR = timedelta(hours=1)


@pytest.fixture
def objects() -> ObjectStore:
    """The object store that the processes of a test share."""
    return ObjectStore("memory:///")


@pytest.fixture
def harness(database: PostgresDatabase, objects: ObjectStore) -> Harness:
    """The services of one process."""
    return Harness(WatchedDatabase(database), objects=objects)


class WatchedObjects:
    """A store of archives that calls a hook before it stores or reads an object."""

    def __init__(self, store: ObjectStore) -> None:
        self.kept = ArchiveObjects(store)
        self.before_add: Callable[[], Awaitable[object]] | None = None
        self.before_read: Callable[[], Awaitable[object]] | None = None
        self.reads = 0

    @asynccontextmanager
    async def new_file(self) -> AsyncIterator[ArchiveFile]:
        """Open a file to write."""
        async with self.kept.new_file() as file:
            yield file

    async def add(self, *arguments: Any) -> str:
        """Store a file; no session waits for it."""
        assert _open_sessions.get() == 0
        hook, self.before_add = self.before_add, None
        if hook is not None:
            await hook()
        return await self.kept.add(*arguments)

    @asynccontextmanager
    async def opened(self, object_key: str) -> AsyncIterator[ArchiveFile]:
        """Read an object; no session waits for it."""
        assert _open_sessions.get() == 0
        self.reads += 1
        hook, self.before_read = self.before_read, None
        if hook is not None:
            await hook()
        async with self.kept.opened(object_key) as file:
            yield file

    async def remove(self, object_keys: Sequence[str]) -> None:
        """Delete objects."""
        assert _open_sessions.get() == 0
        await self.kept.remove(object_keys)


@pytest.fixture
def watched(objects: ObjectStore) -> WatchedObjects:
    """The same store, watched."""
    return WatchedObjects(objects)


@pytest.fixture
def archives(harness: Harness, watched: WatchedObjects) -> ArchiveService:
    """The archives of a process over the watched store."""
    return ArchiveService(harness.database, watched, new_id, in_two_weeks, ARCHIVED_AFTER)


async def rows_of(url: str, conversation_id: str) -> Mapping[str, list[str]]:
    """Return all rows of a conversation by table, as text."""
    found = {}
    for table in CONVERSATION_TABLES:
        if table not in OWN_TABLES:
            rows = await execute(
                url,
                f"SELECT CAST(t AS text) AS text FROM {table} t"
                " WHERE conversation_id = CAST($1 AS uuid) ORDER BY 1",
                conversation_id,
            )
            found[table] = [row["text"] for row in rows]
    return found


async def keys_in(store: ObjectStore) -> set[str]:
    """Return the keys of all objects."""
    return {key async for key, _, _ in store.orphans(datetime.now(UTC) + HOUR)}


async def named_in(url: str) -> set[str]:
    """Return the keys of the objects that rows name."""
    rows = await execute(
        url,
        "SELECT object_key FROM blobs WHERE object_key IS NOT NULL UNION ALL"
        " SELECT object_key FROM archives WHERE object_key IS NOT NULL",
    )
    return {row["object_key"] for row in rows}


async def settle(url: str) -> None:
    """End the open work that keeps conversations from being archived."""
    await execute(url, "UPDATE heads SET due_at = NULL WHERE due_at IS NOT NULL")


async def spoken(harness: Harness) -> str:
    """Return a conversation with a large result and some talk."""
    cid = await harness.conversation(SHORT)
    await harness.append(cid, user("look"), asks("c1"), result("c1", "line\n" * 20_000))
    await harness.talk(cid, 6, words=60)
    await built(harness, cid)
    return cid


# --- there and back ---------------------------------------------------------------------------


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(story=stories())
async def test_a_conversation_returns_with_every_row(
    database: PostgresDatabase, database_url: str, story: list[tuple[str, int]]
) -> None:
    """After any history, all rows of all tables are the same once it was archived and restored."""
    harness = Harness(
        WatchedDatabase(database),
        service_policy=PLAIN | CLEARING,
        objects=ObjectStore("memory:///"),
    )
    cid = await harness.conversation(SHORT, agent_id=await harness.agent(2400))
    await live(harness, cid, story)
    await settle(database_url)
    before = await rows_of(database_url, cid)
    cached = await harness.stored(cid)
    assert await harness.archives.archive_all() == 1
    archived = await rows_of(database_url, cid)
    assert not any(archived[table] for table in (*ARCHIVED_TABLES, "heads"))
    with pytest.raises(NotFound):
        await harness.talk(cid, 1)
    assert await harness.archives.restore(TENANT, cid)
    assert await rows_of(database_url, cid) == before
    assert await harness.stored(cid) == cached
    await harness.conversations.remove(TENANT, cid)


async def test_texts_of_every_kind_return(harness: Harness, database_url: str) -> None:
    """Separators, backslashes, what ends rows in an archive, and long and odd texts."""
    cid = await harness.conversation()
    odd = ("\\.", "\\.\n", "a\tb\\N\r\n\\", "\u2028 \U0001f600 \x7f")
    for text in (*odd, "\n\\.\n" * 1000, "x" * 3_000_000):
        await harness.append(cid, user(text))
    await settle(database_url)
    before = await rows_of(database_url, cid)
    assert await harness.archives.archive_all() == 1
    assert await harness.archives.restore(TENANT, cid)
    assert await rows_of(database_url, cid) == before


class _FindsThen:
    """Sessions that call a hook once, after a conversation was found."""

    def __init__(self, inner: Any, hook: list[Callable[[], Awaitable[object]]]) -> None:
        self._inner, self._hook = inner, hook

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return _FindsThen(found, self._hook) if name == "conversations" else found

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Any]:
        async with self._inner.session() as session:
            yield _FindsThen(session, self._hook)

    async def find(self, *arguments: Any) -> Any:
        found = await self._inner.find(*arguments)
        if self._hook:
            await self._hook.pop()()
        return found


async def test_a_list_of_what_is_archived_meanwhile_is_not_empty(
    harness: Harness, database_url: str
) -> None:
    """A page whose conversation is archived between two reads is NOT_FOUND, and so read again."""
    cid = await spoken(harness)
    assert (await harness.compact(cid, model="extractive")).compacted
    usage = UsageService(harness.database, harness.resolver, harness.active, new_id)
    await usage.report(TENANT, cid, Report({"prompt_tokens": 9, "completion_tokens": 1}))
    hook: list[Callable[[], Awaitable[object]]] = []
    database: Any = _FindsThen(harness.database, hook)
    log = LogService(database, harness.resolver, harness.outputs, harness.active, new_id, 1000)
    search, calls = SearchService(database, harness.resolver), CallHistoryService(database)
    receipts = ReceiptService(database, harness.resolver, harness.active)
    seqs: Any = {"after_seq": 0, "before_seq": 99, "order": "asc", "limit": 9}

    async def messages() -> Sequence[object]:
        return (await log.page(TENANT, cid, **seqs))[1]

    async def found() -> Sequence[object]:
        return (await search.page(TENANT, cid, "question", **seqs))[1]

    for read in (
        messages,
        found,
        lambda: calls.epochs(TENANT, cid, 9, None),
        lambda: calls.reports(TENANT, cid, 9, None),
        lambda: receipts.page(TENANT, cid, 9, None),
    ):
        assert await read()
        await settle(database_url)
        hook.append(harness.archives.archive_all)
        with pytest.raises(NotFound):
            await read()
        assert await harness.archives.restore(TENANT, cid)


async def test_what_was_never_archived_is_not_restored(harness: Harness) -> None:
    """A conversation that is not archived, and one that does not exist."""
    cid = await harness.conversation()
    assert not await harness.archives.restore(TENANT, cid)
    assert not await harness.archives.restore(TENANT, new_id())


async def test_another_tenant_restores_nothing(
    harness: Harness, archives: ArchiveService, watched: WatchedObjects
) -> None:
    """A tenant restores its own conversations only."""
    cid = await spoken(harness)
    await archives.archive_all()
    reads = watched.reads
    assert not await archives.restore("other", cid)
    await archives.restore_all("other", [cid])
    assert watched.reads == reads


@pytest.mark.one_server  # Citus refuses some of these statements
@pytest.mark.parametrize(
    "work",
    [
        "INSERT INTO jobs (conversation_id, job_id, tenant_id, kind) SELECT conversation_id,"
        " gen_random_uuid(), 'default', 'compact' FROM heads",
        "UPDATE heads SET due_at = now()",
        "INSERT INTO compaction_leases (conversation_id, holder, expires_at)"
        " SELECT conversation_id, gen_random_uuid(), now() + interval '1 hour' FROM heads",
        "INSERT INTO blob_uploads (conversation_id, content_id, tenant_id)"
        " SELECT conversation_id, gen_random_uuid(), 'default' FROM heads",
        "UPDATE blobs SET attached = false",
        "UPDATE conversations SET updated_at = now() + interval '30 days'",
        "UPDATE conversations SET expires_at = now()",
        "INSERT INTO archives (conversation_id, tenant_id, messages, text_bytes, object_bytes,"
        " restored_at) SELECT conversation_id, 'default', 1, 1, 1, now() + interval '30 days'"
        " FROM heads",
    ],
)
async def test_what_is_in_use_stays(harness: Harness, database_url: str, work: str) -> None:
    """Open work, a recent change or restore, and an expiry keep a conversation in the database."""
    cid = await spoken(harness)
    await execute(database_url, work)
    before = await rows_of(database_url, cid)
    assert await harness.archives.archive_all() == 0
    assert await rows_of(database_url, cid) == before


async def test_what_a_tenant_stores_stays_the_same(harness: Harness, database_url: str) -> None:
    """Archived messages and outputs count for the storage limit as before."""

    async def stored() -> int:
        async with harness.database.session() as session:
            while await session.storage.measure(TENANT):
                pass
            return await session.storage.total(TENANT)

    cid = await spoken(harness)
    before = await stored()
    await execute(database_url, "DELETE FROM log_sizes")
    assert await harness.archives.archive_all() == 1
    assert await stored() == before
    await harness.archives.restore(TENANT, cid)
    assert await stored() == before


# --- changes meanwhile ------------------------------------------------------------------------


@pytest.mark.one_server  # Citus refuses some of these statements
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE messages SET body = replace(body, 'why', 'wHy') WHERE seq = 4",
        "UPDATE messages SET created_at = created_at + interval '1 microsecond' WHERE seq = 4",
        "UPDATE compactions SET undone_at = now()",
        "DELETE FROM prompt_texts",
        "DELETE FROM message_words",
        "INSERT INTO usage_reports (conversation_id, report_id, model, format, input_tokens,"
        " output_tokens, cache_creation_tokens, cache_read_tokens, usage) SELECT conversation_id,"
        " gen_random_uuid(), 'm', 'f', 1, 1, 0, 0, '{}' FROM heads",
        "UPDATE heads SET due_at = now()",
    ],
)
async def test_what_changes_while_it_is_archived_stays(
    harness: Harness,
    archives: ArchiveService,
    watched: WatchedObjects,
    objects: ObjectStore,
    database_url: str,
    change: str,
) -> None:
    """A change of any row between the copy and the deletion keeps the conversation."""
    cid, after = await spoken(harness), list[Mapping[str, list[str]]]()
    await harness.compact(cid)
    await settle(database_url)
    await execute(
        database_url, "INSERT INTO message_words SELECT conversation_id, seq, '' FROM messages"
    )

    async def changed() -> None:
        assert await execute(database_url, f"{change} RETURNING 1")
        after.append(await rows_of(database_url, cid))

    watched.before_add = changed
    assert await archives.archive_all() == 0
    assert await rows_of(database_url, cid) == after.pop()
    assert await keys_in(objects) == await named_in(database_url)


async def test_an_append_while_it_is_archived_is_kept(
    harness: Harness,
    archives: ArchiveService,
    watched: WatchedObjects,
    objects: ObjectStore,
    database_url: str,
) -> None:
    """An append between the copy and the deletion keeps the conversation; the next run has both."""
    cid = await spoken(harness)
    watched.before_add = lambda: harness.append(cid, user("wait"))
    assert await archives.archive_all() == 0
    assert await keys_in(objects) == await named_in(database_url)
    assert await archives.archive_all() == 1
    await archives.restore(TENANT, cid)
    assert (await harness.stored(cid)).state.head_seq == 16


async def test_a_store_that_is_away_ends_the_run(
    harness: Harness,
    archives: ArchiveService,
    watched: WatchedObjects,
    database_url: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A run ends after three failures in a row; one that fails alone stops no other."""
    cids = [await spoken(harness) for _ in range(5)]
    before = [await rows_of(database_url, cid) for cid in cids]
    away = ServiceUnavailable("The object store does not answer", {"reason": "Away"})

    async def fail() -> None:
        watched.before_add = fail
        raise away

    async def fail_once() -> None:
        raise away

    watched.before_add = fail
    assert await archives.archive_all() == 0
    assert caplog.messages.count("conversation_not_archived") == 3
    assert [await rows_of(database_url, cid) for cid in cids] == before
    watched.before_add = fail_once
    assert await archives.archive_all() == 4
    assert await archives.archive_all() == 1


async def test_a_deletion_while_it_is_archived_leaves_nothing(
    harness: Harness,
    archives: ArchiveService,
    watched: WatchedObjects,
    objects: ObjectStore,
    database_url: str,
) -> None:
    """A conversation that is deleted between the copy and the deletion of rows is gone."""
    cid = await spoken(harness)
    watched.before_add = lambda: harness.conversations.remove(TENANT, cid)
    assert await archives.archive_all() == 0
    assert await keys_in(objects) == set()
    rows = await rows_of(database_url, cid)
    assert {table for table, found in rows.items() if found} == {"events"}  # that it was deleted


async def test_a_deletion_while_it_is_restored_leaves_nothing(
    harness: Harness,
    archives: ArchiveService,
    watched: WatchedObjects,
    objects: ObjectStore,
    database_url: str,
) -> None:
    """A restore that meets a deletion stores nothing."""
    cid = await spoken(harness)
    await archives.archive_all()
    watched.before_read = lambda: harness.conversations.remove(TENANT, cid)
    await archives.restore(TENANT, cid)
    assert await keys_in(objects) == set()
    rows = await rows_of(database_url, cid)
    assert {table for table, found in rows.items() if found} == {"events"}  # that it was deleted


async def test_two_workers_archive_it_once(
    harness: Harness, objects: ObjectStore, database_url: str
) -> None:
    """Workers that archive the same conversations at once leave one object for each."""
    cids = [await spoken(harness) for _ in range(3)]
    before = [await rows_of(database_url, cid) for cid in cids]
    workers = [Harness(harness.database, objects=objects).archives for _ in range(2)]
    done = await asyncio.gather(*(worker.archive_all() for worker in workers))
    assert sum(done) == 3
    assert await named_in(database_url) <= await keys_in(objects)
    for cid in cids:
        assert await workers[0].restore(TENANT, cid)
    assert [await rows_of(database_url, cid) for cid in cids] == before


async def test_concurrent_restores_are_one(
    harness: Harness,
    archives: ArchiveService,
    watched: WatchedObjects,
    objects: ObjectStore,
    database_url: str,
) -> None:
    """Requests of a process wait for one restore, and those of another one for its end."""
    cid = await spoken(harness)
    before = await rows_of(database_url, cid)
    await archives.archive_all()
    watched.reads = 0
    elsewhere = Harness(harness.database, objects=objects).archives
    both = [archives] * 8 + [elsewhere] * 3
    assert all(await asyncio.gather(*(each.restore(TENANT, cid) for each in both)))
    assert watched.reads == 1
    assert await rows_of(database_url, cid) == before
    assert await keys_in(objects) == await named_in(database_url)
    assert await archives.restore(TENANT, cid)  # a request that asked before may be repeated


async def test_a_request_that_gives_up_leaves_the_restore_running(
    harness: Harness, archives: ArchiveService, watched: WatchedObjects
) -> None:
    """A client that disconnects does not stop the restore."""
    cid = await spoken(harness)
    await archives.archive_all()
    reading, may_read = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        reading.set()
        await may_read.wait()

    watched.before_read = wait
    request = asyncio.create_task(archives.restore(TENANT, cid))
    await reading.wait()
    request.cancel()
    await asyncio.wait({request})
    may_read.set()
    assert await archives.restore(TENANT, cid)
    assert (await harness.stored(cid)).state.head_seq == 15


async def test_a_slow_restore_is_answered_in_time(
    harness: Harness,
    archives: ArchiveService,
    watched: WatchedObjects,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request waits for a bounded time, and is told to come back."""
    cid = await spoken(harness)
    await archives.archive_all()
    monkeypatch.setattr("app.services.conversations.archives.MAX_WAIT_SECONDS", 0.01)
    forever = asyncio.Event()
    watched.before_read = forever.wait
    with pytest.raises(ServiceUnavailable) as raised:
        await archives.restore(TENANT, cid)
    assert raised.value.facts["retry_after"] > 0
    await archives.close()  # the end of the process; it stays archived
    monkeypatch.undo()
    assert await archives.restore(TENANT, cid)


async def test_a_stream_outlives_the_archive(harness: Harness) -> None:
    """Who follows a conversation that is archived is not told that it was deleted."""
    agent = await harness.agent(None)
    cid = await harness.conversation(agent_id=agent)
    await harness.append(cid, user("one"))
    events = events_of(harness.database, restore=harness.archives.restore)
    told = []
    async with aclosing((await events.open(TENANT, cid)).events()) as stream:
        async for event in stream:
            told.append(event.type)
            match event.type:
                case "ready":
                    assert await harness.archives.archive_all() == 1
                    await harness.agents.clear(TENANT, agent)
                case "cleared":
                    await harness.append(cid, user("two"))
                case "appended":
                    await harness.conversations.remove(TENANT, cid)
    assert told == ["ready", "cleared", "appended", "deleted"]


async def test_a_followed_conversation_stays_archived(harness: Harness) -> None:
    """A stream without new events does not bring its conversation back."""
    cid = await harness.conversation()
    await harness.append(cid, user("one"))
    await harness.archives.archive_all()
    async with harness.database.session() as session:
        newest = await session.events.newest_of([cid])
    assert newest[cid].seq == 1


async def test_without_a_store_it_is_named(harness: Harness) -> None:
    """A process without an object store says why it cannot answer, and loses nothing."""
    cid = await spoken(harness)
    await harness.archives.archive_all()
    elsewhere = Harness(harness.database)
    with pytest.raises(ServiceUnavailable) as raised:
        await elsewhere.archives.restore(TENANT, cid)
    assert raised.value.facts["reason"] == "NoObjectStore"
    assert await harness.archives.restore(TENANT, cid)


# --- crashes ----------------------------------------------------------------------------------


class Killed(BaseException):
    """The process ends."""


class Life:
    """Counts the steps of a process, statements and calls of the store, and ends it at one."""

    def __init__(self) -> None:
        self.steps = 0
        self.last: int | None = None

    def step(self) -> None:
        """Begin a step, unless the process has ended."""
        self.steps += 1
        if self.last is not None and self.steps > self.last:
            raise Killed

    @contextmanager
    def until(self, last: int | None) -> Iterator[None]:
        """Live so many steps in the block."""
        self.steps, self.last = 0, last
        try:
            yield
        except Killed:
            pass
        finally:
            self.last = None


@pytest.fixture
def life(monkeypatch: pytest.MonkeyPatch) -> Life:
    """The life of the process, whose every step is counted."""
    it = Life()

    def counted(kind: type[Any], name: str) -> None:
        inner = getattr(kind, name)

        async def outer(*arguments: Any, **options: Any) -> Any:
            it.step()
            return await inner(*arguments, **options)

        monkeypatch.setattr(kind, name, outer)

    for name in ("_execute", "_copied", "at_one_moment"):
        counted(Session, name)
    for name in ("add", "remove"):
        counted(ArchiveObjects, name)
    for name in ("_delete", "flush"):
        counted(ObjectStore, name)
    return it


async def test_a_crash_at_any_step_loses_nothing(
    harness: Harness, objects: ObjectStore, database_url: str, life: Life
) -> None:
    """After a crash at any step of archiving or restoring, all rows are there, or return."""
    cid = await spoken(harness)
    before = await rows_of(database_url, cid)
    work: Sequence[tuple[str, Callable[[], Awaitable[object]]]] = (
        ("archive", harness.archives.archive_all),
        ("restore", lambda: harness.archives.restore(TENANT, cid)),
    )
    for name, run in work:
        steps = last = 0
        while last <= steps:
            with life.until(last):
                await run()
            steps, last = max(steps, life.steps), last + 1
            rows = await rows_of(database_url, cid)
            assert rows == before or not any(rows[table] for table in ARCHIVED_TABLES)
            if (rows == before) is (name == "archive"):
                continue  # it has not happened yet
            undo = work[name == "archive"][1]
            await undo()
            if name == "archive":
                assert await rows_of(database_url, cid) == before
        assert steps > 15
        await run()
    assert await rows_of(database_url, cid) == before
    collector = BlobCollector(
        harness.database,
        harness.resolver,
        objects,
        harness.outputs,
        lambda: datetime.now(UTC) + 48 * HOUR,
        upload_ttl_seconds=60,
    )
    assert await keys_in(objects) > await named_in(database_url)
    assert await harness.archives.archive_all() == 1
    await collector.collect_all()
    assert await keys_in(objects) == await named_in(database_url)
    await harness.archives.restore(TENANT, cid)
    assert await rows_of(database_url, cid) == before
