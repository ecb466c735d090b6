"""The embeddings of messages, which pgvector stores and compares.

1. The column of `message_vectors` exists only where the database has pgvector: a migration adds it,
   or the next start after the extension was created. Everything else of both tables is always
   there, so that deletions and redactions need not know.
2. `embedding_progress` is the queue: a row with `due_at` waits for a worker. A worker reads which
   wait longest and claims the first that no other worker claims. A claim moves `due_at`
   into the future, so that the work of a worker that died is claimed again.
3. All vectors of a conversation are of the model in its progress. They are stored in the
   transaction that moves the progress, which one of several claims wins.
4. The nearest messages are found by comparing all vectors of the conversation, in the order of the
   key: an index of neighbours would search those of all conversations, and miss some.
5. A vector has the length 1, so that the inner product is the cosine.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from app.adapters.postgres.common.connections import Session, Statement
from app.adapters.postgres.conversations.search import searched_from
from app.adapters.postgres.conversations.search_statements import searched
from app.domain.conversations.search.embedding import EmbeddingClaim, EmbeddingProgress
from app.domain.conversations.search.texts import SearchedMessage
from app.domain.models.embeddings import Vector

IS_AVAILABLE = Statement("""
    SELECT EXISTS (
        SELECT FROM pg_attribute
        WHERE attrelid = to_regclass('message_vectors') AND attname = 'embedding'
            AND NOT attisdropped
    ) AS is_available
""")
PROGRESS = Statement("""
    SELECT model, through_seq FROM embedding_progress
    WHERE conversation_id = CAST(:conversation_id AS uuid)
""")
REQUEST = Statement("""
    WITH alive AS (
        SELECT conversation_id FROM heads
        WHERE conversation_id = CAST(:conversation_id AS uuid) FOR KEY SHARE
    )
    INSERT INTO embedding_progress AS p (conversation_id, model, requested_seq, due_at)
    SELECT alive.conversation_id, CAST(:model AS text), CAST(:through_seq AS bigint), now()
    FROM alive
    ON CONFLICT (conversation_id) DO UPDATE
    SET requested_seq = greatest(p.requested_seq, excluded.requested_seq),
        due_at = coalesce(p.due_at, excluded.due_at)
    WHERE p.requested_seq < excluded.requested_seq
        OR p.model <> excluded.model AND p.due_at IS NULL
""")
DUE = Statement("""
    SELECT conversation_id FROM embedding_progress
    WHERE due_at <= now()
    ORDER BY due_at
    LIMIT CAST(:limit AS bigint)
""")
CLAIM = Statement("""
    WITH due AS (
        SELECT p.conversation_id, c.tenant_id
        FROM embedding_progress p
        JOIN conversations c ON c.conversation_id = p.conversation_id
        WHERE p.conversation_id = CAST(:conversation_id AS uuid) AND p.due_at <= now()
        FOR NO KEY UPDATE OF p SKIP LOCKED
    )
    UPDATE embedding_progress p
    SET due_at = now() + make_interval(secs => CAST(:seconds AS double precision)),
        attempts = p.attempts + 1
    FROM due
    WHERE p.conversation_id = CAST(:conversation_id AS uuid)
    RETURNING due.tenant_id, p.conversation_id, p.model, p.through_seq, p.requested_seq, p.attempts
""")
RETRY_LATER = Statement("""
    UPDATE embedding_progress
    SET due_at = now() + make_interval(secs => CAST(:seconds AS double precision))
    WHERE conversation_id = CAST(:conversation_id AS uuid)
        AND attempts = CAST(:attempts AS integer)
""")
DELETE = Statement(
    "DELETE FROM message_vectors WHERE conversation_id = CAST(:conversation_id AS uuid)",
    is_long=True,
)
RESTART = Statement("""
    UPDATE embedding_progress SET model = CAST(:model AS text), through_seq = 0
    WHERE conversation_id = CAST(:conversation_id AS uuid)
""")
UNEMBEDDED = searched("""
    SELECT * FROM messages
    WHERE conversation_id = CAST(:conversation_id AS uuid)
        AND seq > CAST(:after_seq AS bigint) AND seq <= CAST(:through_seq AS bigint)
    ORDER BY seq
    LIMIT CAST(:limit AS bigint)
""")
ADVANCE = Statement("""
    WITH alive AS (
        SELECT conversation_id, now() AS at FROM heads
        WHERE conversation_id = CAST(:conversation_id AS uuid) FOR KEY SHARE
    )
    UPDATE embedding_progress p
    SET through_seq = CAST(:through_seq AS bigint), attempts = 0,
        due_at = CASE WHEN p.requested_seq > CAST(:through_seq AS bigint) THEN alive.at END
    FROM alive
    WHERE p.conversation_id = CAST(:conversation_id AS uuid)
        AND p.model = CAST(:model AS text) AND p.through_seq = CAST(:after_seq AS bigint)
""")
# Run after ADVANCE in its transaction, whose lock orders it and a redaction.
ADD = Statement("""
    INSERT INTO message_vectors (conversation_id, seq, embedding)
    SELECT CAST(:conversation_id AS uuid), item.seq, CAST(item.embedding AS halfvec)
    FROM unnest(CAST(:seqs AS bigint[]), CAST(:vectors AS text[])) AS item (seq, embedding)
    WHERE NOT EXISTS (
        SELECT FROM redactions r
        WHERE r.conversation_id = CAST(:conversation_id AS uuid) AND r.seq = item.seq
    )
    ON CONFLICT (conversation_id, seq) DO UPDATE SET embedding = excluded.embedding
