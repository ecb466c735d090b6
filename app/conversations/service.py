"""Agents and conversations: created, read, changed, cleared and deleted, without their logs.

Both are resources with settings of their own: a model, a policy, metadata, and versioned lists of
sections and tools. Settings are checked together with those that they inherit, when they are set.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ClassVar, Generic, TypeVar

from app.common import json_text
from app.common.errors import Conflict, NotFound, ValidationError
from app.common.pages import UNBOUNDED, Bound, Place
from app.conversations.budget_status import read_budgets, within
from app.conversations.conversation import NO_SETTINGS, Agent, Conversation, SettingsList
from app.conversations.listing import ConversationFilter
from app.conversations.lookup import (
    free_key,
    get_agent,
    get_conversation,
    lock_conversation,
    own_id_of,
)
from app.conversations.messages.stored_results import DeleteConversationObjects
from app.conversations.repository import ConfigurableRepository, Resource
from app.conversations.schemas import (
    AgentCreate,
    AgentPatch,
    Cleared,
    ConversationCreate,
    ConversationPatch,
    SettingsCreate,
    SettingsPatch,
)
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.windows.service import clear_windows
from app.policy.policy import Policy
from app.repositories import Database, Repositories
from app.tenancy.repository import DELETE, REVOKE_KEYS, SOME_CONVERSATIONS
from app.tenancy.retention import lock_expired

_MAX_KEYS = 2
"""The keys that a conversation may have by its id."""
_ROWS_AT_ONCE = 1_000
_New = TypeVar("_New", bound=SettingsCreate)


@dataclass(eq=False, repr=False)
class _ResourceService(ABC, Generic[Resource, _New]):
    """Creates, reads and changes one kind of resource.

    `_check_model` raises ValidationError at a JSON pointer for a model that may not summarise.
    """

    kind: ClassVar[str]
    """The name of the resource in ids, such as `agent` in `agent_id`."""

    _database: Database
    _resolver: SettingsResolver
    _new_id: Callable[[], str]
    _now: Callable[[], datetime]
    _delete_objects: DeleteConversationObjects
    _check_model: Callable[[str, str], None]

    async def create(self, tenant_id: str, new: _New) -> Resource:
        """Create one.

        Raises Conflict when the id is taken, ValidationError for an unknown agent or an invalid
        policy.
        """
        id_name = f"{self.kind}_id"
        given_id: str | None = getattr(new, id_name)
        resource_id = given_id or self._new_id()
        async with self._database.transaction() as repositories:
            key = await self._add(repositories, tenant_id, resource_id, new)
            if key is None:
                raise Conflict(f"The id {resource_id!r} is taken", {id_name: resource_id})
            return await self._get(repositories, tenant_id, key)

    async def get(self, tenant_id: str, resource_id: str) -> Resource:
        """Return one; raises NotFound."""
        async with self._database.session() as repositories:
            return await self._get(repositories, tenant_id, resource_id)

    async def clear(self, tenant_id: str, resource_id: str) -> Cleared:
        """Empty the active windows of all its conversations, and delete nothing.

        Raises NotFound.
        """
        async with self._database.transaction() as repositories:
            resource = await self._get(repositories, tenant_id, resource_id, lock=True)
            now = self._now()
            at = max(resource.cleared_at or now, now)
            event = {"last_cleared_at": at.isoformat()}
            ids = [resource.key]
            if isinstance(resource, Agent):
                event = {"agent_id": resource.agent_id, **event}
                # None begins meanwhile: a creation waits for the lock of the agent.
                ids = await repositories.conversations.ids_of_agent(tenant_id, resource_id)
                await repositories.agents.set_cleared(tenant_id, resource_id, at)
            count = await clear_windows(repositories, ids, at, json_text.dumps(event))
        return Cleared(last_cleared_at=at, conversations=count)

    async def get_version(
        self, tenant_id: str, resource_id: str, kind: SettingsList, version: int
    ) -> str:
        """Return one of the newest versions of its sections or tools; raises NotFound."""
        async with self._database.session() as repositories:
            resource = await self._get(repositories, tenant_id, resource_id)
            found = await self._of(repositories).find_version(
                tenant_id, resource.key, kind, version
            )
        if found is None:
            raise NotFound(f"There is no version {version} of the {kind}", {"version": version})
        return found

    def _of(self, repositories: Repositories) -> ConfigurableRepository[Resource]:
        repository: ConfigurableRepository[Resource] = getattr(repositories, f"{self.kind}s")
        return repository

    @abstractmethod
    async def _get(
        self, repositories: Repositories, tenant_id: str, resource_id: str, *, lock: bool = False
    ) -> Resource:
        """Return a resource, locked until the transaction ends with `lock`; raises NotFound."""

    @abstractmethod
    async def _add(
        self, repositories: Repositories, tenant_id: str, resource_id: str, new: _New
    ) -> str | None:
        """Store a resource with an id and return its key, None when the id is taken."""

    def _checked(self, request: SettingsCreate | SettingsPatch, *levels: str) -> Policy:
        """Return the policy of stored settings; raises ValidationError for an invalid one.

        Of the models that may not summarise only the one that the request names is refused: a model
        that was allowed before does not block other changes.
        """
        if request.summariser is not None:
            self._check_model(request.summariser, "/policy/compaction/model")
        return self._resolver.policy(*levels, at="/policy")


class AgentService(_ResourceService[Agent, AgentCreate]):
    """Agents: the settings that several conversations share."""

    kind = "agent"

    async def change(self, tenant_id: str, agent_id: str, patch: AgentPatch) -> Agent:
        """Change the fields that a patch names; raises NotFound or ValidationError."""
        async with self._database.transaction() as repositories:
            before = await get_agent(repositories, tenant_id, agent_id, lock=True)
            after = replace(patch.applied(before), name=patch.name or before.name)
            self._checked(patch, after.settings.policy)
            await repositories.agents.change(tenant_id, before, after)
            return await get_agent(repositories, tenant_id, agent_id)

    async def remove(self, tenant_id: str, agent_id: str) -> Mapping[str, int]:
        """Delete it with all its conversations; return rows by table. Raises NotFound."""
        deleted: Counter[str] = Counter()
        removed: list[str] = []
        async with self._database.transaction() as repositories:
            await get_agent(repositories, tenant_id, agent_id, lock=True)
            ids = await repositories.conversations.ids_of_agent(tenant_id, agent_id)
            for conversation_id in ids:
                is_there = await repositories.log.lock(tenant_id, conversation_id, None) is not None
                if not (is_there or await lock_expired(repositories.session, conversation_id)):
                    continue  # deleted since the ids were read
                deleted.update(await repositories.conversations.remove(conversation_id))
                removed.append(conversation_id)
            deleted.update(await repositories.agents.remove(tenant_id, agent_id))
        await self._delete_objects(tenant_id, removed)
        return dict(deleted)

    async def _get(
        self, repositories: Repositories, tenant_id: str, resource_id: str, *, lock: bool = False
    ) -> Agent:
        return await get_agent(repositories, tenant_id, resource_id, lock=lock)

    async def _add(
        self, repositories: Repositories, tenant_id: str, resource_id: str, new: AgentCreate
    ) -> str | None:
        settings = new.changed(NO_SETTINGS)
        self._checked(new, settings.policy)
        added = await repositories.agents.add(
            tenant_id, resource_id, settings, name=new.name, **new.columns
        )
        return resource_id if added else None


class ConversationService(_ResourceService[Conversation, ConversationCreate]):
    """Conversations, without their logs."""

    kind = "conversation"

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

        `before` is the place to start after. The page may have fewer items than `limit`. On request
        each has the fields of `ConversationUsage`.
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
            asked = [item for item, _ in listed] if with_usage else []
            statuses = await read_budgets(self._resolver, within(session), asked)
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
        async with self._database.transaction() as repositories:
            before = await self._get(repositories, tenant_id, conversation_id, lock=True)
            after = patch.applied(before)
            if "expires_at" in patch.model_fields_set:
                patch.check_expiry(self._now())
                after = replace(after, expires_at=patch.expires_at)
            levels = before.agent.policy, before.settings.policy
            unchanged = self._resolver.unchecked_policy(*levels)["budget"]["counter"]
            policy = self._checked(patch, after.agent.policy, after.settings.policy)
            counter, contexts = policy.budget.counter, repositories.contexts
            if not before.state.head_seq:
                after = replace(after, counter=counter)
            elif counter not in (unchanged, before.counter):  # counts of messages are stored
                raise Conflict("The counter cannot change once there are messages")
            await repositories.conversations.change(tenant_id, before, after)
            receipt = await contexts.find_compaction(conversation_id, before.state.compaction_id)
            if (
                receipt is not None
                and receipt.view.provider_item is None
                and not receipt.is_shown_with(policy.strategy)
            ):  # the whole log is shown when the strategy changes
                await contexts.hide_compaction(conversation_id, before.state.view_version)
            return await self._get(repositories, tenant_id, conversation_id)

    async def remove(self, tenant_id: str, conversation_id: str) -> Mapping[str, int]:
        """Delete it with all data derived from it; return rows by table. Raises NotFound."""
        async with self._database.transaction() as repositories:
            await self._get(repositories, tenant_id, conversation_id, lock=True)
            deleted = await repositories.conversations.remove(conversation_id)
        await self._delete_objects(tenant_id, [conversation_id])
        return deleted

    async def remove_expired(self, tenant_id: str, conversation_id: str) -> bool:
        """Delete it if its expiry has passed; return if it was deleted."""
        async with self._database.transaction() as repositories:
            is_expired = await lock_expired(repositories.session, conversation_id)
            if is_expired:
                await repositories.conversations.remove(conversation_id)
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

    async def _get(
        self, repositories: Repositories, tenant_id: str, resource_id: str, *, lock: bool = False
    ) -> Conversation:
        get = lock_conversation if lock else get_conversation
        return await get(repositories, tenant_id, resource_id, self._resolver.default_model)

    async def _add(
        self, repositories: Repositories, tenant_id: str, resource_id: str, new: ConversationCreate
    ) -> str | None:
        settings, key = new.changed(NO_SETTINGS), resource_id
        new.check_expiry(self._now())
        if new.conversation_id is not None:
            await repositories.conversations.lock_id(tenant_id, resource_id)
            key = await free_key(repositories, tenant_id, resource_id)
        agent = None
        if new.agent_id is not None:
            # The lock orders this transaction and a deletion or clear of the agent: one of them
            # sees the other.
            agent = await repositories.agents.find(tenant_id, new.agent_id, lock=True)
            if agent is None:
                raise ValidationError.at("/agent_id", f"No agent {new.agent_id!r}")
        inherited = agent.settings if agent is not None else NO_SETTINGS
        counter = self._checked(new, inherited.policy, settings.policy).budget.counter
        for _ in range(_MAX_KEYS):
            others: dict[str, Any] = {
                "own_id": own_id_of(key, resource_id),
                "expires_at": new.expires_at,
            }
            if await repositories.conversations.add(
                tenant_id, key, agent, counter, settings, **new.columns, **others
            ):
                return key
            # Another tenant has created a conversation with this UUID meanwhile.
            key = await free_key(repositories, tenant_id, resource_id)
        return None
