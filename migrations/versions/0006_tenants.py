"""API keys, and what a tenant may do and has done.

Only tables are added, so that the previous release goes on beside this one.

Revision ID: 0006
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add keys, their uses, limits and allowances."""
    op.execute(
        """
        CREATE TABLE tenants (
            tenant_id TEXT PRIMARY KEY,
            requests_per_minute BIGINT,
            bytes_per_day BIGINT,
            summarizer_calls_per_hour BIGINT,
            created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL
        )
        """
    )
    op.execute(
        """
        CREATE TABLE api_keys (
            key_id TEXT PRIMARY KEY,
            tenant_id TEXT NOT NULL,
            name TEXT NOT NULL,
            secret_hash TEXT NOT NULL,
            created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
            expires_at TIMESTAMP WITH TIME ZONE,
            revoked_at TIMESTAMP WITH TIME ZONE,
            last_used_at TIMESTAMP WITH TIME ZONE
        )
        """
    )
    op.execute(
        """
        CREATE TABLE key_uses (
            key_id TEXT NOT NULL,
            hour TIMESTAMP WITH TIME ZONE NOT NULL,
            address TEXT NOT NULL,
            admitted BIGINT NOT NULL,
            refused BIGINT NOT NULL,
            PRIMARY KEY (key_id, hour, address)
        )
        """
    )
    op.execute(
        """
        CREATE TABLE allowances (
            tenant_id TEXT NOT NULL,
            kind TEXT NOT NULL,
            window_start TIMESTAMP WITH TIME ZONE NOT NULL,
            taken BIGINT NOT NULL,
            PRIMARY KEY (tenant_id, kind, window_start)
        )
        """
    )


def downgrade() -> None:
    """Take them away again: the service then asks for no key, and knows no limits."""
    for table in ("allowances", "key_uses", "api_keys", "tenants"):
        op.execute(f"DROP TABLE {table}")
