"""Removal of a conversation or an agent from the snapshots that name it."""

from __future__ import annotations

from collections import Counter

from app.database.connections import Session, Statement

REMOVED_SUMMARY = "(the summary told of a conversation that was deleted)"
"""The summary of a snapshot after one of its conversations was deleted."""

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
        DELETE FROM snapshots WHERE tenant_id = :tenant_id AND agent_id = :agent_id
        RETURNING tenant_id, session_id
    ), {DELETE_PARTS_AND_MESSAGES}
""")
_MESSAGES = "tenant_id = :tenant_id AND source_id = CAST(:public_id AS text)"
LOCK_SNAPSHOTS = Statement(f"""
    SELECT session_id FROM snapshots
    WHERE tenant_id = :tenant_id AND session_id = ANY (
        ARRAY(SELECT session_id FROM snapshot_parts WHERE conversation_id = :conversation_id)
        || ARRAY(SELECT DISTINCT session_id FROM snapshot_messages WHERE {_MESSAGES})
    )
    ORDER BY session_id FOR UPDATE
""")
REMOVE_MESSAGES = Statement(f"DELETE FROM snapshot_messages WHERE {_MESSAGES} RETURNING session_id")
REMOVE_PARTS = Statement("""
    DELETE FROM snapshot_parts WHERE conversation_id = :conversation_id
    RETURNING session_id, message_count
""")
REDUCE = Statement(f"""
    UPDATE snapshots s
    SET message_count = s.message_count - removed.messages, summary = '{REMOVED_SUMMARY}'
    FROM unnest(CAST(:session_ids AS text[]), CAST(:counts AS bigint[]))
        AS removed (session_id, messages)
    WHERE s.tenant_id = :tenant_id AND s.session_id = removed.session_id
""")
REMOVE_EMPTY = Statement("""
    DELETE FROM snapshots
    WHERE tenant_id = :tenant_id AND session_id = ANY (:session_ids) AND message_count <= 0
""")


async def remove_from_snapshots(
    session: Session, tenant_id: str, conversation_id: str, public_id: str
) -> dict[str, int]:
    """Remove a conversation from all snapshots before it is deleted; returns rows by table.

    The summaries of these snapshots are removed as well. Call it in a transaction that holds the
    lock of the conversation's state.
    """
    names = {"tenant_id": tenant_id, "public_id": public_id}
    if not await session.all(LOCK_SNAPSHOTS, **names, conversation_id=conversation_id):
        return {}
    messages = await session.all(REMOVE_MESSAGES, **names)
    parts = await session.all(REMOVE_PARTS, conversation_id=conversation_id)
    counts = Counter(row["session_id"] for row in messages)
    for row in parts:
        counts[row["session_id"]] += row["message_count"]
    ids = {"tenant_id": tenant_id, "session_ids": list(counts)}
    await session.run(REDUCE, **ids, counts=list(counts.values()))
    return {
        "snapshots": await session.run(REMOVE_EMPTY, **ids),
        "snapshot_parts": len(parts),
        "snapshot_messages": len(messages),
    }


async def delete_snapshots_of_agent(
    session: Session, tenant_id: str, agent_id: str
) -> dict[str, int]:
    """Delete the snapshots of an agent and its conversations; returns rows by table."""
    row = await session.first(REMOVE_OF_AGENT, tenant_id=tenant_id, agent_id=agent_id)
    return dict(row or {})
