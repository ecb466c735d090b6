"""Archived conversations: where their rows are, and what lists show of them.

Two tables beside what is there, written only with `CONTEXT_ARCHIVE_AFTER_DAYS`. To a process of the
release before, an archived conversation does not exist: set it when all processes run this release.

Revision ID: 0021
"""

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables; the state of an archived conversation has the columns of any other state."""
    op.execute("CREATE TABLE archived_heads (LIKE heads, PRIMARY KEY (conversation_id))")
    op.execute(
        """
        CREATE TABLE archives (
            conversation_id uuid NOT NULL PRIMARY KEY,
            tenant_id text NOT NULL,
            content_id uuid,
            object_key text,
            messages bigint NOT NULL,
            text_bytes bigint NOT NULL,
            object_bytes bigint NOT NULL,
            last_message_at timestamptz,
            idle_since timestamptz,
            archived_at timestamptz NOT NULL DEFAULT now(),
            restored_at timestamptz
        )
        """
    )
    # On Citus, beside the conversations: distribute.sql was run before this table was there.
    op.execute(
        """
        DO $$ BEGIN
            IF EXISTS (SELECT FROM pg_extension WHERE extname = 'citus') THEN
                PERFORM create_distributed_table(
                    CAST(placed AS regclass), 'conversation_id', colocate_with => 'conversations')
                FROM unnest(ARRAY['archives', 'archived_heads']) AS placed
                WHERE EXISTS (
                    SELECT FROM pg_dist_partition
                    WHERE logicalrelid = CAST('conversations' AS regclass)
                );
            END IF;
        END $$
        """
    )


def downgrade() -> None:
    """Remove them, unless a conversation is archived: nothing would find its rows any more."""
    op.execute(
        """
        DO $$ BEGIN
            IF EXISTS (SELECT FROM archived_heads) THEN
                RAISE EXCEPTION 'conversations are archived: restore them first';
            END IF;
        END $$
        """
    )
    op.execute("DROP TABLE archives")
    op.execute("DROP TABLE archived_heads")
