"""How words are stored and searched: the plans, and what an index has to withstand.

[search.words]
"""

from __future__ import annotations

import re
from uuid import UUID

import pytest

from app.conversations.conversation import StoredSettings
from app.conversations.search.query import Word, query_from
from app.conversations.search.ranking import Postings
from app.conversations.search.repository import (
    ADD,
    BLOCK,
    BY_SEQS,
    FIND,
    MATCHING_WORDS,
    POSTINGS,
    SEQS_BETWEEN,
    UNINDEXED,
)
from app.conversations.search.words import MAX_LEXEMES, Term, lexemes
from app.database.connections import Statement
from app.repositories import Database
from tests.plans import plan_of
from tests.services.fakes import TENANT, new_id

BY_WORD = "Bitmap Index Scan on message_words_by_word"


@pytest.mark.one_server  # it reads the plans of one server
@pytest.mark.parametrize(
    ("statement", "words", "walks", "messages"),
    [
        (FIND["asc"], 1, 0, 1),
        (FIND["desc"], 1, 0, 1),
        (POSTINGS, 1, 0, 0),
        (MATCHING_WORDS, 0, 1, 0),
        (SEQS_BETWEEN, 0, 0, 2),
        (BY_SEQS, 0, 0, 2),
        (UNINDEXED, 0, 1, 2),
        (ADD, 0, 0, 0),
    ],
    ids=[
        *("asc", "desc", "postings", "matching_words", "seqs_between", "by_seqs"),
        *("unindexed", "add"),
    ],
)
async def test_searches_go_by_word_and_by_seq(
    database_url: str, statement: Statement, words: int, walks: int, messages: int
) -> None:
    """Without statistics, too, words are found by their index and messages by their seq."""
    plan = await plan_of(database_url, statement)
    assert plan.count(BY_WORD) == words, plan
    assert len(re.findall("using message_words_pkey", plan)) == walks, plan
    assert len(re.findall("using messages_pkey", plan)) == messages, plan
    assert "Seq Scan" not in plan
    assert "messages_by_id" not in plan


async def talk(database: Database) -> str:
    """Create a conversation whose log is empty: words need no messages."""
    made = new_id()
    async with database.session() as session:
        assert await session.conversations.add(
            TENANT, made, None, "bytes_4", StoredSettings(), "{}"
        )
    return made


async def seqs(database: Database, cid: str, term: Term, head: int, limit: int = 10**6) -> Postings:
    """Return which messages have a term."""
    async with database.session() as session:
        (found,) = await session.search.postings(cid, [[(term,)]], (0, head + 1), limit)
    return found


@pytest.mark.parametrize("limit", [1, 7, BLOCK, 10**6])
async def test_blocks_are_searched_from_the_newest_on(database: Database, limit: int) -> None:
    """Words on both sides of each border of blocks are found once, the newest first."""
    cid = await talk(database)
    there = sorted({1, *(BLOCK * number + step for number in range(1, 40) for step in (-1, 0, 1))})
    async with database.session() as session:
        await session.search.add(cid, {seq: ("zebra", f"n{seq}") for seq in there})
    head = there[-1]
    found = await seqs(database, cid, Term("zeb", is_prefix=True), head, limit)
    assert [*found.sizes] == there[::-1][:limit]
    assert (found.since > 0) is (limit < len(there))
    assert [*(await seqs(database, cid, Term(f"n{BLOCK}", is_prefix=False), head)).sizes] == [BLOCK]
    assert [*(await seqs(database, cid, Term("zeb", is_prefix=False), head)).sizes] == []


async def test_the_largest_words_of_a_message_are_stored(database: Database) -> None:
    """As many lexemes as a message may have, each as long as it may be, go into its row."""
    cid = await talk(database)
    text = " ".join(f"{number:05}{'я' * 60}" for number in range(MAX_LEXEMES + 10))
    words = lexemes(text)
    assert len(words) == MAX_LEXEMES
    async with database.session() as session:
        await session.search.add(cid, {1: words, 2: ()})
        await session.search.add(cid, {1: ("late",), 2: ("late",)})
    for place in (0, MAX_LEXEMES - 1):
        ((term,),) = query_from(f"{place:05}{'я' * 60}").words
        assert [*(await seqs(database, cid, term, 2)).sizes] == [1]
    assert [*(await seqs(database, cid, Term("late", is_prefix=False), 2)).sizes] == []


ZEBRA, LION, CAT = (Term(word, is_prefix=word == "zeb") for word in ("zeb", "lion", "cat"))


async def test_messages_have_a_word_by_any_of_its_terms(database: Database) -> None:
    """A group of words is in messages that have all of them, within a range. [search.recall]"""
    cid = await talk(database)
    words = {1: ("zebra", "lion"), 2 * BLOCK: ("lion",), 3 * BLOCK: ("cat",), 3 * BLOCK + 1: ()}
    either = (ZEBRA, CAT)
    groups: list[list[Word]] = [[either], [(LION,), either], [(ZEBRA,)]]
    async with database.session() as session:
        await session.search.add(cid, words)
        found, later = [
            await session.search.postings(cid, groups, (after_seq, 10**4), 9)
            for after_seq in (0, 1)
        ]
        matching = await session.search.matching_words(
            cid, [*words, 77], [either, (LION,), (Term("dog", is_prefix=False),)]
        )
    assert [[*item.sizes] for item in found] == [[3 * BLOCK, 1], [1], [1]]
    assert all(0 < size < 200 for item in found for size in item.sizes.values())
    assert [[*item.sizes] for item in later] == [[3 * BLOCK], [], []]
    assert matching == {1: [0, 1], 2 * BLOCK: [1], 3 * BLOCK: [0], 3 * BLOCK + 1: []}


async def test_deleted_conversations_get_no_words(database: Database) -> None:
    """Where there is no head, no row is left behind [transcript.visibility]."""
    cid = new_id()
    async with database.session() as session:
        await session.search.add(cid, {1: ("zebra",)})
        assert await session.search.by_seqs(cid, [1], 10, 10) == []
        assert await session.search.unindexed(cid, 10, 10, 10) == []
    async with database._store.session() as session:
        rows = await session._connection.fetch(
            "SELECT FROM message_words WHERE conversation_id = $1", UUID(cid)
        )
    assert rows == []
