"""Events of a tenant, lists of jobs, and the scope of a key.

Columns without a default, or with a constant one: no row is rewritten. Events that were stored
before, or by a process of the release before, have no position: the stream of a tenant does not
have them. Jobs of then have no agent. The release before treats a read-only key as any other:
create such keys when all processes run this release.

The indexes are built beside the running service. What an attempt has left goes first.

Revision ID: 0014
"""

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

INDEXES = {
    "jobs_by_tenant": "jobs (tenant_id, status, job_id)",
    "jobs_by_agent": "jobs (tenant_id, agent_id, status, job_id)",
    "jobs_by_conversation": "jobs (conversation_id, status, job_id)",
    "events_by_tenant": "events (tenant_id, server_id, transaction_id, event_id)"
    " WHERE transaction_id IS NOT NULL",
}


def upgrade() -> None:
    """Add the columns, the sequence and the indexes."""
    op.execute("CREATE SEQUENCE event_ids")
    op.execute(
        """
        ALTER TABLE events
            ADD COLUMN tenant_id TEXT,
            ADD COLUMN agent_id TEXT,
            ADD COLUMN server_id BIGINT,
            ADD COLUMN transaction_id BIGINT,
            ADD COLUMN event_id BIGINT
        """
    )
    op.execute("ALTER TABLE api_keys ADD COLUMN read_only BOOLEAN DEFAULT false NOT NULL")
    op.execute("ALTER TABLE jobs ADD COLUMN agent_id TEXT")
    with op.get_context().autocommit_block():
        op.execute("SET statement_timeout = 0")
        for name, columns in INDEXES.items():
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            op.execute(f"CREATE INDEX CONCURRENTLY {name} ON {columns}")
        op.execute("RESET statement_timeout")


def downgrade() -> None:
    """Revoke read-only keys, which the release before would let write, and drop what was added."""
    op.execute("UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()) WHERE read_only")
    op.execute("ALTER TABLE api_keys DROP COLUMN read_only")
    for name in INDEXES:
        op.execute(f"DROP INDEX {name}")
    op.execute("ALTER TABLE jobs DROP COLUMN agent_id")
    op.execute("DELETE FROM events WHERE event_seq <= 0")
    op.execute(
        """
        ALTER TABLE events
            DROP COLUMN tenant_id, DROP COLUMN agent_id, DROP COLUMN server_id,
            DROP COLUMN transaction_id, DROP COLUMN event_id
        """
    )
    op.execute("DROP SEQUENCE event_ids")
