"""Search in a transcript and in several conversations, and `recall`.

1. A search reads the rows of its conversations by their keys. There is no index of all words: to
   compare a row costs microseconds, and PostgreSQL returns the text of those that match.
2. Of several conversations the newest is searched first, and each from its newest message. A page
   ends early after MAX_CONVERSATIONS.
3. `recall` ranks the messages of MAX_BLOCKS blocks; where more have its words, of those that have
   them most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from app.common.pages import PAGE_BYTES, UNBOUNDED, Bound, Page
from app.conversations.conversation import Conversation
from app.conversations.listing import ConversationFilter
from app.conversations.messages.repository import STORED_COLUMNS, bounded_messages
from app.conversations.messages.row import StoredMessage
from app.conversations.rows import stored_message_from
from app.conversations.search.index import BY_SEQS, SearchedMessage, index, searched, searched_text
from app.conversations.search.words import (
    EXCERPT_CHARS,
    excerpt,
    operand,
    places_of,
    query_terms,
    question_terms,
    ranked,
    scores_of,
    weights_of,
)
from app.conversations.settings_resolver import SettingsResolver
from app.database.connections import Statement
from app.database.sql import limits, page_of
from app.repositories import Database

MAX_HITS: Final = 100
"""Messages on a page of a search in several conversations."""
MAX_CONVERSATIONS: Final = 1_000
MAX_RECALLED: Final = 10
"""Messages on a page of `recall`."""
MAX_BLOCKS: Final = 256
NOTHING_RECALLED = "[No message matches.]"
_CONVERSATIONS_READ, _BLOCKS_READ = 250, 32  # by one statement
_MAX_RANKED_BYTES, _MAX_BESIDE_BYTES = 4_096, 65_536  # of bodies that are read for `recall`
_MAX_NAME = 64  # characters of a tool's name
_ANY = 2**53 - 1

# Of the first conversation only what is between the seqs. With a `step` of 0 the best match comes
# first.
BLOCKS = Statement("""
    SELECT w.conversation_id, w.first_seq, w.sizes, CAST(w.words AS text) AS words
    FROM (
        SELECT conversation_id, first_seq,
            CASE WHEN CAST(:step AS float8) = 0
                THEN -ts_rank(words, CAST(:condition AS tsquery))
                ELSE first_seq * CAST(:step AS float8) END AS place
        FROM message_words
        WHERE conversation_id = ANY (:conversation_ids) AND words @@ CAST(:condition AS tsquery)
            AND (
                conversation_id <> :conversation_id
                OR first_seq < :before_seq AND first_seq + cardinality(sizes) - 1 > :after_seq
            )
        ORDER BY array_position(:conversation_ids, conversation_id), place
        LIMIT :limit
    ) found
    JOIN message_words w ON w.conversation_id = found.conversation_id
        AND w.first_seq = found.first_seq AND w.conversation_id = ANY (:conversation_ids)
    ORDER BY array_position(:conversation_ids, w.conversation_id), found.place
""")
_MESSAGES = f"""
    SELECT m.*, asked.number
    FROM unnest(:conversation_ids, :seqs) WITH ORDINALITY AS asked (in_conversation, at, number)
    CROSS JOIN LATERAL (
        SELECT conversation_id, {STORED_COLUMNS} FROM messages
        WHERE conversation_id = asked.in_conversation AND seq >= asked.at
            AND conversation_id = ANY (:conversation_ids)
        ORDER BY seq LIMIT 1
    ) m
    LIMIT :limit
