"""The models that a snapshot's conversations were built for.

A column that may be null, which the release before neither reads nor writes.

Revision ID: 0010
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the models, as JSON text by conversation."""
    op.add_column("snapshots", sa.Column("models", sa.Text))


def downgrade() -> None:
    """Take the models away; snapshots are restored without them, as before."""
    op.drop_column("snapshots", "models")
