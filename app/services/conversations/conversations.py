"""Conversations: created, read, changed, cleared and deleted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from app.domain.common import json_text
from app.domain.common.errors import Conflict, NotFound, ValidationError
from app.domain.common.pages import Bound, Page
from app.domain.conversations.conversation import Conversation, ConversationState
from app.domain.conversations.settings import StoredSettings
from app.services.common.lookup import get_conversation, lock_conversation
from app.services.common.read_permits import UNLIMITED, ReadPermit
from app.services.conversations.configurable_resources import (
    ConfigurableService,
    Configured,
    Creation,
)
from app.services.conversations.own_settings import Patch
from app.services.ports import ConversationRepository, Repositories


@dataclass(frozen=True, slots=True)
class NewConversation(Creation):
    """A request to create a conversation."""

    conversation_id: str | None = None
    agent_id: str | None = None


class ConversationService(ConfigurableService[Conversation]):
    """Creates, reads, changes, clears and deletes conversations, without their logs."""

    kind = "conversation"

    async def create(self, tenant_id: str, new: NewConversation) -> Configured[Conversation]:
        """Create one; a repeated idempotency key returns the first.

        Raises Conflict when the id is taken, ValidationError for an unknown agent or an invalid
        policy.
        """
        settings = new.settings.stored()

        async def add(repositories: Repositories, conversation_id: str) -> bool:
            agent = await self._agent_settings(repositories, tenant_id, new.agent_id)
            return await repositories.conversations.add(
                tenant_id,
                conversation_id,
                new.agent_id,
                self._policy(agent.policy, settings.policy).budget.counter,
                settings,
                json_text.dumps(new.metadata),
            )

        return await self._create(tenant_id, new.conversation_id, new, add)

    async def list(
        self,
        tenant_id: str,
        agent_id: str | None,
        limit: int,
        before: tuple[datetime, str] | None,
        read: ReadPermit = UNLIMITED,
    ) -> Page[Conversation]:
        """Return a page, newest first; `before` is the creation time and id to start after."""
        async with self._database.session() as repositories:
            return await repositories.conversations.page(
                tenant_id,
                agent_id,
                limit,
                before,
                self._resolver.default_model,
                Bound(read.max_bytes),
            )

    async def clear(self, tenant_id: str, conversation_id: str) -> ConversationState:
        """Empty its active window, delete nothing, and return its state. Raises NotFound."""
        async with self._database.transaction() as repositories:
            await self._get(repositories, tenant_id, conversation_id, lock=True)
            now = self._now()
            event = json_text.dumps({"last_cleared_at": now.isoformat()})
            await repositories.windows.clear(conversation_id, now, event)
            return (await self._get(repositories, tenant_id, conversation_id, lock=True)).state

    async def remove_idle(self, tenant_id: str, conversation_id: str, since: datetime) -> bool:
        """Delete it unless it was changed or appended to since a time; return if it was deleted."""
        async with self._database.transaction() as repositories:
            try:
                await self._get(repositories, tenant_id, conversation_id, lock=True)
            except NotFound:
                return False
            if not await repositories.retention.is_idle(conversation_id, since):
                return False
            await repositories.conversations.remove(conversation_id)
        await self._delete_objects(tenant_id, [conversation_id])
        return True

    async def remove(self, tenant_id: str, conversation_id: str) -> Mapping[str, int]:
        """Delete it with all data derived from it; return rows by table. Raises NotFound."""
        async with self._database.transaction() as repositories:
            await self._get(repositories, tenant_id, conversation_id, lock=True)
            deleted = await repositories.conversations.remove(conversation_id)
        await self._delete_objects(tenant_id, [conversation_id])
        return deleted

    async def _agent_settings(
        self, repositories: Repositories, tenant_id: str, agent_id: str | None
    ) -> StoredSettings:
        if agent_id is None:
            return StoredSettings()
        # The lock orders this creation and a deletion of the agent: one of them sees the other.
        agent = await repositories.agents.find(tenant_id, agent_id, lock=True)
        if agent is None:
            raise ValidationError.at("/agent_id", f"No agent {agent_id!r}")
        return agent.settings

    def _repository(self, repositories: Repositories) -> ConversationRepository:
        return repositories.conversations

    async def _get(
        self, repositories: Repositories, tenant_id: str, resource_id: str, *, lock: bool = False
    ) -> Conversation:
        get = lock_conversation if lock else get_conversation
        return await get(repositories, tenant_id, resource_id, self._resolver.default_model)

    def _with_own_fields(
        self, before: Conversation, after: Conversation, patch: Patch
    ) -> Conversation:
        """Change the counter with the policy; the counter is fixed once there are messages."""
        unchanged = self._merged_policy(before.agent.policy, before.settings.policy)
        counter = self._policy(after.agent.policy, after.settings.policy).budget.counter
        if not before.state.head_seq:
            return replace(after, counter=counter)
        if counter not in (unchanged["budget"]["counter"], before.counter):
            raise Conflict("The counter cannot change once there are messages")
        return after

    async def _after_change(
        self, repositories: Repositories, before: Conversation, after: Conversation
    ) -> None:
        """Show the whole log again when the strategy changes."""
        state = before.state
        if state.compaction_id is None:
            return
        receipt = await repositories.contexts.find_compaction(
            before.conversation_id, state.compaction_id
        )
        if receipt is not None and receipt.strategy != self._resolver.policy_of(after).strategy:
            await repositories.contexts.hide_compaction(before.conversation_id, state.view_version)

    def _effective_policy(self, resource: Conversation) -> dict[str, Any]:
        policy = self._merged_policy(resource.agent.policy, resource.settings.policy)
        # The counter is fixed with the first message, even if the agent's policy changes later.
        policy["budget"] = policy["budget"] | {"counter": resource.counter}
        return policy
