"""Conversations: created, read, changed, deleted (A7, decisions 7, 8, 22, 32)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from app.domain.common import json_text
from app.domain.common.errors import Conflict, NotFound, ValidationError
from app.domain.common.pages import Bound, Page
from app.domain.common.policy import CounterName
from app.domain.conversations.conversation import Conversation, ConversationState
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


@dataclass(frozen=True, slots=True)
class NewConversation:
    """A creation; `request` is the body as it came, which an idempotency key stands for."""

    conversation_id: str | None = None
    agent_id: str | None = None
    settings: OwnSettings = field(default_factory=OwnSettings)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None
    request: Any = None


@dataclass(frozen=True, slots=True)
class ShownConversation:
    """A conversation with what its layers add up to; `policy` has every leaf."""

    conversation: Conversation
    policy: Mapping[str, Any]
    model: str | None


class ConversationService:
    """Everything about conversations except their logs and contexts."""

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

    async def create(self, tenant_id: str, new: NewConversation) -> ShownConversation:
        """Create one; a repeated idempotency key returns the first.

        Raises Conflict when the id is taken, ValidationError for an unknown agent or a policy
        that could never work.
        """
        check_summariser(new.settings.policy, self._check_model)
        settings = new.settings.stored()
        conversation_id = new.conversation_id or self._new_id()
        async with self._database.transaction() as records:
            if new.idempotency_key is not None:
                first = await taken_by(
                    records,
                    tenant_id,
                    new.idempotency_key,
                    ["conversation", new.request],
                    conversation_id,
                )
                if first is not None:
                    return await self._replayed(records, tenant_id, first)
            agent = await self._agent_layer(records, tenant_id, new.agent_id)
            added = await records.conversations.add(
                tenant_id,
                conversation_id,
                new.agent_id,
                self._counter(agent, settings),
                settings,
                json_text.dumps(new.metadata),
            )
            if not added:
                raise Conflict(
                    f"The id {conversation_id} is taken", {"conversation_id": conversation_id}
                )
            return self._shown(await self._get(records, tenant_id, conversation_id))

    async def get(self, tenant_id: str, conversation_id: str) -> ShownConversation:
        """Return one; raises NotFound."""
        async with self._database.session() as records:
            return self._shown(await self._get(records, tenant_id, conversation_id))

    async def list(
        self,
        tenant_id: str,
        agent_id: str | None,
        limit: int,
        before: tuple[datetime, str] | None,
        read: Read = UNLIMITED,
    ) -> Page[Conversation]:
        """Return a page, newest first, after the creation time and id of the page before."""
        async with self._database.session() as records:
            return await records.conversations.page(
                tenant_id,
                agent_id,
                limit,
                before,
                self._frames.default_model,
                Bound(read.max_bytes),
            )

    async def change(self, tenant_id: str, conversation_id: str, patch: Patch) -> ShownConversation:
        """Change model, policy or metadata.

        Raises NotFound, ValidationError, or Conflict for another counter once there are
        messages, since their counts are stored.
        """
        check_summariser(patch.policy, self._check_model)
        async with self._database.transaction() as records:
            found = await self._locked(records, tenant_id, conversation_id)
            settings = patch.applied(found.settings)
            before = self._policy(found)["budget"]["counter"]
            after = self._counter(found.agent, settings)
            counter = found.counter
            if after not in (before, counter) or not found.state.head_seq:
                if found.state.head_seq:
                    raise Conflict("The counter cannot change once there are messages")
                counter = after
            metadata = found.metadata
            if "metadata" in patch.given:
                metadata = json_text.dumps(patch.metadata)
            changed = replace(found, settings=settings, counter=counter, metadata=metadata)
            await records.conversations.change(tenant_id, changed)
            await self._drop_state_of_another_strategy(records, found, changed)
            return self._shown(await self._get(records, tenant_id, conversation_id))

    async def _drop_state_of_another_strategy(
        self, records: Repositories, before: Conversation, after: Conversation
    ) -> None:
        """Show everything again when the strategy changes (D6)."""
        if before.state.compaction_id is None:
            return
        receipt = await records.contexts.find_compaction(
            before.conversation_id, before.state.compaction_id
        )
        if receipt is not None and receipt.strategy != self._frames.policy_of(after).strategy:
            await records.contexts.hide_compaction(
                before.conversation_id, before.state.view_version
            )

    async def get_list(
        self, tenant_id: str, conversation_id: str, kind: Versioned, version: int | None = None
    ) -> Listed:
        """Return the newest or an earlier version of the conversation's own sections or tools (G1).

        Raises NotFound for a conversation or a version that there is not.
        """
        async with self._database.session() as records:
            newest = listed(await self._get(records, tenant_id, conversation_id), kind)
            if version is None or version == newest.version:
                return newest
            body = await records.conversations.find_version(conversation_id, kind, version)
        if body is None:
            raise no_version(kind, version)
        return Listed(body, version)

    async def set_sections(
        self,
        tenant_id: str,
        conversation_id: str,
        sections: Sequence[Mapping[str, Any]],
        expected_version: int | None = None,
    ) -> Listed:
        """Replace the conversation's own sections, and return them with their version (G1).

        Raises NotFound, ValidationError, or Conflict when another version was expected.
        """
        body = sections_text(sections)
        return await self._set(
            tenant_id, conversation_id, Versioned.SECTIONS, body, expected_version
        )

    async def set_tools(
        self,
        tenant_id: str,
        conversation_id: str,
        tools: Sequence[Mapping[str, Any]],
        expected_version: int | None = None,
    ) -> Listed:
        """Replace the conversation's own tools, and return them with their version (G1).

        Raises NotFound, ValidationError, or Conflict when another version was expected.
        """
        body = tools_text(tools)
        return await self._set(tenant_id, conversation_id, Versioned.TOOLS, body, expected_version)

    async def clear(self, tenant_id: str, conversation_id: str) -> ConversationState:
        """Empty its active window and return the head then; nothing is deleted (B3).

        Raises NotFound.
        """
        async with self._database.transaction() as records:
            await self._locked(records, tenant_id, conversation_id)
            now = self._now()
            told = json_text.dumps({"last_cleared_at": now.isoformat()})
            await records.windows.clear(conversation_id, now, told)
            return (await self._locked(records, tenant_id, conversation_id)).state

    async def remove_idle(self, tenant_id: str, conversation_id: str, before: datetime) -> bool:
        """Delete it likewise if nothing was appended or changed since; False when it stays."""
        async with self._database.transaction() as records:
            found = await records.log.lock(tenant_id, conversation_id, self._frames.default_model)
            if found is None or not await records.retention.is_idle(conversation_id, before):
                return False
            await records.conversations.remove(conversation_id)
        await self._forget(tenant_id, [conversation_id])
        return True

    async def remove(self, tenant_id: str, conversation_id: str) -> Mapping[str, int]:
        """Delete it and all that is derived from it; return rows by table (A7)."""
        async with self._database.transaction() as records:
            await self._locked(records, tenant_id, conversation_id)
            deleted = await records.conversations.remove(conversation_id)
        await self._forget(tenant_id, [conversation_id])
        return deleted

    async def _set(
        self, tenant_id: str, conversation_id: str, kind: Versioned, body: str, expected: int | None
    ) -> Listed:
        async with self._database.transaction() as records:
            found = await self._locked(records, tenant_id, conversation_id)
            before = listed(found, kind)
            after = before.replaced(kind, body, expected)
            if after == before:
                return before
            kept = (before, after) if before.is_unkept else (after,)
            for item in kept:
                await records.conversations.add_version(
                    conversation_id, kind, item.version, item.body
                )
            await records.conversations.change(tenant_id, with_list(found, kind, after))
        return after

    async def _replayed(
        self, records: Repositories, tenant_id: str, conversation_id: str
    ) -> ShownConversation:
        try:
            return self._shown(await self._get(records, tenant_id, conversation_id))
        except NotFound as error:
            raise Conflict(
                "What the Idempotency-Key created has been deleted",
                {"conversation_id": conversation_id},
            ) from error

    async def _agent_layer(
        self, records: Repositories, tenant_id: str, agent_id: str | None
    ) -> Settings:
        if agent_id is None:
            return Settings()
        # Locked, so that the agent's deletion sees this conversation or this sees the deletion.
        agent = await records.agents.find(tenant_id, agent_id, lock=True)
        if agent is None:
            raise ValidationError.at("/agent_id", f"No agent {agent_id!r}")
        return agent.settings

    async def _get(
        self, records: Repositories, tenant_id: str, conversation_id: str
    ) -> Conversation:
        found = await records.conversations.find(
            tenant_id, conversation_id, self._frames.default_model
        )
        if found is None:
            raise NotFound.conversation(conversation_id)
        return found

    async def _locked(
        self, records: Repositories, tenant_id: str, conversation_id: str
    ) -> Conversation:
        found = await records.log.lock(tenant_id, conversation_id, self._frames.default_model)
        if found is None:
            raise NotFound.conversation(conversation_id)
        return found

    def _counter(self, agent: Settings, own: Settings) -> CounterName:
        """Return the counter of a policy, which is checked on the way."""
        try:
            return self._frames.policy(agent.policy, own.policy).budget.counter
        except ValidationError as error:
            raise in_policy(error) from error

    def _policy(self, conversation: Conversation) -> dict[str, Any]:
        return shown_policy(
            self._service_policy,
            json_text.loads(conversation.agent.policy),
            json_text.loads(conversation.settings.policy),
        )

    def _shown(self, conversation: Conversation) -> ShownConversation:
        policy = self._policy(conversation)
        # The counter is fixed with the first message, whatever its agent says later.
        policy["budget"] = policy["budget"] | {"counter": conversation.counter}
        model = conversation.model or self._frames.default_model
        return ShownConversation(conversation, policy, model)
