"""The version of a tenant's settings, where Citus keeps triggers from counting it.

On one server, triggers of `agents`, `models` and `calibrations` count it. On Citus these tables are
copies on every node, and a trigger of a copy may not write another one. There the repository that
changes a row counts as well, in the same transaction.

Its row is locked until the transaction ends. So that two transactions do not wait for each other,
each locks an agent first, then conversations, and changes what is counted last.
"""

from __future__ import annotations

from app.adapters.postgres.common.connections import Session, Statement

COUNT = Statement(
    """
        INSERT INTO settings_versions AS known (tenant_id, version)
        VALUES (CAST(:tenant_id AS text), 1)
        ON CONFLICT (tenant_id) DO UPDATE SET version = known.version + 1
        """
)
FIND = Statement("SELECT version FROM settings_versions WHERE tenant_id = CAST(:tenant_id AS text)")


async def count_change(session: Session, tenant_id: str) -> None:
    """Count a change of an agent, a model or a calibration, if no trigger does."""
    if session.is_distributed:
        await session.run(COUNT, tenant_id=tenant_id)


async def settings_version(session: Session, tenant_id: str) -> int:
    """Return the version of a tenant's settings."""
    row = await session.first(FIND, tenant_id=tenant_id)
    return row["version"] if row is not None else 0
