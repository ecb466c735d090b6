"""What agents and conversations have in common: both are resources with settings of their own.

Each has a model, a policy, metadata, and versioned lists of sections and tools. Settings are
checked together with the settings that they inherit, when they are set. `AgentService` and
`ConversationService` add how their resource is found, added and changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ClassVar, Generic

from app.common import json_text
from app.common.errors import Conflict, NotFound, Problem, ValidationError
from app.conversations.messages.stored_results import DeleteConversationObjects
from app.conversations.repository import ConfigurableRepository
from app.conversations.schemas import Resource, SettingsCreate, SettingsPatch
from app.conversations.settings import ListVersion, SettingsList, list_json
from app.conversations.settings_resolver import SettingsResolver
from app.policy.policy import DEFAULT_POLICY, Policy, merge
from app.prompt.resolved_settings import digest
from app.repositories import Database, Repositories


@dataclass(frozen=True, slots=True)
class Configured(Generic[Resource]):
    """A resource with its effective settings; `policy` has a value for every leaf."""

    resource: Resource
    policy: Mapping[str, Any]
    model: str | None


@dataclass(eq=False, repr=False)
class ConfigurableService(ABC, Generic[Resource]):
    """Creates, reads and changes one kind of resource.

    `_check_model` raises ValidationError at a JSON pointer for a model that may not summarise.
    """

    kind: ClassVar[str]
    """The name of the resource in ids, such as `agent` in `agent_id`."""

    _database: Database
    _resolver: SettingsResolver
    _service_policy: Mapping[str, Any]
    _new_id: Callable[[], str]
    _now: Callable[[], datetime]
    _delete_objects: DeleteConversationObjects
    _check_model: Callable[[str, str], None]

    async def get(self, tenant_id: str, resource_id: str) -> Configured[Resource]:
        """Return one; raises NotFound."""
        async with self._database.session() as repositories:
            return self._configured(await self._get(repositories, tenant_id, resource_id))

    async def get_list(
        self, tenant_id: str, resource_id: str, kind: SettingsList, version: int | None = None
    ) -> ListVersion:
        """Return the newest or an earlier version of the resource's own sections or tools.

        Raises NotFound for an unknown resource or version.
        """
        async with self._database.session() as repositories:
            resource = await self._get(repositories, tenant_id, resource_id)
            newest: int = getattr(resource.versions, kind)
            if version is None or version == newest:
                return ListVersion(getattr(resource.settings, kind), newest)
            repository = self._repository(repositories)
            body = await repository.find_version(tenant_id, resource_id, kind, version)
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
        async with self._database.transaction() as repositories:
            resource = await self._get(repositories, tenant_id, resource_id, lock=True)
            return await self._repository(repositories).replace_list(
                tenant_id, resource, kind, body, expected_version
            )

    async def _create(
        self,
        tenant_id: str,
        resource_id: str | None,
        new: SettingsCreate,
        idempotency_key: str | None,
        add: Callable[[Repositories, str], Awaitable[str | None]],
    ) -> Configured[Resource]:
        """Create a resource, or return the one that an equal request with its key created.

        `add` stores the resource with an id and returns its key, None when the id is taken.
        Raises Conflict for that, and what `add` raises.
        """
        self._check_summariser(new)
        resource_id = resource_id or self._new_id()
        async with self._database.transaction() as repositories:
            if idempotency_key is not None:
                request = [self.kind, new.model_dump(exclude_unset=True)]
                created_id = await claim_idempotency_key(
                    repositories, tenant_id, idempotency_key, request, resource_id
                )
                if created_id is not None:
                    try:
                        created_key = await self._key_of(repositories, tenant_id, created_id)
                        created = await self._get(repositories, tenant_id, created_key)
                    except NotFound:
                        message = "What the Idempotency-Key created has been deleted"
                        raise Conflict(message, {f"{self.kind}_id": created_id}) from None
                    return self._configured(created)
            key = await add(repositories, resource_id)
            if key is None:
                taken = {f"{self.kind}_id": resource_id}
                raise Conflict(f"The id {resource_id!r} is taken", taken)
            return self._configured(await self._get(repositories, tenant_id, key))

    async def _key_of(self, repositories: Repositories, tenant_id: str, resource_id: str) -> str:
        """Return the key of the resource that callers know by this id; raises NotFound."""
        return resource_id

    def _configured(self, resource: Resource) -> Configured[Resource]:
        model = resource.model or self._resolver.default_model
        return Configured(resource, self._effective_policy(resource), model)

    @abstractmethod
    def _repository(self, repositories: Repositories) -> ConfigurableRepository[Resource]: ...

    @abstractmethod
    async def _get(
        self, repositories: Repositories, tenant_id: str, resource_id: str, *, lock: bool = False
    ) -> Resource:
        """Return a resource, locked until the transaction ends with `lock`; raises NotFound."""

    @abstractmethod
    def _effective_policy(self, resource: Resource) -> dict[str, Any]: ...

    def _check_summariser(self, request: SettingsCreate | SettingsPatch) -> None:
        """Raise ValidationError when a request names a model that may not summarise.

        A stored policy is not checked again: a model that was allowed before does not block other
        changes.
        """
        if request.summariser is not None:
            self._check_model(request.summariser, "/policy/compaction/model")

    def _policy(self, *levels: str) -> Policy:
        """Return the policy of stored settings; raises ValidationError for an invalid one."""
        try:
            return self._resolver.policy(*levels)
        except ValidationError as error:  # its pointers start at the request body
            problems = (Problem(f"/policy{each.pointer}", each.detail) for each in error.problems)
            raise replace(error, problems=tuple(problems)) from error

    def _merged_policy(self, *levels: str) -> dict[str, Any]:
        """Return the value of every leaf; these policies override that of the service.

        The result is not validated: reading a resource never fails because of its policy.
        """
        merged = merge(DEFAULT_POLICY, self._service_policy)
        for level in levels:
            merged = merge(merged, json_text.loads(level))
        return merged


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
