"""Removal of a conversation or an agent from the snapshots that name it."""

from __future__ import annotations

from app.database.connections import Session, Statement

REMOVED_SUMMARY = "(the summary told of a conversation that was deleted)"
"""The summary of a snapshot after one of its conversations was deleted."""

DELETE_PARTS = """
    removed_parts AS (
        DELETE FROM snapshot_parts p USING deleted
        WHERE p.tenant_id = deleted.tenant_id AND p.snapshot_id = deleted.snapshot_id
        RETURNING p.snapshot_id
    )
    SELECT (SELECT count(*) FROM deleted) AS snapshots,
        (SELECT count(*) FROM removed_parts) AS snapshot_parts
"""

REMOVE_OF_AGENT = Statement(f"""
    WITH deleted AS (
        DELETE FROM snapshots WHERE tenant_id = :tenant_id AND agent_id = :agent_id
        RETURNING tenant_id, snapshot_id
    ), {DELETE_PARTS}
""")


LOCK_SNAPSHOTS = Statement("""
    SELECT s.snapshot_id
    FROM snapshots s WHERE s.tenant_id = :tenant_id AND s.snapshot_id = ANY (ARRAY(
            SELECT snapshot_id FROM snapshot_parts
            WHERE conversation_id = :conversation_id
        ))
    ORDER BY s.snapshot_id
    FOR UPDATE OF s
""")
REMOVE_PARTS = Statement("""
    DELETE FROM snapshot_parts WHERE conversation_id = :conversation_id
    RETURNING snapshot_id, message_count
""")
REDUCE = Statement(f"""
    UPDATE snapshots s
    SET message_count = s.message_count - removed.messages, summary = '{REMOVED_SUMMARY}'
    FROM unnest(CAST(:snapshot_ids AS text[]), CAST(:counts AS bigint[]))
        AS removed (snapshot_id, messages)
    WHERE s.tenant_id = :tenant_id AND s.snapshot_id = removed.snapshot_id
""")
REMOVE_EMPTY = Statement("""
    DELETE FROM snapshots
    WHERE tenant_id = :tenant_id AND snapshot_id = ANY (:snapshot_ids) AND message_count <= 0
""")


async def remove_from_snapshots(
    session: Session, tenant_id: str, conversation_id: str
) -> dict[str, int]:
    """Remove a conversation from all snapshots before it is deleted; returns rows by table.

    The summaries of these snapshots are removed as well. Call it in a transaction that holds the
    lock of the conversation's state.
    """
    own = {"conversation_id": conversation_id}
    if not await session.all(LOCK_SNAPSHOTS, tenant_id=tenant_id, **own):
        return {}
    parts = await session.all(REMOVE_PARTS, **own)
    of_tenant = {"tenant_id": tenant_id, "snapshot_ids": [row["snapshot_id"] for row in parts]}
    await session.run(REDUCE, **of_tenant, counts=[row["message_count"] for row in parts])
    snapshots = await session.run(REMOVE_EMPTY, **of_tenant)
    return {"snapshots": snapshots, "snapshot_parts": len(parts)}


async def delete_snapshots_of_agent(
    session: Session, tenant_id: str, agent_id: str
) -> dict[str, int]:
    """Delete the snapshots of an agent and its conversations; returns rows by table."""
    row = await session.first(REMOVE_OF_AGENT, tenant_id=tenant_id, agent_id=agent_id)
    return dict(row or {})
