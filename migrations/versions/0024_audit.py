"""The audit: who has changed keys and tenants, and who has deleted data.

Only a table is added. The release before writes no entries.

Revision ID: 0024
"""

from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.execute(
        """
        CREATE TABLE audit (
            tenant_id TEXT NOT NULL,
            audit_id UUID NOT NULL,
            at TIMESTAMP WITH TIME ZONE NOT NULL,
            action TEXT NOT NULL,
            subject TEXT NOT NULL,
            key_id TEXT,
            account TEXT,
            details TEXT NOT NULL,
            PRIMARY KEY (tenant_id, audit_id)
        )
        """
    )
    op.execute("CREATE INDEX audit_by_time ON audit (at, audit_id)")


def downgrade() -> None:
    """Remove it."""
    op.execute("DROP TABLE audit")
