"""The log, its heads, and what builds and compactions record.

Revision ID: 0001
"""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

LARGE_TEXTS = (("messages", "body"), ("messages", "fragment"), ("epochs", "frame"))


def upgrade() -> None:
    """Create every table of the first release."""
    op.execute(
        """
        CREATE TABLE agents (
            tenant_id TEXT NOT NULL,
            agent_id TEXT NOT NULL,
            name TEXT NOT NULL,
            model TEXT,
            policy TEXT DEFAULT '{}' NOT NULL,
            sections TEXT DEFAULT '[]' NOT NULL,
            tools TEXT DEFAULT '[]' NOT NULL,
            metadata TEXT DEFAULT '{}' NOT NULL,
            created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
            updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
            PRIMARY KEY (tenant_id, agent_id)
        )
        """
    )
    op.execute(
        """
        CREATE TABLE compactions (
            conversation_id UUID NOT NULL,
            compaction_id UUID NOT NULL,
            parent_id UUID,
            trigger TEXT NOT NULL,
            strategy TEXT NOT NULL,
            span_start BIGINT NOT NULL,
            span_end BIGINT NOT NULL,
            summary TEXT NOT NULL,
            summary_tokens INTEGER NOT NULL,
            before_tokens BIGINT NOT NULL,
            after_tokens BIGINT NOT NULL,
            before_msg_count BIGINT NOT NULL,
            after_msg_count BIGINT NOT NULL,
            model TEXT NOT NULL,
            prompt_hash TEXT NOT NULL,
            cost_usd DOUBLE PRECISION,
            duration_ms INTEGER NOT NULL,
            created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
            PRIMARY KEY (conversation_id, compaction_id)
        )
        """
    )
    op.execute(
        """
        CREATE TABLE conversations (
            conversation_id UUID NOT NULL,
            tenant_id TEXT NOT NULL,
            agent_id TEXT,
            model TEXT,
            policy TEXT DEFAULT '{}' NOT NULL,
            sections TEXT DEFAULT '[]' NOT NULL,
            tools TEXT DEFAULT '[]' NOT NULL,
            metadata TEXT DEFAULT '{}' NOT NULL,
            created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
            updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
            PRIMARY KEY (conversation_id)
        )
        """
    )
    op.execute(
        """
        CREATE INDEX conversations_by_agent
        ON conversations (tenant_id, agent_id, created_at, conversation_id)
        """
    )
    op.execute(
        """
        CREATE INDEX conversations_by_tenant
        ON conversations (tenant_id, created_at, conversation_id)
        """
    )
    op.execute(
        """
        CREATE TABLE creations (
            tenant_id TEXT NOT NULL,
            key TEXT NOT NULL,
            request_hash TEXT NOT NULL,
            resource_id TEXT NOT NULL,
            created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
            PRIMARY KEY (tenant_id, key)
        )
        """
    )
    op.execute(
        """
        CREATE TABLE epochs (
            conversation_id UUID NOT NULL,
            lane TEXT NOT NULL,
            epoch BIGINT NOT NULL,
            epoch_id UUID NOT NULL,
            format TEXT NOT NULL,
            "window" BIGINT NOT NULL,
            reason TEXT,
            start_seq BIGINT NOT NULL,
            view_version BIGINT NOT NULL,
            top_start BIGINT NOT NULL,
            top_end BIGINT NOT NULL,
            tail_start BIGINT NOT NULL,
            frame TEXT NOT NULL,
            sections_hash TEXT NOT NULL,
            tools_hash TEXT NOT NULL,
            policy_hash TEXT NOT NULL,
            created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
            PRIMARY KEY (conversation_id, lane, epoch)
        )
        """
    )
    op.execute(
        """
        CREATE INDEX epochs_by_window ON epochs (conversation_id, lane, "window", epoch)
        """
    )
    op.execute(
        """
        CREATE TABLE heads (
            conversation_id UUID NOT NULL,
            counter TEXT NOT NULL,
            head_seq BIGINT DEFAULT '0' NOT NULL,
            turns BIGINT DEFAULT '0' NOT NULL,
            tokens BIGINT DEFAULT '0' NOT NULL,
            open_calls TEXT[] DEFAULT '{}' NOT NULL,
            view_version BIGINT DEFAULT '0' NOT NULL,
            compaction_id UUID,
            span_start BIGINT,
            span_end BIGINT,
            summary_tokens INTEGER DEFAULT '0' NOT NULL,
            hidden_tokens BIGINT DEFAULT '0' NOT NULL,
            PRIMARY KEY (conversation_id)
        )
         WITH (fillfactor = 50)
        """
    )
    op.execute(
        """
        CREATE TABLE idempotency_keys (
            conversation_id UUID NOT NULL,
            key TEXT NOT NULL,
            request_hash TEXT NOT NULL,
            answer TEXT NOT NULL,
            created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
            PRIMARY KEY (conversation_id, key)
        )
        """
    )
    op.execute(
        """
        CREATE TABLE messages (
            conversation_id UUID NOT NULL,
            seq BIGINT NOT NULL,
            message_id TEXT NOT NULL,
            turn BIGINT NOT NULL,
            role TEXT NOT NULL,
            format TEXT NOT NULL,
            tokens INTEGER NOT NULL,
            reasoning_tokens INTEGER NOT NULL,
            total_tokens BIGINT NOT NULL,
            call_ids TEXT,
            has_media BOOLEAN NOT NULL,
            continues BOOLEAN NOT NULL,
            body TEXT NOT NULL,
            fragment TEXT,
            timestamp TEXT,
            created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
            PRIMARY KEY (conversation_id, seq),
            CONSTRAINT messages_by_id UNIQUE (conversation_id, message_id)
        )
        """
    )
    op.execute(
        """
        CREATE TABLE models (
            tenant_id TEXT NOT NULL,
            model TEXT NOT NULL,
            entry TEXT NOT NULL,
            updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
            PRIMARY KEY (tenant_id, model)
        )
        """
    )
    op.execute(
        """
        CREATE TABLE prompt_texts (
            conversation_id UUID NOT NULL,
            hash TEXT NOT NULL,
            body TEXT NOT NULL,
            PRIMARY KEY (conversation_id, hash)
        )
        """
    )
    for table, column in LARGE_TEXTS:
        # lz4 writes large texts several times faster; a server built without it goes on with pglz.
        op.execute(
            f"""
            DO $$ BEGIN
                ALTER TABLE {table} ALTER COLUMN {column} SET COMPRESSION lz4;
            EXCEPTION WHEN feature_not_supported THEN NULL;
            END $$
            """
        )


def downgrade() -> None:
    """Drop them again."""
    op.execute("DROP TABLE prompt_texts")
    op.execute("DROP TABLE models")
    op.execute("DROP TABLE messages")
    op.execute("DROP TABLE idempotency_keys")
    op.execute("DROP TABLE heads")
    op.execute("DROP TABLE epochs")
    op.execute("DROP TABLE creations")
    op.execute("DROP TABLE conversations")
    op.execute("DROP TABLE compactions")
    op.execute("DROP TABLE agents")
