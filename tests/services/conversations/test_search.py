"""Search over real logs: what was compacted, cleared or offloaded is found.

[search.finds-compacted, agent-tools.definitions]
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import pytest_asyncio

from app.common.errors import NotFound, ServiceUnavailable
from app.compaction.schemas import CompactionRequest
from app.conversations.messages.row import StoredMessage
from app.conversations.search import recall
from app.conversations.search import service as search
from app.conversations.search.ranking import MAX_RANKED
from app.conversations.search.recall import MAX_RECALLED, Recalled
from app.conversations.search.service import SearchService
from app.repositories import Database
from app.worker import Worker
from tests.services.fakes import TENANT, Harness, new_id, result, says, user

PLANTED = "The staging database listens on port 5433, says Ódhrán."
POLICY = {"budget": {"context_window": 4000, "max_output_tokens": 500}}


@pytest.fixture
def service(harness: Harness) -> SearchService:
    """The search of the same process."""
    return SearchService(harness.database, harness.resolver)


@pytest_asyncio.fixture
async def with_sentence(harness: Harness) -> str:
    """A conversation with a sentence as message 9, and many messages after it."""
    cid = await harness.conversation(POLICY)
    await harness.talk(cid, 4)
    await harness.append(cid, user(PLANTED), says("noted"))
    await harness.talk(cid, 20)
    return cid


async def page(service: SearchService, cid: str, query: str, **how: Any) -> list[StoredMessage]:
    """Return the first page of a query's matches, oldest first by default."""
    where: dict[str, Any] = {"after_seq": 0, "before_seq": 2**60, "order": "asc", "limit": 50}
    where |= how
    _, found = await service.page(TENANT, cid, query, **where)
    return found


async def seqs(service: SearchService, cid: str, query: str, **how: Any) -> list[int]:
    """Return the seqs of that page."""
    return [message.seq for message in await page(service, cid, query, **how)]


async def recalled(service: SearchService, cid: str, question: str) -> Sequence[Recalled]:
    """Return the messages of a conversation that answer a question."""
    return (await service.recall(TENANT, cid, question)).messages


async def words_of(harness: Harness, cid: str) -> int:
    """Return how many messages of a conversation are indexed."""
    statement = "SELECT count(*) FROM message_words WHERE conversation_id = $1::uuid"
    async with harness.database.store.session() as session:
        count: int = await session._connection.fetchval(statement, cid)
    return count


# --- what is found ----------------------------------------------------------------------------


async def test_a_compacted_sentence_is_found(
    harness: Harness, service: SearchService, with_sentence: str
) -> None:
    """Messages that a compaction hides are found, and so are later ones."""
    assert (await harness.compact(with_sentence)).compacted
    assert (await harness.receipt(with_sentence)).hidden_span.holds(9)
    (found,) = await page(service, with_sentence, "odhran staging port")
    assert (found.seq, PLANTED in found.body) == (9, True)
    assert await seqs(service, with_sentence, '"listens on port 5433"') == [9]
    await harness.append(with_sentence, user("and staging is slow"))
    assert await seqs(service, with_sentence, "staging") == [9, 51]


async def test_other_conversations_are_not_found(harness: Harness, service: SearchService) -> None:
    """A search finds only messages of its own conversation."""
    mine, other = await harness.conversation(), await harness.conversation()
    await harness.append(mine, user("the zebra is mine"))
    await harness.append(other, user("the zebra is not"), user("nor is the lion"))
    assert await seqs(service, other, "zebra") == [1]
    assert await seqs(service, mine, "zebra -mine") == []
    assert await seqs(service, mine, "lion") == []
    assert await recalled(service, mine, "lion") == ()
    for tenant, cid in (("another", mine), (TENANT, new_id())):
        with pytest.raises(NotFound):
            await service.page(
                tenant, cid, "zebra", after_seq=0, before_seq=9, order="asc", limit=1
            )
        with pytest.raises(NotFound):
            await service.recall(tenant, cid, "zebra")
        with pytest.raises(NotFound):
            await service.index_hidden(tenant, cid)


