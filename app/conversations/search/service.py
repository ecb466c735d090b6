"""Search in a transcript and in several conversations, and `recall`.

1. A search reads the rows of its conversations by their keys, and writes nothing. There is no index
   of all words: to compare a row costs microseconds, and PostgreSQL returns the text of those that
   match.
2. In one conversation also the messages after its index are searched, as far as
   `index.later_blocks` reads; the answer tells the last seq where there are more.
3. Of several conversations the newest is searched first, and each from its newest message. A page
   ends early after MAX_CONVERSATIONS, or where _MAX_PAGE_BLOCKS match.
4. `recall` ranks the messages of MAX_BLOCKS blocks; where more have its words, of those that have
   them most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, takewhile
from operator import itemgetter
from typing import Final
from uuid import UUID

from app.common.pages import PAGE_BYTES, UNBOUNDED, Bound, Page
from app.conversations.conversation import Conversation
from app.conversations.listing import ConversationFilter
from app.conversations.messages.row import StoredMessage
from app.conversations.search.index import (
    AT_ONCE,
    Block,
    SearchedMessage,
    later_blocks,
    messages_of,
)
from app.conversations.search.words import (
    EXCERPT_CHARS,
    excerpt,
    operand,
    places_of,
    query_terms,
    question_terms,
    ranked,
    scores_of,
)
from app.database.connections import Statement
from app.repositories import Database

MAX_HITS: Final = 100
"""Messages on a page of a search in several conversations."""
MAX_CONVERSATIONS: Final = 1_000
MAX_RECALLED: Final = 10
"""Messages on a page of `recall`."""
MAX_BLOCKS: Final = 256
NOTHING_RECALLED = "[No message matches.]"
_CONVERSATIONS_READ = 250  # by one statement
_MAX_PAGE_BLOCKS: Final = 64  # two of them may have matches outside of the page alone
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
INDEXED_BEFORE = Statement("""
    SELECT h.unindexed_at FROM heads h
    JOIN conversations c ON c.conversation_id = h.conversation_id
    WHERE h.unindexed_at IS NOT NULL AND c.tenant_id = :tenant_id
    ORDER BY h.unindexed_at LIMIT 1
