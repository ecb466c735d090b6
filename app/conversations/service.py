"""Agents and conversations: created, changed, listed, cleared and deleted, without their logs.

Both are resources with settings of their own: a model, a policy, metadata, and versioned lists of
sections and tools. Settings are checked together with those that they inherit, when they are set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from app.common.errors import Conflict, NotFound, ValidationError
from app.common.pages import UNBOUNDED, Bound, Place
from app.conversations.conversation import NO_SETTINGS, Agent, Conversation
from app.conversations.listing import ConversationFilter
from app.conversations.messages.stored_results import DeleteConversationObjects
from app.conversations.moving_window import clear_windows
from app.conversations.pressure import read_budgets
from app.conversations.repository import id_taken, own_id_of
from app.conversations.schemas import (
    AgentCreate,
    AgentPatch,
    Cleared,
    ConversationCreate,
    ConversationPatch,
    SettingsPatch,
)
from app.conversations.settings_resolver import SettingsResolver
from app.policy.policy import Policy
from app.repositories import Database
from app.tenancy.repository import DELETE, REVOKE_KEYS, SOME_CONVERSATIONS
from app.tenancy.retention import lock_expired

_ROWS_AT_ONCE = 1_000


@dataclass(eq=False, repr=False)
class _Service:
    """What both services need.

    `_check_model` raises ValidationError at a JSON pointer for a model that may not summarise.
    """

    _database: Database
    _resolver: SettingsResolver
    _new_id: Callable[[], str]
    _now: Callable[[], datetime]
    _delete_objects: DeleteConversationObjects
    _check_model: Callable[[str, str], None]

    def _checked(self, request: SettingsPatch, *levels: str) -> Policy:
        """Return the policy of stored settings; raises ValidationError for an invalid one.

        Of the models that may not summarise only the one that the request names is refused: a model
        that was allowed before does not block other changes.
        """
        if request.summariser is not None:
            self._check_model(request.summariser, "/policy/compaction/model")
        return self._resolver.policy(*levels, at="/policy")


class AgentService(_Service):
    """Agents: the settings that several conversations share."""

    async def create(self, tenant_id: str, new: AgentCreate) -> Agent:
        """Create one; raises Conflict when the id is taken, ValidationError."""
        agent_id, settings = new.agent_id or self._new_id(), new.changed(NO_SETTINGS)
        self._checked(new, settings.policy)
        async with self._database.transaction() as session:
            await session.agents.add(tenant_id, agent_id, settings, name=new.name, **new.columns)
            return await session.agents.get(tenant_id, agent_id)

    async def change(self, tenant_id: str, agent_id: str, patch: AgentPatch) -> Agent:
        """Change the fields that a patch names; raises NotFound or ValidationError."""
        async with self._database.transaction() as session:
            before = await session.agents.get(tenant_id, agent_id, lock=True)
            after = replace(patch.applied(before), name=patch.name or before.name)
            self._checked(patch, after.settings.policy)
            await session.agents.change(tenant_id, before, after)
            return await session.agents.get(tenant_id, agent_id)

    async def clear(self, tenant_id: str, agent_id: str) -> Cleared:
        """Empty the active windows of all its conversations; raises NotFound."""
        async with self._database.transaction() as session:
            agent, now = await session.agents.get(tenant_id, agent_id, lock=True), self._now()
            at = max(agent.cleared_at or now, now)
            # None begins meanwhile: a creation waits for the lock of the agent.
            ids = await session.conversations.ids_of_agent(tenant_id, agent_id)
            await session.agents.set_cleared(tenant_id, agent_id, at)
            count = await clear_windows(session, ids, at, agent_id=agent_id)
        return Cleared(last_cleared_at=at, conversation_count=count)

    async def remove(self, tenant_id: str, agent_id: str) -> Mapping[str, int]:
        """Delete it with all its conversations; return rows by table. Raises NotFound."""
        deleted: Counter[str] = Counter()
        removed: list[str] = []
        async with self._database.transaction() as session:
            await session.agents.get(tenant_id, agent_id, lock=True)
            for key in await session.conversations.ids_of_agent(tenant_id, agent_id):
                is_there = await session.conversations.find(tenant_id, key, lock=True) is not None
                if is_there or await lock_expired(session.session, key):
                    deleted.update(await session.conversations.remove(key))
                    removed.append(key)
            deleted.update(await session.agents.remove(tenant_id, agent_id))
        await self._delete_objects(tenant_id, removed)
        return dict(deleted)


class ConversationService(_Service):
    """Conversations, without their logs."""

    async def create(self, tenant_id: str, new: ConversationCreate) -> Conversation:
        """Create one.

        Raises Conflict when the id is taken, ValidationError for an unknown agent or an invalid
        policy.
        """
        public_id, settings = new.conversation_id or self._new_id(), new.changed(NO_SETTINGS)
        new.check_expiry(self._now())
        async with self._database.transaction() as session:
            agent, inherited = None, NO_SETTINGS
            if new.agent_id is not None:
                # The lock orders this transaction and a deletion or clear of the agent: one of them
                # sees the other.
                agent = await session.agents.find(tenant_id, new.agent_id, lock=True)
                if agent is None:
                    raise ValidationError.at("/agent_id", f"No agent {new.agent_id!r}")
                inherited = agent.settings
            counter = self._checked(new, inherited.policy, settings.policy).budget.counter
            own = new.columns | {"expires_at": new.expires_at}
            for _ in range(2):  # another tenant may create one with this UUID meanwhile
                key = await session.conversations.free_key(tenant_id, public_id)
                own["own_id"] = own_id_of(key, public_id)
                if await session.conversations.add(tenant_id, key, agent, counter, settings, **own):
                    return await session.conversations.get(tenant_id, key)
        raise id_taken(public_id)

    async def list(
        self,
        tenant_id: str,
        wanted: ConversationFilter,
        limit: int,
        before: Place | None,
        bound: Bound = UNBOUNDED,
        *,
        with_usage: bool = False,
    ) -> tuple[Sequence[tuple[Conversation, dict[str, Any]]], Place | None]:
        """Return a page, newest first, and the place that the list continues after, if it does.

        `before` is the place to start after. On request each has the fields of `ConversationUsage`.
        """
        async with self._database.session() as session:
            repository = session.conversation_list
            # One more place shows whether the list continues.
            places = await repository.places(tenant_id, wanted, before, limit + 1)
            end = places[limit - 1] if len(places) > limit else None
            places = places[:limit]
            ids = [conversation_id for _, conversation_id in places]
            listed = await repository.by_ids(tenant_id, ids, bound, with_usage=with_usage)
            asked = [item for item, _ in listed] if with_usage else []
            statuses = await read_budgets(session, self._resolver, asked)
        if listed.has_more:
            shown = {item.conversation_id for item, _ in listed}
            end = next(place for place in reversed(places) if place[1] in shown)
        for item, usage in listed if with_usage else ():
            status = statuses.get(item.conversation_id)
            usage["budget"] = status.budget if status is not None else None
            usage["pressure"] = status.pressure.pressure if status is not None else None
        return listed, end

    async def change(
        self, tenant_id: str, conversation_id: str, patch: ConversationPatch
    ) -> Conversation:
        """Change the fields that a patch names; raises NotFound, ValidationError or Conflict."""
        async with self._database.transaction() as session:
            conversations, contexts = session.conversations, session.contexts
            before = await conversations.get(tenant_id, conversation_id, lock=True)
            after = patch.applied(before)
            if "expires_at" in patch.model_fields_set:
                patch.check_expiry(self._now())
                after = replace(after, expires_at=patch.expires_at)
            levels = before.agent.policy, before.settings.policy
            unchanged = self._resolver.unchecked_policy(*levels)["budget"]["counter"]
            policy = self._checked(patch, after.agent.policy, after.settings.policy)
            counter = policy.budget.counter
            if not before.state.head_seq:
                after = replace(after, counter=counter)
            elif counter not in (unchanged, before.counter):  # counts of messages are stored
                raise Conflict("The counter cannot change once there are messages")
            await conversations.change(tenant_id, before, after)
            receipt = await contexts.find_receipt(conversation_id, before.state.compaction_id)
            if (
                receipt is not None
                and receipt.view.provider_item is None
                and not receipt.is_shown_with(policy.strategy)
            ):  # the whole log is shown when the strategy changes
                await contexts.show_whole_log(conversation_id, before.state.view_version)
            return await conversations.get(tenant_id, conversation_id)

    async def clear(self, tenant_id: str, conversation_id: str) -> Cleared:
        """Empty its active window; raises NotFound."""
        async with self._database.transaction() as session:
            found = await session.conversations.get(tenant_id, conversation_id, lock=True)
            now = self._now()
            at = max(found.state.cleared_at or now, now)
            count = await clear_windows(session, [conversation_id], at)
        return Cleared(last_cleared_at=at, conversation_count=count)

    async def remove(self, tenant_id: str, conversation_id: str) -> Mapping[str, int]:
        """Delete it with all data derived from it; return rows by table. Raises NotFound."""
        async with self._database.transaction() as session:
            await session.conversations.get(tenant_id, conversation_id, lock=True)
            deleted = await session.conversations.remove(conversation_id)
        await self._delete_objects(tenant_id, [conversation_id])
        return deleted

    async def remove_expired(self, tenant_id: str, conversation_id: str) -> bool:
        """Delete it if its expiry has passed; return if it was deleted."""
        async with self._database.transaction() as session:
            is_expired = await lock_expired(session.session, conversation_id)
            if is_expired:
                await session.conversations.remove(conversation_id)
        if is_expired:
            await self._delete_objects(tenant_id, [conversation_id])
        return is_expired

    async def remove_tenant(self, tenant_id: str) -> Mapping[str, int]:
        """Delete everything of a tenant; return the numbers of rows by table [tenancy.delete].

        It revokes the keys first, then deletes conversation by conversation and the other rows in
        batches. The tenant's own row is the last, so that an interrupted deletion is repeated.
        Revoked keys stay: a service that had keys never accepts requests without one.
        """
        counts: Counter[str] = Counter()
        async with self._database.session() as session:
            counts["revoked_keys"] = await session.session.run(REVOKE_KEYS, tenant_id=tenant_id)
        some = {"tenant_id": tenant_id, "limit": _ROWS_AT_ONCE}
        while True:
            async with self._database.session() as session:
                rows = await session.session.all(SOME_CONVERSATIONS, **some)
            if not rows:
                break
            for conversation_id in (str(row["conversation_id"]) for row in rows):
                try:
                    counts.update(await self.remove(tenant_id, conversation_id))
                except NotFound:  # expired, or deleted meanwhile
                    await self.remove_expired(tenant_id, conversation_id)
        for table in DELETE:
            deleted = _ROWS_AT_ONCE
            while deleted == _ROWS_AT_ONCE:
                async with self._database.session() as session:
                    deleted = await session.session.run(DELETE[table], **some)
                counts[table] += deleted
        return +counts
