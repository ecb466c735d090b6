"""The messages that answer a question best: a page of them, each with those around it.

1. Candidates come from the index: the newest messages for every word, and the newest that have all
   words, with a limit. A question about a time also reads the newest ones of that time.
2. The best candidates are read as far as they are small, and ranked by their texts as well.
3. So the cost has bounds that do not depend on the length of the log, except for the index entries
   of a word, one for each block [search.words].
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from app.blobs.blobs import ToolOutputRef
from app.conversations.conversation import Conversation
from app.conversations.search.query import Question, question_from
from app.conversations.search.ranking import Postings, Ranking
from app.conversations.search.texts import EXCERPT_CHARS, SearchedMessage, excerpt
from app.conversations.search.words import Term
from app.repositories import Database, Repositories

MAX_RECALLED: Final = 10
"""Messages on a page of `recall`."""
MAX_POSTINGS = 200
"""Messages per word of a question."""
MAX_RANKED_BYTES: Final = 4_096
"""The size of a message's body up to which its text is read for the ranking."""
READ_BYTES = 2_000_000
"""Bytes of bodies that are read at once."""
MAX_NEIGHBOUR_BYTES = 65_536
"""The size of a message's body up to which it is shown beside another one."""
NEIGHBOUR_CHARS = EXCERPT_CHARS // 2
_ANY_SIZE = 2**62

_Texts = Mapping[int, tuple[SearchedMessage, str]]


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A message beside one that is shown, with an excerpt."""

    role: str
    tool_name: str | None
    excerpt: str


@dataclass(frozen=True, slots=True)
class Recalled:
    """A message that answers a question, with an excerpt, and the messages around it.

    `output_ref` refers to the whole of a cut result. `tool_name` is None where it is unknown.
    `before` and `after` are None where they are shown themselves, or have no text.
    """

    seq: int
    role: str
    tool_name: str | None
    time: datetime
    excerpt: str
    output_ref: ToolOutputRef | None
    before: Neighbour | None = None
    after: Neighbour | None = None


@dataclass(frozen=True, slots=True)
class RecallPage:
    """Messages that answer a question, best first, from `offset` on, of `total` ranked ones."""

    messages: tuple[Recalled, ...]
    offset: int
    total: int


async def recall(
    database: Database, conversation: Conversation, question_text: str, offset: int
) -> RecallPage:
    """Return the messages that answer a question best, after the first `offset` ones.

    The conversation's words are indexed.
    """
    question = question_from(question_text)
    conversation_id, head_seq = conversation.conversation_id, conversation.state.head_seq
    if not head_seq or not question.words:
        return RecallPage((), 0, 0)
    async with database.session() as session:
        postings, time = await _candidates(session, conversation_id, question, head_seq)
        ranking, best = await asyncio.to_thread(_ranked, question, postings, head_seq, time)
        if cut := [number for number, item in enumerate(postings) if item.since]:
            words = [question.words[number] for number in cut]
            matching = await session.search.matching_words(conversation_id, best, words)
            ranking.add_words({seq: [cut[at] for at in found] for seq, found in matching.items()})
    texts = await _texts(database, conversation_id, best, MAX_RANKED_BYTES)
    ranked = await asyncio.to_thread(ranking.shown, {seq: text for seq, (_, text) in texts.items()})
    page = ranked[offset : offset + MAX_RECALLED]
    beside = {seq + step for seq in page for step in (-1, 1)}.difference(page, texts)
    known = {
        **await _texts(database, conversation_id, set(page).difference(texts), _ANY_SIZE),
        **await _texts(database, conversation_id, beside, MAX_NEIGHBOUR_BYTES),
        **texts,
    }
    weights = [
        (term, weight)
        for word, weight in zip(question.words, ranking.weights, strict=True)
        for term in word
    ]
    shown = await asyncio.to_thread(_recalled, page, known, weights)
    return RecallPage(tuple(shown), offset, len(ranked))


async def _candidates(
    session: Repositories, conversation_id: str, question: Question, head_seq: int
) -> tuple[list[Postings], tuple[int, int, float] | None]:
    """Return the postings of a question's words, and the seqs of its time with their boost."""
    groups = [[word] for word in question.words]
    *postings, with_all = await session.search.postings(
        conversation_id, [*groups, question.words], (0, head_seq + 1), MAX_POSTINGS
    )
    postings = [item.joined(with_all) if item.since else item for item in postings]
    if question.time is None:
        return postings, None
    newest = await session.search.by_seqs(conversation_id, [head_seq], READ_BYTES, _ANY_SIZE)
    said_at = newest[0].said_at if newest else None
    span = question.time.span(said_at) if said_at is not None else None
    if span is None:
        return postings, None
    start, end, boost = span
    seqs = await session.search.seqs_between(conversation_id, head_seq, start, end)
    if any(item.since for item in postings):
        then = await session.search.postings(
            conversation_id, groups, (seqs[0] - 1, seqs[1]), MAX_POSTINGS
        )
        postings = [
            item.joined(other) if item.since else item
            for item, other in zip(postings, then, strict=True)
        ]
    return postings, (*seqs, boost)


def _ranked(
    question: Question,
    postings: Sequence[Postings],
    head_seq: int,
    time: tuple[int, int, float] | None,
) -> tuple[Ranking, list[int]]:
    """Return the ranking by words and times, and its best messages."""
    ranking = Ranking(question, postings, head_seq)
    if time is not None:
        ranking.raise_span(*time)
    return ranking, ranking.best()


async def _texts(
    database: Database, conversation_id: str, seqs: Iterable[int], max_body_bytes: int
) -> dict[int, tuple[SearchedMessage, str]]:
    """Return messages with their texts, those with a larger body left out."""
    texts: dict[int, tuple[SearchedMessage, str]] = {}
    remaining = sorted(seqs)
    while remaining:
        async with database.session() as session:
            found = await session.search.by_seqs(
                conversation_id, remaining, READ_BYTES, max_body_bytes
            )
        texts |= await asyncio.to_thread(
            lambda items: {item.message.seq: (item, "\n".join(item.texts())) for item in items},
            found,
        )
        remaining = [seq for seq in remaining if found and seq > found[-1].message.seq]
    return texts


def _recalled(
    page: Sequence[int], known: _Texts, weights: Sequence[tuple[Term, float]]
) -> list[Recalled]:
    def neighbour(seq: int) -> Neighbour | None:
        if seq in page or seq not in known:
            return None
        item, text = known[seq]
        part = excerpt(text, weights, NEIGHBOUR_CHARS)
        return Neighbour(item.message.role, item.tool_name, part) if part else None

    shown = []
    for seq in page:
        if seq not in known:
            continue  # deleted meanwhile
        (item, text), output = known[seq], known[seq][0].message.output
        shown.append(
            Recalled(
                seq,
                item.message.role,
                item.tool_name,
                item.said_at or item.message.created_at,
                excerpt(text, weights),
                item.message.output_ref if output is not None and output.is_cut else None,
                neighbour(seq - 1),
                neighbour(seq + 1),
            )
        )
    return shown
