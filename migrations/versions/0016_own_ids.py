"""Callers' own ids of conversations.

A column that may be null, without a default: no row is rewritten. A process of the release before
neither reads nor writes it, and does not find conversations with such an id.

Revision ID: 0016
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; the id of every stored conversation is its key."""
    op.add_column("conversations", sa.Column("own_id", sa.Text))


def downgrade() -> None:
    """Take it away; conversations with an own id are then found by their key alone."""
    op.drop_column("conversations", "own_id")
