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

# The top-level values of metadata as texts, by tenant, such as `{"acme": {"customer": "42"}}`. JSON
# of type text may have what jsonb refuses, NUL and lone surrogates: U+FFFD stands for them.
LABELS_OF = r"""
    CREATE FUNCTION labels_of(tenant_id TEXT, metadata TEXT) RETURNS JSONB
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
        SELECT jsonb_build_object(tenant_id, jsonb_object_agg(key, value #>> '{}'))
        FROM json_each(CAST(regexp_replace(
            metadata,
            '\\u(0000|d[89ab]..(?!\\ud[c-f])|(?<!\\ud[89ab]..\\u)d[c-f]..)',
            '\\ufffd',
            'gi'
        ) AS json))
        WHERE json_typeof(value) IN ('string', 'number', 'boolean')
    $$
"""
# Triggers count the versions of states and settings. An append changes `head_seq`, and no version:
# its statement returns what it changed. A calibration changes with every usage report, and counts
# only if builds would use another one (`Calibration.rounded`).
STATE_CHANGED = """
    CREATE FUNCTION state_is_changed() RETURNS TRIGGER LANGUAGE plpgsql AS $$
    BEGIN
        NEW.state_version := OLD.state_version + 1;
        RETURN NEW;
    END;
    $$
"""
PART_CHANGED = """
    CREATE FUNCTION part_of_state_is_changed() RETURNS TRIGGER LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE heads SET state_version = state_version + 1
        WHERE conversation_id = coalesce(NEW.conversation_id, OLD.conversation_id);
        RETURN NULL;
    END;
    $$
"""
SETTINGS_CHANGED = """
    CREATE FUNCTION settings_are_changed() RETURNS TRIGGER LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO settings_versions AS known (tenant_id, version)
        VALUES (coalesce(NEW.tenant_id, OLD.tenant_id), 1)
        ON CONFLICT (tenant_id) DO UPDATE SET version = known.version + 1;
        RETURN NULL;
    END;
    $$
"""
OTHER_CALIBRATION = """
    round(NEW.factor::numeric, 3) <> round(OLD.factor::numeric, 3)
    OR round(NEW.margin::numeric, 3) <> round(OLD.margin::numeric, 3)
    OR least(NEW.reports, 3) <> least(OLD.reports, 3)
"""
FUNCTIONS = {
    "labels_of": LABELS_OF,
    "state_is_changed": STATE_CHANGED,
    "part_of_state_is_changed": PART_CHANGED,
    "settings_are_changed": SETTINGS_CHANGED,
}
TRIGGERS = (
    """heads_changed BEFORE UPDATE ON heads FOR EACH ROW WHEN (
        NEW.head_seq = OLD.head_seq AND NEW.state_version = OLD.state_version
    ) EXECUTE FUNCTION state_is_changed()""",
    """conversations_changed AFTER UPDATE ON conversations FOR EACH ROW
        EXECUTE FUNCTION part_of_state_is_changed()""",
    """pins_changed AFTER INSERT OR DELETE ON pins FOR EACH ROW
        EXECUTE FUNCTION part_of_state_is_changed()""",
    """agents_changed AFTER INSERT OR UPDATE OR DELETE ON agents FOR EACH ROW
        EXECUTE FUNCTION settings_are_changed()""",
    """models_changed AFTER INSERT OR UPDATE OR DELETE ON models FOR EACH ROW
        EXECUTE FUNCTION settings_are_changed()""",
    """calibrations_added AFTER INSERT OR DELETE ON calibrations FOR EACH ROW
        EXECUTE FUNCTION settings_are_changed()""",
    f"""calibrations_changed AFTER UPDATE ON calibrations FOR EACH ROW
        WHEN ({OTHER_CALIBRATION}) EXECUTE FUNCTION settings_are_changed()""",
)


def upgrade() -> None:
    """Make the tables, and what SQLAlchemy has no words for."""
    for function in FUNCTIONS.values():  # an index calls one of them
        op.execute(function)
    for table in metadata.sorted_tables:
        op.execute(CreateTable(table))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            op.execute(CreateIndex(index))
    # Chunks are compressed already.
    op.execute("ALTER TABLE blob_chunks ALTER COLUMN data SET STORAGE EXTERNAL")
    for trigger in TRIGGERS:
        op.execute(f"CREATE TRIGGER {trigger}")


def downgrade() -> None:
    """Remove all of it."""
    for table in reversed(metadata.sorted_tables):
        op.execute(DropTable(table))
    for function in FUNCTIONS:
        op.execute(f"DROP FUNCTION {function}")
