"""Search over real logs: what was compacted, cleared or offloaded is found.

[search.finds-compacted, agent-tools.definitions]
"""

from __future__ import annotations

from typing import Any

import pytest
import pytest_asyncio

from app.common.errors import NotFound
from app.conversations.messages.row import StoredMessage
from app.conversations.search import index
from app.conversations.search import service as search
from app.conversations.search.service import MAX_RECALLED, NOTHING_RECALLED, SearchService
from app.conversations.search.words import MAX_RANKED
from tests.services.fakes import TENANT, Harness, result, says, user

PLANTED = "The staging database listens on port 5433, says Ódhrán."
POLICY = {"budget": {"context_window": 4000, "max_output_tokens": 500}}


@pytest.fixture
def service(harness: Harness) -> SearchService:
    """The search of the same process."""
    return SearchService(harness.database)


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
    _, found, _ = await service.page(TENANT, cid, query, **where)
    return found


async def seqs(service: SearchService, cid: str, query: str, **how: Any) -> list[int]:
    """Return the seqs of that page."""
    return [message.seq for message in await page(service, cid, query, **how)]


async def indexed(harness: Harness, cid: str) -> int:
    """Return how many messages of a conversation are indexed."""
    counted = "SELECT sum(cardinality(sizes)) FROM message_words WHERE conversation_id = $1::uuid"
    async with harness.database.store.session() as session:
        return await session._connection.fetchval(counted, cid) or 0


# --- what is found ----------------------------------------------------------------------------


async def test_a_compacted_sentence_is_found(
    harness: Harness, service: SearchService, with_sentence: str
) -> None:
    """Messages that a compaction hides are found, and so are later ones."""
    assert (await harness.compact(with_sentence)).compacted
    assert (await harness.receipt(with_sentence)).hidden_span.holds(9)
    (found,) = await page(service, with_sentence, "odhran staging port")
    assert (found.seq, PLANTED in found.body) == (9, True)
    await harness.append(with_sentence, user("and staging is slow"))
    assert await seqs(service, with_sentence, "staging") == [9, 51]


async def test_other_conversations_are_not_found(harness: Harness, service: SearchService) -> None:
    """A search finds only messages of its own conversation. [search.own-conversation]"""
    mine, other = await harness.conversation(), await harness.conversation()
    await harness.append(mine, user("the zebra is mine"))
    await harness.append(other, user("the zebra is not"), user("nor is the lion"))
    assert await seqs(service, other, "zebra") == [1]
    assert await seqs(service, mine, "lion") == []
    assert await service.recall(TENANT, mine, "lion") == ([], NOTHING_RECALLED)
    with pytest.raises(NotFound):
        await service.recall("another", mine, "zebra")


async def test_any_message_is_indexed(harness: Harness, service: SearchService) -> None:
    """Messages with NUL, lone surrogates, no words or very many long words are indexed.

    [search.words]
    """
    cid = await harness.conversation()
    many = " ".join(f"w{number:05}{'я' * 60}" for number in range(17_000))
    texts = ["\x00 \ud800 ok", " " * 100_000, "", "!?", "字" * 5000, many, many, "the end"]
    await harness.append(cid, *(user(text) for text in texts))
    for _ in ("read from the log", "indexed"):
        for query, found in (("ok", [1]), ("end", [8]), ("w16000", [6, 7])):
            assert await seqs(service, cid, query) == found
        await index.index_all(harness.database, 0)
    assert await indexed(harness, cid) == 8


# --- pages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("already", [1, 13, 29])
async def test_pages_in_both_orders(
    harness: Harness, service: SearchService, monkeypatch: pytest.MonkeyPatch, already: int
) -> None:
    """Pages of any size have each match once and in order, indexed or not [transcript.pages]."""
    monkeypatch.setattr(search, "_MAX_PAGE_BLOCKS", 3)
    monkeypatch.setattr(index, "BLOCK", 5)
    cid = await harness.conversation()
    messages = [user(f"{('even', 'odd')[seq % 2]} number") for seq in range(1, 31)]
    await harness.append(cid, *messages[:already])
    await index.index_all(harness.database, 0)
    await harness.append(cid, *messages[already:])
    expected = [*range(2, 31, 2)]
    for limit in (1, 4, 15, 40):
        for order in ("asc", "desc"):
            found: list[int] = []
            bounds = {"after_seq": 0, "before_seq": 2**60}
            while step := await seqs(service, cid, "even", order=order, limit=limit, **bounds):
                found += step
                bounds["after_seq" if order == "asc" else "before_seq"] = step[-1]
            assert found == (expected if order == "asc" else expected[::-1])
    assert await seqs(service, cid, "even", after_seq=4, before_seq=10) == [6, 8]
    assert await seqs(service, cid, "even", after_seq=9, before_seq=10) == []


