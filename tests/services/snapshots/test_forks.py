"""Forks over a real database: completeness, independence, concurrency. [forks.at-seq]"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.blobs.byte_store import BlobStore, ObjectStore
from app.common.errors import ContextError, Gone, NotFound, ServiceUnavailable, UnpairedToolResult
from app.conversations.conversation import ConversationState
from app.conversations.messages.stored_results import Content
from app.conversations.view import Span, spans_through
from app.conversations.view_changes import base_view, shown_entries
from app.database.tables import TABLES
from app.formats.message import FormatName
from app.prompt.resolved_settings import RequestSettings
from app.repositories import Database
from app.snapshots import forks
from app.snapshots.forks import ForkService
from tests.patience import PATIENCE_SECONDS
from tests.services.fakes import (
    ANTHROPIC,
    CHAT,
    CLAUDE,
    TENANT,
    Build,
    Harness,
    WatchedDatabase,
    asks,
    new_id,
    result,
    says,
    user,
)
from tests.services.tool_output.builders import LARGE, Process

RESPONSES, GEMINI = FormatName.OPENAI_RESPONSES, FormatName.GEMINI
MODELS = {CHAT: None, RESPONSES: None, ANTHROPIC: CLAUDE, GEMINI: "gemini-2.5-pro"}
PLAIN = {"budget": {"notice_at": 1.0}}
pytestmark = pytest.mark.services(service_policy=PLAIN)
SHORT = {"sandwich": {"preserve_top": 1, "preserve_bottom": 2}}
CLEARING = {"tool_output": {"context_budget_tokens": 300, "clear_at_least": 100}}


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A plain connection to this test's database."""
    opened = await asyncpg.connect(database_url)
    yield opened
    await opened.close()


def forks_of(harness: Harness, store: BlobStore | None = None) -> ForkService:
    """Return the service of this process that forks."""
    return ForkService(
        harness.database, harness.resolver, harness.active, store or BlobStore(), new_id
    )


async def fork(harness: Harness, cid: str, through_seq: int | None = None, **more: Any) -> str:
    """Make a fork and return its id."""
    return await forks_of(harness).fork(TENANT, cid, through_seq, **more)


async def built(harness: Harness, cid: str, format: FormatName = CHAT) -> Build:
    """Build a payload in a format, for a model that takes it."""
    return await harness.build(cid, RequestSettings(format, MODELS[format]))


async def texts(harness: Harness, cid: str) -> list[str]:
    """Return the texts of the messages that a build shows."""
    return [str(item["content"]) for item in (await built(harness, cid)).messages]


async def assert_alike(harness: Harness, source: str, copy: str) -> None:
    """Both build the same payloads in all formats, and count them alike."""
    for format in MODELS:
        first, second = await built(harness, source, format), await built(harness, copy, format)
        # The key by which a provider finds its cache is the conversation's own.
        assert second.text.replace(copy.encode(), source.encode()) == first.text, format
        for name in ("tokens_used", "budget", "pressure", "summary_used", "prefix_hash"):
            assert second[name] == first[name], (format, name)


# --- alike ------------------------------------------------------------------------------------


async def plain(harness: Harness) -> str:
    """Return a conversation with calls, of which one has no result yet."""
    cid = await harness.conversation(
        sections=[{"name": "base", "content": "Be brief."}],
        tools=[{"name": "read_file", "input_schema": {"type": "object"}}],
    )
    await harness.append(cid, user("look"), asks("c1", "c2"), result("c1"), result("c2"))
    await harness.append(cid, says("seen"), user("again"), asks("c1", "c3"), result("c3"))
    return cid


async def compacted(harness: Harness) -> str:
    """Return a conversation that was compacted, pinned in, and went on."""
    cid = await harness.conversation(SHORT)
    await harness.talk(cid, 8, words=60)
    assert (await harness.compact(cid)).compacted
    await harness.pin(cid, 5)
    await harness.append(cid, user("and on"), says("it goes"))
    return cid


async def twice_compacted(harness: Harness) -> str:
    """Return a conversation that was compacted twice."""
    cid = await compacted(harness)
    await harness.talk(cid, 6, words=60)
    assert (await harness.compact(cid)).compacted
    return cid


# --- at an earlier seq ------------------------------------------------------------------------


