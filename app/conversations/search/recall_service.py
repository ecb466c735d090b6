"""The ranking behind `recall`: from a question to a page of messages.

1. Candidates come from the index: the newest messages for every word, with a limit. A question
   about a time also reads the newest ones of that time.
2. The best candidates are read as far as they are small, and ranked by their texts as well.
3. So the cost has bounds that do not depend on the length of the log, except for the index entries
   of a word, one for each block [search.words].
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from app.conversations.conversation import Conversation
from app.conversations.search.excerpts import EXCERPT_CHARS, excerpt
from app.conversations.search.question import Question, Word, question_from
from app.conversations.search.recall import (
    MAX_RANKED_BYTES,
    MAX_RECALLED,
    NOTHING,
    Neighbour,
    Postings,
    Ranking,
    Recalled,
    RecallPage,
    cut_words,
    joined,
)
from app.conversations.search.texts import SearchedMessage
from app.conversations.search.times import TimeSpan
from app.conversations.search.words import Term
from app.repositories import Database, Repositories

MAX_POSTINGS = 200
"""Messages per word of a question."""
READ_BYTES = 2_000_000
"""Bytes of bodies that are read at once."""
MAX_NEIGHBOUR_BYTES = 65_536
"""The size of a message's body up to which it is shown beside another one."""
NEIGHBOUR_CHARS = EXCERPT_CHARS // 2
_ANY_SIZE = 2**62

_Texts = Mapping[int, tuple[SearchedMessage, str]]
_Raised = tuple[int, int, float]  # the first seq of a time, the one after it, the boost


@dataclass(frozen=True, slots=True)
class _Found:
    """The ranked seqs, the weights of the question's words, and the texts that were read."""

    question: Question
    ranked: Sequence[int]
    weights: Sequence[float]
    texts: _Texts


class Recall:
    """Ranks the messages of a conversation whose words are indexed."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, conversation: Conversation, question_text: str, offset: int) -> RecallPage:
        """Return the messages that answer a question best, after the first `offset` ones."""
        question = question_from(question_text)
        if not conversation.state.head_seq or not question.words:
            return NOTHING
        found = await self._ranked(conversation, question)
        page = found.ranked[offset : offset + MAX_RECALLED]
        shown = await self._shown(conversation.conversation_id, page, found)
        return RecallPage(tuple(shown), offset, len(found.ranked))

    async def _ranked(self, conversation: Conversation, question: Question) -> _Found:
        conversation_id, head_seq = conversation.conversation_id, conversation.state.head_seq
        async with self._database.session() as session:
            question, postings, span = await self._postings(
                session, conversation_id, question, head_seq
            )
            ranking, best = await asyncio.to_thread(_ranked, question, postings, head_seq, span)
            cut = cut_words(postings)
            words = await session.search.matching_words(
                conversation_id, best, [question.words[number].terms for number in cut]
            )
        ranking.add_words(
            {seq: [cut[number] for number in numbers] for seq, numbers in words.items()}
        )
        texts = await self._texts(conversation_id, best, MAX_RANKED_BYTES)
        ranked = await asyncio.to_thread(_ranked_by_texts, ranking, texts)
        return _Found(question, ranked, ranking.weights, texts)

    async def _postings(
        self, session: Repositories, conversation_id: str, question: Question, head_seq: int
    ) -> tuple[Question, list[Postings], _Raised | None]:
        """Return the postings of a question's words, and the seqs of its time.

        Words that no message has are replaced by their wider ones (rule 1).
        """
        search = session.search
        words = list(question.words)

        async def found(asked: Sequence[Word], after_seq: int, before_seq: int) -> list[Postings]:
            return await search.postings(
                conversation_id,
                [[word.terms] for word in asked],
                after_seq=after_seq,
                before_seq=before_seq,
                limit=MAX_POSTINGS,
            )

        postings = await found(words, 0, head_seq + 1)
        unknown = {
            number: Word((word.wider,))
            for number, word in enumerate(words)
            if word.wider is not None and not postings[number].seqs
        }
        if unknown:
            wider = await found([*unknown.values()], 0, head_seq + 1)
            for number, item in zip(unknown, wider, strict=True):
                words[number], postings[number] = unknown[number], item
        question = replace(question, words=tuple(words))
        common = [number for number, item in enumerate(postings) if item.is_cut]
        if len(common) > 1 and len(common) == sum(bool(item.seqs) for item in postings):
            # Every word is common: messages older than the postings may have all of them.
            (with_all,) = await search.postings(
                conversation_id,
                [[words[number].terms for number in common]],
                after_seq=0,
                before_seq=head_seq + 1,
                limit=MAX_POSTINGS,
            )
            for number in common:
                postings[number] = joined(postings[number], with_all)
        span = await self._span(session, conversation_id, question, head_seq)
        if span is not None and common:
            first_seq, end_seq, _ = span
            within = await found([words[number] for number in common], first_seq - 1, end_seq)
            for number, item in zip(common, within, strict=True):
                postings[number] = joined(postings[number], item)
        return question, postings, span

    async def _span(
        self, session: Repositories, conversation_id: str, question: Question, head_seq: int
    ) -> _Raised | None:
        """Return the seqs of the time that a question names, the end exclusive."""
        if question.times is None:
            return None
        newest = await session.search.time_of(conversation_id, head_seq)
        span: TimeSpan | None = question.times.span(newest) if newest is not None else None
        if span is None:
            return None
        first_seq, end_seq = await session.search.seqs_between(
            conversation_id, head_seq, span.start, span.end
        )
        return (first_seq, end_seq, span.boost) if first_seq < end_seq else None

    async def _texts(
        self, conversation_id: str, seqs: Iterable[int], max_body_bytes: int
    ) -> dict[int, tuple[SearchedMessage, str]]:
        """Return messages with their texts, those with a larger body left out."""
        texts: dict[int, tuple[SearchedMessage, str]] = {}
        remaining = sorted(seqs)
        while remaining:
            async with self._database.session() as session:
                found = await session.search.by_seqs(
                    conversation_id, remaining, READ_BYTES, max_body_bytes
                )
            texts |= await asyncio.to_thread(_with_texts, found)
            remaining = [seq for seq in remaining if found and seq > found[-1].message.seq]
        return texts

    async def _shown(
        self, conversation_id: str, page: Sequence[int], found: _Found
    ) -> list[Recalled]:
        """Return a page's messages with excerpts, each with the messages around it."""
        texts = found.texts
        beside = {seq + step for seq in page for step in (-1, 1)}.difference(page)
        known = {
            **await self._texts(conversation_id, set(page).difference(texts), _ANY_SIZE),
            **await self._texts(conversation_id, beside.difference(texts), MAX_NEIGHBOUR_BYTES),
            **texts,
        }
        return await asyncio.to_thread(_recalled, page, known, found.question, found.weights)


