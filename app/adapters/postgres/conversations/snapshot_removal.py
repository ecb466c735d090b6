"""Removal of a conversation or an agent from the snapshots that name it."""

from __future__ import annotations

from app.adapters.postgres.common.connections import Session, Statement
from app.domain.snapshots.snapshots import REMOVED_SUMMARY

REMOVED_ROWS = """
    parts AS (
        DELETE FROM snapshot_parts p USING gone
        WHERE p.tenant_id = gone.tenant_id AND p.session_id = gone.session_id
        RETURNING p.session_id
    ), brought AS (
        DELETE FROM snapshot_messages m USING gone
        WHERE m.tenant_id = gone.tenant_id AND m.session_id = gone.session_id
        RETURNING m.session_id
    )
    SELECT (SELECT count(*) FROM gone) AS snapshots,
        (SELECT count(*) FROM parts) AS snapshot_parts,
        (SELECT count(*) FROM brought) AS snapshot_messages
"""

REMOVE_OF_AGENT = Statement(f"""
    WITH gone AS (
        DELETE FROM snapshots
        WHERE tenant_id = CAST(:tenant_id AS text) AND agent_id = CAST(:agent_id AS text)
        RETURNING tenant_id, session_id
    ), {REMOVED_ROWS}
""")


LOCK_SNAPSHOTS = Statement("""
    SELECT s.session_id
    FROM (
        SELECT tenant_id, session_id FROM snapshot_parts
        WHERE conversation_id = CAST(:conversation_id AS uuid)
        UNION
        SELECT m.tenant_id, m.session_id
        FROM conversations c
        JOIN snapshot_messages m ON m.tenant_id = c.tenant_id
            AND m.source_id = CAST(c.conversation_id AS text)
        WHERE c.conversation_id = CAST(:conversation_id AS uuid)
    ) AS held
    JOIN snapshots s ON s.tenant_id = held.tenant_id AND s.session_id = held.session_id
    ORDER BY s.session_id
    FOR UPDATE OF s
""")


FORGET_CONVERSATION = Statement(f"""
    WITH brought AS (
        DELETE FROM snapshot_messages m USING conversations c
        WHERE c.conversation_id = CAST(:conversation_id AS uuid)
            AND m.tenant_id = c.tenant_id AND m.source_id = CAST(c.conversation_id AS text)
        RETURNING m.tenant_id, m.session_id
    ), parts AS (
        DELETE FROM snapshot_parts
        WHERE conversation_id = CAST(:conversation_id AS uuid)
        RETURNING tenant_id, session_id, message_count
    ), lost AS (
        SELECT tenant_id, session_id, sum(message_count) AS messages
        FROM (
            SELECT * FROM parts
            UNION ALL
            SELECT tenant_id, session_id, 1 FROM brought
        ) AS each
        GROUP BY tenant_id, session_id
    ), emptied AS (
        DELETE FROM snapshots s USING lost
        WHERE s.tenant_id = lost.tenant_id AND s.session_id = lost.session_id
            AND s.message_count <= lost.messages
        RETURNING s.session_id
    ), lessened AS (
        UPDATE snapshots s
        SET message_count = s.message_count - lost.messages,
            summary = '{REMOVED_SUMMARY}'
        FROM lost
        WHERE s.tenant_id = lost.tenant_id AND s.session_id = lost.session_id
            AND s.message_count > lost.messages
    )
    SELECT (SELECT count(*) FROM emptied) AS snapshots,
        (SELECT count(*) FROM parts) AS snapshot_parts,
        (SELECT count(*) FROM brought) AS snapshot_messages
""")


async def forget_conversation(session: Session, conversation_id: str) -> dict[str, int]:
    """Remove a conversation from all snapshots before it is deleted; returns rows by table.

    The summaries of these snapshots are removed as well. Call it in a transaction that holds the
    lock of the conversation's state.
    """
    await session.all(LOCK_SNAPSHOTS, conversation_id=conversation_id)
    return dict(await session.first(FORGET_CONVERSATION, conversation_id=conversation_id) or {})


async def forget_agent(session: Session, tenant_id: str, agent_id: str) -> dict[str, int]:
    """Delete the snapshots of an agent and its conversations; returns rows by table."""
    row = await session.first(REMOVE_OF_AGENT, tenant_id=tenant_id, agent_id=agent_id)
    return dict(row or {})
