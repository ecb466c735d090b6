"""${message}.

Revises ${down_revision or "nothing"}. Safe beside the previous release: say here why.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    """Bring the schema from ${down_revision or "nothing"} to ${up_revision}."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """Bring the schema back."""
    ${downgrades if downgrades else "pass"}
