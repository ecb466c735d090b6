"""The tables with rows of a conversation."""

from __future__ import annotations

# Chunks are deleted after the rows that allow new ones: the deletion waits for the locks of those,
# and then reads chunks that were stored meanwhile.
CONVERSATION_TABLES = (
    "conversations",
    "heads",
    "archived_heads",
    "archives",
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
    "log_sizes",
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

ARCHIVED_TABLES = {
    "messages": "seq",
    "compactions": "compaction_id",
    "epochs": "lane, epoch",
    "prompt_texts": "hash",
    "blob_uses": "blob_id, seq",
    "blob_chunks": "content_id, number",
    "conversation_versions": "kind, version",
    "usage_reports": "report_id",
    "message_words": "seq",
}
"""The tables whose rows are in the object of an archived conversation, with their order in it.

The others stay, because something else than the conversation reads them (lists, the events, jobs
and stored bytes of a tenant, snapshots, the sweep of blobs), or because they are small.
"""