async def test_open_calls_are_closed(harness: Harness) -> None:
    """A later result is refused, and payloads have a placeholder [payload.as-of]."""
    cid = await plain(harness)
    for through_seq, call_id in ((2, "c1"), (3, "c2"), (7, "c3"), (8, "c1")):
        copy = await fork(harness, cid, through_seq)
        assert (await harness.stored(copy)).state.open_calls == ()
        with pytest.raises(UnpairedToolResult):
            await harness.append(copy, result(call_id, "too late"))
        for format in MODELS:
            build = await built(harness, copy, format)
            assert "no result recorded" in build.contents
        await harness.append(copy, user("go on"))
        build = await built(harness, copy)
        assert build.count() == build["tokens_used"]
    await harness.append(cid, result("c1", "in time"))
    assert "in time" in (await built(harness, cid)).contents


async def test_a_fork_shows_the_newest_compaction_of_its_log(harness: Harness) -> None:
    """The newest compaction without later messages. [forks.visible-state, compaction.resume]"""
    cid = await twice_compacted(harness)
    second = await harness.receipt(cid)
    first_id = second.parent_id
    assert first_id is not None and second.view.hidden is not None
    shown = {}
    for through_seq in range((await harness.stored(cid)).state.head_seq + 1):
        copy = await fork(harness, cid, through_seq)
        shown[through_seq] = (await harness.stored(copy)).state.compaction_id
    first = await harness.receipt(cid, first_id)
    assert first.view.hidden is not None
    ends = (first.view.hidden.end - 1, second.view.hidden.end - 1)
    assert shown == {
        seq: None if seq < ends[0] else first_id if seq < ends[1] else second.compaction_id
        for seq in shown
    }


async def test_compactions_are_undone_in_the_fork(harness: Harness) -> None:
    """Compactions keep their ids; an undo in the fork leaves the source unchanged."""
    cid = await twice_compacted(harness)
    before = await texts(harness, cid)
    copy = await fork(harness, cid)
    assert await harness.receipts.state(TENANT, copy) == await harness.receipts.state(TENANT, cid)
    await harness.undo(copy)
    await check_sums(harness, copy)
    await harness.undo(copy)
    await check_sums(harness, copy)
    assert (await texts(harness, copy))[0].startswith("question 0")
    assert len(await texts(harness, copy)) == (await harness.stored(copy)).state.head_seq
    assert await texts(harness, cid) == before
    await harness.undo(cid)
    await harness.talk(copy, 12, words=60)
    assert (await harness.compact(copy)).compacted


# --- sums -------------------------------------------------------------------------------------


async def check_sums(harness: Harness, cid: str) -> None:
    """Check the sums of a head against its rows."""
    found = await harness.stored(cid)
    state = found.state
    async with harness.database.session() as session:
        entries = await session.log.entries(cid, 1, state.head_seq + 1)
        page = await session.log.page(cid, 0, 10**9, "asc", 10_000)
        pinned = await session.log.pinned(cid)
        receipt = None
        if state.compaction_id is not None:
            receipt = await session.contexts.find_receipt(cid, state.compaction_id)
            assert receipt is not None
    assert [item.seq for item in entries] == list(range(1, state.head_seq + 1))
    assert state.tokens == sum(item.tokens for item in entries)
    assert state.turns == sum(message.role == "user" for message in page)
    inside = [item for item in entries if state.window.holds(item.seq)]
    assert state.outside_tokens == state.tokens - sum(item.tokens for item in inside)
    assert state.outside_messages == state.head_seq - len(inside)
    view = base_view(state, receipt.view if receipt else None, harness.resolver.policy_of(found))
    assert state.shown_tokens == sum(item.tokens for item in shown_entries(entries, view))
    assert state.shown_messages == len(shown_entries(entries, view))
    for item in pinned:
        if state.window.holds(item.seq):
            assert view.shows(item.seq)
            assert item.role != "tool" or not view.clears_result(item.seq)


KINDS = ["say", "say", "call", "part", "late", "pass", "clear", "compact", "pin", "undo", "build"]


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[str, int]]:
    """Draw what happens to a conversation before it is forked."""
    step = st.tuples(st.sampled_from(KINDS), st.integers(1, 2000))
    return [("say", 1), *draw(st.lists(step, min_size=3, max_size=14))]