""")
# The vector is read from its text once, in a query of its own, and each pair is compared once.
# Neighbours count by their distance.
NEAREST = Statement("""
    WITH compared AS MATERIALIZED (
        SELECT v.seq,
            -(v.embedding <#> (SELECT CAST(CAST(:vector AS text) AS halfvec))) AS similarity
        FROM message_vectors v
        WHERE v.conversation_id = CAST(:conversation_id AS uuid)
            AND v.seq <= CAST(:head_seq AS bigint)
            AND vector_dims(v.embedding) = CAST(:dimensions AS integer)
            AND EXISTS (
                SELECT FROM embedding_progress p
                WHERE p.conversation_id = CAST(:conversation_id AS uuid)
                    AND p.model = CAST(:model AS text)
            )
    ), beside AS (
        SELECT seq, similarity
            + 0.3 * coalesce(lag(similarity, 1) OVER by_seq, similarity)
            + 0.3 * coalesce(lead(similarity, 1) OVER by_seq, similarity)
            + 0.15 * coalesce(lag(similarity, 2) OVER by_seq, similarity)
            + 0.15 * coalesce(lead(similarity, 2) OVER by_seq, similarity) AS similarity
        FROM compared
        WINDOW by_seq AS (ORDER BY seq)
    )
    SELECT seq FROM beside ORDER BY similarity DESC, seq DESC LIMIT CAST(:limit AS bigint)
""")


_CANDIDATES = 10
"""Waiting conversations that are read at once, for a claim to try one after the other."""
_MAX_READS = 3


class VectorRepository:
    """Statements on embeddings; the port documents them."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def is_available(self) -> bool:
        row = await self._session.first(IS_AVAILABLE)
        return row is not None and row["is_available"]

    async def progress(self, conversation_id: str) -> EmbeddingProgress | None:
        row = await self._session.first(PROGRESS, conversation_id=conversation_id)
        return EmbeddingProgress(row["model"], row["through_seq"]) if row is not None else None

    async def request(self, conversation_id: str, model: str, through_seq: int) -> None:
        await self._session.run(
            REQUEST, conversation_id=conversation_id, model=model, through_seq=through_seq
        )

    async def claim(self, seconds: float) -> EmbeddingClaim | None:
        for _ in range(_MAX_READS):
            due = await self._session.all(DUE, limit=_CANDIDATES)
            for waiting in due:
                if (claim := await self._claim(waiting["conversation_id"], seconds)) is not None:
                    return claim
            if not due:
                break
        return None

    async def _claim(self, conversation_id: UUID, seconds: float) -> EmbeddingClaim | None:
        """Claim the messages of a conversation, unless another worker was faster."""
        row = await self._session.first(CLAIM, conversation_id=conversation_id, seconds=seconds)
        if row is None:
            return None
        return EmbeddingClaim(
            row["tenant_id"],
            str(row["conversation_id"]),
            row["model"],
            row["through_seq"],
            row["requested_seq"],
            row["attempts"],
        )

    async def restart(self, conversation_id: str, model: str) -> None:
        await self._session.run(DELETE, conversation_id=conversation_id)
        await self._session.run(RESTART, conversation_id=conversation_id, model=model)

    async def unembedded(
        self, conversation_id: str, after_seq: int, through_seq: int, limit: int, max_bytes: int
    ) -> list[SearchedMessage]:
        rows = await self._session.all(
            UNEMBEDDED,
            conversation_id=conversation_id,
            after_seq=after_seq,
            through_seq=through_seq,
            limit=limit,
            max_bytes=max_bytes,
        )
        return [searched_from(row) for row in rows]

    async def add(
        self, claim: EmbeddingClaim, through_seq: int, vectors: Mapping[int, Vector]
    ) -> bool:
        advanced = await self._session.run(
            ADVANCE,
            conversation_id=claim.conversation_id,
            model=claim.model,
            after_seq=claim.through_seq,
            through_seq=through_seq,
        )
        if advanced and vectors:
            await self._session.run(
                ADD,
                conversation_id=claim.conversation_id,
                seqs=list(vectors),
                vectors=[_text(vector) for vector in vectors.values()],
            )
        return advanced == 1

    async def retry_later(self, claim: EmbeddingClaim, seconds: float) -> None:
        await self._session.run(
            RETRY_LATER,
            conversation_id=claim.conversation_id,
            attempts=claim.attempts,
            seconds=seconds,
        )

    async def nearest(
        self, conversation_id: str, model: str, vector: Vector, head_seq: int, limit: int
    ) -> list[int]:
        rows = await self._session.all(
            NEAREST,
            conversation_id=conversation_id,
            model=model,
            vector=_text(vector),
            dimensions=len(vector),
            head_seq=head_seq,
            limit=limit,
        )
        return [row["seq"] for row in rows]


def _text(vector: Vector) -> str:
    """Return a vector as pgvector reads it; asyncpg does not know the type."""
    return f"[{','.join(f'{value:.6g}' for value in vector)}]"
