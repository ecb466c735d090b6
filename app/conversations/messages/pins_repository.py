"""Pinned messages, and the call groups and turns around them."""

from __future__ import annotations

from collections.abc import Sequence

from app.conversations.rows import entry_from
from app.conversations.turns import Entry
from app.database.connections import Repository, Statement

# A call group lasts from one message that does not join the one before to the next, and a turn from
# one such message of the user to the next.
GROUP_OF = """
    SELECT seq, role, tokens, joins FROM messages
    WHERE conversation_id = :conversation_id
        AND seq >= coalesce((
            SELECT starts.seq FROM messages starts
            WHERE starts.conversation_id = :conversation_id AND starts.seq <= :seq AND {starts}
            ORDER BY starts.seq DESC LIMIT 1), 1)
        AND seq < coalesce((
            SELECT ends.seq FROM messages ends
            WHERE ends.conversation_id = :conversation_id AND ends.seq > :seq AND {ends}
            ORDER BY ends.seq LIMIT 1), 9223372036854775807)
    ORDER BY seq
"""
GROUP = Statement(GROUP_OF.format(starts="NOT starts.joins", ends="NOT ends.joins"))
TURN = Statement(
    GROUP_OF.format(
        starts="starts.role = 'user' AND NOT starts.joins",
        ends="ends.role = 'user' AND NOT ends.joins",
    )
)

PINNED = Statement("""
    SELECT m.seq, m.role, m.tokens, m.joins FROM pins p
    JOIN messages m ON m.conversation_id = p.conversation_id AND m.seq = p.seq
    WHERE p.conversation_id = :conversation_id
    ORDER BY m.seq
""")
PIN = Statement("""
    INSERT INTO pins (conversation_id, seq)
    SELECT :conversation_id, seq FROM unnest(:seqs) AS seq
    ON CONFLICT (conversation_id, seq) DO NOTHING
""")
UNPIN = Statement("""
    DELETE FROM pins WHERE conversation_id = :conversation_id AND seq = ANY (:seqs)
""")
SHOW_PINNED = Statement("""
    UPDATE heads
    SET view_version = view_version + 1, view_cause = 'pinned', kept = :kept,
        hidden_tokens = hidden_tokens - CAST(:tokens AS bigint),
        hidden_messages = hidden_messages - CAST(:messages AS bigint)
    WHERE conversation_id = :conversation_id
""")


class PinQueries(Repository):
    """The queries of a ContextRepository about pins."""

    async def around(self, conversation_id: str, seq: int, *, whole_turn: bool) -> list[Entry]:
        """Return the entries of the call group, or of the turn, that contains a seq."""
        rows = await self._session.all(
            TURN if whole_turn else GROUP, conversation_id=conversation_id, seq=seq
        )
        return list(map(entry_from, rows))

    async def pinned(self, conversation_id: str) -> list[Entry]:
        """Return the entries of all pinned messages."""
        rows = await self._session.all(PINNED, conversation_id=conversation_id)
        return [entry_from(row, pinned=True) for row in rows]

    async def pin(self, conversation_id: str, seqs: Sequence[int]) -> None:
        """Pin messages; pinned ones stay pinned."""
        await self._session.run(PIN, conversation_id=conversation_id, seqs=seqs)

    async def unpin(self, conversation_id: str, seqs: Sequence[int]) -> int:
        """Unpin messages, and return how many were pinned."""
        return await self._session.run(UNPIN, conversation_id=conversation_id, seqs=seqs)
