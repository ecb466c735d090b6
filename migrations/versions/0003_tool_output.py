"""Tool output: blobs in chunks, what messages refer to, and how far results have given way.

Columns are added without a value or with a default, so that the previous release goes on beside
this one. The log is altered last: what its lock keeps waiting, waits for its index alone.

Revision ID: 0003
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add what large tool results need."""
    op.execute(
        """
        CREATE TABLE blobs (
            conversation_id UUID NOT NULL,
            blob_id TEXT NOT NULL,
            content_id UUID NOT NULL,
            byte_size BIGINT NOT NULL,
            line_count BIGINT NOT NULL,
            sha256 TEXT NOT NULL,
            media_type TEXT NOT NULL,
            tool_name TEXT,
            tool_call_id TEXT,
            object_key TEXT,
            attached BOOLEAN DEFAULT false NOT NULL,
            collected_at TIMESTAMP WITH TIME ZONE,
            created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
            PRIMARY KEY (conversation_id, blob_id)
        )
        """
    )
    op.execute(
        """
        CREATE INDEX blobs_by_content ON blobs (conversation_id, content_id)
        WHERE collected_at IS NULL
        """
    )
    op.execute(
        """
        CREATE INDEX blobs_unattached ON blobs (created_at)
        WHERE NOT attached AND collected_at IS NULL
        """
    )
    op.execute(
        """
        CREATE TABLE blob_chunks (
            conversation_id UUID NOT NULL,
            content_id UUID NOT NULL,
            number INTEGER NOT NULL,
            start BIGINT NOT NULL,
            newlines BIGINT NOT NULL,
            size INTEGER NOT NULL,
            data BYTEA,
            object_start BIGINT,
            object_size INTEGER,
            PRIMARY KEY (conversation_id, content_id, number)
        )
        """
    )
    # The chunks come compressed: trying it again would only cost time.
    op.execute("ALTER TABLE blob_chunks ALTER COLUMN data SET STORAGE EXTERNAL")
    op.execute(
        """
        CREATE INDEX blob_chunks_by_line
        ON blob_chunks (conversation_id, content_id, newlines, number)
        """
    )
    op.execute(
        """
        CREATE TABLE blob_uploads (
            conversation_id UUID NOT NULL,
            content_id UUID NOT NULL,
            tenant_id TEXT NOT NULL,
            begun_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
            PRIMARY KEY (conversation_id, content_id)
        )
        """
    )
    op.execute("CREATE INDEX blob_uploads_by_time ON blob_uploads (begun_at)")
    op.execute(
        """
        ALTER TABLE heads
            ADD COLUMN trimmed_through BIGINT DEFAULT 0 NOT NULL,
            ADD COLUMN mentions TEXT[] DEFAULT '{}' NOT NULL,
            ADD COLUMN swept_version BIGINT DEFAULT 0 NOT NULL
        """
    )
    op.execute(
        """
        CREATE INDEX heads_unswept ON heads (conversation_id)
        WHERE view_version > swept_version AND compaction_id IS NOT NULL
        """
    )
    op.execute("ALTER TABLE epochs ADD COLUMN trimmed_through BIGINT DEFAULT 0 NOT NULL")
    op.execute(
        """
        ALTER TABLE messages
            ADD COLUMN output TEXT, ADD COLUMN call_names TEXT
        """
    )
    # No index is made on messages: of an empty table that would leave the statistics "empty", by
    # which plans choose any index, and a plan may be kept while the table grows.
    op.execute(
        """
        CREATE TABLE blob_uses (
            conversation_id UUID NOT NULL,
            blob_id TEXT NOT NULL,
            seq BIGINT NOT NULL,
            PRIMARY KEY (conversation_id, blob_id, seq)
        )
        """
    )


def downgrade() -> None:
    """Take it away again, and with it the full text of every offloaded result."""
    op.execute("ALTER TABLE messages DROP COLUMN output, DROP COLUMN call_names")
    op.execute("ALTER TABLE epochs DROP COLUMN trimmed_through")
    op.execute("DROP INDEX heads_unswept")
    op.execute(
        """
        ALTER TABLE heads
            DROP COLUMN trimmed_through, DROP COLUMN mentions, DROP COLUMN swept_version
        """
    )
    for table in ("blob_uses", "blob_uploads", "blob_chunks", "blobs"):
        op.execute(f"DROP TABLE {table}")
