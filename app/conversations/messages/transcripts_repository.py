"""The inputs of the visibility of messages, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from app.conversations.compaction_receipt import Compaction
from app.conversations.rows import compaction_from
from app.database.connections import Statement
from app.database.repository import Repository

REDACTED = Statement("""
    SELECT r.conversation_id, r.seq, r.created_at
    FROM unnest(:conversation_ids, :seqs)
        AS requested (conversation_id, seq)
    JOIN redactions r ON r.conversation_id = requested.conversation_id AND r.seq = requested.seq
        AND r.conversation_id = ANY (:conversation_ids)
""")

# A pin protects its call group, with results that are appended later: up to `past`.
PINS = Statement("""
    SELECT p.conversation_id, p.seq, (
        SELECT m.seq FROM messages m
        WHERE m.conversation_id = p.conversation_id AND m.seq > p.seq AND NOT m.joins
            AND m.conversation_id = ANY (:conversation_ids)
        ORDER BY m.seq LIMIT 1
    ) AS past
    FROM pins p WHERE p.conversation_id = ANY (:conversation_ids) AND p.seq <= :through_seq
""")

# Receipts are large: the recursion reads their ids alone.
CHAINS = Statement("""
    WITH RECURSIVE chain AS (
        SELECT newest.conversation_id, newest.compaction_id, 1 AS depth
        FROM unnest(:conversation_ids, CAST(:compaction_ids AS uuid[]))
            AS newest (conversation_id, compaction_id)
        UNION ALL
        SELECT chain.conversation_id, this.parent_id, chain.depth + 1
        FROM chain
        CROSS JOIN LATERAL (
            SELECT parent_id FROM compactions
            WHERE conversation_id = chain.conversation_id
                AND compaction_id = chain.compaction_id
            LIMIT 1
        ) this
        WHERE this.parent_id IS NOT NULL AND chain.depth < :limit
    )
    SELECT receipt.*
    FROM chain
    CROSS JOIN LATERAL (
        SELECT * FROM compactions
        WHERE conversation_id = chain.conversation_id AND compaction_id = chain.compaction_id
        LIMIT 1
    ) receipt
    ORDER BY chain.conversation_id, chain.depth
""")


class TranscriptRepository(Repository):
    """Reads messages of several conversations at once."""

    async def redacted(
        self, messages: Sequence[tuple[str, int]]
    ) -> Mapping[tuple[str, int], datetime]:
        """Return when the redacted ones of these messages were, by conversation and seq."""
        rows = await self._session.all(
            REDACTED,
            conversation_ids=[conversation_id for conversation_id, _ in messages],
            seqs=[seq for _, seq in messages],
        )
        return {(str(row["conversation_id"]), row["seq"]): row["created_at"] for row in rows}

    async def pinned(self, messages: Sequence[tuple[str, int]]) -> frozenset[tuple[str, int]]:
        """Return the pinned ones of these messages, by conversation and seq."""
        if not messages:
            return frozenset()
        rows = await self._session.all(
            PINS,
            conversation_ids=list({conversation_id for conversation_id, _ in messages}),
            through_seq=max(seq for _, seq in messages),
        )
        groups: dict[str, list[tuple[int, int | None]]] = {}
        for row in rows:
            groups.setdefault(str(row["conversation_id"]), []).append((row["seq"], row["past"]))
        return frozenset(
            (conversation_id, seq)
            for conversation_id, seq in messages
            if any(
                start <= seq and (past is None or seq < past)
                for start, past in groups.get(conversation_id, ())
            )
        )

    async def chains(
        self, newest: Mapping[str, str], limit: int
    ) -> Mapping[str, Sequence[Compaction]]:
        """Return up to `limit` receipts by conversation: one, then those it is based on.

        `newest` is the id of the first receipt, by conversation.
        """
        rows = await self._session.all(
            CHAINS,
            conversation_ids=list(newest),
            compaction_ids=list(newest.values()),
            limit=limit,
        )
        chains: dict[str, list[Compaction]] = {}
        for row in rows:
            chains.setdefault(str(row["conversation_id"]), []).append(compaction_from(row))
        return chains
