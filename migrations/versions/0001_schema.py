"""The whole schema: the text of `app.database.tables`.

Until the first release it changes with that text; after it a revision is never changed, and this
one gets a copy.

Revision ID: 0001
"""

from alembic import op

from app.database.tables import SCHEMA, TABLES

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables, a statement at a time."""
    for statement in SCHEMA.strip().removesuffix(";").split(";\n"):
        op.execute(statement)


def downgrade() -> None:
    """Remove all of it."""
    for table in reversed(list(TABLES)):
        op.execute(f"DROP TABLE {table}")
    op.execute("DROP FUNCTION labels_of")
