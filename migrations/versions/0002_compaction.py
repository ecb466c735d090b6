"""Compaction in full: receipts with their views, leases, pins, events, jobs, and the queue.

Columns are added with a default, so that the previous release goes on beside this one.

Revision ID: 0002
"""

import re
from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

QUEUE = Path(__file__).resolve().parents[1] / "pgqueuer_1_6_0.sql"


def upgrade() -> None:
    """Add what compactions in the background need."""
    op.execute(
        """
        ALTER TABLE heads
            ADD COLUMN hidden_messages BIGINT DEFAULT 0 NOT NULL,
            ADD COLUMN kept BIGINT[] DEFAULT '{}' NOT NULL,
            ADD COLUMN view_cause TEXT,
            ADD COLUMN resume_at BIGINT DEFAULT 0 NOT NULL,
            ADD COLUMN due_at TIMESTAMP WITH TIME ZONE,
            ADD COLUMN failures INTEGER DEFAULT 0 NOT NULL,
            ADD COLUMN event_seq BIGINT DEFAULT 0 NOT NULL
        """
    )
    op.execute("CREATE INDEX heads_due ON heads (due_at) WHERE due_at IS NOT NULL")
    op.execute("ALTER TABLE epochs ADD COLUMN kept BIGINT[] DEFAULT '{}' NOT NULL")
    op.execute(
        """
        ALTER TABLE compactions
            ALTER COLUMN model DROP NOT NULL,
            ALTER COLUMN prompt_hash DROP NOT NULL,
            ADD COLUMN policy_strategy TEXT DEFAULT '' NOT NULL,
            ADD COLUMN strategies_run TEXT[] DEFAULT '{}' NOT NULL,
            ADD COLUMN view TEXT DEFAULT '' NOT NULL,
            ADD COLUMN made TEXT DEFAULT '[]' NOT NULL,
            ADD COLUMN hidden_tokens BIGINT DEFAULT 0 NOT NULL,
            ADD COLUMN hidden_messages BIGINT DEFAULT 0 NOT NULL,
            ADD COLUMN calls INTEGER DEFAULT 0 NOT NULL,
            ADD COLUMN input_tokens BIGINT DEFAULT 0 NOT NULL,
            ADD COLUMN output_tokens BIGINT DEFAULT 0 NOT NULL,
            ADD COLUMN undone_at TIMESTAMP WITH TIME ZONE
        """
    )
    op.execute(
        """
        CREATE TABLE compaction_leases (
            conversation_id UUID NOT NULL,
            holder UUID NOT NULL,
            expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
            PRIMARY KEY (conversation_id)
        )
        """
    )
    op.execute(
        """
        CREATE TABLE pins (
            conversation_id UUID NOT NULL,
            seq BIGINT NOT NULL,
            created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
            PRIMARY KEY (conversation_id, seq)
        )
        """
    )
    op.execute(
        """
        CREATE TABLE events (
            conversation_id UUID NOT NULL,
            event_seq BIGINT NOT NULL,
            type TEXT NOT NULL,
            data TEXT DEFAULT '{}' NOT NULL,
            created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
            PRIMARY KEY (conversation_id, event_seq)
        )
        """
    )
    op.execute(
        """
        CREATE TABLE jobs (
            conversation_id UUID NOT NULL,
            job_id UUID NOT NULL,
            tenant_id TEXT NOT NULL,
            kind TEXT NOT NULL,
            ask TEXT DEFAULT '{}' NOT NULL,
            status TEXT DEFAULT 'queued' NOT NULL,
            result TEXT,
            error TEXT,
            created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
            updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
            PRIMARY KEY (conversation_id, job_id)
        )
        """
    )
    op.execute("CREATE INDEX jobs_by_id ON jobs (job_id)")
    op.execute("CREATE INDEX jobs_open ON jobs (created_at) WHERE status IN ('queued', 'running')")
    op.execute(
        """
        CREATE TABLE summariser_calls (
            tenant_id TEXT NOT NULL,
            window_start TIMESTAMP WITH TIME ZONE NOT NULL,
            calls BIGINT NOT NULL,
            PRIMARY KEY (tenant_id, window_start)
        )
        """
    )
    for statement in _queue_statements():
        op.execute(statement)


def downgrade() -> None:
    """Take it away again; receipts without a model lose it for good."""
    for table in ("pgqueuer", "pgqueuer_log", "pgqueuer_schedules", "pgqueuer_statistics"):
        op.execute(f"DROP TABLE {table}")
    op.execute("DROP FUNCTION fn_pgqueuer_changed")
    op.execute("DROP TYPE pgqueuer_status")
    for table in ("summariser_calls", "jobs", "events", "pins", "compaction_leases"):
        op.execute(f"DROP TABLE {table}")
    op.execute("UPDATE compactions SET model = '' WHERE model IS NULL")
    op.execute("UPDATE compactions SET prompt_hash = '' WHERE prompt_hash IS NULL")
    op.execute(
        """
        ALTER TABLE compactions
            ALTER COLUMN model SET NOT NULL, ALTER COLUMN prompt_hash SET NOT NULL,
            DROP COLUMN policy_strategy, DROP COLUMN strategies_run, DROP COLUMN view,
            DROP COLUMN made, DROP COLUMN hidden_tokens, DROP COLUMN hidden_messages,
            DROP COLUMN calls, DROP COLUMN input_tokens, DROP COLUMN output_tokens,
            DROP COLUMN undone_at
        """
    )
    op.execute("ALTER TABLE epochs DROP COLUMN kept")
    op.execute("DROP INDEX heads_due")
    op.execute(
        """
        ALTER TABLE heads
            DROP COLUMN hidden_messages, DROP COLUMN kept, DROP COLUMN view_cause,
            DROP COLUMN resume_at, DROP COLUMN due_at, DROP COLUMN failures,
            DROP COLUMN event_seq
        """
    )


def _queue_statements() -> list[str]:
    """Return the queue's statements one by one; only a function has semicolons inside."""
    return re.split(r";\n\n(?=CREATE)", QUEUE.read_text().partition("\n\n")[2])
