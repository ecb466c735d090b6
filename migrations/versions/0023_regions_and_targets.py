"""The parts of the payload's count in usage reports, and the asked target of a compaction.

Nullable columns, which the release before neither reads nor writes.

Revision ID: 0023
"""

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    op.execute("ALTER TABLE usage_reports ADD COLUMN IF NOT EXISTS regions bigint[]")
    op.execute("ALTER TABLE compactions ADD COLUMN IF NOT EXISTS target_tokens bigint")


def downgrade() -> None:
    """Remove them."""
    op.execute("ALTER TABLE compactions DROP COLUMN target_tokens")
    op.execute("ALTER TABLE usage_reports DROP COLUMN regions")