async def live(harness: Harness, cid: str, story: list[tuple[str, int]]) -> None:
    """Let a story happen; what cannot happen does not."""
    for number, (kind, amount) in enumerate(story):
        state: ConversationState = (await harness.stored(cid)).state
        try:
            match kind:
                case "say":
                    await harness.talk(cid, amount % 5 + 1, words=amount % 50)
                case "call":
                    text = f"{number}" * (amount % 900)
                    await harness.append(cid, user("?"), asks("c", "d"), result("c", text))
                    await harness.append(cid, result("d", text))
                case "part":
                    await harness.append(cid, asks("c", "d"), result("d"))
                case "late":
                    own = harness.clock.utc() - timedelta(seconds=amount)
                    await harness.append(cid, user("late") | {"timestamp": own.isoformat()})
                case "pass":
                    harness.clock.pass_seconds(amount)
                case "clear":
                    await harness.conversations.clear(TENANT, cid)
                case "compact":
                    await harness.compact(cid)
                case "pin":
                    await harness.pin(cid, amount % state.head_seq + 1)
                case "undo":
                    if state.compaction_id is not None:
                        await harness.undo(cid)
                case _:
                    # Copies have no epochs, and in a tool loop a stream with one takes no new
                    # tools: what is compared later is a first build on both sides.
                    await harness.build(cid, RequestSettings(CHAT, "gpt-4o-mini"))
        except ContextError:
            pass


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(story=stories(), places=st.lists(st.integers(0, 10**6), min_size=3, max_size=3))
async def test_the_sums_of_a_fork_equal_those_of_its_rows(
    database: Database, story: Any, places: list[int]
) -> None:
    """After any history, and at any seq, sums and window are correct.

    [budget.components, forks.window]
    """
    harness = Harness(WatchedDatabase(database), service_policy=PLAIN | CLEARING)
    cid = await harness.conversation(SHORT, agent_id=await harness.agent(2400))
    await live(harness, cid, story)
    end = (await harness.stored(cid)).state.head_seq
    for through_seq in {end, *(place % (end + 1) for place in places)}:
        copy = await fork(harness, cid, through_seq)
        await check_sums(harness, copy)
        spans = [
            spans_through((await harness.stored(it)).state.window.spans, through_seq)
            for it in (cid, copy)
        ]
        log = [Span(1, through_seq + 1)] if 0 < through_seq < end else []
        assert list(spans[1]) == (list(spans[0]) or log)
        if (await harness.stored(copy)).state.shown_messages:
            build = await built(harness, copy)
            assert build.count() == build["tokens_used"]
            assert (await harness.build(copy, service=harness.cold())).text == build.text
        if through_seq == end and spans_through(
            (await harness.stored(cid)).state.window.spans, end
        ):
            await assert_alike(harness, cid, copy)


# --- on their own -----------------------------------------------------------------------------


async def test_source_and_fork_are_independent(harness: Harness) -> None:
    """Appends, pins, clears and searches of one do not change the other.

    [search.own-conversation]
    """
    cid = await plain(harness)
    copy = await fork(harness, cid)
    await harness.append(copy, user("only in the fork"))
    await harness.append(cid, result("c1", "only in the source"))
    await harness.append(cid, user("only in the source"))
    await harness.pin(copy, 1)
    await harness.patch(copy, sections=[{"name": "base", "content": "Else."}])
    assert "only in the fork" not in (await built(harness, cid)).contents
    assert "only in the source" not in (await built(harness, copy)).contents
    assert (await harness.stored(cid)).settings.sections_version == 1
    assert (await harness.stored(copy)).settings.sections_version == 2
    await harness.conversations.clear(TENANT, cid)
    assert "look" in (await built(harness, copy)).contents
    assert [kind for kind, _ in await harness.events_of(copy)] == ["pinned"]
    nested = await fork(harness, copy, 4)
    assert await harness.bodies(nested) == (await harness.bodies(cid))[:4]


@pytest.fixture(params=["rows", "memory", "folder"])
def blob_store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    """Each kind of store in turn."""
    if request.param == "rows":
        return BlobStore()
    return ObjectStore("memory:///" if request.param == "memory" else f"file://{tmp_path}/kept")


async def remove(process: Process, cid: str) -> dict[str, int]:
    """Delete a conversation, and return the rows deleted by table."""
    return dict(await process.harness.conversations.remove(TENANT, cid))


async def test_outputs_outlive_the_source(database: Database, blob_store: BlobStore) -> None:
    """Offloaded results have the same bytes after a deletion of either conversation."""
    process = Process(database, blob_store)
    harness, service = process.harness, forks_of(process.harness, blob_store)
    cid = await harness.conversation()
    outputs = [f"{number} {LARGE * (1 + 99 * (number == 1))}" for number in range(4)]
    refs = [await process.stored(cid, text) for text in outputs]
    await process.upload(cid, b"never attached")
    whole = await service.fork(TENANT, cid)
    part = await service.fork(TENANT, cid, 4)
    small = await process.blobs.page(TENANT, part, 10, None)
    assert {blob.id for blob in small} == {ref.id for ref in refs[:2]}
    await remove(process, part)
    for text, ref in zip(outputs, refs, strict=True):
        assert await process.read(cid, ref.id) == text.encode()
    await remove(process, cid)
    for text, ref in zip(outputs, refs, strict=True):
        assert await process.read(whole, ref.id) == text.encode()
    originals = await process.transcript(whole, Content.FULL)
    assert [item.raw_message["content"] for item in originals[1::2]] == outputs
    await remove(process, whole)
    assert await process.store.keys() == []


