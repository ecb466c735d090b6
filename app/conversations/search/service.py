"""Search in a transcript and in several conversations, and `recall`.

1. A search reads the rows of its conversations by their keys, and writes nothing. No index leads
   from a word to rows: to compare a row costs microseconds, and PostgreSQL returns the text of
   those that match.
2. In one conversation also the messages after its index are searched, as far as
   `index.later_blocks` reads; the answer tells the last seq where there are more.
3. Of several conversations the newest is searched first, and each from its newest message. A page
   ends early after MAX_CONVERSATIONS, or where _MAX_PAGE_BLOCKS match.
4. `recall` ranks the messages of MAX_BLOCKS blocks; where more have its words, of those that have
   them most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
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
from app.conversations.search import words
from app.conversations.search.index import Block, SearchedMessage, later_blocks, messages_of
from app.database.connections import Session, Statement
from app.formats.message import Role
from app.http import cursors
from app.http.fields import ResponseSchema
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
_ANY = 2**53 - 1

# Of the first conversation only what is between the seqs. With a `step` of 0 the best match comes
# first.
BLOCKS = Statement("""
    SELECT conversation_id, first_seq, sizes, CAST(words AS text) AS words
    FROM (
        SELECT conversation_id, first_seq, sizes, words,
            array_position(:conversation_ids, conversation_id) AS number,
            CASE WHEN CAST(:step AS float8) = 0
                THEN -ts_rank(words, CAST(:condition AS tsquery))
                ELSE first_seq * CAST(:step AS float8) END AS place
        FROM message_words
        WHERE conversation_id = ANY (:conversation_ids) AND words @@ CAST(:condition AS tsquery)
            AND (conversation_id <> :conversation_id
                OR first_seq < :before_seq AND first_seq + cardinality(sizes) - 1 > :after_seq)
        ORDER BY number, place LIMIT :limit
    ) found
    ORDER BY number, place
""")
INDEXED_BEFORE = Statement("""
    SELECT h.unindexed_at FROM states h
    JOIN conversations c ON c.conversation_id = h.conversation_id
    WHERE h.unindexed_at IS NOT NULL AND c.tenant_id = :tenant_id
    ORDER BY h.unindexed_at LIMIT 1
