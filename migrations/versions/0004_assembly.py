"""Prompt assembly: versions of sections and tools, promoted tools, usage reports, calibrations.

Columns have a default, so that the previous release goes on beside this one.

Revision ID: 0004
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add what assembling payloads for every provider needs."""
    op.execute(
        """
        CREATE TABLE conversation_versions (
            conversation_id UUID NOT NULL,
            kind TEXT NOT NULL,
            version BIGINT NOT NULL,
            body TEXT NOT NULL,
            created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
            PRIMARY KEY (conversation_id, kind, version)
        )
        """
    )
    op.execute(
        """
        CREATE TABLE agent_versions (
            tenant_id TEXT NOT NULL,
            agent_id TEXT NOT NULL,
            kind TEXT NOT NULL,
            version BIGINT NOT NULL,
            body TEXT NOT NULL,
            created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
            PRIMARY KEY (tenant_id, agent_id, kind, version)
        )
        """
    )
    op.execute(
        """
        CREATE TABLE usage_reports (
            conversation_id UUID NOT NULL,
            report_id UUID NOT NULL,
            model TEXT NOT NULL,
            format TEXT NOT NULL,
            epoch BIGINT,
            through_seq BIGINT,
            input_tokens BIGINT NOT NULL,
            output_tokens BIGINT NOT NULL,
            cache_creation_tokens BIGINT NOT NULL,
            cache_read_tokens BIGINT NOT NULL,
            estimated_tokens BIGINT,
            usage TEXT NOT NULL,
            created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
            PRIMARY KEY (conversation_id, report_id)
        )
        """
    )
    op.execute(
        """
        CREATE TABLE calibrations (
            tenant_id TEXT NOT NULL,
            model TEXT NOT NULL,
            counter TEXT NOT NULL,
            factor DOUBLE PRECISION NOT NULL,
            margin DOUBLE PRECISION NOT NULL,
            reports BIGINT NOT NULL,
            reported_sum DOUBLE PRECISION NOT NULL,
            counted_sum DOUBLE PRECISION NOT NULL,
            deviation_sum DOUBLE PRECISION NOT NULL,
            updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
            PRIMARY KEY (tenant_id, model, counter)
        )
        """
    )
    for table in ("agents", "conversations"):
        op.execute(
            f"""
            ALTER TABLE {table}
                ADD COLUMN sections_version BIGINT DEFAULT 0 NOT NULL,
                ADD COLUMN tools_version BIGINT DEFAULT 0 NOT NULL
            """
        )
    op.execute(
        """
        ALTER TABLE heads
            ADD COLUMN promoted TEXT[] DEFAULT '{}' NOT NULL,
            ADD COLUMN promoted_turn BIGINT DEFAULT 0 NOT NULL
        """
    )
    op.execute("CREATE INDEX epochs_by_id ON epochs (conversation_id, epoch_id)")


def downgrade() -> None:
    """Take it away again, and with it the reported usage and earlier versions."""
    op.execute("DROP INDEX epochs_by_id")
    op.execute("ALTER TABLE heads DROP COLUMN promoted, DROP COLUMN promoted_turn")
    for table in ("agents", "conversations"):
        op.execute(f"ALTER TABLE {table} DROP COLUMN sections_version, DROP COLUMN tools_version")
    for table in ("calibrations", "usage_reports", "agent_versions", "conversation_versions"):
        op.execute(f"DROP TABLE {table}")