@pytest.mark.parametrize("meanwhile", [False, True])
async def test_collected_outputs_stay_collected(database: Database, meanwhile: bool) -> None:
    """A tombstone is copied, also that of a blob collected during the fork."""
    store = ObjectStore("memory:///")
    process = Process(database, store)
    cid, refs = await process.compacted({"collection": {"drop_compacted": True}})

    async def collect() -> None:
        await process.collect(cid)

    if meanwhile:
        process.database.before_transaction = collect
    else:
        await collect()
    copy = await forks_of(process.harness, store).fork(TENANT, cid)
    with pytest.raises(Gone):
        await process.read(copy, refs[0])
    assert len(await process.read(copy, refs[2])) > 4096
    before = [item.is_collected for item in await process.transcript(cid)]
    assert [item.is_collected for item in await process.transcript(copy)] == before
    await process.stored(copy, f"first\n{LARGE}")
    assert len(await process.read(copy, refs[0])) > 4096


# --- whoever comes between --------------------------------------------------------------------


async def test_forks_during_appends_are_prefixes_of_the_log(harness: Harness) -> None:
    """Each fork is a prefix of the log with its own sums. [log.atomic-batch, forks.at-seq]"""
    cid = await harness.conversation()
    await harness.append(cid, user("begin"))

    async def write() -> None:
        for number in range(40):
            await harness.append(cid, user(f"{number}"), asks("c"), result("c", f"{number}"))

    async def read() -> list[str]:
        return [await fork(harness, cid) for _ in range(8)]

    copies, _ = await asyncio.gather(read(), write())
    whole = await harness.bodies(cid)
    for copy in copies:
        bodies = await harness.bodies(copy)
        assert bodies == whole[: len(bodies)] and len(bodies) % 3 == 1
        await check_sums(harness, copy)


@pytest.mark.one_server  # it locks rows of all shards
async def test_a_fork_does_not_wait_for_locks_on_its_source(
    harness: Harness, connection: asyncpg.Connection
) -> None:
    """It locks nothing of its source, and waits for no lock on it. [forks.independent]"""
    cid = await compacted(harness)
    async with connection.transaction():
        await connection.execute("SELECT FROM states, conversations FOR UPDATE")
        async with asyncio.timeout(PATIENCE_SECONDS):
            copy = await fork(harness, cid)
    await assert_alike(harness, cid, copy)


async def between(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, cid: str, work: Awaitable[Any]
) -> list[Any]:
    """Fork while something else is done once after the first rows were copied."""
    copy_rows = forks._copy_rows
    done: list[Any] = []

    async def first(*arguments: Any) -> None:
        if not done:
            done.append(await work)
        await copy_rows(*arguments)

    monkeypatch.setattr(forks, "_copy_rows", first)
    return list(await asyncio.gather(fork(harness, cid), return_exceptions=True))


@pytest.mark.parametrize("with_agent", [False, True])
async def test_a_source_deleted_meanwhile_is_not_found(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, with_agent: bool
) -> None:
    """No fork is created, not even of a part of the source [log.delete-everything]."""
    agent_id = await harness.agent()
    cid = await harness.conversation(agent_id=agent_id)
    await harness.talk(cid, 3)

    async def remove() -> None:
        if with_agent:
            await harness.agents.remove(TENANT, agent_id)
        else:
            await harness.conversations.remove(TENANT, cid)

    (refused,) = await between(harness, monkeypatch, cid, remove())
    assert isinstance(refused, NotFound)
    with pytest.raises(NotFound):
        await fork(harness, cid)


# --- asked for twice --------------------------------------------------------------------------


async def test_a_failed_fork_leaves_no_rows(
    harness: Harness, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed fork leaves no rows, and its id can be used again [log.durable]."""
    cid = await compacted(harness)
    own = new_id()
    asked: dict[str, Any] = {"public_id": own}

    async def fail(*_: Any, **__: Any) -> None:
        raise ServiceUnavailable("The database does not answer")

    with monkeypatch.context() as broken:
        broken.setattr(forks, "_check_agent", fail)
        with pytest.raises(ServiceUnavailable):
            await fork(harness, cid, **asked)
    for name, table in TABLES.items():
        if "conversation_id" in table.columns:
            query = f"SELECT count(*) FROM {name} WHERE conversation_id = $1"
            assert await connection.fetchval(query, own) == 0
    assert await fork(harness, cid, **asked) == own
