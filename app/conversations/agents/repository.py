"""Agents in PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from app.common.pages import UNBOUNDED, Bound, Page
from app.conversations.agents.agent import Agent
from app.conversations.rows import agent_from
from app.conversations.settings_statements import (
    FIRST_LISTS,
    FIRST_VERSIONS,
    SET_SETTINGS,
    ConfigurableRepository,
    VersionStatements,
    change_parameters,
)
from app.conversations.snapshot_removal import delete_snapshots_of_agent
from app.conversations.windows.active_window import WindowSource
from app.database.connections import Statement
from app.database.paging import bounded, lengths, limits, page_of
from app.database.sql import assigned, equal, fields_of, insert
from app.database.tables import TABLES

_OWN = (
    *("tenant_id", "agent_id", "name", "model", "policy", "metadata", "rolling_window_seconds"),
    "inherits_window",
)
ADD_AGENT = Statement(f"""
    WITH added AS (
        {insert("agents", *_OWN, "sections", "tools", **FIRST_VERSIONS)}
        ON CONFLICT (tenant_id, agent_id) DO NOTHING
        RETURNING tenant_id, agent_id
    ), versions AS (
        INSERT INTO agent_versions (tenant_id, agent_id, kind, version, body)
        SELECT added.tenant_id, added.agent_id, list.kind, 1, list.body
        FROM added, {FIRST_LISTS}
        WHERE list.body <> '[]'
    )
    SELECT agent_id FROM added
""")
_IS_AGENT = equal("tenant_id", "agent_id")
_FIND_AGENT = f"SELECT * FROM agents WHERE {_IS_AGENT}"
FIND_AGENT = Statement(_FIND_AGENT)
LOCK_AGENT = Statement(f"{_FIND_AGENT} FOR UPDATE")
# The list omits policies, sections and tools, which may be large.
LIST_AGENTS = Statement(
    bounded(
        f"""
            SELECT {", ".join(TABLES["agents"].without("policy", "sections", "tools"))},
                '{{}}' AS policy, '[]' AS sections, '[]' AS tools
            FROM agents
            WHERE tenant_id = :tenant_id
                AND (CAST(:before AS timestamptz) IS NULL OR (created_at, agent_id)
                    < (CAST(:before AS timestamptz), CAST(:before_id AS text)))
            ORDER BY created_at DESC, agent_id DESC LIMIT :limit
        """,
        ("*",),
        lengths("metadata"),
        "created_at DESC, agent_id DESC",
    )
)
CHANGE_AGENT = Statement(f"""
    UPDATE agents
    SET {SET_SETTINGS}, {assigned("name", "rolling_window_seconds", "inherits_window")}
    WHERE {_IS_AGENT}
""")
VERSIONS = VersionStatements("agent_versions")
SET_CLEARED = Statement(f"UPDATE agents SET last_cleared_at = :at WHERE {_IS_AGENT}")
AGENT_DELETE_STATEMENTS = {
    table: Statement(f"DELETE FROM {table} WHERE {_IS_AGENT}")
    for table in ("agents", "agent_versions")
}
"""Statements for all tables with rows of an agent, without those of its conversations."""


class AgentRepository(ConfigurableRepository[Agent]):
    """Stores agents."""

    versions = VERSIONS

    def _key(self, tenant_id: str, resource_id: str) -> dict[str, Any]:
        return {"tenant_id": tenant_id, "agent_id": resource_id}

    async def add(self, tenant_id: str, agent: Agent) -> bool:
        """Create one; False when the id is taken."""
        values = fields_of(agent) | fields_of(agent.settings) | _window_parameters(agent)
        return await self._session.first(ADD_AGENT, tenant_id=tenant_id, **values) is not None

    async def find(self, tenant_id: str, agent_id: str, *, lock: bool = False) -> Agent | None:
        """Return one, or None; `lock` locks its row until the transaction ends."""
        row = await self._session.first(
            LOCK_AGENT if lock else FIND_AGENT, tenant_id=tenant_id, agent_id=agent_id
        )
        return agent_from(row, self._settings_cache.defaults) if row is not None else None

    async def page(
        self, tenant_id: str, limit: int, before: tuple[Any, str] | None, bound: Bound = UNBOUNDED
    ) -> Page[Agent]:
        """Return a page, newest first; `before` is the creation time and id to start after."""
        rows = await self._session.all(
            LIST_AGENTS,
            tenant_id=tenant_id,
            before=before[0] if before else None,
            before_id=before[1] if before else None,
            **limits(limit, bound),
        )
        return page_of(rows, lambda row: agent_from(row, self._settings_cache.defaults))

    async def change(self, tenant_id: str, resource: Agent) -> None:
        """Store the settings of an agent that exists."""
        values = change_parameters(resource) | _window_parameters(resource)
        await self._session.run(CHANGE_AGENT, tenant_id=tenant_id, **values)

    async def set_cleared(self, tenant_id: str, agent_id: str, at: datetime) -> None:
        """Set the time of its last clear."""
        await self._session.run(SET_CLEARED, tenant_id=tenant_id, agent_id=agent_id, at=at)

    async def remove(self, tenant_id: str, agent_id: str) -> Mapping[str, int]:
        """Delete the agent without its conversations; returns deleted rows by table."""
        snapshot_rows = await delete_snapshots_of_agent(self._session, tenant_id, agent_id)
        deleted = {
            name: await self._session.run(statement, tenant_id=tenant_id, agent_id=agent_id)
            for name, statement in AGENT_DELETE_STATEMENTS.items()
        }
        return deleted | snapshot_rows


def _window_parameters(agent: Agent) -> dict[str, Any]:
    window = agent.rolling_window
    inherits = window.source is WindowSource.SERVICE
    return {"rolling_window_seconds": window.seconds, "inherits_window": inherits}