@pytest.mark.parametrize(
    "query",
    [
        "zebra') | ('lion",
        "zebra' | 'lion",
        "zebra | lion",
        "zebra & !zebra:*",
        "zebra\\' | 'x",
        "zebra <-> lion",
        "%zebra% :*A",
        "zebra); DROP TABLE message_words; --",
        "\x00 zebra \ud800 '",
    ],
)
async def test_a_query_has_no_tsquery_syntax(
    harness: Harness, service: SearchService, query: str
) -> None:
    """Characters with a meaning for PostgreSQL have none in a query [search.words]."""
    cid = await harness.conversation()
    await harness.append(cid, user("lion"), user("zebra A x drop table message_words"))
    assert set(await seqs(service, cid, query)) <= {2}
    await recalled(service, cid, query)


async def test_any_message_is_indexed(harness: Harness, service: SearchService) -> None:
    """Messages with NUL, lone surrogates, no words or very many words are indexed.

    [search.words]
    """
    cid = await harness.conversation()
    many = " ".join(f"w{number}" for number in range(40_000))
    texts = ["\x00 \ud800 ok", " " * 100_000, "", "!?", "字" * 5000, many, "the end"]
    await harness.append(cid, *(user(text) for text in texts))
    assert await seqs(service, cid, "ok") == [1]
    assert await seqs(service, cid, "end") == [7]
    assert await seqs(service, cid, "w16000") == [6]
    assert await words_of(harness, cid) == 7