"""
MESSAGES = Statement(bounded_messages(_MESSAGES, "number", "conversation_id"))


Block = tuple[str, int, Sequence[int], str]
"""A row of the index: its conversation, first seq, sizes and words."""
SearchPlace = tuple[datetime, str, int]
"""Where a page ends: before a seq of a conversation with this creation time, or older ones."""
Hit = tuple[str, StoredMessage, str]
"""A conversation, a message of it that matches, and an excerpt around the words."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """The seqs of the messages that answer a question, best first, and the text that shows them."""

    seqs: Sequence[int]
    text: str


class SearchService:
    """Finds messages by their words."""

    def __init__(self, database: Database, resolver: SettingsResolver) -> None:
        self._database = database
        self._resolver = resolver

    async def _indexed(self, tenant_id: str, conversation_id: str) -> Conversation:
        """Return a conversation after its messages are indexed; raises NotFound."""
        async with self._database.session() as session:
            conversation = await session.conversations.get(tenant_id, conversation_id)
        await index(self._database, conversation_id)
        return conversation

    async def page(
        self,
        tenant_id: str,
        conversation_id: str,
        query: str,
        *,
        after_seq: int,
        before_seq: int,
        order: str,
        limit: int,
        bound: Bound = UNBOUNDED,
    ) -> tuple[Conversation, Page[StoredMessage]]:
        """Return messages between two seqs, both exclusive, with all words of a query.

        Raises NotFound, or ValidationError at `/query/q` for an invalid query.
        """
        terms = query_terms(query)
        conversation = await self._indexed(tenant_id, conversation_id)
        seqs, step = (after_seq, before_seq), 1 if order == "asc" else -1
        places = await self._places(terms, [conversation_id], seqs, step, limit + 1)
        found = await self._messages(places, limit, bound)
        return conversation, Page((message for _, message in found), has_more=found.has_more)

    async def page_of_all(
        self,
        tenant_id: str,
        query: str,
        agent_id: str | None,
        after: SearchPlace | None,
        limit: int,
    ) -> tuple[list[Hit], SearchPlace | None]:
        """Return messages of all conversations with all words, and where the page ends.

        It may have fewer than `limit`; the end of the last page is None. Raises ValidationError at
        `/query/q` for an invalid query.
        """
        terms, places = query_terms(query), list[tuple[str, int]]()
        created: dict[str, datetime] = {}
        before, last_id, before_seq = None, "", _ANY
        if after is not None:
            at, last_id, before_seq = after
            # The next id: so the list begins with the conversation itself, if it is still there.
            before = at, str(UUID(int=UUID(last_id).int + (before_seq > 1)))
        for _ in range(0, MAX_CONVERSATIONS, _CONVERSATIONS_READ):
            async with self._database.session() as session:
                listed = await session.conversation_list.places(
                    tenant_id, ConversationFilter(agent_id=agent_id), before, _CONVERSATIONS_READ
                )
            ids = [conversation_id for _, conversation_id in listed]
            created |= {conversation_id: at for at, conversation_id in listed}
            seqs = (0, before_seq if last_id in ids[:1] else _ANY)
            places += await self._places(terms, ids, seqs, -1, limit - len(places))
            before = listed[-1] if len(listed) == _CONVERSATIONS_READ else None
            if before is None or len(places) == limit:
                break
        page = await self._messages(places, limit, Bound(PAGE_BYTES))
        if page.has_more:
            places = [(key, message.seq) for key, message in page]
        end = None if before is None else (*before, 0)
        if page.has_more or len(places) == limit:
            key, seq = places[-1]
            end = created[key], key, seq
        return await asyncio.to_thread(_hits, terms, page), end

    async def _places(
        self,
        terms: Sequence[str],
        conversation_ids: Sequence[str],
        seqs: tuple[int, int],
        step: int,
        limit: int,
    ) -> list[tuple[str, int]]:
        """Return where the first messages with all terms are.

        The seqs, both exclusive, are those of the first conversation.
        """
        condition, found = " <0> ".join(map(operand, terms)), list[tuple[str, int]]()
        while conversation_ids:
            blocks = await self._blocks(conversation_ids, condition, seqs, step, _BLOCKS_READ)
            first_id = conversation_ids[0]
            found += await asyncio.to_thread(_places_in, blocks, terms, first_id, seqs, step)
            if len(found) >= limit or len(blocks) < _BLOCKS_READ:
                break
            key, first_seq, sizes, _ = blocks[-1]
            conversation_ids = conversation_ids[conversation_ids.index(key) :]
            last_seq = first_seq + len(sizes) - 1
            seqs = (last_seq, seqs[1]) if step > 0 else (seqs[0], first_seq)
        return found[:limit]

    async def _blocks(
        self,
        conversation_ids: Sequence[str],
        condition: str,
        seqs: tuple[int, int],
        step: int,
        limit: int,
    ) -> list[Block]:
        """Return blocks that fulfil a condition, by the order of their conversations and seqs."""
        async with self._database.session() as opened:
            rows = await opened.session.all(
                BLOCKS,
                conversation_ids=list(conversation_ids),
                conversation_id=conversation_ids[0],
                condition=condition,
                after_seq=seqs[0],
                before_seq=seqs[1],
                step=step,
                limit=limit,
            )
        return [(str(row["conversation_id"]), *row[1:]) for row in rows]

    async def _messages(
        self, places: Sequence[tuple[str, int]], limit: int, bound: Bound
    ) -> Page[tuple[str, StoredMessage]]:
        """Return the first of the messages at these places, as many as the bound allows."""
        if not places:
            return Page()
        ids, seqs = (list(values) for values in zip(*places, strict=True))
        async with self._database.session() as opened:
            rows = await opened.session.all(
                MESSAGES, conversation_ids=ids, seqs=seqs, **limits(limit, bound)
            )
        return page_of(rows, lambda row: (str(row["conversation_id"]), stored_message_from(row)))

    async def recall(
        self, tenant_id: str, conversation_id: str, question: str, offset: int = 0
    ) -> Recalled:
        """Return the messages that answer a question best; raises NotFound."""
        conversation = await self._indexed(tenant_id, conversation_id)
        terms, head_seq = question_terms(question), conversation.state.head_seq
        if not terms:
            return Recalled((), NOTHING_RECALLED)
        condition = " | ".join(map(operand, terms))
        seqs = (0, head_seq + 1)
        blocks = await self._blocks([conversation_id], condition, seqs, 0, MAX_BLOCKS)
        weights, scores = await asyncio.to_thread(_scores, terms, blocks, head_seq)
        known = await self._by_seqs(conversation_id, scores, _MAX_RANKED_BYTES)
        order = await asyncio.to_thread(
            lambda: ranked(question, scores, {seq: item.text for seq, item in known.items()})
        )
        page = order[offset : offset + MAX_RECALLED]
        around = {seq + step for seq in page for step in (-1, 0, 1)}.difference(known)
        known |= await self._by_seqs(conversation_id, around, _MAX_BESIDE_BYTES, page)
        page = [seq for seq in page if seq in known]  # others were deleted meanwhile
        lines = await asyncio.to_thread(lambda: [*_recalled_lines(page, known, weights)])
        next_offset = offset + len(page)
        if not page:
            past = f"[{len(order)} messages are ranked; offset={offset} is past the last.]"
            lines.append(past if order else NOTHING_RECALLED)
        elif next_offset < len(order):
            shown = f"{offset + 1}-{next_offset} of {len(order)}"
            lines.append(f"[Messages {shown}, the best first. Go on with offset={next_offset}.]")
        return Recalled(page, "\n".join(lines))

    async def _by_seqs(
        self, conversation_id: str, seqs: Iterable[int], most: int, whole: Sequence[int] = ()
    ) -> dict[int, SearchedMessage]:
        """Return messages by seq, without those with more bytes that are not in `whole`."""
        given = {"seqs": list(seqs), "most": most, "whole": whole}
        async with self._database.session() as opened:
            return await searched(opened.session, BY_SEQS, conversation_id, **given)


def _places_in(
    blocks: Iterable[Block], terms: Sequence[str], first_id: str, seqs: tuple[int, int], step: int
) -> list[tuple[str, int]]:
    """Return where the messages with all terms are, in the order of a search."""
    return [
        (key, seq)
        for key, first_seq, _, words in blocks
        for place in sorted(set.intersection(*places_of(terms, words).values()), reverse=step < 0)
        if seqs[0] < (seq := first_seq + place - 1) < seqs[1] or key != first_id
    ]


def _hits(terms: Sequence[str], found: Iterable[tuple[str, StoredMessage]]) -> list[Hit]:
    weights = dict.fromkeys(terms, 1.0)
    return [(key, message, excerpt(searched_text(message), weights)) for key, message in found]


def _scores(
    terms: Sequence[str], blocks: Sequence[Block], head_seq: int
) -> tuple[dict[str, float], dict[int, float]]:
    """Return the weights of a question's terms, and the scores of the best messages."""
    postings: dict[str, list[int]] = {term: [] for term in terms}
    sizes: dict[int, int] = {}
    for _, first_seq, block_sizes, words in blocks:
        sizes |= enumerate(block_sizes, first_seq)
        for term, places in places_of(terms, words).items():
            postings[term] += [first_seq + place - 1 for place in places]
    weights = weights_of(postings, head_seq if len(blocks) < MAX_BLOCKS else len(sizes))
    return weights, scores_of(postings, weights, sizes, head_seq)


def _recalled_lines(
    page: Sequence[int], known: Mapping[int, SearchedMessage], weights: Mapping[str, float]
) -> Iterator[str]:
    """Yield a line for each message, and below it one for each of those around it."""
    for seq in page:
        item = known[seq]
        output, ref = item.message.output, item.message.output_ref
        more = ""
        if output is not None and output.is_cut and ref is not None:
            more = f' [{ref.byte_size:,} bytes; ref_id="{ref.id}"]'
        shown = excerpt(item.text, weights)
        yield f"#{seq} {_who(item)} {item.said_at:%Y-%m-%d %H:%M}: {shown}{more}"
        for place, beside in (("before", seq - 1), ("after", seq + 1)):
            if beside in known and beside not in page:
                other = known[beside]
                if shown := excerpt(other.text, weights, EXCERPT_CHARS // 2):
                    yield f"  {place}, {_who(other)}: {shown}"


def _who(item: SearchedMessage) -> str:
    return f"{item.message.role} {(item.tool_name or '')[:_MAX_NAME]}".rstrip()
