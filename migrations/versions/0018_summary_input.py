"""What a compaction's model read, and how much of it from the provider's cache.

Both columns are added without a rewrite; the release before neither reads nor writes them.

Revision ID: 0018
"""

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    op.execute(
        """
        ALTER TABLE compactions
            ADD COLUMN IF NOT EXISTS summary_input text,
            ADD COLUMN IF NOT EXISTS cached_tokens bigint NOT NULL DEFAULT 0
        """
    )


def downgrade() -> None:
    """Remove them."""
    op.execute("ALTER TABLE compactions DROP COLUMN cached_tokens, DROP COLUMN summary_input")
