"""The whole schema: the texts of `app.database.tables` and of the function beside it.

Until the first release it changes with that text; after it a revision is never changed, and this
one gets a copy.

Revision ID: 0001
"""

from alembic import op

from app.database.tables import APPEND, SCHEMA, TABLES

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables and the functions, a statement at a time."""
    for statement in SCHEMA.strip().removesuffix(";").split(";\n"):
        op.execute(statement)
    op.execute(APPEND)


def downgrade() -> None:
    """Remove all of it."""
    op.execute("DROP FUNCTION append")
    for table in reversed(list(TABLES)):
        op.execute(f"DROP TABLE {table}")
    op.execute("DROP FUNCTION labels_of")