# --- pages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["even", '"even number"', "even -ten"])
async def test_pages_in_both_orders(
    harness: Harness,
    service: SearchService,
    query: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pages of any size have each match once and in order [transcript.pages]."""
    monkeypatch.setattr(search, "MAX_CHECKED", 4)
    cid = await harness.conversation()
    kinds = ("odd", "even")
    await harness.append(cid, *(user(f"{kinds[seq % 2 == 0]} number") for seq in range(1, 31)))
    expected = [*range(2, 31, 2)]
    for limit in (1, 4, 15, 40):
        for order in ("asc", "desc"):
            found: list[int] = []
            bounds = {"after_seq": 0, "before_seq": 2**60}
            while step := await seqs(service, cid, query, order=order, limit=limit, **bounds):
                found += step
                bounds["after_seq" if order == "asc" else "before_seq"] = step[-1]
            assert found == (expected if order == "asc" else expected[::-1])
    assert await seqs(service, cid, query, after_seq=4, before_seq=10) == [6, 8]
    assert await seqs(service, cid, query, after_seq=9, before_seq=10) == []


# --- indexing ---------------------------------------------------------------------------------


async def test_searches_index_only_new_messages(
    harness: Harness, service: SearchService, with_sentence: str
) -> None:
    """An append does not index; the first search indexes the log, later ones new messages."""
    assert await words_of(harness, with_sentence) == 0
    await seqs(service, with_sentence, "staging")
    assert await words_of(harness, with_sentence) == 50
    await harness.append(with_sentence, user("more"))
    assert await words_of(harness, with_sentence) == 50
    await recalled(service, with_sentence, "staging")
    assert await words_of(harness, with_sentence) == 51


async def test_a_worker_indexes_hidden_messages(
    harness: Harness, service: SearchService, with_sentence: str
) -> None:
    """It indexes none before the first compaction, and then those that it hides."""
    await service.index_hidden(TENANT, with_sentence)
    assert await words_of(harness, with_sentence) == 0
    await harness.compact(with_sentence)
    span = (await harness.stored(with_sentence)).state.hidden_span
    assert span is not None
    await service.index_hidden(TENANT, with_sentence)
    assert await words_of(harness, with_sentence) == span.end - 1


@pytest.mark.parametrize("failure", [None, ServiceUnavailable("No database"), KeyError("zebra")])
async def test_a_failing_index_does_not_fail_the_work(
    harness: Harness,
    service: SearchService,
    with_sentence: str,
    failure: Exception | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The worker indexes after its work; an error there does not repeat the work."""
    done: list[str] = []

    async def prepare(tenant_id: str, conversation_id: str) -> None:
        done.append(conversation_id)
        if failure is not None:
            raise failure
        await service.index_hidden(tenant_id, conversation_id)

    async def work(tenant_id: str, conversation_id: str, job_id: str | None) -> None:
        assert not done
        await harness.compaction.work(tenant_id, conversation_id, job_id)

    await harness.compaction.start_job(TENANT, with_sentence, CompactionRequest())
    claim = await harness.leases.claim()
    assert claim is not None
    database = Database(harness.database.store)
    await Worker(database, harness.leases, "", work, index_hidden=prepare)._run(claim)
    assert done == [with_sentence]
    assert await harness.leases.claim() is None
    assert (await words_of(harness, with_sentence) > 0) is (failure is None)
    assert ("chore_failed" in caplog.messages) is isinstance(failure, KeyError)
    assert "zebra" not in caplog.text


async def test_concurrent_searches_agree(
    harness: Harness, service: SearchService, with_sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Searches that index concurrently find the same while the log grows.

    [search.no-append-cost]
    """
    monkeypatch.setattr(search, "BATCH_MESSAGES", 5)
    other = SearchService(harness.database, harness.resolver)
    found = await asyncio.gather(
        *(seqs(each, with_sentence, "staging port") for each in (service, other) * 3),
        harness.talk(with_sentence, 10),
    )
    assert found[:6] == [[9]] * 6
    await seqs(service, with_sentence, "x")
    assert await words_of(harness, with_sentence) == 70


async def test_a_deletion_leaves_no_words(
    harness: Harness, service: SearchService, with_sentence: str
) -> None:
    """Words are deleted with their conversation, and none are added later [search.words]."""
    async with harness.database.session() as session:
        batch = await session.search.unindexed(with_sentence, 10, 500, 10**6)
    await seqs(service, with_sentence, "staging")
    await harness.conversations.remove(TENANT, with_sentence)
    assert await words_of(harness, with_sentence) == 0
    async with harness.database.session() as session:
        await session.search.add(with_sentence, {item.message.seq: ("late",) for item in batch})
    assert await words_of(harness, with_sentence) == 0


# --- recall -----------------------------------------------------------------------------------


async def test_recall_shows_the_best_first_in_pages(
    harness: Harness, service: SearchService
) -> None:
    """Messages with the rarest words are first, with those around them.

    Pages have each match once. [search.recall-pages]
    """
    cid = await harness.conversation()
    filler = [user(f"the message {number} has a weather to see") for number in range(150)]
    await harness.append(
        cid,
        *filler,
        says("who sleeps with a zebra?"),
        user("the lion does, in a weather like that"),
        says("and the lion?"),
    )
    found = await recalled(service, cid, "Is the zebra going to see a lion?")
    assert [item.seq for item in found][:2] == [152, 151]
    seqs_of: list[int] = []
    for offset in range(0, 50, MAX_RECALLED):
        page = await service.recall(TENANT, cid, "the weather", offset)
        assert (page.offset, page.total) == (offset, MAX_RANKED)
        seqs_of += [item.seq for item in page.messages]
    assert len(seqs_of) == len(set(seqs_of)) == MAX_RANKED
    assert await recalled(service, cid, "the elephant") == ()
    assert await recalled(service, cid, "?!") == ()


async def test_recall_finds_messages_of_a_time(
    harness: Harness, service: SearchService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time in the question raises its messages, however many newer ones there are.

    [search.recall-times]
    """
    monkeypatch.setattr(recall, "MAX_POSTINGS", 5)
    cid = await harness.conversation()
    days = [f"2025-{month:02}-{day:02}" for month in (4, 5, 6) for day in range(10, 20)]
    await harness.append(
        cid, *(user("the weekly report") | {"timestamp": f"{day}T09:00:00Z"} for day in days)
    )
    for question, month in (
        ("the report in May 2025", 5),
        ("the report of last april", 4),
        ("the report", 6),
    ):
        found = (await recalled(service, cid, question))[0]
        assert found.time.month == month, question


async def test_recall_does_not_find_itself(harness: Harness, service: SearchService) -> None:
    """Neither the question nor the answer of an earlier `recall` is found."""
    cid = await harness.conversation()
    function = {"name": "recall", "arguments": '{"query": "which port has staging"}'}
    call: dict[str, Any] = {"role": "assistant", "content": None}
    call["tool_calls"] = [{"id": "r", "type": "function", "function": function}]
    answer = result("r", "#1 user: the staging port is 5433")
    await harness.append(cid, user("the staging port is 5433"), call, answer)
    for question in ("which port has staging", "staging port"):
        (found, *others) = await recalled(service, cid, question)
        assert found.seq == 1
        assert not any("5433" in item.excerpt for item in others)
