"""Conversations: created, read, changed, cleared and deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from app.common import json_text
from app.common.errors import Conflict, NotFound, ValidationError
from app.common.pages import UNBOUNDED, Bound, Place
from app.conversations.budget_status import BudgetStatus, read_budgets, within
from app.conversations.configurable_resources import ConfigurableService, Configured
from app.conversations.conversation import Agent, Conversation, ConversationState
from app.conversations.listing_repository import (
    EVERY_CONVERSATION,
    ConversationFilter,
    ListedTotals,
)
from app.conversations.lookup import (
    find_key,
    free_key,
    get_conversation,
    lock_conversation,
    own_id_of,
)
from app.conversations.repository import ConversationRepository
from app.conversations.schemas import ConversationCreate, ConversationPatch
from app.conversations.settings import StoredSettings
from app.conversations.windows.active_window import SERVICE_DEFAULTS, conversation_window
from app.repositories import Repositories
from app.tenancy.retention import is_idle, lock_expired

_MAX_KEYS = 2
"""The keys that a conversation may have by its id."""


ListedConversations = tuple[
    Sequence[tuple[Conversation, ListedTotals | None, BudgetStatus | None]], Place | None
]
"""Conversations of a page with what was asked for, and the place to continue after."""


class ConversationService(ConfigurableService[Conversation]):
    """Creates, reads, changes, clears and deletes conversations, without their logs."""

    kind = "conversation"

    async def create(
        self, tenant_id: str, new: ConversationCreate, idempotency_key: str | None = None
    ) -> Configured[Conversation]:
        """Create one; a repeated idempotency key returns the first.

        Raises Conflict when the id is taken, ValidationError for an unknown agent or an invalid
        policy.
        """
        settings, expires_at = new.stored(), new.expiry(self._now())

        async def add(repositories: Repositories, public_id: str) -> str | None:
            key = public_id
            if new.conversation_id is not None:
                await repositories.conversations.lock_id(tenant_id, public_id)
                key = await free_key(repositories, tenant_id, public_id)
            agent = await self._lock_agent(repositories, tenant_id, new.agent_id)
            inherited = agent.settings if agent is not None else StoredSettings()
            counter = self._policy(inherited.policy, settings.policy).budget.counter
            metadata = json_text.dumps(new.metadata)
            for _ in range(_MAX_KEYS):
                own_id = own_id_of(key, public_id)
                if await repositories.conversations.add(
                    tenant_id,
                    key,
                    agent,
                    counter,
                    settings,
                    metadata,
                    new.rolling_window_seconds,
                    own_id,
                    expires_at,
                ):
                    return key
                # Another tenant has created a conversation with this UUID meanwhile.
                key = await free_key(repositories, tenant_id, public_id)
            return None

        return await self._create(tenant_id, new.conversation_id, new, idempotency_key, add)

    async def change(
        self, tenant_id: str, conversation_id: str, patch: ConversationPatch
    ) -> Configured[Conversation]:
        """Change the fields that a patch names.

        Raises NotFound, ValidationError, or Conflict for another counter once a conversation has
        messages, since their counts are stored.
        """
        self._check_summariser(patch)
        fields = patch.model_fields_set
        async with self._database.transaction() as repositories:
            # The agent is locked before the conversation, as in a creation.
            agent = await self._lock_agent(repositories, tenant_id, patch.agent_id)
            before = await self._get(repositories, tenant_id, conversation_id, lock=True)
            after = patch.applied(before)
            if "agent_id" in fields:
                after = after.given_to(agent)
            if "rolling_window_seconds" in fields:
                window = conversation_window(patch.rolling_window_seconds, None, SERVICE_DEFAULTS)
                after = replace(after, rolling_window=window)  # an inherited one is read again
            if not fields.isdisjoint(("expires_at", "ttl_seconds")):
                after = replace(after, expires_at=patch.expiry(self._now()))
            unchanged = self._merged_policy(before.agent.policy, before.settings.policy)
            counter = self._policy(after.agent.policy, after.settings.policy).budget.counter
            if not before.state.head_seq:
                after = replace(after, counter=counter)
            elif counter not in (unchanged["budget"]["counter"], before.counter):
                raise Conflict("The counter cannot change once there are messages")
            await repositories.conversations.change(tenant_id, after)
            await self._after_change(repositories, before, after)
            return self._configured(await self._get(repositories, tenant_id, conversation_id))

    async def list(
        self,
        tenant_id: str,
        wanted: ConversationFilter = EVERY_CONVERSATION,
        limit: int = 50,
        before: Place | None = None,
        bound: Bound = UNBOUNDED,
        *,
        with_usage: bool = False,
    ) -> ListedConversations:
        """Return a page, newest first, and the place that the list continues after, if it does.

        `before` is the place to start after. The page may have fewer items than `limit`.
        """
        async with self._database.session() as session:
            repository = session.conversation_list
            # One more place shows whether the list continues.
            places, end = await repository.places(tenant_id, wanted, before, limit + 1)
            if len(places) > limit:
                places = places[:limit]
                end = places[-1]
            ids = [conversation_id for _, conversation_id in places]
            listed = await repository.by_ids(
                tenant_id, ids, self._resolver.default_model, bound, with_usage=with_usage
            )
            items = [item for item, _ in listed]
            asked = items if with_usage else []
            statuses = await read_budgets(self._resolver, within(session), asked)
        if listed.has_more:
            shown = {item.conversation_id for item in items}
            end = next(place for place in reversed(places) if place[1] in shown)
        return [(*each, statuses.get(each[0].conversation_id)) for each in listed], end

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
            if await repositories.log.lock(tenant_id, conversation_id, None) is None:
                return False
            if not await is_idle(repositories.session, conversation_id, since):
                return False
            await repositories.conversations.remove(conversation_id)
        await self._delete_objects(tenant_id, [conversation_id])
        return True

    async def remove_expired(self, tenant_id: str, conversation_id: str) -> bool:
        """Delete it if its expiry has passed; return if it was deleted."""
        async with self._database.transaction() as repositories:
            if not await lock_expired(repositories.session, conversation_id):
                return False
            await repositories.conversations.remove(conversation_id)
        await self._delete_objects(tenant_id, [conversation_id])
        return True

    async def remove(self, tenant_id: str, conversation_id: str) -> Mapping[str, int]:
        """Delete it with all data derived from it; return rows by table. Raises NotFound."""
        async with self._database.transaction() as repositories:
            await lock_conversation(repositories, tenant_id, conversation_id, None)
            deleted = await repositories.conversations.remove(conversation_id)
        await self._delete_objects(tenant_id, [conversation_id])
        return deleted

    async def _lock_agent(
        self, repositories: Repositories, tenant_id: str, agent_id: str | None
    ) -> Agent | None:
        if agent_id is None:
            return None
        # The lock orders this transaction and a deletion or clear of the agent: one of them sees
        # the other.
        agent = await repositories.agents.find(tenant_id, agent_id, lock=True)
        if agent is None:
            raise ValidationError.at("/agent_id", f"No agent {agent_id!r}")
        return agent

    async def _key_of(self, repositories: Repositories, tenant_id: str, resource_id: str) -> str:
        key = await find_key(repositories, tenant_id, resource_id)
        if key is None:
            raise NotFound.conversation(resource_id)
        return key

    def _repository(self, repositories: Repositories) -> ConversationRepository:
        return repositories.conversations

    async def _get(
        self, repositories: Repositories, tenant_id: str, resource_id: str, *, lock: bool = False
    ) -> Conversation:
        get = lock_conversation if lock else get_conversation
        return await get(repositories, tenant_id, resource_id, self._resolver.default_model)

    async def _after_change(
        self, repositories: Repositories, before: Conversation, after: Conversation
    ) -> None:
        """Apply the clear of a new agent, and show the whole log when the strategy changes."""
        state = before.state
        cleared_at = after.state.cleared_at
        if cleared_at is not None and cleared_at != state.cleared_at:
            # A summary can be of messages from before the clear as well.
            await repositories.contexts.hide_compaction(before.conversation_id, state.view_version)
            await repositories.windows.take_clear(before.conversation_id, cleared_at)
            return
        receipt = await repositories.contexts.find_compaction(
            before.conversation_id, state.compaction_id
        )
        if receipt is None or receipt.view.provider_item is not None:
            return
        if not receipt.is_shown_with(self._resolver.policy_of(after).strategy):
            await repositories.contexts.hide_compaction(before.conversation_id, state.view_version)

    def _effective_policy(self, resource: Conversation) -> dict[str, Any]:
        policy = self._merged_policy(resource.agent.policy, resource.settings.policy)
        # The counter is fixed with the first message, even if the agent's policy changes later.
        policy["budget"] = policy["budget"] | {"counter": resource.counter}
        return policy