""")

_Seqs = tuple[int, int]  # both exclusive
_Places = list[tuple[str, int]]  # conversations and seqs


class SearchHit(ResponseSchema):
    """A message that a search found."""

    conversation_id: str
    """UUID of its conversation."""
    seq: int
    """Its position in the log."""
    message_id: str
    """Id of the message."""
    role: Role
    """Role of the message."""
    snippet: str
    """Its text around the words, on one line."""
    created_at: datetime
    """When it was received."""


class SearchPage(cursors.Page[SearchHit]):
    """Hits, those of the newest conversation first."""

    indexed_before: datetime | None
    """What was stored before this time was searched; null if everything was."""


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
        NotFound, or ValidationError at `/query/query` for an invalid query.
        """
        terms, step = words.query_terms(query), 1 if order == "asc" else -1
        async with self._database.session() as opened:
            session = opened.session
            conversation = await opened.conversations.get(tenant_id, conversation_id)
            head_seq = conversation.state.head_seq
            past, later, reached = await later_blocks(session, conversation_id, head_seq)
            keys, seqs = [conversation_id], (after_seq, min(before_seq, past))
            places, is_cut = await _places(session, terms, keys, seqs, step, limit + 1)
            seqs = (max(after_seq, past - 1), before_seq)
            others = await asyncio.to_thread(_places_in, later[::step], terms, keys, seqs, step)
            if step < 0:
                places = others + places
            elif not is_cut:
                places += others
            wanted = [seq for _, seq in places[:limit]]
            found = await messages_of(session, conversation_id, wanted, bound)
        has_more = bool(found) and (found.has_more or is_cut or len(places) > limit)
        return conversation, Page((item.message for item in found), has_more=has_more), reached

    async def page_of_all(
        self, tenant_id: str, query: str, agent_id: str | None, cursor: str | None, limit: int
    ) -> SearchPage:
        """Return messages of all conversations with all words, maybe fewer than `limit`.

        Raises ValidationError at `/query/query` or `/query/cursor`.
        """
        digest, wanted = cursors.digest_of(query, agent_id), ConversationFilter(agent_id=agent_id)
        terms, places, is_cut = words.query_terms(query), _Places(), False
        created: dict[str, datetime] = {}
        before, last_id, before_seq = None, "", _ANY
        if cursor is not None:
            at, last_id, before_seq = cursors.decode(cursor, "search", digest)
            # The next id: so the list begins with the conversation itself, if it is still there.
            before = at, str(UUID(int=UUID(last_id).int + (before_seq > 1)))
        hits, room = list[tuple[str, SearchedMessage]](), PAGE_BYTES
        async with self._database.session() as opened:
            session = opened.session
            for _ in range(0, MAX_CONVERSATIONS, _CONVERSATIONS_READ):
                listed = await opened.conversation_list.places(
                    tenant_id, wanted, before, _CONVERSATIONS_READ
                )
                created |= {key: at for at, key in listed}
                keys = [key for _, key in listed]
                seqs = (0, before_seq if last_id in keys[:1] else _ANY)
                most = limit - len(places)
                found, is_cut = await _places(session, terms, keys, seqs, -1, most)
                places += found
                before = listed[-1] if len(listed) == _CONVERSATIONS_READ else None
                if before is None or is_cut:
                    break
            for key, of_one in groupby(places, itemgetter(0)):
                page = await messages_of(session, key, [seq for _, seq in of_one], Bound(room))
                hits += ((key, item) for item in page)
                room -= sum(len(item.message.body) for item in page)
                if page.has_more or room <= 0:
                    places, is_cut = [(key, item.message.seq) for key, item in hits], True
                    break
            public_ids = await opened.conversations.public_ids(tenant_id, {key for key, _ in hits})
            indexed_before = await session.value(INDEXED_BEFORE, tenant_id=tenant_id)
        next_cursor, seq = None, 0
        if is_cut:
            key, seq = places[-1]
            before = created[key], key
        if before is not None:
            next_cursor = cursors.encode("search", digest, *before, seq)
        data = await asyncio.to_thread(
            lambda: [_hit(item, public_ids[key], terms) for key, item in hits]
        )
        return SearchPage(data=data, next_cursor=next_cursor, indexed_before=indexed_before)

    async def recall(
        self, tenant_id: str, conversation_id: str, question: str, offset: int = 0
    ) -> tuple[list[int], str]:
        """Return the seqs of the messages that answer a question, best first, and their text.

        Raises NotFound.
        """
        terms = words.question_terms(question)
        async with self._database.session() as opened:
            session = opened.session
            conversation = await opened.conversations.get(tenant_id, conversation_id)
            head_seq = conversation.state.head_seq
            past, blocks, reached = await later_blocks(session, conversation_id, head_seq)
            condition = " | ".join(map(words.operand, terms))
            blocks += await _blocks(session, [conversation_id], condition, (0, past), 0, MAX_BLOCKS)
            weights, scores = await asyncio.to_thread(_scores, terms, blocks, head_seq)
            found = await messages_of(session, conversation_id, [*scores])
            known = {item.message.seq: item for item in found}
            texts = await asyncio.to_thread(lambda: {seq: known[seq].text for seq in known})
            order = words.ranked(question, scores, texts)
            page = order[offset : offset + MAX_RECALLED]
            around = [seq + beside for beside in (0, -1, 1) for seq in page]
            unknown = [seq for seq in around if seq not in known]
            more = await messages_of(session, conversation_id, unknown, Bound(PAGE_BYTES))
        known |= {item.message.seq: item for item in more}
        page = [*takewhile(known.__contains__, page)]  # others are too large for it, or deleted
        lines = await asyncio.to_thread(lambda: [*_recalled_lines(page, known, weights)])
        end = offset + len(page)
        if not page:
            lines.append(NOTHING_RECALLED)
        elif end < len(order):
            shown = f"{offset + 1}-{end} of {len(order)}"
            lines.append(f"[Messages {shown}, the best first. Go on with offset={end}.]")
        if reached is not None:
            lines.append(f"[Messages after #{reached} are found in a minute.]")
        return page, "\n".join(lines)


