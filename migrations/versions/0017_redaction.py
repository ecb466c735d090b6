"""Conversations that expire, and redacted messages.

All columns are added beside what is there, without a rewrite: the release before neither reads nor
writes them. It would show an expired conversation until a worker of this release deletes it. What
an interrupted attempt has left goes first, because indexes are built outside a transaction.

Revision ID: 0017
"""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

INDEXES = {"conversations_expiring": "expires_at", "conversations_by_origin": "origin_id"}


def upgrade() -> None:
    """Add the columns, the table of redactions and two partial indexes."""
    op.execute(
        """
        ALTER TABLE conversations
            ADD COLUMN IF NOT EXISTS expires_at timestamptz,
            ADD COLUMN IF NOT EXISTS origin_id uuid
        """
    )
    op.execute(
        "ALTER TABLE heads ADD COLUMN IF NOT EXISTS redacted_version bigint NOT NULL DEFAULT 0"
    )
    op.execute(
        """
        CREATE TABLE IF NOT EXISTS redactions (
            conversation_id uuid NOT NULL,
            seq bigint NOT NULL,
            message_id text NOT NULL,
            reason text,
            key_id text,
            created_at timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (conversation_id, seq)
        )
        """
    )
    with op.get_context().autocommit_block():
        op.execute("SET statement_timeout = 0")
        for name, column in INDEXES.items():
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            op.execute(
                f"CREATE INDEX CONCURRENTLY {name} ON conversations ({column})"
                f" WHERE {column} IS NOT NULL"
            )
        op.execute("RESET statement_timeout")


def downgrade() -> None:
    """Remove them; conversations then do not expire, and redactions have no record."""
    op.execute("DROP TABLE redactions")
    op.execute("ALTER TABLE heads DROP COLUMN redacted_version")
    op.execute("ALTER TABLE conversations DROP COLUMN origin_id, DROP COLUMN expires_at")
