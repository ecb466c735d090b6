"""The schema [storage.json-text]: its text, which the migration runs, and its tables and columns.

Tables of one conversation begin their primary key with `conversation_id`, so that they can be
distributed by it [storage.conversation-key]; `agents`, `agent_versions`, `models`, `calibrations`,
`snapshots`, `tenants`, `tenant_usage` and `api_keys` are small
enough to be reference tables.
JSON is stored as text, so that it is returned byte for byte [log.identical-strings].

Each column has a line, which begins with its name and its type: `TABLES` is read from these lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

APPEND = files(__package__).joinpath("append.sql").read_text(encoding="utf-8")
"""The function that appends a batch [log.one-statement]."""

SCHEMA = r"""
-- The top-level values of metadata as texts, by tenant, such as `{"acme": {"customer": "42"}}`.
-- JSON of type text may have what jsonb refuses, NUL and lone surrogates: U+FFFD stands for them.
CREATE FUNCTION labels_of(tenant_id text, metadata text) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT jsonb_build_object(tenant_id, jsonb_object_agg(key, value #>> '{}'))
    FROM json_each(CAST(regexp_replace(
        metadata,
        '\\u(0000|d[89ab][0-9a-f]{2}(?!\\ud[c-f])'
            '|(?<!\\ud[89ab][0-9a-f]{2}\\u)d[c-f][0-9a-f]{2})',
        '\\ufffd',
        'gi'
    ) AS json))
    WHERE json_typeof(value) IN ('string', 'number', 'boolean')
$$;

-- Limits of a tenant, null is the default of the settings, and its summariser calls of an hour.
CREATE TABLE tenants (
    tenant_id text,
    requests_per_minute bigint,
    summarizer_calls_per_hour bigint,
    created_at timestamptz NOT NULL DEFAULT now(),
    summarizer_hour timestamptz,
    summarizer_calls bigint,
    PRIMARY KEY (tenant_id)
);

-- Keys are revoked, never deleted.
CREATE TABLE api_keys (
    key_id text,
    tenant_id text NOT NULL,
    name text NOT NULL,
    secret_hash text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    revoked_at timestamptz,
    read_only boolean NOT NULL DEFAULT false,
    PRIMARY KEY (key_id)
);

CREATE TABLE agents (
    tenant_id text,
    agent_id text,
    name text NOT NULL,
    model text,
    policy text NOT NULL DEFAULT '{}',
    sections text NOT NULL DEFAULT '[]',
    tools text NOT NULL DEFAULT '[]',
    metadata text NOT NULL DEFAULT '{}',
    sections_version bigint NOT NULL DEFAULT 0,
    tools_version bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    -- Null is inherited, 0 is no limit, as in a conversation.
    rolling_window_seconds bigint,  -- null inherits, 0 is no limit; null in the API is no limit
    last_cleared_at timestamptz,
    PRIMARY KEY (tenant_id, agent_id)
);

CREATE TABLE conversations (
    conversation_id uuid,
    tenant_id text NOT NULL,
    agent_id text,
    model text,
    policy text NOT NULL DEFAULT '{}',
    sections text NOT NULL DEFAULT '[]',
    tools text NOT NULL DEFAULT '[]',
    metadata text NOT NULL DEFAULT '{}',
    sections_version bigint NOT NULL DEFAULT 0,
    tools_version bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    -- The id that its caller gave it; null if that is `conversation_id`.
    own_id text,
    rolling_window_seconds bigint,  -- null inherits, 0 is no limit; null in the API is no limit
    -- From then on it is answered as unknown, until a worker deletes it.
    expires_at timestamptz,
    -- The conversation that this one and others were forked from, directly or not; null for it.
    origin_id uuid,
    PRIMARY KEY (conversation_id)
);
CREATE INDEX conversations_expiring ON conversations (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX conversations_by_origin ON conversations (origin_id) WHERE origin_id IS NOT NULL;
CREATE INDEX conversations_by_agent
    ON conversations (tenant_id, agent_id, created_at, conversation_id);
CREATE INDEX conversations_by_tenant ON conversations (tenant_id, created_at, conversation_id);
-- The values of the metadata by tenant.
CREATE INDEX conversations_by_label
    ON conversations USING gin (labels_of(tenant_id, metadata) jsonb_path_ops);

-- Every append updates this row: free space in the page allows HOT updates.
CREATE TABLE states (
    conversation_id uuid,
    counter text NOT NULL,
    head_seq bigint NOT NULL DEFAULT 0,
    turns bigint NOT NULL DEFAULT 0,
    tokens bigint NOT NULL DEFAULT 0,  -- of the whole log
    -- The calls without a result and the seqs of their messages, and the last call group: where it
    -- begins, its calls that a provider runs, and whether the assistant still answers.
    open_calls text[] NOT NULL DEFAULT '{}',
    open_seqs bigint[] NOT NULL DEFAULT '{}',
    group_seq bigint NOT NULL DEFAULT 1,
    provider_calls text[] NOT NULL DEFAULT '{}',
    is_answering boolean NOT NULL DEFAULT false,
    view_version bigint NOT NULL DEFAULT 0,
    compaction_id uuid,
    hidden_start bigint,  -- what the active compaction hides, but for `protected_seqs`
    hidden_end bigint,
    summary_tokens integer NOT NULL DEFAULT 0,
    hidden_tokens bigint NOT NULL DEFAULT 0,  -- with those outside the active window
    hidden_messages bigint NOT NULL DEFAULT 0,
    protected_seqs bigint[] NOT NULL DEFAULT '{}',  -- neither hidden nor cleared
    view_cause text,  -- of the last change of the view
    resume_at_tokens bigint NOT NULL DEFAULT 0,  -- no background compaction before
    due_at timestamptz,
    failures integer NOT NULL DEFAULT 0,
    event_seq bigint NOT NULL DEFAULT 0,
    -- Why the last automatic compaction failed, until one succeeds.
    last_failure text,
    failed_at timestamptz,
    -- Tool results up to this seq are cleared, except those that stay.
    results_cleared_through bigint NOT NULL DEFAULT 0,
    -- The agent tools that the previews of all results name.
    named_tools text[] NOT NULL DEFAULT '{}',
    -- The view version of the last scheduled blob collection.
    collected_version bigint NOT NULL DEFAULT 0,
    -- The tools found by a search in this turn.
    promoted text[] NOT NULL DEFAULT '{}',
    promoted_turn bigint NOT NULL DEFAULT 0,
    -- The active window: all from this seq on, with the gaps and other spans of `window_parts`.
    since bigint NOT NULL DEFAULT 1,
    window_parts text NOT NULL DEFAULT '',
    outside_tokens bigint NOT NULL DEFAULT 0,
    outside_messages bigint NOT NULL DEFAULT 0,
    -- The rolling window of the last move.
    window_seconds bigint,
    cleared_at timestamptz,
    cleared_seq bigint NOT NULL DEFAULT 0,
    -- The times of the messages in the window.
    oldest_at timestamptz,
    newest_at timestamptz,
    -- The view version of the last redaction: no payload of an earlier one is rendered again.
    redacted_version bigint NOT NULL DEFAULT 0,
    -- The tokens that the newest payload of this view version has beyond what is stored here.
    extra_tokens bigint NOT NULL DEFAULT 0,
    extra_version bigint NOT NULL DEFAULT 0,
    -- Grows with each epoch and pin: what a build reads beside this row, the log and the settings.
    input_version bigint NOT NULL DEFAULT 0,
    -- Since when it has messages that the index lacks; null is never.
    unindexed_at timestamptz DEFAULT now(),
    PRIMARY KEY (conversation_id)
) WITH (fillfactor = 50);
CREATE INDEX states_unindexed ON states (unindexed_at) WHERE unindexed_at IS NOT NULL;
CREATE INDEX states_due ON states (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX states_uncollected ON states (conversation_id)
    WHERE view_version > collected_version AND compaction_id IS NOT NULL;

CREATE TABLE messages (
    conversation_id uuid,
    seq bigint,
    message_id text NOT NULL,
    turn bigint NOT NULL,
    role text NOT NULL,
    format text NOT NULL,
    tokens integer NOT NULL,
    reasoning_tokens integer NOT NULL,
    total_tokens bigint NOT NULL,
    call_ids text,
    needs_body boolean NOT NULL,  -- builds read it even beside a `chat_item`
    -- Whether it belongs to the call group of the message before.
    joins boolean NOT NULL,
    body text NOT NULL,
    chat_item text,
    timestamp text,
    created_at timestamptz NOT NULL DEFAULT now(),
    output text,
    call_names text,
    -- The time in the window, never before that of an earlier message; null is `created_at`.
    at timestamptz,
    -- The message's own time, if it is before that of an earlier message.
    late_at timestamptz,
    PRIMARY KEY (conversation_id, seq),
    CONSTRAINT messages_by_id UNIQUE (conversation_id, message_id)
);
CREATE INDEX messages_late ON messages (conversation_id, seq) WHERE late_at IS NOT NULL;

-- Who redacted which message, when and why, without its content.
CREATE TABLE redactions (
    conversation_id uuid,
    seq bigint,
    message_id text NOT NULL,
    reason text,
    key_id text,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (conversation_id, seq)
);

-- The words of messages from `first_seq` on, whose numbers of lexemes are the `sizes`.
CREATE TABLE message_words (
    conversation_id uuid,
    first_seq bigint,
    sizes integer[] NOT NULL,
    words tsvector NOT NULL,
    PRIMARY KEY (conversation_id, first_seq)
);
-- A search over many conversations would spend most of its time to decompress them.
ALTER TABLE message_words ALTER words SET STORAGE EXTERNAL;

-- A collected blob's row stays as its tombstone; `content_id` is a UUIDv7, and so its age.
CREATE TABLE blobs (
    conversation_id uuid,
    blob_id text,
    byte_size bigint NOT NULL,
    line_count bigint NOT NULL,
    sha256 text NOT NULL,
    media_type text NOT NULL,
    tool_name text,
    tool_call_id text,
    attached boolean NOT NULL DEFAULT false,
    content_id uuid NOT NULL,
    object_key text,
    collected_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (conversation_id, blob_id)
);
CREATE INDEX blobs_by_content ON blobs (conversation_id, content_id) WHERE collected_at IS NULL;
CREATE INDEX blobs_unattached ON blobs (created_at) WHERE NOT attached AND collected_at IS NULL;

-- The messages that refer to a blob.
CREATE TABLE blob_uses (
    conversation_id uuid,
    blob_id text,
    seq bigint,
    PRIMARY KEY (conversation_id, blob_id, seq)
);

-- Uploads in progress; chunks and the end of an upload require its row.
CREATE TABLE blob_uploads (
    conversation_id uuid,
    content_id uuid,
    tenant_id text NOT NULL,
    begun_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (conversation_id, content_id)
);
CREATE INDEX blob_uploads_by_time ON blob_uploads (begun_at);

CREATE TABLE blob_chunks (
    conversation_id uuid,
    content_id uuid,
    number integer,
    start bigint NOT NULL,
    newlines bigint NOT NULL,
    size integer NOT NULL,
    data bytea,
    object_start bigint,
    object_size integer,
    PRIMARY KEY (conversation_id, content_id, number)
);
-- Chunks are compressed already.
ALTER TABLE blob_chunks ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX blob_chunks_by_line ON blob_chunks (conversation_id, content_id, newlines, number);

CREATE TABLE idempotency_keys (
    conversation_id uuid,
    key text,
    request_hash text NOT NULL,
    answer text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (conversation_id, key)
);
CREATE INDEX idempotency_keys_by_age ON idempotency_keys USING brin (created_at);

CREATE TABLE compactions (
    conversation_id uuid,
    compaction_id uuid,
    parent_id uuid,
    trigger text NOT NULL,
    policy_strategy text NOT NULL,
    hidden_start bigint NOT NULL,
    hidden_end bigint NOT NULL,
    summary text NOT NULL,
    view text NOT NULL,
    made text NOT NULL,
    receipt text NOT NULL,
    undone_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (conversation_id, compaction_id)
);

-- Who compacts a conversation at the moment; an expired row is free. What `attempts` and `retry_at`
-- are for is in `app.jobs.repository`.
CREATE TABLE compaction_leases (
    conversation_id uuid,
    holder uuid NOT NULL,
    expires_at timestamptz NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    retry_at timestamptz,
    PRIMARY KEY (conversation_id)
);

CREATE TABLE pins (
    conversation_id uuid,
    seq bigint,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (conversation_id, seq)
);

-- Appends are in the log, not here.
CREATE TABLE events (
    conversation_id uuid,
    event_seq bigint,
    type text NOT NULL,
    data text NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (conversation_id, event_seq)
);
CREATE INDEX events_by_age ON events USING brin (created_at);

CREATE TABLE jobs (
    conversation_id uuid,
    job_id uuid,
    tenant_id text NOT NULL,
    kind text NOT NULL,
    ask text NOT NULL DEFAULT '{}',
    status text NOT NULL DEFAULT 'queued',
    result text,
    error text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (conversation_id, job_id)
);
CREATE INDEX jobs_by_id ON jobs (job_id);
CREATE INDEX jobs_by_age ON jobs USING brin (created_at);
CREATE INDEX jobs_open ON jobs (created_at) WHERE status IN ('queued', 'running');

CREATE TABLE epochs (
    conversation_id uuid,
    payload_stream text,
    epoch bigint,
    epoch_id uuid NOT NULL,
    format text NOT NULL,
    requested_context_window bigint NOT NULL,
    reason text,
    start_seq bigint NOT NULL,
    view_version bigint NOT NULL,
    start_json text NOT NULL,
    sections_hash text NOT NULL,
    tools_hash text NOT NULL,
    policy_hash text NOT NULL,
    -- Up to which seq the provider has removed reasoning.
    reasoning_removed bigint NOT NULL DEFAULT 0,
    -- Changed sections and tools inside it, as text: its items keep the order of their keys.
    changes text NOT NULL DEFAULT '[]',
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (conversation_id, payload_stream, epoch)
);
CREATE INDEX epochs_by_context_window
    ON epochs (conversation_id, payload_stream, requested_context_window, epoch);
CREATE INDEX epochs_by_id ON epochs (conversation_id, epoch_id);

CREATE TABLE prompt_texts (
    conversation_id uuid,
    hash text,
    body text NOT NULL,
    PRIMARY KEY (conversation_id, hash)
);

-- The newest versions of sections and tools.
CREATE TABLE conversation_versions (
    conversation_id uuid,
    kind text,
    version bigint,
    body text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (conversation_id, kind, version)
);

CREATE TABLE agent_versions (
    tenant_id text,
    agent_id text,
    kind text,
    version bigint,
    body text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, agent_id, kind, version)
);

CREATE TABLE usage_reports (
    conversation_id uuid,
    report_id uuid,
    model text NOT NULL,
    format text NOT NULL,
    epoch bigint,
    through_seq bigint,
    input_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    cache_creation_tokens bigint NOT NULL,
    cache_read_tokens bigint NOT NULL,
    -- The token count before calibration, if it is known.
    estimated_tokens bigint,
    -- Its parts, in the order of the fields of `PayloadTokens`.
    regions bigint[],
    -- What the provider said of the prefix, as JSON.
    removed_reasoning text NOT NULL,
    cache_miss text,
    usage text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (conversation_id, report_id)
);

CREATE TABLE conversation_usage (
    conversation_id uuid,
    day date,
    model text,
    purpose text,
    calls bigint NOT NULL,
    input_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    cache_creation_tokens bigint NOT NULL,
    cache_read_tokens bigint NOT NULL,
    cost_usd double precision NOT NULL,
    unpriced_calls bigint NOT NULL,
    saved_tokens bigint NOT NULL,
    saved_usd double precision NOT NULL,
    PRIMARY KEY (conversation_id, day, model, purpose)
);

-- Has no content of conversations, and stays when they are deleted. Rows without an agent id are of
-- the whole tenant. Every report updates a row: free space in the page allows HOT updates.
CREATE TABLE tenant_usage (
    tenant_id text,
    agent_id text,
    day date,
    model text,
    purpose text,
    calls bigint NOT NULL,
    input_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    cache_creation_tokens bigint NOT NULL,
    cache_read_tokens bigint NOT NULL,
    cost_usd double precision NOT NULL,
    unpriced_calls bigint NOT NULL,
    saved_tokens bigint NOT NULL,
    saved_usd double precision NOT NULL,
    PRIMARY KEY (tenant_id, agent_id, day, model, purpose)
) WITH (fillfactor = 50);

-- The ratio of reported to counted tokens of a model, with exponential decay.
CREATE TABLE calibrations (
    tenant_id text,
    model text,
    counter text,
    factor double precision NOT NULL,
    margin double precision NOT NULL,
    reports bigint NOT NULL,
    reported_sum double precision NOT NULL,
    counted_sum double precision NOT NULL,
    deviation_sum double precision NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, model, counter)
);

CREATE TABLE models (
    tenant_id text,
    model text,
    info text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, model)
);

-- The messages of a snapshot are spans of logs, one part for each conversation.
CREATE TABLE snapshots (
    tenant_id text,
    snapshot_id text,
    agent_id text,
    description text,
    summary text NOT NULL,
    message_count bigint NOT NULL,
    window_start timestamptz NOT NULL,
    window_end timestamptz NOT NULL,
    models text NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, snapshot_id)
);
CREATE INDEX snapshots_by_time ON snapshots (tenant_id, created_at, snapshot_id);
CREATE INDEX snapshots_by_agent ON snapshots (tenant_id, agent_id, created_at, snapshot_id);

