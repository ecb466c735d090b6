"""What lists of conversations are filtered and ordered by: labels of metadata, and activity.

Triggers write both tables, so that each way of storing a conversation or a message does, and so
does the release before. The rows of earlier conversations are added in batches, each of which
locks its conversations against changes of their settings, but not against appends.

Revision ID: 0013
"""

import sqlalchemy as sa
from alembic import context, op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

BATCH = 1000

# Strings with characters that text in PostgreSQL cannot have are left out: JSON escapes them.
LABELS = r"""
    CREATE FUNCTION labels_of(metadata TEXT) RETURNS TABLE (key TEXT, value TEXT)
    LANGUAGE sql IMMUTABLE AS $$
        SELECT item.key, item.value #>> '{}'
        FROM (
            SELECT CAST(regexp_replace(
                metadata, '\\u(0000|d[89a-f][0-9a-f]{2})', '\\ufffd', 'gi') AS json) AS fields
        ) AS sendable
        CROSS JOIN LATERAL json_each(
            CASE json_typeof(fields) WHEN 'object' THEN fields ELSE '{}' END
        ) WITH ORDINALITY AS item (key, value, place)
        WHERE json_typeof(item.value) IN ('string', 'number', 'boolean')
            AND char_length(item.key) BETWEEN 1 AND 64
            AND char_length(item.value #>> '{}') <= 512
            AND position(chr(65533) IN item.key || (item.value #>> '{}')) = 0
        ORDER BY item.place
        LIMIT 32
    $$
"""
ADDED = """
    CREATE FUNCTION conversation_is_added() RETURNS TRIGGER LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO conversation_activity (conversation_id, tenant_id, active_at)
        VALUES (NEW.conversation_id, NEW.tenant_id, NEW.created_at)
        ON CONFLICT (conversation_id) DO NOTHING;
        IF NEW.metadata <> '{}' THEN
            INSERT INTO conversation_labels (conversation_id, key, value, tenant_id, created_at)
            SELECT NEW.conversation_id, label.key, label.value, NEW.tenant_id, NEW.created_at
            FROM labels_of(NEW.metadata) label
            ON CONFLICT (conversation_id, key) DO NOTHING;
        END IF;
        RETURN NULL;
    END;
    $$
"""
LABELLED = """
    CREATE FUNCTION conversation_is_labelled() RETURNS TRIGGER LANGUAGE plpgsql AS $$
    BEGIN
        DELETE FROM conversation_labels WHERE conversation_id = NEW.conversation_id;
        INSERT INTO conversation_labels (conversation_id, key, value, tenant_id, created_at)
        SELECT NEW.conversation_id, label.key, label.value, NEW.tenant_id, NEW.created_at
        FROM labels_of(NEW.metadata) label
        ON CONFLICT (conversation_id, key) DO NOTHING;
        RETURN NULL;
    END;
    $$
"""
# The second statement runs only for a conversation whose row the migration has not added yet.
APPENDED = """
    CREATE FUNCTION conversation_is_active() RETURNS TRIGGER LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE conversation_activity SET active_at = greatest(active_at, now())
        WHERE conversation_id = NEW.conversation_id;
        IF NOT FOUND THEN
            INSERT INTO conversation_activity (conversation_id, tenant_id, active_at)
            SELECT c.conversation_id, c.tenant_id, now() FROM conversations c
            WHERE c.conversation_id = NEW.conversation_id
            ON CONFLICT (conversation_id)
                DO UPDATE SET active_at = greatest(conversation_activity.active_at, now());
        END IF;
        RETURN NULL;
    END;
    $$
"""
FILL = sa.text(
    """
    WITH batch AS MATERIALIZED (
        SELECT conversation_id, tenant_id, created_at, metadata FROM conversations
        WHERE conversation_id > CAST(:after AS uuid)
        ORDER BY conversation_id LIMIT :size
        FOR NO KEY UPDATE
    ), labels AS (
        INSERT INTO conversation_labels (conversation_id, key, value, tenant_id, created_at)
        SELECT batch.conversation_id, label.key, label.value, batch.tenant_id, batch.created_at
        FROM batch CROSS JOIN LATERAL labels_of(batch.metadata) label
        WHERE batch.metadata <> '{}'
        ON CONFLICT (conversation_id, key) DO NOTHING
    ), activity AS (
        INSERT INTO conversation_activity (conversation_id, tenant_id, active_at)
        SELECT batch.conversation_id, batch.tenant_id, greatest(batch.created_at, newest.created_at)
        FROM batch
        LEFT JOIN LATERAL (
            SELECT m.created_at FROM messages m
            WHERE m.conversation_id = batch.conversation_id ORDER BY m.seq DESC LIMIT 1
        ) newest ON true
        ON CONFLICT (conversation_id) DO UPDATE
            SET active_at = greatest(conversation_activity.active_at, excluded.active_at)
    )
    SELECT conversation_id FROM batch ORDER BY conversation_id DESC LIMIT 1
    """
)


