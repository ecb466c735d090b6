"""The whole schema, made from `app.adapters.postgres.tables`.

Until the first release it changes with the tables; after it a revision is never changed, and this
one becomes text.

Revision ID: 0001
"""

from alembic import op
from sqlalchemy.schema import CreateIndex, CreateTable, DropTable

from app.adapters.postgres.tables import metadata

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

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
APPENDED = """
    CREATE FUNCTION conversation_is_active() RETURNS TRIGGER LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE conversation_activity SET active_at = greatest(active_at, now())
        WHERE conversation_id = NEW.conversation_id;
        RETURN NULL;
    END;
    $$
"""
FUNCTIONS = {
    "labels_of": LABELS,
    "conversation_is_added": ADDED,
    "conversation_is_labelled": LABELLED,
    "conversation_is_active": APPENDED,
}
TRIGGERS = (
    """conversations_added AFTER INSERT ON conversations FOR EACH ROW
        EXECUTE FUNCTION conversation_is_added()""",
    """conversations_labelled AFTER UPDATE OF metadata ON conversations FOR EACH ROW
        WHEN (NEW.metadata <> OLD.metadata) EXECUTE FUNCTION conversation_is_labelled()""",
    """heads_active AFTER UPDATE OF head_seq ON heads FOR EACH ROW
        WHEN (NEW.head_seq > OLD.head_seq) EXECUTE FUNCTION conversation_is_active()""",
)


def upgrade() -> None:
    """Make the tables, and what SQLAlchemy has no words for."""
    for table in metadata.sorted_tables:
        op.execute(CreateTable(table))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            op.execute(CreateIndex(index))
    # Chunks are compressed already.
    op.execute("ALTER TABLE blob_chunks ALTER COLUMN data SET STORAGE EXTERNAL")
    for function in FUNCTIONS.values():
        op.execute(function)
    for trigger in TRIGGERS:
        op.execute(f"CREATE TRIGGER {trigger}")


def downgrade() -> None:
    """Remove all of it."""
    for table in reversed(metadata.sorted_tables):
        op.execute(DropTable(table))
    for function in FUNCTIONS:
        op.execute(f"DROP FUNCTION {function}")
