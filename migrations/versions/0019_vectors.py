"""Embeddings of messages, how far conversations are embedded, and a limit of tokens for tenants.

The column of embeddings is added only where the database has pgvector, or the user may create it.
Without it the tables stay empty. All is added beside what is there: the release before neither
reads nor writes it, but also does not delete the rows of a conversation that it deletes.

Revision ID: 0019
"""

from alembic import op

from app.adapters.postgres.migrate import ADD_VECTORS

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add two tables and a column."""
    op.execute(
        """
        CREATE TABLE message_vectors (
            conversation_id uuid NOT NULL,
            seq bigint NOT NULL,
            PRIMARY KEY (conversation_id, seq)
        )
        """
    )
    op.execute(
        """
        CREATE TABLE embedding_progress (
            conversation_id uuid NOT NULL PRIMARY KEY,
            model text NOT NULL,
            through_seq bigint NOT NULL DEFAULT 0,
            requested_seq bigint NOT NULL,
            due_at timestamptz,
            attempts integer NOT NULL DEFAULT 0
        )
        """
    )
    op.execute(
        """
        CREATE INDEX embedding_progress_due ON embedding_progress (due_at)
            WHERE due_at IS NOT NULL
        """
    )
    op.execute("ALTER TABLE tenants ADD COLUMN embedding_tokens_per_day bigint")
    op.execute(ADD_VECTORS)


def downgrade() -> None:
    """Remove them; the extension stays."""
    op.execute("ALTER TABLE tenants DROP COLUMN embedding_tokens_per_day")
    op.execute("DROP TABLE embedding_progress")
    op.execute("DROP TABLE message_vectors")