# --- indexing ---------------------------------------------------------------------------------


async def test_the_worker_indexes(
    harness: Harness, service: SearchService, with_sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It indexes what is old enough. A search reads some later messages, and tells how far.

    [search.no-append-cost]
    """
    monkeypatch.setattr(index, "BLOCK", 4)
    monkeypatch.setattr(index, "LATER_BLOCKS", 2)
    for seconds, through, found in ((index.INDEX_AFTER_SECONDS, 8, []), (0, None, [9])):
        await index.index_all(harness.database, seconds)
        assert await indexed(harness, with_sentence) == len(found) * 50
        range_: dict[str, Any] = {"after_seq": 0, "before_seq": 99, "order": "asc", "limit": 9}
        _, page, reached = await service.page(TENANT, with_sentence, "staging", **range_)
        assert ([message.seq for message in page], reached) == (found, through)
        note = "[Messages after #8 are found in a minute.]"
        _, text = await service.recall(TENANT, with_sentence, "hello staging")
        assert text.endswith(note) is (through == 8)
    await harness.append(with_sentence, user("staging again"))
    assert await seqs(service, with_sentence, "staging") == [9, 51]
    assert await indexed(harness, with_sentence) == 50


async def test_a_deletion_leaves_no_words(harness: Harness, with_sentence: str) -> None:
    """Words are deleted with their conversation, and none are added later [search.words]."""
    await index.index(harness.database, with_sentence)
    await harness.conversations.remove(TENANT, with_sentence)
    await index.index(harness.database, with_sentence)
    assert await indexed(harness, with_sentence) == 0


# --- recall -----------------------------------------------------------------------------------


async def test_recall_shows_the_best_first_in_pages(
    harness: Harness, service: SearchService
) -> None:
    """Messages with the rarest words are first, with those around them.

    Pages have each match once. [search.recall-pages]
    """
    cid = await harness.conversation()
    filler = [user(f"the message {number} has a weather to see") for number in range(150)]
    asked, told = "who sleeps with a zebra?", "the lion does, in a weather like that"
    await harness.append(cid, *filler, user(asked), says(told))
    found, text = await service.recall(TENANT, cid, "Is the zebra going to see a lion?")
    assert found[:2] == [152, 151]
    assert text.splitlines()[:2] == [
        f"#152 assistant 2026-01-05 09:30: {told}",
        f"#151 user 2026-01-05 09:30: {asked}",
    ]
    assert "  before, user: the message " in text
    ranked: list[int] = []
    for offset in range(0, 40, MAX_RECALLED):
        page, text = await service.recall(TENANT, cid, "the weather", offset)
        ranked += page
        end = offset + MAX_RECALLED
        note = f"[Messages {offset + 1}-{end} of 40, the best first. Go on with offset={end}.]"
        assert text.endswith(note) is (end < 40)
    assert len(ranked) == len(set(ranked)) == MAX_RANKED
    for unknown, offset in (("the elephant", 0), ("?!", 0), ("the weather", 40)):
        assert await service.recall(TENANT, cid, unknown, offset) == ([], NOTHING_RECALLED)


async def test_recall_does_not_find_itself(harness: Harness, service: SearchService) -> None:
    """Neither the question nor the answer of an earlier `recall` is found."""
    cid = await harness.conversation()
    function = {"name": "recall", "arguments": '{"query": "which port has staging"}'}
    call: dict[str, Any] = {"role": "assistant", "content": None}
    call["tool_calls"] = [{"id": "r", "type": "function", "function": function}]
    answer = result("r", "#1 user: the staging port is 5433")
    await harness.append(cid, user("the staging port is 5433"), call, answer)
    for question in ("which port has staging", "staging port"):
        found, text = await service.recall(TENANT, cid, question)
        assert found[0] == 1 and text.count("5433") == 1
