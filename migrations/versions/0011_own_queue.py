"""The service's own queue, in place of PgQueuer's tables.

Workers claim due compactions and jobs with a lease, which now counts attempts. What waits in
PgQueuer's table is made due. The tables themselves stay for this release: a process of the
release before writes them, and its worker may run beside the new ones. What such a worker gives
back when it stops is made due by a trigger.

Revision ID: 0011
"""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns, make due what waits, and add the trigger."""
    op.execute(
        """
        ALTER TABLE compaction_leases
            ADD COLUMN attempts INTEGER DEFAULT 0 NOT NULL,
            ADD COLUMN retry_at TIMESTAMP WITH TIME ZONE
        """
    )
    op.execute(
        """
        CREATE FUNCTION pgqueuer_entry_is_due() RETURNS TRIGGER AS $$
        BEGIN
            UPDATE heads SET due_at = now()
            WHERE conversation_id = CAST(substr(NEW.dedupe_key, 9) AS uuid) AND due_at IS NULL;
            RETURN NULL;
        END;
        $$ LANGUAGE plpgsql
        """
    )
    op.execute(
        """
        CREATE TRIGGER pgqueuer_given_back AFTER UPDATE OF status ON pgqueuer
        FOR EACH ROW WHEN (NEW.status = 'queued' AND NEW.dedupe_key LIKE 'compact:%')
        EXECUTE FUNCTION pgqueuer_entry_is_due()
        """
    )
    op.execute(
        """
        UPDATE heads SET due_at = now()
        FROM pgqueuer entry
        WHERE entry.status IN ('queued', 'picked') AND entry.dedupe_key LIKE 'compact:%'
            AND heads.conversation_id = CAST(substr(entry.dedupe_key, 9) AS uuid)
            AND heads.due_at IS NULL
        """
    )


def downgrade() -> None:
    """Take both away; the sweep of the release before finds what is due."""
    op.execute("DROP TRIGGER pgqueuer_given_back ON pgqueuer")
    op.execute("DROP FUNCTION pgqueuer_entry_is_due")
    op.execute("ALTER TABLE compaction_leases DROP COLUMN attempts, DROP COLUMN retry_at")