def _ranked(
    question: Question, postings: Sequence[Postings], head_seq: int, span: _Raised | None
) -> tuple[Ranking, list[int]]:
    """Return the ranking by words and times, and its best messages."""
    ranking = Ranking(question, postings, head_seq)
    if span is not None:
        ranking.raise_span(*span)
    return ranking, ranking.best()


def _ranked_by_texts(ranking: Ranking, texts: _Texts) -> list[int]:
    ranking.add_texts({seq: text for seq, (_, text) in texts.items()})
    return ranking.shown()


def _with_texts(found: Iterable[SearchedMessage]) -> dict[int, tuple[SearchedMessage, str]]:
    return {item.message.seq: (item, "\n".join(item.texts())) for item in found}


def _recalled(
    page: Sequence[int], known: _Texts, question: Question, weights: Sequence[float]
) -> list[Recalled]:
    terms: list[Term] = []
    term_weights: list[float] = []
    for word, weight in zip(question.words, weights, strict=True):
        terms += word.terms
        term_weights += [weight] * len(word.terms)

    def neighbour(seq: int) -> Neighbour | None:
        if seq in page or seq not in known:
            return None
        item, text = known[seq]
        part = excerpt(text, terms, term_weights, NEIGHBOUR_CHARS)
        return Neighbour(item.message.role, item.tool_name, part) if part else None

    shown = []
    for seq in page:
        if seq not in known:
            continue  # deleted meanwhile
        item, text = known[seq]
        output = item.message.output
        shown.append(
            Recalled(
                seq,
                item.message.role,
                item.tool_name,
                item.said_at or item.message.created_at,
                excerpt(text, terms, term_weights),
                item.message.output_ref if output is not None and output.is_cut else None,
                neighbour(seq - 1),
                neighbour(seq + 1),
            )
        )
    return shown
