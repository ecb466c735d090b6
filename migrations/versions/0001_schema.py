"""The whole schema, made from `app.database.tables`.

Until the first release it changes with the tables; after it a revision is never changed, and this
one becomes text.

Revision ID: 0001
"""

from pathlib import Path

from alembic import op
from sqlalchemy.schema import CreateIndex, CreateTable, DropTable

from app.database import tables
from app.database.tables import metadata

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
            '\\u(0000|d[89ab][0-9a-f]{2}(?!\\ud[c-f])'
                '|(?<!\\ud[89ab][0-9a-f]{2}\\u)d[c-f][0-9a-f]{2})',
            '\\ufffd',
            'gi'
        ) AS json))
        WHERE json_typeof(value) IN ('string', 'number', 'boolean')
    $$
"""
APPEND = Path(tables.__file__).with_name("append.sql")


def upgrade() -> None:
    """Make the tables, and what SQLAlchemy has no words for."""
    op.execute(LABELS_OF)
    for table in metadata.sorted_tables:
        op.execute(CreateTable(table))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            op.execute(CreateIndex(index))
    # Chunks are compressed already.
    op.execute("ALTER TABLE blob_chunks ALTER COLUMN data SET STORAGE EXTERNAL")
    op.execute(APPEND.read_text(encoding="utf-8"))


def downgrade() -> None:
    """Remove all of it."""
    op.execute("DROP FUNCTION append")
    for table in reversed(metadata.sorted_tables):
        op.execute(DropTable(table))
    op.execute("DROP FUNCTION labels_of")
