"""The tables with rows of a conversation."""

from __future__ import annotations

# Chunks are deleted after the rows that allow new ones: the deletion waits for the locks of those,
# and then reads chunks that were stored meanwhile.
CONVERSATION_TABLES = (
    "conversations",
    "heads",
    "messages",
    "idempotency_keys",
    "compactions",
    "compaction_leases",
    "epochs",
    "prompt_texts",
    "pins",
    "events",
    "jobs",
    "blobs",
    "blob_uses",
    "blob_uploads",
    "blob_chunks",
    "conversation_versions",
    "usage_reports",
    "conversation_usage",
    "message_words",
    "redactions",
    "snapshot_parts",
)
"""All tables with rows of a conversation, in the order of deletion."""


NOT_EXPIRED = "(c.expires_at IS NULL OR c.expires_at > now())"
"""The condition of a conversation `c` that is shown; a worker deletes expired ones soon after."""
