"""Agents: the settings that several conversations share (B1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from app.domain.common import json_text
from app.domain.common.errors import Conflict, NotFound, ValidationError
from app.domain.common.pages import Bound, Page
from app.domain.conversations.active_window import DEFAULT_ROLLING_WINDOW_SECONDS
from app.domain.conversations.agent import Agent
from app.domain.conversations.settings import Settings, Versioned
from app.services.common.read_permits import UNLIMITED, Read
from app.services.ports import Database, Repositories
from app.services.prompt.settings_inheritance import (
    CheckModel,
    Listed,
    OwnSettings,
    Patch,
    check_summariser,
    in_policy,
    listed,
    no_version,
    sections_text,
    shown_policy,
    taken_by,
    tools_text,
    with_list,
)
from app.services.prompt.settings_resolver import SettingsResolver
from app.services.tool_output.stored_results import Forget

_UNSET = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class NewAgent:
    """A creation; `request` is the body as it came, which an idempotency key stands for."""

    name: str
    agent_id: str | None = None
    settings: OwnSettings = field(default_factory=OwnSettings)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None
    request: Any = None
    rolling_window_seconds: int | None = DEFAULT_ROLLING_WINDOW_SECONDS


@dataclass(frozen=True, slots=True)
class Cleared:
    """Since when an agent's conversations are empty, and how many they are (B3)."""

    last_cleared_at: datetime
    conversations: int


@dataclass(frozen=True, slots=True)
class ShownAgent:
    """An agent with what its layers add up to; `policy` has every leaf."""

    agent: Agent
    policy: Mapping[str, Any]
    model: str | None


