"""Agents: the settings that several conversations share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from app.common import json_text
from app.common.ids import AgentId
from app.common.pages import UNBOUNDED, Bound, Page
from app.conversations.configurable_resources import ConfigurableService, Configured
from app.conversations.conversation import Agent
from app.conversations.lookup import get_agent
from app.conversations.repository import AgentRepository
from app.conversations.schemas import AgentCreate, AgentPatch
from app.conversations.windows.active_window import SERVICE_DEFAULTS, agent_window
from app.repositories import Repositories
from app.tenancy.retention import lock_expired

_SET_BY_DATABASE = datetime.min.replace(tzinfo=UTC)


class AgentService(ConfigurableService[Agent]):
    """Creates, reads, changes and deletes agents."""

    kind = "agent"

    async def create(
        self, tenant_id: str, new: AgentCreate, idempotency_key: str | None = None
    ) -> Configured[Agent]:
        """Create one; a repeated idempotency key returns the first.

        Raises Conflict when the id is taken, ValidationError for an invalid policy.
        """
        settings = new.stored()

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

        return await self._create(tenant_id, new.agent_id, new, idempotency_key, add)

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

    async def change(self, tenant_id: str, agent_id: str, patch: AgentPatch) -> Configured[Agent]:
        """Change the fields that a patch names; raises NotFound or ValidationError."""
        self._check_summariser(patch)
        async with self._database.transaction() as repositories:
            after = patch.applied(await get_agent(repositories, tenant_id, agent_id, lock=True))
            self._policy(after.settings.policy)
            if "rolling_window_seconds" in patch.model_fields_set:
                window = agent_window(patch.rolling_window_seconds, SERVICE_DEFAULTS)
                after = replace(after, rolling_window=window)
            after = replace(after, name=patch.name or after.name)
            await repositories.agents.change(tenant_id, after)
            return self._configured(await get_agent(repositories, tenant_id, agent_id))

    async def clear(self, tenant_id: str, agent_id: str) -> tuple[datetime, int]:
        """Empty the active windows of all its conversations, and delete nothing.

        Returns when it was cleared, and the number of conversations. Raises NotFound.
        """
        async with self._database.transaction() as repositories:
            agent = await get_agent(repositories, tenant_id, agent_id, lock=True)
            now = self._now()
            cleared_at = max(agent.cleared_at or now, now)
            event = json_text.dumps(
                {"agent_id": agent_id, "last_cleared_at": cleared_at.isoformat()}
            )
            count = await repositories.windows.clear_all(tenant_id, agent_id, cleared_at, event)
            await repositories.agents.set_cleared(tenant_id, agent_id, cleared_at)
        return cleared_at, count

    async def remove(self, tenant_id: str, agent_id: str) -> Mapping[str, int]:
        """Delete it with all its conversations; return rows by table. Raises NotFound."""
        deleted: Counter[str] = Counter()
        removed: list[str] = []
        async with self._database.transaction() as repositories:
            await get_agent(repositories, tenant_id, agent_id, lock=True)
            ids = sorted(await repositories.conversations.ids_of_agent(tenant_id, agent_id))
            for conversation_id in ids:  # locked in the order in which a clear locks them
                found = await repositories.log.lock(tenant_id, conversation_id, None)
                if found is None:
                    if not await lock_expired(repositories.session, conversation_id):
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
        return await get_agent(repositories, tenant_id, resource_id, lock=lock)

    def _effective_policy(self, resource: Agent) -> dict[str, Any]:
        return self._merged_policy(resource.settings.policy)
