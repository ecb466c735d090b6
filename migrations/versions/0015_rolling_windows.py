"""Rolling windows of conversations, and agents that inherit that of the service.

Both columns are added without a rewrite. Agents keep what they have. The release before reads
neither: to it a conversation has the rolling window of its agent.

Revision ID: 0015
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns. Null is inherited, 0 is no limit."""
    op.add_column("conversations", sa.Column("rolling_window_seconds", sa.BigInteger))
    op.add_column(
        "agents",
        sa.Column("inherits_window", sa.Boolean, nullable=False, server_default=sa.false()),
    )


def downgrade() -> None:
    """Drop them; agents that inherited keep the default of their creation."""
    op.drop_column("agents", "inherits_window")
    op.drop_column("conversations", "rolling_window_seconds")
