"""Active windows, snapshots and search: what agents, restarts and transcripts need.

Columns may be null or have a default, so that the previous release goes on beside this one.

Revision ID: 0005
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add rolling windows and clears, snapshots, and the words of messages."""
    op.execute(
        """
        ALTER TABLE agents
            ADD COLUMN rolling_window_seconds BIGINT DEFAULT 86400,
            ADD COLUMN last_cleared_at TIMESTAMP WITH TIME ZONE
        """
    )
    op.execute(
        """
        ALTER TABLE heads
            ADD COLUMN since BIGINT DEFAULT 1 NOT NULL,
            ADD COLUMN parts TEXT DEFAULT '' NOT NULL,
            ADD COLUMN outside_tokens BIGINT DEFAULT 0 NOT NULL,
            ADD COLUMN outside_messages BIGINT DEFAULT 0 NOT NULL,
            ADD COLUMN open_outside BOOLEAN DEFAULT false NOT NULL,
            ADD COLUMN window_seconds BIGINT,
            ADD COLUMN cleared_at TIMESTAMP WITH TIME ZONE,
            ADD COLUMN cleared_seq BIGINT DEFAULT 0 NOT NULL,
            ADD COLUMN oldest_at TIMESTAMP WITH TIME ZONE,
            ADD COLUMN newest_at TIMESTAMP WITH TIME ZONE,
            ADD COLUMN newest_before TIMESTAMP WITH TIME ZONE
        """
    )
    op.execute(
        """
        ALTER TABLE messages
            ADD COLUMN at TIMESTAMP WITH TIME ZONE,
            ADD COLUMN late_at TIMESTAMP WITH TIME ZONE
        """
    )
    op.execute(
        """
        CREATE INDEX messages_late ON messages (conversation_id, seq)
        WHERE late_at IS NOT NULL
        """
    )
    op.execute(
        """
        CREATE TABLE message_words (
            conversation_id UUID NOT NULL,
            seq BIGINT NOT NULL,
            words TSVECTOR NOT NULL,
            PRIMARY KEY (conversation_id, seq)
        )
        """
    )
    # Every search also reads what waits to be put into the index: let that be little.
    op.execute(
        """
        CREATE INDEX message_words_by_word ON message_words USING gin (words)
        WITH (gin_pending_list_limit = 128)
        """
    )
    op.execute(
        """
        CREATE TABLE snapshots (
            tenant_id TEXT NOT NULL,
            session_id TEXT NOT NULL,
            agent_id TEXT,
            description TEXT,
            summary TEXT NOT NULL,
            message_count BIGINT NOT NULL,
            window_start TIMESTAMP WITH TIME ZONE NOT NULL,
            window_end TIMESTAMP WITH TIME ZONE NOT NULL,
            imported BOOLEAN DEFAULT false NOT NULL,
            created_at TIMESTAMP WITH TIME ZONE NOT NULL,
            PRIMARY KEY (tenant_id, session_id)
        )
        """
    )
    op.execute("CREATE INDEX snapshots_by_time ON snapshots (tenant_id, created_at, session_id)")
    op.execute(
        """
        CREATE INDEX snapshots_by_agent ON snapshots (tenant_id, agent_id, created_at, session_id)
        """
    )
    op.execute(
        """
        CREATE TABLE snapshot_parts (
            conversation_id UUID NOT NULL,
            session_id TEXT NOT NULL,
            tenant_id TEXT NOT NULL,
            spans BIGINT[] NOT NULL,
            message_count BIGINT NOT NULL,
            PRIMARY KEY (conversation_id, session_id)
        )
        """
    )
    op.execute("CREATE INDEX snapshot_parts_by_session ON snapshot_parts (tenant_id, session_id)")
    op.execute(
        """
        CREATE TABLE snapshot_messages (
            tenant_id TEXT NOT NULL,
            session_id TEXT NOT NULL,
            position BIGINT NOT NULL,
            source_id TEXT NOT NULL,
            body TEXT NOT NULL,
            PRIMARY KEY (tenant_id, session_id, position)
        )
        """
    )
    op.execute(
        "CREATE INDEX snapshot_messages_by_source ON snapshot_messages (tenant_id, source_id)"
    )


def downgrade() -> None:
    """Take it away again, and with it snapshots; cleared messages are shown again."""
    for table in ("snapshot_messages", "snapshot_parts", "snapshots", "message_words"):
        op.execute(f"DROP TABLE {table}")
    op.execute("DROP INDEX messages_late")
    op.execute("ALTER TABLE messages DROP COLUMN at, DROP COLUMN late_at")
    columns = (
        *("since", "parts", "outside_tokens", "outside_messages", "open_outside"),
        *("window_seconds", "cleared_at", "cleared_seq", "oldest_at", "newest_at", "newest_before"),
    )
    op.execute("ALTER TABLE heads " + ", ".join(f"DROP COLUMN {name}" for name in columns))
    op.execute("ALTER TABLE agents DROP COLUMN rolling_window_seconds, DROP COLUMN last_cleared_at")
