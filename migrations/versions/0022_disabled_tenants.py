"""Since when a tenant is disabled.

A nullable column, which the release before neither reads nor writes: its processes still accept
the keys of a disabled tenant.

Revision ID: 0022
"""

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.execute("ALTER TABLE tenants ADD COLUMN IF NOT EXISTS disabled_at timestamptz")


def downgrade() -> None:
    """Remove it."""
    op.execute("ALTER TABLE tenants DROP COLUMN disabled_at")
