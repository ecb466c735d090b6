"""What tenants may store, and how much of it each conversation's log takes.

A column without a default and a table are added, so that the previous release goes on beside this
one: it reads neither.

Revision ID: 0008
"""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the limit of what is stored, and the sizes of logs."""
    op.execute("ALTER TABLE tenants ADD COLUMN storage_bytes BIGINT")
    op.execute(
        """
        CREATE TABLE log_sizes (
            conversation_id UUID NOT NULL,
            through_seq BIGINT NOT NULL,
            bytes BIGINT NOT NULL,
            PRIMARY KEY (conversation_id)
        )
        """
    )


def downgrade() -> None:
    """Take the sizes and the limit away."""
    op.execute("DROP TABLE log_sizes")
    op.execute("ALTER TABLE tenants DROP COLUMN storage_bytes")
