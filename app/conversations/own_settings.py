"""The own settings of an agent or a conversation: checked, patched, versioned.

1. The database stores the settings as the caller gave them, as JSON text, without defaults.
2. Settings are checked together with the settings that they inherit, when they are set.
3. A caller replaces sections and tools as whole lists. Each list is a new version, and earlier
   versions stay readable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from app.common import json_text
from app.common.errors import Conflict, Problem, ValidationError
from app.conversations.agents.agent import Agent
from app.conversations.conversation import Conversation
from app.conversations.expiry import Expiry
from app.conversations.settings import SettingsList, StoredSettings
from app.conversations.settings_statements import ConfigurableRepository
from app.conversations.windows.active_window import INHERIT, OwnWindow
from app.formats import parse_tool
from app.policy.policy import DEFAULT_POLICY, merge

Resource = TypeVar("Resource", Agent, Conversation)
"""A kind of resource with settings of its own."""

CheckModel = Callable[[str, str], None]
"""Raises ValidationError at a JSON pointer for a model that may not summarise."""


@dataclass(frozen=True, slots=True)
class OwnSettings:
    """The settings of a creation request: policy leaves, sections and tools of the request."""

    model: str | None = None
    policy: Mapping[str, Any] = field(default_factory=dict)
    sections: Sequence[Mapping[str, Any]] = ()
    tools: Sequence[Mapping[str, Any]] = ()

    def stored(self) -> StoredSettings:
        """Return them as they are stored; raises ValidationError for a name used twice."""
        return StoredSettings(
            model=self.model,
            policy=json_text.dumps(merge({}, self.policy)),
            sections=sections_json(self.sections),
            tools=tools_json(self.tools),
        )


@dataclass(frozen=True, slots=True)
class Patch:
    """A change of the named `fields`; a policy of None resets the whole policy.

    An `expiry` of None leaves it unchanged.
    """

    fields: frozenset[str]
    name: str = ""
    model: str | None = None
    policy: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    rolling_window_seconds: OwnWindow = INHERIT
    agent_id: str | None = None
    expiry: Expiry | None = None

    def applied(self, resource: Resource) -> Resource:
        """Return the resource with model, policy and metadata changed."""
        settings, metadata = resource.settings, resource.metadata
        if "model" in self.fields:
            settings = replace(settings, model=self.model)
        if "policy" in self.fields:
            own = json_text.loads(settings.policy) if self.policy is not None else {}
            merged = without_empty_objects(merge(own, self.policy or {}))
            settings = replace(settings, policy=json_text.dumps(merged))
        if "metadata" in self.fields:
            metadata = json_text.dumps(self.metadata)
        return replace(resource, settings=settings, metadata=metadata)


@dataclass(frozen=True, slots=True)
class ListVersion:
    """One version of a list of sections or tools, as JSON text."""

    body: str
    version: int

    @property
    def is_unversioned(self) -> bool:
        """Whether a release that did not store versions stored this list."""
        return self.version == 0 and self.body != "[]"

    def replaced(self, kind: SettingsList, body: str, expected: int | None) -> ListVersion:
        """Return the newest version after a replacement: this one if the list is the same.

        Raises Conflict with the current version when the caller expected another one.
        """
        if expected not in (None, self.version):
            raise Conflict(
                f"The {kind} are at version {self.version}, not {expected}",
                {"version": self.version, "expected_version": expected},
            )
        return self if body == self.body else ListVersion(body, self.version + 1)


def newest_version(resource: Agent | Conversation, kind: SettingsList) -> ListVersion:
    """Return the newest version of a list."""
    return ListVersion(getattr(resource.settings, kind), getattr(resource.versions, kind))


def with_version(resource: Resource, kind: SettingsList, new: ListVersion) -> Resource:
    """Return the resource with this version as the newest of a list."""
    return replace(
        resource,
        settings=replace(resource.settings, **{kind.value: new.body}),
        versions=replace(resource.versions, **{kind.value: new.version}),
    )


async def store_list(
    repository: ConfigurableRepository[Resource],
    tenant_id: str,
    resource_id: str,
    resource: Resource,
    kind: SettingsList,
    new: ListVersion,
) -> None:
    """Store the version that replaces the newest one of a locked resource's list."""
    newest = newest_version(resource, kind)
    if new == newest:
        return
    for item in (newest, new) if newest.is_unversioned else (new,):
        await repository.add_version(tenant_id, resource_id, kind, item.version, item.body)
    await repository.change(tenant_id, with_version(resource, kind, new))


def sections_json(sections: Sequence[Mapping[str, Any]]) -> str:
    """Return sections as stored; raises ValidationError when a name occurs twice."""
    _require_unique([section["name"] for section in sections], "/sections")
    return json_text.dumps(list(sections))


def tools_json(tools: Sequence[Mapping[str, Any]]) -> str:
    """Return tools as stored; raises ValidationError for an invalid tool definition."""
    names = [parse_tool(tool, f"/tools/{index}").name for index, tool in enumerate(tools)]
    _require_unique(names, "/tools")
    return json_text.dumps(list(tools))


def list_json(kind: SettingsList, items: Sequence[Mapping[str, Any]]) -> str:
    """Return sections or tools as stored; raises ValidationError as the functions above do."""
    return sections_json(items) if kind is SettingsList.SECTIONS else tools_json(items)


def effective_policy(*policies: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of every leaf; later policies override earlier ones.

    The result is not validated: reading a resource never fails because of its policy.
    """
    effective = dict(DEFAULT_POLICY)
    for policy in policies:
        effective = merge(effective, policy)
    return effective


def check_summariser(policy: Mapping[str, Any] | None, check: CheckModel) -> None:
    """Raise ValidationError when a policy names a model that may not summarise.

    A stored policy is not checked again: a model that was allowed before does not block other
    changes.
    """
    compaction = (policy or {}).get("compaction")
    model = compaction.get("model") if isinstance(compaction, Mapping) else None
    if isinstance(model, str):
        check(model, "/policy/compaction/model")


def without_empty_objects(policy: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policy without objects that have no leaf."""
    pruned = {}
    for key, value in policy.items():
        inner = without_empty_objects(value) if isinstance(value, Mapping) else value
        if inner != {}:
            pruned[key] = inner
    return pruned


def with_policy_pointers(error: ValidationError) -> ValidationError:
    """Return a policy's error with pointers that start at the request body."""
    problems = (Problem(f"/policy{problem.pointer}", problem.detail) for problem in error.problems)
    return replace(error, problems=tuple(problems))


def _require_unique(names: Sequence[str], pointer: str) -> None:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            raise ValidationError.at(f"{pointer}/{index}/name", f"The name {name!r} is used twice")
        seen.add(name)
