"""The schema as SQLAlchemy Core tables, the metadata of Alembic's autogenerate and check
[storage.json-text].

Tables of one conversation begin their primary key with `conversation_id`, so that they can be
distributed by it [storage.conversation-key]; `agents`, `agent_versions`, `models`, `calibrations`,
`creations`, `snapshots`, `snapshot_messages`, `tenants`, `tenant_usage` and `api_keys` are small
enough to be reference tables.
JSON is stored as text, so that it is returned byte for byte [log.identical-strings].
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, DOUBLE_PRECISION, TSVECTOR

metadata = sa.MetaData()

NOW = sa.text("now()")


def _time(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=False, server_default=NOW)


def _by_age(table: str) -> sa.Index:
    """Return the index that retention selects old rows by."""
    return sa.Index(f"{table}_by_age", "created_at", postgresql_using="brin")


# Limits of a tenant, null is the default of the settings, and its summariser calls of an hour.
tenants = sa.Table(
    "tenants",
    metadata,
    sa.Column("tenant_id", sa.Text, primary_key=True),
    sa.Column("requests_per_minute", sa.BigInteger),
    sa.Column("summarizer_calls_per_hour", sa.BigInteger),
    _time("created_at"),
    sa.Column("summarizer_hour", sa.DateTime(timezone=True)),
    sa.Column("summarizer_calls", sa.BigInteger),
    # Since then its keys are refused.
    sa.Column("disabled_at", sa.DateTime(timezone=True)),
)

# Keys are revoked, never deleted.
api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("key_id", sa.Text, primary_key=True),
    sa.Column("tenant_id", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("secret_hash", sa.Text, nullable=False),
    _time("created_at"),
    sa.Column("expires_at", sa.DateTime(timezone=True)),
    sa.Column("revoked_at", sa.DateTime(timezone=True)),
    sa.Column("last_used_at", sa.DateTime(timezone=True)),
    sa.Column("read_only", sa.Boolean, nullable=False, server_default=sa.false()),
)

agents = sa.Table(
    "agents",
    metadata,
    sa.Column("tenant_id", sa.Text, primary_key=True),
    sa.Column("agent_id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("model", sa.Text),
    sa.Column("policy", sa.Text, nullable=False, server_default="{}"),
    sa.Column("sections", sa.Text, nullable=False, server_default="[]"),
    sa.Column("tools", sa.Text, nullable=False, server_default="[]"),
    sa.Column("metadata", sa.Text, nullable=False, server_default="{}"),
    sa.Column("sections_version", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("tools_version", sa.BigInteger, nullable=False, server_default="0"),
    _time("created_at"),
    _time("updated_at"),
    sa.Column("rolling_window_seconds", sa.BigInteger, server_default="86400"),
    sa.Column("last_cleared_at", sa.DateTime(timezone=True)),
    sa.Column("inherits_window", sa.Boolean, nullable=False, server_default=sa.false()),
)

conversations = sa.Table(
    "conversations",
    metadata,
    sa.Column("conversation_id", sa.Uuid, primary_key=True),
    sa.Column("tenant_id", sa.Text, nullable=False),
    sa.Column("agent_id", sa.Text),
    sa.Column("model", sa.Text),
    sa.Column("policy", sa.Text, nullable=False, server_default="{}"),
    sa.Column("sections", sa.Text, nullable=False, server_default="[]"),
    sa.Column("tools", sa.Text, nullable=False, server_default="[]"),
    sa.Column("metadata", sa.Text, nullable=False, server_default="{}"),
    sa.Column("sections_version", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("tools_version", sa.BigInteger, nullable=False, server_default="0"),
    _time("created_at"),
    _time("updated_at"),
    # The id that its caller gave it; null if that is `conversation_id`.
    sa.Column("own_id", sa.Text),
    sa.Column("rolling_window_seconds", sa.BigInteger),
    # From then on it is answered as unknown, until a worker deletes it.
    sa.Column("expires_at", sa.DateTime(timezone=True)),
    # The conversation that this one and others were forked from, directly or not; null for it.
    sa.Column("origin_id", sa.Uuid),
    sa.Index(
        "conversations_expiring",
        "expires_at",
        postgresql_where=sa.text("expires_at IS NOT NULL"),
    ),
    sa.Index(
        "conversations_by_origin",
        "origin_id",
        postgresql_where=sa.text("origin_id IS NOT NULL"),
    ),
    sa.Index("conversations_by_agent", "tenant_id", "agent_id", "created_at", "conversation_id"),
    sa.Index("conversations_by_tenant", "tenant_id", "created_at", "conversation_id"),
    # The values of the metadata by tenant; `labels_of` is in the migration.
    sa.Index(
        "conversations_by_label",
        sa.literal_column("labels_of(tenant_id, metadata)").label("labels"),
        postgresql_using="gin",
        postgresql_ops={"labels": "jsonb_path_ops"},
    ),
)


heads = sa.Table(
    "heads",
    metadata,
    sa.Column("conversation_id", sa.Uuid, primary_key=True),
    sa.Column("counter", sa.Text, nullable=False),
    sa.Column("head_seq", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("turns", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("tokens", sa.BigInteger, nullable=False, server_default="0"),
    # The calls without a result and the seqs of their messages, and the last call group: where it
    # begins, its calls that a provider runs, and whether the assistant still answers.
    sa.Column("open_calls", ARRAY(sa.Text), nullable=False, server_default="{}"),
    sa.Column("open_seqs", ARRAY(sa.BigInteger), nullable=False, server_default="{}"),
    sa.Column("group_seq", sa.BigInteger, nullable=False, server_default="1"),
    sa.Column("provider_calls", ARRAY(sa.Text), nullable=False, server_default="{}"),
    sa.Column("is_answering", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("view_version", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("compaction_id", sa.Uuid),
    sa.Column("span_start", sa.BigInteger),
    sa.Column("span_end", sa.BigInteger),
    sa.Column("summary_tokens", sa.Integer, nullable=False, server_default="0"),
    sa.Column("hidden_tokens", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("hidden_messages", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("kept", ARRAY(sa.BigInteger), nullable=False, server_default="{}"),
    sa.Column("view_cause", sa.Text),
    sa.Column("resume_at", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("due_at", sa.DateTime(timezone=True)),
    sa.Column("failures", sa.Integer, nullable=False, server_default="0"),
    sa.Column("event_seq", sa.BigInteger, nullable=False, server_default="0"),
    # Why the last compaction failed, until one succeeds.
    sa.Column("last_failure", sa.Text),
    sa.Column("failed_at", sa.DateTime(timezone=True)),
    # Tool results up to this seq are cleared, except those that stay.
    sa.Column("trimmed_through", sa.BigInteger, nullable=False, server_default="0"),
    # The agent tools that the previews of all results name.
    sa.Column("mentions", ARRAY(sa.Text), nullable=False, server_default="{}"),
    # The view version of the last scheduled blob collection.
    sa.Column("swept_version", sa.BigInteger, nullable=False, server_default="0"),
    # The tools found by a search in this turn.
    sa.Column("promoted", ARRAY(sa.Text), nullable=False, server_default="{}"),
    sa.Column("promoted_turn", sa.BigInteger, nullable=False, server_default="0"),
    # The active window: all from this seq on, with the gaps and restored spans of `parts`.
    sa.Column("since", sa.BigInteger, nullable=False, server_default="1"),
    sa.Column("parts", sa.Text, nullable=False, server_default=""),
    sa.Column("outside_tokens", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("outside_messages", sa.BigInteger, nullable=False, server_default="0"),
    # Whether the last call group is outside the window; what joins it will be too.
    sa.Column("open_outside", sa.Boolean, nullable=False, server_default=sa.false()),
    # The rolling window of the last move.
    sa.Column("window_seconds", sa.BigInteger),
    sa.Column("cleared_at", sa.DateTime(timezone=True)),
    sa.Column("cleared_seq", sa.BigInteger, nullable=False, server_default="0"),
    # The times of the messages in the window, and of the log before the last batch.
    sa.Column("oldest_at", sa.DateTime(timezone=True)),
    sa.Column("newest_at", sa.DateTime(timezone=True)),
    sa.Column("newest_before", sa.DateTime(timezone=True)),
    # The view version of the last redaction: no payload of an earlier one is rendered again.
    sa.Column("redacted_version", sa.BigInteger, nullable=False, server_default="0"),
    # The tokens that the newest payload of this view version has beyond what is stored here.
    sa.Column("unstored_tokens", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("unstored_version", sa.BigInteger, nullable=False, server_default="0"),
    sa.Index("heads_due", "due_at", postgresql_where=sa.text("due_at IS NOT NULL")),
    sa.Index(
        "heads_unswept",
        "conversation_id",
        postgresql_where=sa.text("view_version > swept_version AND compaction_id IS NOT NULL"),
    ),
    # Every append updates this row: free space in the page allows HOT updates.
    postgresql_with={"fillfactor": 50},
)

messages = sa.Table(
    "messages",
    metadata,
    sa.Column("conversation_id", sa.Uuid, primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("message_id", sa.Text, nullable=False),
    sa.Column("turn", sa.BigInteger, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("format", sa.Text, nullable=False),
    sa.Column("tokens", sa.Integer, nullable=False),
    sa.Column("reasoning_tokens", sa.Integer, nullable=False),
    sa.Column("total_tokens", sa.BigInteger, nullable=False),
    sa.Column("call_ids", sa.Text),
    sa.Column("has_media", sa.Boolean, nullable=False),
    # Whether it belongs to the call group of the message before.
    sa.Column("joins", sa.Boolean, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("fragment", sa.Text),
    sa.Column("timestamp", sa.Text),
    _time("created_at"),
    sa.Column("output", sa.Text),
    sa.Column("call_names", sa.Text),
    # The time in the window, never before that of an earlier message; null is `created_at`.
    sa.Column("at", sa.DateTime(timezone=True)),
    # The message's own time, if it is before that of an earlier message.
    sa.Column("late_at", sa.DateTime(timezone=True)),
    sa.UniqueConstraint("conversation_id", "message_id", name="messages_by_id"),
    sa.Index(
        "messages_late",
        "conversation_id",
        "seq",
        postgresql_where=sa.text("late_at IS NOT NULL"),
    ),
)

# Who redacted which message, when and why, without its content.
redactions = sa.Table(
    "redactions",
    metadata,
    sa.Column("conversation_id", sa.Uuid, primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("message_id", sa.Text, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("key_id", sa.Text),
    _time("created_at"),
)

# The full-text index; a message without a row is not indexed yet.
message_words = sa.Table(
    "message_words",
    metadata,
    sa.Column("conversation_id", sa.Uuid, primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("words", TSVECTOR, nullable=False),
    sa.Index(
        "message_words_by_word",
        "words",
        postgresql_using="gin",
        postgresql_with={"gin_pending_list_limit": 128},
    ),
)

# A collected blob's row stays as its tombstone; `content_id` is a UUIDv7, and so its age.
blobs = sa.Table(
    "blobs",
    metadata,
    sa.Column("conversation_id", sa.Uuid, primary_key=True),
    sa.Column("blob_id", sa.Text, primary_key=True),
    sa.Column("content_id", sa.Uuid, nullable=False),
    sa.Column("byte_size", sa.BigInteger, nullable=False),
    sa.Column("line_count", sa.BigInteger, nullable=False),
    sa.Column("sha256", sa.Text, nullable=False),
    sa.Column("media_type", sa.Text, nullable=False),
    sa.Column("tool_name", sa.Text),
    sa.Column("tool_call_id", sa.Text),
    sa.Column("object_key", sa.Text),
    sa.Column("attached", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("collected_at", sa.DateTime(timezone=True)),
    _time("created_at"),
    sa.Index(
        "blobs_by_content",
        "conversation_id",
        "content_id",
        postgresql_where=sa.text("collected_at IS NULL"),
    ),
    sa.Index(
        "blobs_unattached",
        "created_at",
        postgresql_where=sa.text("NOT attached AND collected_at IS NULL"),
    ),
)

blob_chunks = sa.Table(
    "blob_chunks",
    metadata,
    sa.Column("conversation_id", sa.Uuid, primary_key=True),
    sa.Column("content_id", sa.Uuid, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("start", sa.BigInteger, nullable=False),
    sa.Column("newlines", sa.BigInteger, nullable=False),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("data", sa.LargeBinary),
    sa.Column("object_start", sa.BigInteger),
    sa.Column("object_size", sa.Integer),
    sa.Index("blob_chunks_by_line", "conversation_id", "content_id", "newlines", "number"),
)

# Uploads in progress; chunks and the end of an upload require its row.
# The messages that refer to a blob.
blob_uses = sa.Table(
    "blob_uses",
    metadata,
    sa.Column("conversation_id", sa.Uuid, primary_key=True),
    sa.Column("blob_id", sa.Text, primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
)

blob_uploads = sa.Table(
    "blob_uploads",
    metadata,
    sa.Column("conversation_id", sa.Uuid, primary_key=True),
    sa.Column("content_id", sa.Uuid, primary_key=True),
    sa.Column("tenant_id", sa.Text, nullable=False),
    _time("begun_at"),
    sa.Index("blob_uploads_by_time", "begun_at"),
)

idempotency_keys = sa.Table(
    "idempotency_keys",
    metadata,
    sa.Column("conversation_id", sa.Uuid, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("request_hash", sa.Text, nullable=False),
    sa.Column("answer", sa.Text, nullable=False),
    _time("created_at"),
    _by_age("idempotency_keys"),
)

creations = sa.Table(
    "creations",
    metadata,
    sa.Column("tenant_id", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("request_hash", sa.Text, nullable=False),
    sa.Column("resource_id", sa.Text, nullable=False),
    _time("created_at"),
)

compactions = sa.Table(
    "compactions",
    metadata,
    sa.Column("conversation_id", sa.Uuid, primary_key=True),
    sa.Column("compaction_id", sa.Uuid, primary_key=True),
    sa.Column("parent_id", sa.Uuid),
    sa.Column("trigger", sa.Text, nullable=False),
    sa.Column("strategy", sa.Text, nullable=False),
    sa.Column("span_start", sa.BigInteger, nullable=False),
    sa.Column("span_end", sa.BigInteger, nullable=False),
    sa.Column("summary", sa.Text, nullable=False),
    sa.Column("summary_tokens", sa.Integer, nullable=False),
    sa.Column("before_tokens", sa.BigInteger, nullable=False),
    sa.Column("after_tokens", sa.BigInteger, nullable=False),
    sa.Column("before_msg_count", sa.BigInteger, nullable=False),
    sa.Column("after_msg_count", sa.BigInteger, nullable=False),
    sa.Column("model", sa.Text),
    sa.Column("prompt_hash", sa.Text),
    sa.Column("cost_usd", DOUBLE_PRECISION),
    sa.Column("duration_ms", sa.Integer, nullable=False),
    sa.Column("policy_strategy", sa.Text, nullable=False, server_default=""),
    sa.Column("strategies_run", ARRAY(sa.Text), nullable=False, server_default="{}"),
    sa.Column("view", sa.Text, nullable=False, server_default=""),
    sa.Column("made", sa.Text, nullable=False, server_default="[]"),
    sa.Column("hidden_tokens", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("hidden_messages", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("calls", sa.Integer, nullable=False, server_default="0"),
    sa.Column("input_tokens", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("output_tokens", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("degraded", ARRAY(sa.Text), nullable=False, server_default="{}"),
    sa.Column("undone_at", sa.DateTime(timezone=True)),
    sa.Column("summary_input", sa.Text),
    sa.Column("cached_tokens", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("target_tokens", sa.BigInteger),
    _time("created_at"),
)

# Who compacts a conversation at the moment; an expired row is free. What `attempts` and `retry_at`
# are for is in `app.work.repository`.
compaction_leases = sa.Table(
    "compaction_leases",
    metadata,
    sa.Column("conversation_id", sa.Uuid, primary_key=True),
    sa.Column("holder", sa.Uuid, nullable=False),
    sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("retry_at", sa.DateTime(timezone=True)),
)

pins = sa.Table(
    "pins",
    metadata,
    sa.Column("conversation_id", sa.Uuid, primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    _time("created_at"),
)

# Appends are in the log, not here.
events = sa.Table(
    "events",
    metadata,
    sa.Column("conversation_id", sa.Uuid, primary_key=True),
    sa.Column("event_seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("data", sa.Text, nullable=False, server_default="{}"),
    _time("created_at"),
    _by_age("events"),
)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("conversation_id", sa.Uuid, primary_key=True),
    sa.Column("job_id", sa.Uuid, primary_key=True),
    sa.Column("tenant_id", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("ask", sa.Text, nullable=False, server_default="{}"),
    sa.Column("status", sa.Text, nullable=False, server_default="queued"),
    sa.Column("result", sa.Text),
    sa.Column("error", sa.Text),
    _time("created_at"),
    _time("updated_at"),
    sa.Index("jobs_by_id", "job_id"),
    _by_age("jobs"),
    sa.Index(
        "jobs_open", "created_at", postgresql_where=sa.text("status IN ('queued', 'running')")
    ),
)

epochs = sa.Table(
    "epochs",
    metadata,
    sa.Column("conversation_id", sa.Uuid, primary_key=True),
    sa.Column("lane", sa.Text, primary_key=True),
    sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("epoch_id", sa.Uuid, nullable=False),
    sa.Column("format", sa.Text, nullable=False),
    sa.Column("window", sa.BigInteger, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("start_seq", sa.BigInteger, nullable=False),
    sa.Column("view_version", sa.BigInteger, nullable=False),
    sa.Column("frame", sa.Text, nullable=False),
    sa.Column("sections_hash", sa.Text, nullable=False),
    sa.Column("tools_hash", sa.Text, nullable=False),
    sa.Column("policy_hash", sa.Text, nullable=False),
    _time("created_at"),
    sa.Index("epochs_by_window", "conversation_id", "lane", "window", "epoch"),
    sa.Index("epochs_by_id", "conversation_id", "epoch_id"),
)

prompt_texts = sa.Table(
    "prompt_texts",
    metadata,
    sa.Column("conversation_id", sa.Uuid, primary_key=True),
    sa.Column("hash", sa.Text, primary_key=True),
    sa.Column("body", sa.Text, nullable=False),
)

# All versions of sections and tools.
conversation_versions = sa.Table(
    "conversation_versions",
    metadata,
    sa.Column("conversation_id", sa.Uuid, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("body", sa.Text, nullable=False),
    _time("created_at"),
)

agent_versions = sa.Table(
    "agent_versions",
    metadata,
    sa.Column("tenant_id", sa.Text, primary_key=True),
    sa.Column("agent_id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("body", sa.Text, nullable=False),
    _time("created_at"),
)

usage_reports = sa.Table(
    "usage_reports",
    metadata,
    sa.Column("conversation_id", sa.Uuid, primary_key=True),
    sa.Column("report_id", sa.Uuid, primary_key=True),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("format", sa.Text, nullable=False),
    sa.Column("epoch", sa.BigInteger),
    sa.Column("through_seq", sa.BigInteger),
    sa.Column("input_tokens", sa.BigInteger, nullable=False),
    sa.Column("output_tokens", sa.BigInteger, nullable=False),
    sa.Column("cache_creation_tokens", sa.BigInteger, nullable=False),
    sa.Column("cache_read_tokens", sa.BigInteger, nullable=False),
    # The token count before calibration, if it is known.
    sa.Column("estimated_tokens", sa.BigInteger),
    # Its parts, in the order of the fields of `Usage`.
    sa.Column("regions", ARRAY(sa.BigInteger)),
    sa.Column("usage", sa.Text, nullable=False),
    _time("created_at"),
)


def _usage_totals() -> list[sa.Column[object]]:
    """Return the last columns of a key of usage totals, and the totals."""
    return [
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("purpose", sa.Text, primary_key=True),
        sa.Column("calls", sa.BigInteger, nullable=False),
        sa.Column("input_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("cache_creation_tokens", sa.BigInteger, nullable=False),
        sa.Column("cache_read_tokens", sa.BigInteger, nullable=False),
        sa.Column("cost_usd", DOUBLE_PRECISION, nullable=False),
        sa.Column("unpriced_calls", sa.BigInteger, nullable=False),
        sa.Column("saved_tokens", sa.BigInteger, nullable=False),
        sa.Column("saved_usd", DOUBLE_PRECISION, nullable=False),
    ]


conversation_usage = sa.Table(
    "conversation_usage",
    metadata,
    sa.Column("conversation_id", sa.Uuid, primary_key=True),
    *_usage_totals(),
)

# Has no content of conversations, and stays when they are deleted. Rows without an agent id are of
# the whole tenant.
tenant_usage = sa.Table(
    "tenant_usage",
    metadata,
    sa.Column("tenant_id", sa.Text, primary_key=True),
    sa.Column("agent_id", sa.Text, primary_key=True),
    *_usage_totals(),
    # Every report updates a row: free space in the page allows HOT updates.
    postgresql_with={"fillfactor": 50},
)

# The ratio of reported to counted tokens of a model, with exponential decay, and that of its sealed
# text.
calibrations = sa.Table(
    "calibrations",
    metadata,
    sa.Column("tenant_id", sa.Text, primary_key=True),
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("counter", sa.Text, primary_key=True),
    sa.Column("factor", DOUBLE_PRECISION, nullable=False),
    sa.Column("margin", DOUBLE_PRECISION, nullable=False),
    sa.Column("reports", sa.BigInteger, nullable=False),
    sa.Column("reported_sum", DOUBLE_PRECISION, nullable=False),
    sa.Column("counted_sum", DOUBLE_PRECISION, nullable=False),
    sa.Column("deviation_sum", DOUBLE_PRECISION, nullable=False),
    sa.Column("sealed_reported", DOUBLE_PRECISION, nullable=False, server_default="1000"),
    sa.Column("sealed_counted", DOUBLE_PRECISION, nullable=False, server_default="1000"),
    _time("updated_at"),
)

models = sa.Table(
    "models",
    metadata,
    sa.Column("tenant_id", sa.Text, primary_key=True),
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("entry", sa.Text, nullable=False),
    _time("updated_at"),
)

# The messages of a snapshot are spans of logs, one part for each conversation.
snapshots = sa.Table(
    "snapshots",
    metadata,
    sa.Column("tenant_id", sa.Text, primary_key=True),
    sa.Column("session_id", sa.Text, primary_key=True),
    sa.Column("agent_id", sa.Text),
    sa.Column("description", sa.Text),
    sa.Column("summary", sa.Text, nullable=False),
    sa.Column("message_count", sa.BigInteger, nullable=False),
    sa.Column("window_start", sa.DateTime(timezone=True), nullable=False),
    sa.Column("window_end", sa.DateTime(timezone=True), nullable=False),
    sa.Column("imported", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("models", sa.Text, nullable=False),
    sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    sa.Index("snapshots_by_time", "tenant_id", "created_at", "session_id"),
    sa.Index("snapshots_by_agent", "tenant_id", "agent_id", "created_at", "session_id"),
)

snapshot_parts = sa.Table(
    "snapshot_parts",
    metadata,
    sa.Column("conversation_id", sa.Uuid, primary_key=True),
    sa.Column("session_id", sa.Text, primary_key=True),
    sa.Column("tenant_id", sa.Text, nullable=False),
    # Starts and ends, one after the other.
    sa.Column("spans", ARRAY(sa.BigInteger), nullable=False),
    sa.Column("message_count", sa.BigInteger, nullable=False),
    sa.Index("snapshot_parts_by_session", "tenant_id", "session_id"),
)

# The messages of an imported snapshot; `source_id` is their conversation.
snapshot_messages = sa.Table(
    "snapshot_messages",
    metadata,
    sa.Column("tenant_id", sa.Text, primary_key=True),
    sa.Column("session_id", sa.Text, primary_key=True),
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("source_id", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Index("snapshot_messages_by_source", "tenant_id", "source_id"),
)
