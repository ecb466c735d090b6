"""The parts of the payload's count in usage reports.

A nullable column, which the release before neither reads nor writes.

Revision ID: 0023
"""

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.execute("ALTER TABLE usage_reports ADD COLUMN IF NOT EXISTS regions bigint[]")


def downgrade() -> None:
    """Remove it."""
    op.execute("ALTER TABLE usage_reports DROP COLUMN regions")
