"""What retention looks old rows up by.

A BRIN index is a few pages whatever the table, and costs an append nothing it could notice. It is
built beside whoever writes, which may take its time and cannot be undone by itself: so what an
attempt has left goes first.

Revision ID: 0007
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add indexes by age."""
    with op.get_context().autocommit_block():
        op.execute("SET statement_timeout = 0")
        for table in ("events", "idempotency_keys", "jobs"):
            name = f"{table}_by_age"
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            op.execute(f"CREATE INDEX CONCURRENTLY {name} ON {table} USING brin (created_at)")
        op.execute("RESET statement_timeout")


def downgrade() -> None:
    """Take them away again; retention then reads whole tables."""
    for table in ("events", "idempotency_keys", "jobs"):
        op.execute(f"DROP INDEX {table}_by_age")