""")

SearchPlace = tuple[datetime, str, int]
"""Where a page ends: before a seq of a conversation with this creation time, or older ones."""
_Places = list[tuple[str, int]]  # conversations and seqs


@dataclass(frozen=True, slots=True)
class Hits:
    """Conversations with messages of them that match, and excerpts around the words.

    `end` is where the page ends, None for the last one. What was stored before `indexed_before` was
    searched; None is everything.
    """

    found: Sequence[tuple[str, StoredMessage, str]]
    end: SearchPlace | None
    indexed_before: datetime | None


@dataclass(frozen=True, slots=True)
class Recalled:
    """The seqs of the messages that answer a question, best first, and the text that shows them."""

    seqs: Sequence[int]
    text: str


@dataclass(eq=False, repr=False)
class SearchService:
    """Finds messages by their words."""

    _database: Database

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
    ) -> tuple[Conversation, Page[StoredMessage], int | None]:
        """Return messages between two seqs, both exclusive, with all words of a query.

        The last is the seq through which they were searched, None for the whole log. Raises
        NotFound, or ValidationError at `/query/q` for an invalid query.
        """
        terms, step = query_terms(query), 1 if order == "asc" else -1
        conversation, past, later = await self._later(tenant_id, conversation_id)
        seqs = (after_seq, min(before_seq, past))
        places, is_cut = await self._places(terms, [conversation_id], seqs, step, limit + 1)
        seqs = (max(after_seq, past - 1), before_seq)
        others = await asyncio.to_thread(
            _places_in, later[::step], terms, conversation_id, seqs, step
        )
        if step < 0:
            places = others + places
        elif not is_cut:
            places += others
        wanted = [seq for _, seq in places[:limit]]
        async with self._database.session() as opened:
            found = await messages_of(opened.session, conversation_id, wanted, limit, bound)
        has_more = bool(found) and (found.has_more or is_cut or len(places) > limit)
        messages = Page((item.message for item in found), has_more=has_more)
        return conversation, messages, _reached(conversation, later)

    async def _later(
        self, tenant_id: str, conversation_id: str
    ) -> tuple[Conversation, int, list[Block]]:
        """Return a conversation with its messages that are not indexed; raises NotFound."""
        async with self._database.session() as session:
            conversation = await session.conversations.get(tenant_id, conversation_id)
            head_seq = conversation.state.head_seq
            return conversation, *await later_blocks(session.session, conversation_id, head_seq)

    async def page_of_all(
        self,
        tenant_id: str,
        query: str,
        agent_id: str | None,
        after: SearchPlace | None,
        limit: int,
    ) -> Hits:
        """Return messages of all conversations with all words, maybe fewer than `limit`.

        Raises ValidationError at `/query/q` for an invalid query.
        """
        terms, places, is_cut = query_terms(query), _Places(), False
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
            found, is_cut = await self._places(terms, ids, seqs, -1, limit - len(places))
            places += found
            before = listed[-1] if len(listed) == _CONVERSATIONS_READ else None
            if before is None or is_cut:
                break
        hits, room = list[tuple[str, SearchedMessage]](), PAGE_BYTES
        async with self._database.session() as opened:
            indexed_before = await opened.session.value(INDEXED_BEFORE, tenant_id=tenant_id)
            for key, of_one in groupby(places, itemgetter(0)):
                wanted = [seq for _, seq in of_one]
                page = await messages_of(opened.session, key, wanted, limit, Bound(room))
                hits += ((key, item) for item in page)
                room -= sum(len(item.message.body) for item in page)
                if page.has_more or room <= 0:
                    places, is_cut = [(key, item.message.seq) for key, item in hits], True
                    break
        end = (*before, 0) if before is not None else None
        if is_cut:
            key, seq = places[-1]
            end = created[key], key, seq
        weights = dict.fromkeys(terms, 1.0)
        shown = await asyncio.to_thread(
            lambda: [(key, item.message, excerpt(item.text, weights)) for key, item in hits]
        )
        return Hits(shown, end, indexed_before)

    async def _places(
        self,
        terms: Sequence[str],
        conversation_ids: Sequence[str],
        seqs: tuple[int, int],
        step: int,
        limit: int,
    ) -> tuple[_Places, bool]:
        """Return where the first messages with all terms are, and whether there may be more.

        The seqs, both exclusive, are those of the first conversation.
        """
        if not conversation_ids:
            return [], False
        condition, most = " <0> ".join(map(operand, terms)), min(limit + 2, _MAX_PAGE_BLOCKS)
        blocks = await self._blocks(conversation_ids, condition, seqs, step, most)
        first_id = conversation_ids[0]
        found = await asyncio.to_thread(_places_in, blocks, terms, first_id, seqs, step)
        return found[:limit], len(found) >= limit or len(blocks) == most

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
        return [Block(str(row["conversation_id"]), *row[1:]) for row in rows]

    async def recall(
        self, tenant_id: str, conversation_id: str, question: str, offset: int = 0
    ) -> Recalled:
        """Return the messages that answer a question best; raises NotFound."""
        conversation, past, later = await self._later(tenant_id, conversation_id)
        terms, seqs = question_terms(question), (0, past)
        if not terms:
            return Recalled((), NOTHING_RECALLED)
        condition = " | ".join(map(operand, terms))
        blocks = await self._blocks([conversation_id], condition, seqs, 0, MAX_BLOCKS)
        head_seq = conversation.state.head_seq
        weights, scores = await asyncio.to_thread(_scores, terms, [*blocks, *later], head_seq)
        known = await self._by_seq(conversation_id, [*scores], AT_ONCE)
        order = await asyncio.to_thread(
            lambda: ranked(question, scores, {seq: item.text for seq, item in known.items()})
        )
        page = order[offset : offset + MAX_RECALLED]
        around = [
            seq + beside for beside in (0, -1, 1) for seq in page if seq + beside not in known
        ]
        known |= await self._by_seq(conversation_id, around, Bound(PAGE_BYTES))
        page = [*takewhile(known.__contains__, page)]  # others are too large for it, or deleted
        lines = await asyncio.to_thread(lambda: [*_recalled_lines(page, known, weights)])
        next_offset = offset + len(page)
        if not page:
            past_last = f"[{len(order)} messages are ranked; offset={offset} is past the last.]"
            lines.append(past_last if order else NOTHING_RECALLED)
        elif next_offset < len(order):
            shown = f"{offset + 1}-{next_offset} of {len(order)}"
            lines.append(f"[Messages {shown}, the best first. Go on with offset={next_offset}.]")
        if reached := _reached(conversation, later):
            lines.append(f"[Messages after #{reached} are found in a minute.]")
        return Recalled(page, "\n".join(lines))

    async def _by_seq(
        self, conversation_id: str, seqs: Sequence[int], bound: Bound
    ) -> dict[int, SearchedMessage]:
        """Return the first of these messages, as many as the bound allows."""
        async with self._database.session() as opened:
            found = await messages_of(opened.session, conversation_id, seqs, len(seqs), bound)
        return {item.message.seq: item for item in found}


def _reached(conversation: Conversation, later: Sequence[Block]) -> int | None:
    """Return the seq through which a log was searched, None for the whole of it (rule 2)."""
    past = later[-1].past if later else _ANY
    return past - 1 if past <= conversation.state.head_seq else None


def _places_in(
    blocks: Iterable[Block], terms: Sequence[str], first_id: str, seqs: tuple[int, int], step: int
) -> _Places:
    """Return where the messages with all terms are, in the order of a search."""
    return [
        (block.conversation_id, seq)
        for block in blocks
        for place in sorted(
            set.intersection(*places_of(terms, block.words).values()), reverse=step < 0
        )
        if seqs[0] < (seq := block.first_seq + place - 1) < seqs[1]
        or block.conversation_id != first_id
    ]


def _scores(
    terms: Sequence[str], blocks: Sequence[Block], head_seq: int
) -> tuple[dict[str, float], dict[int, float]]:
    """Return the weights of a question's terms, and the scores of the best messages."""
    postings: dict[str, list[int]] = {term: [] for term in terms}
    sizes: dict[int, int] = {}
    for block in blocks:
        sizes |= enumerate(block.sizes, block.first_seq)
        for term, places in places_of(terms, block.words).items():
            postings[term] += [block.first_seq + place - 1 for place in places]
    count = head_seq if len(blocks) < MAX_BLOCKS else len(sizes)
    return scores_of(postings, sizes, head_seq, count)


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
