"""How the tables lie on the nodes of Citus (`deploy/citus/distribute.sql`).

A table of a conversation is distributed by it, beside the others of the conversation. What is
counted or kept for a tenant and never joined is distributed by the tenant. The others are small,
and joined with conversations: each node has a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from app.adapters.postgres.common.connections import Session, Statement
from app.adapters.postgres.common.conversation_tables import CONVERSATION_TABLES

BY_CONVERSATION = CONVERSATION_TABLES
BY_TENANT = ("allowances", "creations", "tenant_usage")
EVERYWHERE = (
    *("tenants", "api_keys", "agents", "agent_versions", "models", "calibrations"),
    *("snapshots", "snapshot_messages"),
)

PLACEMENTS = Statement(
    """
        SELECT CAST(logicalrelid AS text) AS name, colocationid,
            CAST(column_to_column_name(logicalrelid, partkey) AS text) AS key
        FROM pg_dist_partition
        """
)


async def misplaced(session: Session) -> list[str]:
    """Return the tables that do not lie as they should; none if no table is distributed."""
    rows = await session.all(PLACEMENTS)
    return _misplaced({row["name"]: row for row in rows}) if rows else []


def _misplaced(placed: Mapping[str, Mapping[str, Any]]) -> list[str]:
    def wrong(tables: Iterable[str], key: str | None) -> list[str]:
        return [name for name in tables if name not in placed or placed[name]["key"] != key]

    together = placed.get("conversations", {}).get("colocationid")
    apart = [
        name
        for name in BY_CONVERSATION
        if name in placed and placed[name]["colocationid"] != together
    ]
    return [
        *wrong(BY_CONVERSATION, "conversation_id"),
        *wrong(BY_TENANT, "tenant_id"),
        *wrong(EVERYWHERE, None),
        *apart,
    ]