CREATE TABLE snapshot_parts (
    conversation_id uuid,
    snapshot_id text,
    tenant_id text NOT NULL,
    -- Starts and ends, one after the other.
    spans bigint[] NOT NULL,
    message_count bigint NOT NULL,
    PRIMARY KEY (conversation_id, snapshot_id)
);
CREATE INDEX snapshot_parts_by_snapshot ON snapshot_parts (tenant_id, snapshot_id);
"""

_TABLE = re.compile(
    r"^CREATE TABLE (\w+) \((.*?)^    PRIMARY KEY \((.*?)\)", re.MULTILINE | re.DOTALL
)
_COLUMN = re.compile(
    r'^    "?(\w+)"? ((?:text|uuid|bigint|integer|boolean|timestamptz|date|bytea|tsvector'
    r"|double precision)(?:\[\])?)( NOT NULL)?(?: DEFAULT ([^,\n]+))?",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Table:
    """The columns of a table with their types, and those of its key.

    `defaults` are the values of columns that a row may leave out.
    """

    columns: Mapping[str, str]
    key: tuple[str, ...]
    defaults: Mapping[str, str]

    def without(self, *names: str) -> dict[str, str]:
        """Return the other columns with their types."""
        return {name: kind for name, kind in self.columns.items() if name not in names}


def _table(text: str, key: tuple[str, ...]) -> Table:
    found = _COLUMN.findall(text)
    defaults = {
        name: default or "NULL"
        for name, _, required, default in found
        if name not in key and (default or not required)
    }
    return Table({name: kind for name, kind, *_ in found}, key, defaults)


TABLES: Mapping[str, Table] = {
    name: _table(columns, tuple(key.split(", "))) for name, columns, key in _TABLE.findall(SCHEMA)
}

_KINDS: dict[str, set[str]] = {}
for _each in TABLES.values():
    for _name, _kind in _each.columns.items():
        _KINDS.setdefault(_name, set()).add(_kind)
TYPES: Mapping[str, str] = {
    **{name: kind for name, (kind, *others) in _KINDS.items() if not others},
    "limit": "bigint",
    "after_seq": "bigint",
    "before_seq": "bigint",
    "conversation_ids": "uuid[]",
    "seqs": "bigint[]",
    "starts": "bigint[]",
    "ends": "bigint[]",
}
"""The types of parameters: those of the columns of their names, and of some that many statements
have. Two names are of columns of several types and have none: `data` and `tokens`.
"""
CONVERSATION_TABLES = tuple(
    name for name, table in TABLES.items() if "conversation_id" in table.columns
)
"""All tables with rows of a conversation, in the order of deletion.

Chunks are deleted after the rows that allow new ones: the deletion waits for the locks of those,
and then reads chunks that were stored meanwhile.
"""
NOT_EXPIRED = "(c.expires_at IS NULL OR c.expires_at > now())"
"""The condition of a conversation `c` that is shown; a worker deletes expired ones soon after."""
