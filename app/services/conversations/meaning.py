"""The ranking of messages by meaning, and the index of vectors behind it. See [decision 0046].

1. An append embeds nothing. Workers embed what a compaction hides, and what a `recall` has found
   missing. So conversations whose payload has all of their messages cost nothing.
2. A ranking by meaning exists where all hidden messages are embedded, and the model and the
   database answer in time. Otherwise there is none, which is not an error: the words rank alone.
3. A claim embeds one batch and then waits behind the other conversations. After a failure it is
   repeated, with growing pauses and without an end.
4. A message that the model refuses by itself is left out, so that it does not block the others. A
   model that refuses any text is another failure: nothing is left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic

from cachetools import LRUCache

from app.domain.common.errors import ServiceUnavailable
from app.domain.conversations.conversation import Conversation
from app.domain.conversations.search.embedding import EmbeddingClaim, last_hidden_seq
from app.domain.conversations.search.recall import MAX_RANKED
from app.domain.conversations.search.texts import SearchedMessage
from app.domain.models.embeddings import Vector
from app.services.conversations.embedding_model import EmbeddingModel
from app.services.ports import Database
from app.services.tenancy.spending import SPEND_GUARD

MAX_PAUSE_SECONDS = 600.0
MAX_QUOTA_PAUSE_SECONDS = 3_600.0
"""How long a conversation waits for a new quota at most: a higher limit is noticed by then."""
CHECK_SECONDS = 60.0
"""How often a database without pgvector is asked again."""
BATCH_BYTES = 2_000_000
"""Bytes of the bodies that are read for a batch."""
MIN_CHARS = 200
"""A text of this length is not cut again where the model's window is too small for it."""

_MAX_QUESTIONS = 256
_PROBE = "a"
_REFUSED = frozenset({"refused", "context_window"})

_log = logging.getLogger("app.meaning")


@dataclass(frozen=True, slots=True)
class ByMeaning:
    """Messages ranked by meaning, best first; None with the reason why there is no ranking."""

    seqs: Sequence[int] | None
    reason: str = ""


