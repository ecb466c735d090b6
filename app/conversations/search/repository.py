"""The words of messages in PostgreSQL: an index that only searches read and write.

1. Every lexeme begins with a key for a block of BLOCK messages of one conversation. So a search in
   the GIN index reads entries of that conversation alone.
2. Blocks are searched one after the other until enough messages are found. A common word is found
   in the first block, a rare one costs an index search per block. Later blocks are searched in
   larger groups.
3. `message_words` has no gaps: messages are indexed in order, and a message without words has a
   row as well. So the last row is the progress of the index.
4. A deletion leaves no row behind: the state is locked while rows are added.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Any
from uuid import UUID

from app.common import json_text
from app.common.pages import UNBOUNDED, Bound, Page
from app.conversations.messages.repository import named_calls
from app.conversations.messages.row import StoredMessage
from app.conversations.rows import stored_message_from
from app.conversations.search.query import Query
from app.conversations.search.recall import Postings
from app.conversations.search.statements import (
    ADD,
    BY_SEQS,
    CLEAR_REDACTED,
    FIND,
    MATCHING_WORDS,
    POSTINGS,
    SEQS_BETWEEN,
    TIME_OF,
    UNINDEXED,
)
from app.conversations.search.texts import SearchedMessage
from app.conversations.search.words import Term
from app.database.paging import limits, page_of
from app.database.repository import Repository

BLOCK = 1024
"""Messages whose lexemes have one key."""
_LARGEST_GROUP = 32
_KEY = "%"  # the placeholder of a block's key in a query for all blocks


class SearchRepository(Repository):
    """Indexes the words of one conversation's messages, and searches them."""

    async def unindexed(
        self, conversation_id: str, through_seq: int, limit: int, max_bytes: int
    ) -> list[SearchedMessage]:
        """Return the next messages to index, up to a seq and a limit.

        The list ends with the message at which the total size of bodies reaches `max_bytes`.
        """
        rows = await self._session.all(
            UNINDEXED,
            conversation_id=conversation_id,
            through_seq=through_seq,
            limit=limit,
            max_bytes=max_bytes,
        )
        return [searched_from(row) for row in rows]

    async def add(self, conversation_id: str, words: Mapping[int, Sequence[str]]) -> None:
        """Index messages that are not indexed yet by their lexemes.

        It does nothing for a deleted conversation. Call it in a transaction.
        """
        keys = {block: _key(conversation_id, block) for block in {seq // BLOCK for seq in words}}
        joined = [
            " ".join([keys[seq // BLOCK] + lexeme for lexeme in lexemes])
            for seq, lexemes in words.items()
        ]
        seqs = list(words)
        await self._session.run(ADD, conversation_id=conversation_id, seqs=seqs, words=joined)
        await self._session.run(CLEAR_REDACTED, conversation_id=conversation_id, seqs=seqs)

    async def find(
        self,
        conversation_id: str,
        query: Query,
        *,
        after_seq: int,
        before_seq: int,
        order: str,
        limit: int,
        bound: Bound = UNBOUNDED,
    ) -> Page[StoredMessage]:
        """Return up to `limit` messages between two seqs, both exclusive, by their words alone."""
        rows = await self._session.all(
            FIND[order],
            conversation_id=conversation_id,
            queries=block_queries(conversation_id, query, after_seq, before_seq, order),
            after_seq=after_seq,
            before_seq=before_seq,
            **limits(limit, bound),
        )
        return page_of(rows, stored_message_from)

    async def postings(
        self,
        conversation_id: str,
        groups: Sequence[Sequence[Sequence[Term]]],
        *,
        after_seq: int,
        before_seq: int,
        limit: int,
    ) -> list[Postings]:
        """Return for each group of words the newest `limit` messages that have all of them.

        A message has a word if it has any of its terms. Both seqs are exclusive.
        """
        keys = _grouped_keys(conversation_id, after_seq, before_seq, "desc")
        rows = await self._session.all(
            POSTINGS,
            conversation_id=conversation_id,
            groups=["\n".join(_by_group(keys, _all_words(group))) for group in groups],
            after_seq=after_seq,
            before_seq=before_seq,
            limit=limit,
        )
        return [_postings_from(row, limit) for row in rows]

    async def matching_words(
        self, conversation_id: str, seqs: Sequence[int], words: Sequence[Sequence[Term]]
    ) -> dict[int, list[int]]:
        """Return the numbers of the words, from 0 on, that each of these messages has."""
        if not words:
            return {}
        rows = await self._session.all(
            MATCHING_WORDS,
            conversation_id=conversation_id,
            seqs=list(seqs),
            keys=[_key(conversation_id, seq // BLOCK) for seq in seqs],
            words=[_any_of(terms) for terms in words],
        )
        return {row["seq"]: list(row["numbers"]) for row in rows}

    async def by_seqs(
        self, conversation_id: str, seqs: Sequence[int], max_bytes: int, max_body_bytes: int
    ) -> list[SearchedMessage]:
        """Return messages by their seqs, in log order; those with a larger body are left out.

        The list ends with the message at which the total size of bodies reaches `max_bytes`.
        """
        rows = await self._session.all(
            BY_SEQS,
            conversation_id=conversation_id,
            seqs=list(seqs),
            max_bytes=max_bytes,
            max_body_bytes=max_body_bytes,
        )
        return [searched_from(row) for row in rows]

    async def time_of(self, conversation_id: str, seq: int) -> datetime | None:
        """Return the time of the newest message up to a seq."""
        row = await self._session.first(TIME_OF, conversation_id=conversation_id, seq=seq)
        return row["said_at"] if row is not None else None

    async def seqs_between(
        self, conversation_id: str, head_seq: int, start: datetime, end: datetime
    ) -> tuple[int, int]:
        """Return the first seq of a time and the first seq after it; the end is exclusive."""
        row = await self._session.first(
            SEQS_BETWEEN, conversation_id=conversation_id, head_seq=head_seq, start=start, end=end
        )
        assert row is not None
        return row["first_seq"], row["end_seq"]


def block_queries(
    conversation_id: str, query: Query, after_seq: int, before_seq: int, order: str
) -> list[str]:
    """Return a query for each group of blocks between two seqs, in this order."""
    groups = _grouped_keys(conversation_id, after_seq, before_seq, order)
    return _by_group(groups, _tsquery(query))


def _key(conversation_id: str, block: int) -> str:
    """Return the key of a block's lexemes (rule 1).

    A collision is harmless, because searches also compare the conversation of a row.
    """
    digest = blake2b(UUID(conversation_id).bytes + block.to_bytes(8), digest_size=6).digest()
    return b64encode(digest).decode()


def _tsquery(query: Query) -> str:
    """Return the tsquery of a query, with a placeholder for the block."""
    without = [f"!({_all_of(group)})" for group in query.excluded]
    return " & ".join([_all_of(query.words), *without])


def _all_of(terms: Sequence[Term]) -> str:
    return " & ".join(map(_lexeme, terms))


def _any_of(terms: Sequence[Term]) -> str:
    return " | ".join(map(_lexeme, terms))


def _all_words(words: Sequence[Sequence[Term]]) -> str:
    return " & ".join(f"({_any_of(terms)})" for terms in words)


def _lexeme(term: Term) -> str:
    # A lexeme has only letters, digits, marks and underscores, so it needs no escaping.
    return f"'{_KEY}{term.lexeme}'{':*' if term.is_prefix else ''}"


def _grouped_keys(
    conversation_id: str, after_seq: int, before_seq: int, order: str
) -> list[list[str]]:
    """Return the keys of the blocks between two seqs, in groups and in the order of rule 2."""
    blocks = range((after_seq + 1) // BLOCK, (before_seq - 1) // BLOCK + 1)
    keys = [
        _key(conversation_id, block) for block in (blocks if order == "asc" else reversed(blocks))
    ]
    groups: list[list[str]] = []
    start = 0
    while start < len(keys):
        size = min(max(start, 1), _LARGEST_GROUP)
        groups.append(keys[start : start + size])
        start += size
    return groups


def _by_group(groups: Sequence[Sequence[str]], query: str) -> list[str]:
    """Return a query for each group of blocks."""
    return [" | ".join([f"({query.replace(_KEY, key)})" for key in keys]) for keys in groups]


def searched_from(row: Any) -> SearchedMessage:
    """Return a message from a row of a statement of `searched`."""
    tool_name = None
    if row["call_ids"] is not None:
        calls = named_calls(row["calling_ids"], row["calling_names"])
        tool_name = calls.get(json_text.loads(row["call_ids"])[0])
    return SearchedMessage(stored_message_from(row), tool_name, row["said_at"])


def _postings_from(row: Any, limit: int) -> Postings:
    seqs = tuple(row["seqs"] or ())
    return Postings(seqs, tuple(row["sizes"] or ()), min(seqs) if len(seqs) == limit else 0)