class AgentService:
    """Creates, reads, changes and deletes agents."""

    def __init__(
        self,
        database: Database,
        resolver: SettingsResolver,
        service_policy: Mapping[str, Any],
        new_id: Callable[[], str],
        now: Callable[[], datetime],
        forget: Forget,
        check_model: CheckModel,
    ) -> None:
        self._database = database
        self._frames = resolver
        self._service_policy = service_policy
        self._new_id = new_id
        self._now = now
        self._forget = forget
        self._check_model = check_model

    async def create(self, tenant_id: str, new: NewAgent) -> ShownAgent:
        """Create one; a repeated idempotency key returns the first.

        Raises Conflict when the id is taken, ValidationError for a policy that could never work.
        """
        check_summariser(new.settings.policy, self._check_model)
        settings = new.settings.stored()
        self._check(settings)
        agent_id = new.agent_id or self._new_id()
        metadata = json_text.dumps(new.metadata)
        agent = Agent(
            agent_id,
            new.name,
            settings,
            metadata,
            _UNSET,
            _UNSET,
            rolling_window_seconds=new.rolling_window_seconds,
        )
        async with self._database.transaction() as records:
            if new.idempotency_key is not None:
                key, request = new.idempotency_key, ["agent", new.request]
                first = await taken_by(records, tenant_id, key, request, agent_id)
                if first is not None:
                    return await self._replayed(records, tenant_id, first)
            if not await records.agents.add(tenant_id, agent):
                raise Conflict(f"The id {agent_id!r} is taken", {"agent_id": agent_id})
            return self._shown(await self._get(records, tenant_id, agent_id))

    async def get(self, tenant_id: str, agent_id: str) -> ShownAgent:
        """Return one; raises NotFound."""
        async with self._database.session() as records:
            return self._shown(await self._get(records, tenant_id, agent_id))

    async def list(
        self,
        tenant_id: str,
        limit: int,
        before: tuple[datetime, str] | None,
        read: Read = UNLIMITED,
    ) -> Page[Agent]:
        """Return a page, newest first, after the creation time and id of the page before."""
        async with self._database.session() as records:
            return await records.agents.page(tenant_id, limit, before, Bound(read.max_bytes))

    async def change(self, tenant_id: str, agent_id: str, patch: Patch) -> ShownAgent:
        """Change name, model, policy, rolling window or metadata.

        Raises NotFound or ValidationError.
        """
        check_summariser(patch.policy, self._check_model)
        async with self._database.transaction() as records:
            found = await self._get(records, tenant_id, agent_id, lock=True)
            changed = replace(found, settings=patch.applied(found.settings))
            self._check(changed.settings)
            if "name" in patch.given:
                changed = replace(changed, name=patch.name)
            if "metadata" in patch.given:
                changed = replace(changed, metadata=json_text.dumps(patch.metadata))
            if "rolling_window_seconds" in patch.given:
                changed = replace(changed, rolling_window_seconds=patch.rolling_window_seconds)
            await records.agents.change(tenant_id, changed)
            return self._shown(await self._get(records, tenant_id, agent_id))

    async def get_list(
        self, tenant_id: str, agent_id: str, kind: Versioned, version: int | None = None
    ) -> Listed:
        """Return the newest or an earlier version of the agent's sections or tools (G1).

        Raises NotFound for an agent or a version that there is not.
        """
        async with self._database.session() as records:
            newest = listed(await self._get(records, tenant_id, agent_id), kind)
            if version is None or version == newest.version:
                return newest
            body = await records.agents.find_version(tenant_id, agent_id, kind, version)
        if body is None:
            raise no_version(kind, version)
        return Listed(body, version)

    async def set_sections(
        self,
        tenant_id: str,
        agent_id: str,
        sections: Sequence[Mapping[str, Any]],
        expected_version: int | None = None,
    ) -> Listed:
        """Replace the agent's sections, and return them with their version (G1).

        Raises NotFound, ValidationError, or Conflict when another version was expected.
        """
        body = sections_text(sections)
        return await self._set(tenant_id, agent_id, Versioned.SECTIONS, body, expected_version)

    async def set_tools(
        self,
        tenant_id: str,
        agent_id: str,
        tools: Sequence[Mapping[str, Any]],
        expected_version: int | None = None,
    ) -> Listed:
        """Replace the agent's tools, and return them with their version (G1).

        Raises NotFound, ValidationError, or Conflict when another version was expected.
        """
        body = tools_text(tools)
        return await self._set(tenant_id, agent_id, Versioned.TOOLS, body, expected_version)

    async def clear(self, tenant_id: str, agent_id: str) -> Cleared:
        """Empty the active windows of all its conversations; nothing is deleted (B3).

        Raises NotFound.
        """
        async with self._database.transaction() as records:
            await self._get(records, tenant_id, agent_id, lock=True)
            cleared_at = await records.agents.clear(tenant_id, agent_id, self._now())
            told = json_text.dumps(
                {"agent_id": agent_id, "last_cleared_at": cleared_at.isoformat()}
            )
            count = await records.windows.clear_all(tenant_id, agent_id, cleared_at, told)
        return Cleared(cleared_at, count)

    async def remove(self, tenant_id: str, agent_id: str) -> Mapping[str, int]:
        """Delete it with all its conversations; return rows by table (A7)."""
        deleted: Counter[str] = Counter()
        async with self._database.transaction() as records:
            await self._get(records, tenant_id, agent_id, lock=True)
            ids = sorted(await records.conversations.ids_of_agent(tenant_id, agent_id))
            for conversation_id in ids:  # locked in the order in which a clear locks them
                await records.log.lock(tenant_id, conversation_id, None)
                deleted.update(await records.conversations.remove(conversation_id))
            deleted.update(await records.agents.remove(tenant_id, agent_id))
        await self._forget(tenant_id, ids)
        return dict(deleted)

    async def _set(
        self, tenant_id: str, agent_id: str, kind: Versioned, body: str, expected: int | None
    ) -> Listed:
        async with self._database.transaction() as records:
            found = await self._get(records, tenant_id, agent_id, lock=True)
            before = listed(found, kind)
            after = before.replaced(kind, body, expected)
            if after == before:
                return before
            kept = (before, after) if before.is_unkept else (after,)
            for item in kept:
                await records.agents.add_version(tenant_id, agent_id, kind, item.version, item.body)
            await records.agents.change(tenant_id, with_list(found, kind, after))
        return after

    async def _replayed(self, records: Repositories, tenant_id: str, agent_id: str) -> ShownAgent:
        try:
            return self._shown(await self._get(records, tenant_id, agent_id))
        except NotFound as error:
            raise Conflict(
                "What the Idempotency-Key created has been deleted", {"agent_id": agent_id}
            ) from error

    async def _get(
        self, records: Repositories, tenant_id: str, agent_id: str, *, lock: bool = False
    ) -> Agent:
        found = await records.agents.find(tenant_id, agent_id, lock=lock)
        if found is None:
            raise NotFound.agent(agent_id)
        return found

    def _check(self, settings: Settings) -> None:
        try:
            self._frames.policy(settings.policy)
        except ValidationError as error:
            raise in_policy(error) from error

    def _shown(self, agent: Agent) -> ShownAgent:
        policy = shown_policy(self._service_policy, json_text.loads(agent.settings.policy))
        return ShownAgent(agent, policy, agent.settings.model or self._frames.default_model)
