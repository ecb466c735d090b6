"""The scope of a key, and lists of jobs.

Columns without a default, or with a constant one: no row is rewritten. The release before does not
read the scope, and treats a read-only key as any other: create such keys when all processes run
this release. Jobs that were added before, or by a process of the release before, have no agent.

The indexes are built beside the running service. What an attempt has left goes first.

Revision ID: 0014
"""

from alembic import op

revision = "0014"
down_revision = "0011"
branch_labels = None
depends_on = None

INDEXES = {
    "jobs_by_tenant": "jobs (tenant_id, status, job_id)",
    "jobs_by_agent": "jobs (tenant_id, agent_id, status, job_id)",
    "jobs_by_conversation": "jobs (conversation_id, status, job_id)",
}


def upgrade() -> None:
    """Add the scope, the agent of a job, and the indexes of the lists."""
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
