"""What agents and conversations have in common: both are resources with settings of their own.

Each has a model, a policy, metadata, and versioned lists of sections and tools. `AgentService`
and `ConversationService` add how their resource is found, added and checked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Generic

from app.common import json_text
from app.common.errors import Conflict, NotFound, ValidationError
from app.conversations.agents.agent import Agent
from app.conversations.messages.stored_results import DeleteConversationObjects
from app.conversations.own_settings import (
    CheckModel,
    ListVersion,
    OwnSettings,
    Patch,
    Resource,
    check_summariser,
    effective_policy,
    list_json,
    newest_version,
    store_list,
    with_policy_pointers,
)
from app.conversations.settings import SettingsList
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.settings_statements import ConfigurableRepository
from app.policy.policy import Policy
from app.prompt.resolved_settings import digest
from app.repositories import Database, Repositories


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """A creation request; two requests with one idempotency key are equal if `request` is."""

    settings: OwnSettings = field(default_factory=OwnSettings)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None
    request: Any = None


@dataclass(frozen=True, slots=True)
class Configured(Generic[Resource]):
    """A resource with its effective settings; `policy` has a value for every leaf."""

    resource: Resource
    policy: Mapping[str, Any]
    model: str | None


@dataclass(eq=False, repr=False)
class ConfigurableService(ABC, Generic[Resource]):
    """Creates, reads and changes one kind of resource."""

    kind: ClassVar[str]
    """The name of the resource in ids, such as `agent` in `agent_id`."""

    _database: Database
    _resolver: SettingsResolver
    _service_policy: Mapping[str, Any]
    _new_id: Callable[[], str]
    _now: Callable[[], datetime]
    _delete_objects: DeleteConversationObjects
    _check_model: CheckModel

    async def get(self, tenant_id: str, resource_id: str) -> Configured[Resource]:
        """Return one; raises NotFound."""
        async with self._database.session() as repositories:
            return self._configured(await self._get(repositories, tenant_id, resource_id))

    async def change(self, tenant_id: str, resource_id: str, patch: Patch) -> Configured[Resource]:
        """Change the fields that a patch names.

        Raises NotFound, ValidationError, or Conflict for another counter once a conversation has
        messages, since their counts are stored.
        """
        check_summariser(patch.policy, self._check_model)
        async with self._database.transaction() as repositories:
            agent = await self._new_agent(repositories, tenant_id, patch)
            before = await self._get(repositories, tenant_id, resource_id, lock=True)
            after = self._with_own_fields(before, patch.applied(before), patch, agent)
            await self._repository(repositories).change(tenant_id, after)
            await self._after_change(repositories, before, after)
            return self._configured(await self._get(repositories, tenant_id, resource_id))

    async def get_list(
        self, tenant_id: str, resource_id: str, kind: SettingsList, version: int | None = None
    ) -> ListVersion:
        """Return the newest or an earlier version of the resource's own sections or tools.

        Raises NotFound for an unknown resource or version.
        """
        async with self._database.session() as repositories:
            newest = newest_version(await self._get(repositories, tenant_id, resource_id), kind)
            if version is None or version == newest.version:
                return newest
            body = await self._repository(repositories).find_version(
                tenant_id, resource_id, kind, version
            )
        if body is None:
            raise NotFound(f"There is no version {version} of the {kind}", {"version": version})
        return ListVersion(body, version)

    async def set_list(
        self,
        tenant_id: str,
        resource_id: str,
        kind: SettingsList,
        items: Sequence[Mapping[str, Any]],
        expected_version: int | None = None,
    ) -> ListVersion:
        """Replace the resource's own sections or tools, and return them with their version.

        Raises NotFound, ValidationError, or Conflict when the version is not the expected one.
        """
        body = list_json(kind, items)
        async with self._database.transaction() as session:
            repository = self._repository(session)
            resource = await self._get(session, tenant_id, resource_id, lock=True)
            new = newest_version(resource, kind).replaced(kind, body, expected_version)
            await store_list(repository, tenant_id, resource_id, resource, kind, new)
        return new

    async def _create(
        self,
        tenant_id: str,
        resource_id: str | None,
        new: Creation,
        add: Callable[[Repositories, str], Awaitable[str | None]],
    ) -> Configured[Resource]:
        """Create a resource, or return the one that an equal request with its key created.

        `add` stores the resource with an id and returns its key, None when the id is taken.
        Raises Conflict for that, and what `add` raises.
        """
        check_summariser(new.settings.policy, self._check_model)
        resource_id = resource_id or self._new_id()
        id_name = f"{self.kind}_id"
        async with self._database.transaction() as repositories:
            if new.idempotency_key is not None:
                request = [self.kind, new.request]
                created_id = await claim_idempotency_key(
                    repositories, tenant_id, new.idempotency_key, request, resource_id
                )
                if created_id is not None:
                    try:
                        created_key = await self._key_of(repositories, tenant_id, created_id)
                        created = await self._get(repositories, tenant_id, created_key)
                    except NotFound:
                        message = "What the Idempotency-Key created has been deleted"
                        raise Conflict(message, {id_name: created_id}) from None
                    return self._configured(created)
            key = await add(repositories, resource_id)
            if key is None:
                raise Conflict(f"The id {resource_id!r} is taken", {id_name: resource_id})
            return self._configured(await self._get(repositories, tenant_id, key))

    async def _key_of(self, repositories: Repositories, tenant_id: str, resource_id: str) -> str:
        """Return the key of the resource that callers know by this id; raises NotFound."""
        return resource_id

    def _configured(self, resource: Resource) -> Configured[Resource]:
        model = resource.model or self._resolver.default_model
        return Configured(resource, self._effective_policy(resource), model)

    async def _new_agent(
        self, repositories: Repositories, tenant_id: str, patch: Patch
    ) -> Agent | None:
        """Return the agent that a patch names, locked before the resource as in a creation."""
        return None

    async def _after_change(
        self, repositories: Repositories, before: Resource, after: Resource
    ) -> None:
        """Update what depends on settings, in the transaction that changes them."""

    @abstractmethod
    def _repository(self, repositories: Repositories) -> ConfigurableRepository[Resource]: ...

    @abstractmethod
    async def _get(
        self, repositories: Repositories, tenant_id: str, resource_id: str, *, lock: bool = False
    ) -> Resource:
        """Return a resource, locked until the transaction ends with `lock`; raises NotFound."""

    @abstractmethod
    def _with_own_fields(
        self, before: Resource, after: Resource, patch: Patch, agent: Agent | None
    ) -> Resource:
        """Return the changed resource with the changes that only its kind has.

        Raises ValidationError for an invalid policy.
        """

    def _policy(self, *levels: str) -> Policy:
        """Return the policy of stored settings; raises ValidationError for an invalid one."""
        try:
            return self._resolver.policy(*levels)
        except ValidationError as error:
            raise with_policy_pointers(error) from error

    def _merged_policy(self, *levels: str) -> dict[str, Any]:
        """Return the value of every leaf; these policies override that of the service."""
        return effective_policy(self._service_policy, *map(json_text.loads, levels))

    @abstractmethod
    def _effective_policy(self, resource: Resource) -> dict[str, Any]: ...


async def claim_idempotency_key(
    repositories: Repositories, tenant_id: str, key: str, request: Any, resource_id: str
) -> str | None:
    """Claim an idempotency key for a creation.

    Returns the id of the resource that an equal request created before, None for a new key.
    Raises Conflict when the key was used with another request. Call it first in the transaction
    of the creation: a creation that fails then releases the key.
    """
    request_hash = digest(json_text.dumps(request))
    if await repositories.tenants.add_creation(tenant_id, key, request_hash, resource_id):
        return None
    stored = await repositories.tenants.find_creation(tenant_id, key)
    if stored is None or stored[0] != request_hash:
        raise Conflict("The Idempotency-Key was used with another body")
    return stored[1]
