"""The scope of a key.

A column with a constant default: no row is rewritten. The release before does not read it, and
treats a read-only key as any other: create such keys when all processes run this release.

Revision ID: 0014
"""

from alembic import op

revision = "0014"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the scope; existing keys are not read-only."""
    op.execute("ALTER TABLE api_keys ADD COLUMN read_only BOOLEAN DEFAULT false NOT NULL")


def downgrade() -> None:
    """Revoke read-only keys, which the release before would let write, and drop the column."""
    op.execute("UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()) WHERE read_only")
    op.execute("ALTER TABLE api_keys DROP COLUMN read_only")
