"""Removal of a conversation or an agent from the snapshots that name it."""

from __future__ import annotations

from app.adapters.postgres.common.connections import Session, Statement
from app.domain.snapshots.snapshots import REMOVED_SUMMARY

DELETE_PARTS_AND_MESSAGES = """
    removed_parts AS (
        DELETE FROM snapshot_parts p USING deleted
        WHERE p.tenant_id = deleted.tenant_id AND p.session_id = deleted.session_id
        RETURNING p.session_id
    ), removed_messages AS (
        DELETE FROM snapshot_messages m USING deleted
        WHERE m.tenant_id = deleted.tenant_id AND m.session_id = deleted.session_id
        RETURNING m.session_id
    )
    SELECT (SELECT count(*) FROM deleted) AS snapshots,
        (SELECT count(*) FROM removed_parts) AS snapshot_parts,
        (SELECT count(*) FROM removed_messages) AS snapshot_messages
"""

REMOVE_OF_AGENT = Statement(f"""
    WITH deleted AS (
        DELETE FROM snapshots
        WHERE tenant_id = CAST(:tenant_id AS text) AND agent_id = CAST(:agent_id AS text)
        RETURNING tenant_id, session_id
    ), {DELETE_PARTS_AND_MESSAGES}
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
    ) AS naming
    JOIN snapshots s ON s.tenant_id = naming.tenant_id AND s.session_id = naming.session_id
    ORDER BY s.session_id
    FOR UPDATE OF s
""")


REMOVE_CONVERSATION = Statement(f"""
    WITH removed_messages AS (
        DELETE FROM snapshot_messages m USING conversations c
        WHERE c.conversation_id = CAST(:conversation_id AS uuid)
            AND m.tenant_id = c.tenant_id AND m.source_id = CAST(c.conversation_id AS text)
        RETURNING m.tenant_id, m.session_id
    ), removed_parts AS (
        DELETE FROM snapshot_parts
        WHERE conversation_id = CAST(:conversation_id AS uuid)
        RETURNING tenant_id, session_id, message_count
    ), removed_counts AS (
        SELECT tenant_id, session_id, sum(message_count) AS messages
        FROM (
            SELECT * FROM removed_parts
            UNION ALL
            SELECT tenant_id, session_id, 1 FROM removed_messages
        ) AS removed
        GROUP BY tenant_id, session_id
    ), deleted_snapshots AS (
        DELETE FROM snapshots s USING removed_counts
        WHERE s.tenant_id = removed_counts.tenant_id AND s.session_id = removed_counts.session_id
            AND s.message_count <= removed_counts.messages
        RETURNING s.session_id
    ), reduced_snapshots AS (
        UPDATE snapshots s
        SET message_count = s.message_count - removed_counts.messages,
            summary = '{REMOVED_SUMMARY}'
        FROM removed_counts
        WHERE s.tenant_id = removed_counts.tenant_id AND s.session_id = removed_counts.session_id
            AND s.message_count > removed_counts.messages
    )
    SELECT (SELECT count(*) FROM deleted_snapshots) AS snapshots,
        (SELECT count(*) FROM removed_parts) AS snapshot_parts,
        (SELECT count(*) FROM removed_messages) AS snapshot_messages
""")


async def remove_from_snapshots(session: Session, conversation_id: str) -> dict[str, int]:
    """Remove a conversation from all snapshots before it is deleted; returns rows by table.

    The summaries of these snapshots are removed as well. Call it in a transaction that holds the
    lock of the conversation's state.
    """
    await session.all(LOCK_SNAPSHOTS, conversation_id=conversation_id)
    return dict(await session.first(REMOVE_CONVERSATION, conversation_id=conversation_id) or {})


async def delete_snapshots_of_agent(
    session: Session, tenant_id: str, agent_id: str
) -> dict[str, int]:
    """Delete the snapshots of an agent and its conversations; returns rows by table."""
    row = await session.first(REMOVE_OF_AGENT, tenant_id=tenant_id, agent_id=agent_id)
    return dict(row or {})
