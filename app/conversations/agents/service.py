"""Agents: the settings that several conversations share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from app.common import json_text
from app.common.errors import NotFound
from app.common.ids import AgentId
from app.common.pages import UNBOUNDED, Bound, Page
from app.conversations.agents.agent import Agent
from app.conversations.agents.repository import AgentRepository
from app.conversations.configurable_resources import ConfigurableService, Configured, Creation
from app.conversations.own_settings import Patch
from app.conversations.windows.active_window import (
    INHERIT,
    SERVICE_DEFAULTS,
    OwnWindow,
    agent_window,
)
from app.repositories import Repositories

_SET_BY_DATABASE = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class NewAgent(Creation):
    """A request to create an agent."""

    name: str
    agent_id: str | None = None
    rolling_window_seconds: OwnWindow = INHERIT


@dataclass(frozen=True, slots=True)
class ClearedAgent:
    """When an agent was cleared, and how many conversations it has."""

    last_cleared_at: datetime
    conversations: int


class AgentService(ConfigurableService[Agent]):
    """Creates, reads, changes and deletes agents."""

    kind = "agent"

    async def create(self, tenant_id: str, new: NewAgent) -> Configured[Agent]:
        """Create one; a repeated idempotency key returns the first.

        Raises Conflict when the id is taken, ValidationError for an invalid policy.
        """
        settings = new.settings.stored()

        async def add(repositories: Repositories, agent_id: str) -> str | None:
            self._policy(settings.policy)
            agent = Agent(
                AgentId(agent_id),
                new.name,
                settings,
                json_text.dumps(new.metadata),
                created_at=_SET_BY_DATABASE,
                updated_at=_SET_BY_DATABASE,
                rolling_window=agent_window(new.rolling_window_seconds, SERVICE_DEFAULTS),
            )
            return agent_id if await repositories.agents.add(tenant_id, agent) else None

        return await self._create(tenant_id, new.agent_id, new, add)

    async def list(
        self,
        tenant_id: str,
        limit: int,
        before: tuple[datetime, str] | None,
        bound: Bound = UNBOUNDED,
    ) -> Page[Agent]:
        """Return a page, newest first; `before` is the creation time and id to start after."""
        async with self._database.session() as repositories:
            return await repositories.agents.page(tenant_id, limit, before, bound)

    async def clear(self, tenant_id: str, agent_id: str) -> ClearedAgent:
        """Empty the active windows of all its conversations, and delete nothing.

        Raises NotFound.
        """
        async with self._database.transaction() as repositories:
            agent = await self._get(repositories, tenant_id, agent_id, lock=True)
            now = self._now()
            cleared_at = max(agent.cleared_at or now, now)
            event = json_text.dumps(
                {"agent_id": agent_id, "last_cleared_at": cleared_at.isoformat()}
            )
            count = await repositories.windows.clear_all(tenant_id, agent_id, cleared_at, event)
            await repositories.agents.set_cleared(tenant_id, agent_id, cleared_at)
        return ClearedAgent(cleared_at, count)

    async def remove(self, tenant_id: str, agent_id: str) -> Mapping[str, int]:
        """Delete it with all its conversations; return rows by table. Raises NotFound."""
        deleted: Counter[str] = Counter()
        removed: list[str] = []
        async with self._database.transaction() as repositories:
            await self._get(repositories, tenant_id, agent_id, lock=True)
            ids = sorted(await repositories.conversations.ids_of_agent(tenant_id, agent_id))
            for conversation_id in ids:  # locked in the order in which a clear locks them
                found = await repositories.log.lock(tenant_id, conversation_id, None)
                if found is None:
                    if not await repositories.tenants.lock_expired(conversation_id):
                        continue  # deleted since the ids were read
                elif found.agent_id != agent_id:
                    continue  # given to another agent since the ids were read
                deleted.update(await repositories.conversations.remove(conversation_id))
                removed.append(conversation_id)
            deleted.update(await repositories.agents.remove(tenant_id, agent_id))
        await self._delete_objects(tenant_id, removed)
        return dict(deleted)

    def _repository(self, repositories: Repositories) -> AgentRepository:
        return repositories.agents

    async def _get(
        self, repositories: Repositories, tenant_id: str, resource_id: str, *, lock: bool = False
    ) -> Agent:
        agent = await repositories.agents.find(tenant_id, resource_id, lock=lock)
        if agent is None:
            raise NotFound.agent(resource_id)
        return agent

    def _with_own_fields(
        self, before: Agent, after: Agent, patch: Patch, agent: Agent | None
    ) -> Agent:
        self._policy(after.settings.policy)
        if patch.name:
            after = replace(after, name=patch.name)
        if "rolling_window_seconds" in patch.fields:
            after = replace(
                after, rolling_window=agent_window(patch.rolling_window_seconds, SERVICE_DEFAULTS)
            )
        return after

    def _effective_policy(self, resource: Agent) -> dict[str, Any]:
        return self._merged_policy(resource.settings.policy)