def upgrade() -> None:
    """Add both tables with their triggers, fill them, and add an index by model.

    Filling cannot be undone by itself: what an attempt has left goes first.
    """
    _remove()
    op.execute(
        """
        CREATE TABLE conversation_labels (
            conversation_id UUID NOT NULL,
            key TEXT NOT NULL,
            value TEXT NOT NULL,
            tenant_id TEXT NOT NULL,
            created_at TIMESTAMP WITH TIME ZONE NOT NULL,
            PRIMARY KEY (conversation_id, key)
        )
        """
    )
    op.execute(
        """
        CREATE INDEX conversation_labels_by_value ON conversation_labels
            (tenant_id, key, value, created_at, conversation_id)
        """
    )
    # Every append moves an entry of the index: it is vacuumed before many dead ones are in the way.
    op.execute(
        """
        CREATE TABLE conversation_activity (
            conversation_id UUID NOT NULL,
            tenant_id TEXT NOT NULL,
            active_at TIMESTAMP WITH TIME ZONE NOT NULL,
            PRIMARY KEY (conversation_id)
        ) WITH (autovacuum_vacuum_scale_factor = 0.02)
        """
    )
    op.execute(
        """
        CREATE INDEX conversation_activity_by_time ON conversation_activity
            (tenant_id, active_at, conversation_id)
        """
    )
    for function in (LABELS, ADDED, LABELLED, APPENDED):
        op.execute(function)
    op.execute(
        """
        CREATE TRIGGER conversations_added AFTER INSERT ON conversations
        FOR EACH ROW EXECUTE FUNCTION conversation_is_added()
        """
    )
    op.execute(
        """
        CREATE TRIGGER conversations_labelled AFTER UPDATE OF metadata ON conversations
        FOR EACH ROW WHEN (NEW.metadata <> OLD.metadata)
        EXECUTE FUNCTION conversation_is_labelled()
        """
    )
    op.execute(
        """
        CREATE TRIGGER heads_active AFTER UPDATE OF head_seq ON heads
        FOR EACH ROW WHEN (NEW.head_seq > OLD.head_seq)
        EXECUTE FUNCTION conversation_is_active()
        """
    )
    with op.get_context().autocommit_block():
        op.execute("SET statement_timeout = 0")
        _fill()
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS conversations_by_model")
        op.execute(
            """
            CREATE INDEX CONCURRENTLY conversations_by_model ON conversations
                (tenant_id, model, created_at, conversation_id) WHERE model IS NOT NULL
            """
        )
        op.execute("RESET statement_timeout")


def _fill() -> None:
    """Add the rows of earlier conversations; as SQL, in one statement."""
    after = "00000000-0000-0000-0000-000000000000"
    if context.is_offline_mode():
        op.execute(FILL.bindparams(after=after, size=2**62))
        return
    while after is not None:
        after = op.get_bind().scalar(FILL, {"after": str(after), "size": BATCH})


def downgrade() -> None:
    """Take it all away again."""
    _remove()
    op.execute("DROP INDEX conversations_by_model")


def _remove() -> None:
    """Remove the tables with their triggers, where they are."""
    op.execute("DROP TRIGGER IF EXISTS heads_active ON heads")
    op.execute("DROP TRIGGER IF EXISTS conversations_labelled ON conversations")
    op.execute("DROP TRIGGER IF EXISTS conversations_added ON conversations")
    for function in (
        "conversation_is_active()",
        "conversation_is_labelled()",
        "conversation_is_added()",
        "labels_of(TEXT)",
    ):
        op.execute(f"DROP FUNCTION IF EXISTS {function}")
    op.execute("DROP TABLE IF EXISTS conversation_activity, conversation_labels")