class MeaningIndex:
    """Embeds the messages of conversations, and ranks them for questions."""

    def __init__(self, database: Database, model: EmbeddingModel) -> None:
        self._database = database
        self._model = model
        self._questions: LRUCache[str, Vector] = LRUCache(_MAX_QUESTIONS)
        self._is_available = False
        self._check_at = 0.0

    @property
    def trust(self) -> float:
        """How much the ranking counts beside that of words, 0 to 1."""
        return self._model.settings.trust

    async def request(self, conversation_id: str, through_seq: int) -> None:
        """Request the embedding of all messages up to a seq."""
        if through_seq and await self._has_vectors():
            async with self._database.session() as session:
                await session.vectors.request(conversation_id, self._model.name, through_seq)

    async def rank(self, tenant_id: str, conversation: Conversation, question: str) -> ByMeaning:
        """Return the messages that are nearest to a question (rule 2); raises nothing."""
        try:
            async with asyncio.timeout(self._model.settings.question_seconds):
                return await self._rank(tenant_id, conversation, question)
        except TimeoutError:
            return ByMeaning(None, "timeout")
        except ServiceUnavailable as error:
            return ByMeaning(None, str(error.facts.get("reason", "unavailable")))
        except Exception as error:  # the words answer without it
            _log.warning("meaning_failed", extra={"data": {"error": type(error).__name__}})
            return ByMeaning(None, "error")

    async def work(self) -> bool:
        """Embed a batch of messages of the conversation that waits longest.

        Returns whether more work may be possible now.
        """
        if not await self._has_vectors():
            return False
        seconds = max(60.0, 4 * self._model.settings.timeout_seconds)
        async with self._database.session() as session:
            claim = await session.vectors.claim(seconds)
        if claim is None:
            return False
        try:
            await self._embed_batch(claim)
        except Exception as error:
            return await self._retry_later(claim, error)
        return True

    async def _has_vectors(self) -> bool:
        """Return whether the database has pgvector; one without it is asked again at times."""
        if not self._is_available and monotonic() >= self._check_at:
            async with self._database.session() as session:
                self._is_available = await session.vectors.is_available()
            if not self._is_available and not self._check_at:
                _log.warning("vectors_unavailable", extra={"data": {"model": self._model.name}})
            self._check_at = monotonic() + CHECK_SECONDS
        return self._is_available

    async def _rank(self, tenant_id: str, conversation: Conversation, question: str) -> ByMeaning:
        if not await self._has_vectors():
            return ByMeaning(None, "no_pgvector")
        conversation_id, state = conversation.conversation_id, conversation.state
        async with self._database.session() as session:
            progress = await session.vectors.progress(conversation_id)
        known = progress is not None and progress.model == self._model.name
        through_seq = progress.through_seq if progress is not None and known else 0
        if through_seq < state.head_seq:
            await self.request(conversation_id, state.head_seq)
        if not through_seq or through_seq < last_hidden_seq(state):
            return ByMeaning(None, "behind")
        vector = await self._vector_of(tenant_id, question)
        if vector is None:
            return ByMeaning(None, "no_direction")
        async with self._database.session() as session:
            seqs = await session.vectors.nearest(
                conversation_id, self._model.name, vector, state.head_seq, MAX_RANKED
            )
        return ByMeaning(seqs) if seqs else ByMeaning(None, "no_vectors")

    async def _vector_of(self, tenant_id: str, question: str) -> Vector | None:
        """Return the vector of a question; pages of one answer ask for it once."""
        text = self._model.prepared(question)
        vector = self._questions.get(text)
        if vector is None and text:
            (vector,) = await self._model.embed(tenant_id, [text], is_question=True)
            if vector is not None:
                self._questions[text] = vector
        return vector

    async def _embed_batch(self, claim: EmbeddingClaim) -> None:
        conversation_id = claim.conversation_id
        if claim.model != self._model.name:
            async with self._database.transaction() as session:
                await session.vectors.restart(conversation_id, self._model.name)
            claim = replace(claim, model=self._model.name, through_seq=0)
        async with self._database.session() as session:
            batch = await session.vectors.unembedded(
                conversation_id,
                claim.through_seq,
                claim.requested_seq,
                self._model.settings.batch,
                BATCH_BYTES,
            )
        texts = await asyncio.to_thread(self._texts, batch)
        vectors = await self._vectors(claim, texts)
        through_seq = batch[-1].message.seq if batch else claim.requested_seq
        async with self._database.transaction() as session:
            await session.vectors.add(claim, through_seq, vectors)

    def _texts(self, batch: Sequence[SearchedMessage]) -> dict[int, str]:
        """Return what is embedded of each message that has text."""
        prepared = {
            item.message.seq: self._model.prepared("\n".join(item.texts())) for item in batch
        }
        return {seq: text for seq, text in prepared.items() if text}

    async def _vectors(self, claim: EmbeddingClaim, texts: Mapping[int, str]) -> dict[int, Vector]:
        """Return the vectors of texts by seq, without those that the model refuses (rule 4)."""
        if not texts:
            return {}
        try:
            vectors = await self._model.embed(claim.tenant_id, [*texts.values()])
        except ServiceUnavailable as error:
            reason = error.facts.get("reason")
            if reason not in _REFUSED:
                raise
            return await self._one_by_one(claim, texts, str(reason))
        found = zip(texts, vectors, strict=True)
        return {seq: vector for seq, vector in found if vector is not None}

    async def _one_by_one(
        self, claim: EmbeddingClaim, texts: Mapping[int, str], reason: str
    ) -> dict[int, Vector]:
        """Return the vectors of texts that were refused together, found by halving."""
        items = [*texts.items()]
        if len(items) > 1:
            middle = len(items) // 2
            first = await self._vectors(claim, dict(items[:middle]))
            return first | await self._vectors(claim, dict(items[middle:]))
        ((seq, text),) = items
        if reason == "context_window" and len(text) > MIN_CHARS:
            return await self._vectors(claim, {seq: text[: max(MIN_CHARS, len(text) // 2)]})
        await self._model.embed(claim.tenant_id, [_PROBE])
        data = {"conversation_id": claim.conversation_id, "seq": seq, "reason": reason}
        _log.warning("message_not_embedded", extra={"data": data})
        return {}

    async def _retry_later(self, claim: EmbeddingClaim, error: Exception) -> bool:
        """Return a claim to the queue; return whether other conversations may succeed."""
        facts = error.facts if isinstance(error, ServiceUnavailable) else {}
        reason = str(facts.get("reason", type(error).__name__))
        pause = min(2.0 ** min(claim.attempts, 16), MAX_PAUSE_SECONDS)
        pause = max(pause, min(float(facts.get("retry_after", 0)), MAX_QUOTA_PAUSE_SECONDS))
        data = {
            "conversation_id": claim.conversation_id,
            "reason": reason,
            "attempts": claim.attempts,
            "retry_seconds": pause,
        }
        _log.warning("embedding_failed", extra={"data": data})
        self._is_available, self._check_at = False, 0.0  # the extension may have been dropped
        with suppress(ServiceUnavailable):  # then it waits until its claim has ended
            async with self._database.session() as session:
                await session.vectors.retry_later(claim, pause)
        return reason == SPEND_GUARD