async def _places(
    session: Session, terms: Sequence[str], keys: list[str], seqs: _Seqs, step: int, limit: int
) -> tuple[_Places, bool]:
    """Return where the first messages with all terms are, and whether there may be more.

    The seqs are those of the first conversation.
    """
    condition, most = " <0> ".join(map(words.operand, terms)), min(limit + 2, _MAX_PAGE_BLOCKS)
    blocks = await _blocks(session, keys, condition, seqs, step, most) if keys else []
    found = await asyncio.to_thread(_places_in, blocks, terms, keys[:1], seqs, step)
    return found[:limit], len(found) >= limit or len(blocks) == most


async def _blocks(
    session: Session, keys: list[str], condition: str, seqs: _Seqs, step: int, limit: int
) -> list[Block]:
    """Return blocks that fulfil a condition, by the order of their conversations and seqs."""
    given = {"condition": condition, "after_seq": seqs[0], "before_seq": seqs[1], "step": step}
    of = {"conversation_ids": keys, "conversation_id": keys[0]}
    rows = await session.all(BLOCKS, **of, **given, limit=limit)
    return [Block(str(row["conversation_id"]), *row[1:]) for row in rows]


def _places_in(
    blocks: Sequence[Block], terms: Sequence[str], first: list[str], seqs: _Seqs, step: int
) -> _Places:
    """Return where the messages with all terms are, in the order of a search."""
    return [
        (block.conversation_id, seq)
        for block in blocks
        for place in sorted(set.intersection(*words.places_of(terms, block.words).values()))[::step]
        if seqs[0] < (seq := block.first_seq + place - 1) < seqs[1]
        or block.conversation_id not in first
    ]


def _hit(item: SearchedMessage, public_id: str, terms: Sequence[str]) -> SearchHit:
    snippet = words.excerpt(item.text, dict.fromkeys(terms, 1.0))
    return SearchHit.of(
        item.message, conversation_id=public_id, message_id=item.message.id, snippet=snippet
    )


def _scores(
    terms: Sequence[str], blocks: Sequence[Block], head_seq: int
) -> tuple[dict[str, float], dict[int, float]]:
    """Return the weights of a question's terms, and the scores of the best messages."""
    postings: dict[str, list[int]] = {term: [] for term in terms}
    sizes: dict[int, int] = {}
    for block in blocks:
        sizes |= enumerate(block.sizes, block.first_seq)
        for term, places in words.places_of(terms, block.words).items():
            postings[term] += [block.first_seq + place - 1 for place in places]
    count = head_seq if len(blocks) < MAX_BLOCKS else len(sizes)
    return words.scores_of(postings, sizes, head_seq, count)


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
        shown = words.excerpt(item.text, weights)
        yield f"#{seq} {_who(item)} {item.said_at:%Y-%m-%d %H:%M}: {shown}{more}"
        for place, beside in (("before", seq - 1), ("after", seq + 1)):
            if beside in known and beside not in page:
                other = known[beside]
                if shown := words.excerpt(other.text, weights, words.EXCERPT_CHARS // 2):
                    yield f"  {place}, {_who(other)}: {shown}"


def _who(item: SearchedMessage) -> str:
    return f"{item.message.role} {item.tool_name or ''}".rstrip()
