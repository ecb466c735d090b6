"""The tables with rows of a conversation."""

from __future__ import annotations

from app.database.tables import TABLES

CONVERSATION_TABLES = tuple(
    name for name, table in TABLES.items() if "conversation_id" in table.columns
)
"""All tables with rows of a conversation, in the order of deletion.

Chunks are deleted after the rows that allow new ones: the deletion waits for the locks of those,
and then reads chunks that were stored meanwhile.
"""
NOT_EXPIRED = "(c.expires_at IS NULL OR c.expires_at > now())"
"""The condition of a conversation `c` that is shown; a worker deletes expired ones soon after."""
