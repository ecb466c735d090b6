"""Totals of usage and cost, by conversation and by tenant.

New tables alone: the release before neither reads nor writes them. Totals begin with this
migration; reports from before are not added to them.

Revision ID: 0012
"""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_TOTALS = """
    day DATE NOT NULL,
    model TEXT NOT NULL,
    purpose TEXT NOT NULL,
    calls BIGINT NOT NULL,
    input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    cache_creation_tokens BIGINT NOT NULL,
    cache_read_tokens BIGINT NOT NULL,
    cost_usd DOUBLE PRECISION NOT NULL,
    unpriced_calls BIGINT NOT NULL,
    compacted_tokens BIGINT NOT NULL,
    offloaded_tokens BIGINT NOT NULL,
    saved_usd DOUBLE PRECISION NOT NULL
"""


def upgrade() -> None:
    """Create the tables."""
    op.execute(
        f"""
        CREATE TABLE conversation_usage (
            conversation_id UUID NOT NULL,
            {_TOTALS},
            PRIMARY KEY (conversation_id, day, model, purpose)
        )
        """
    )
    op.execute(
        f"""
        CREATE TABLE tenant_usage (
            tenant_id TEXT NOT NULL,
            agent_id TEXT NOT NULL,
            {_TOTALS},
            PRIMARY KEY (tenant_id, agent_id, day, model, purpose)
        ) WITH (fillfactor = 50)
        """
    )
    op.execute(
        """
        CREATE TABLE offloaded_totals (
            conversation_id UUID NOT NULL,
            seq BIGINT NOT NULL,
            tokens BIGINT NOT NULL,
            PRIMARY KEY (conversation_id, seq)
        )
        """
    )


def downgrade() -> None:
    """Drop the tables."""
    op.execute("DROP TABLE offloaded_totals")
    op.execute("DROP TABLE tenant_usage")
    op.execute("DROP TABLE conversation_usage")
