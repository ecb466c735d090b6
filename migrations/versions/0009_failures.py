"""What a compaction had to do without, and the last one that failed.

Both are added beside what is there: the release before neither reads nor writes them.

Revision ID: 0009
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column to receipts, and two to heads."""
    op.execute("ALTER TABLE compactions ADD COLUMN degraded text[] NOT NULL DEFAULT '{}'")
    op.execute("ALTER TABLE heads ADD COLUMN last_failure text")
    op.execute("ALTER TABLE heads ADD COLUMN failed_at timestamptz")


def downgrade() -> None:
    """Take them away again."""
    op.execute("ALTER TABLE heads DROP COLUMN failed_at")
    op.execute("ALTER TABLE heads DROP COLUMN last_failure")
    op.execute("ALTER TABLE compactions DROP COLUMN degraded")
