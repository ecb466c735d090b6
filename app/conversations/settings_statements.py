"""Statements for the settings of agents and conversations, and for the versions of their lists."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

from app.conversations.agents.agent import Agent
from app.conversations.conversation import Conversation
from app.conversations.settings import SettingsList
from app.database.connections import Statement
from app.database.repository import Repository
from app.database.sql import assigned, equal, fields_of, insert
from app.database.tables import TABLES

KEPT_VERSIONS = 50
"""The newest versions of a list, which are kept."""
FIRST_LISTS = """
    (VALUES ('sections', :sections), ('tools', :tools))
        AS list (kind, body)
"""
"""The lists of a new resource, as rows."""
FIRST_VERSIONS = {
    f"{kind}_version": f"CASE WHEN :{kind} = '[]' THEN 0 ELSE 1 END" for kind in SettingsList
}
"""The versions of these lists: an empty list has none."""
_SETTINGS = ("model", "policy", "sections", "tools", "metadata")
_VERSIONS = ("sections_version", "tools_version")
SET_SETTINGS = f"{assigned(*_SETTINGS, *_VERSIONS)}, updated_at = statement_timestamp()"


class VersionStatements:
    """Adds and finds the versions of lists in a table, whose key ends with `kind` and `version`."""

    def __init__(self, table: str) -> None:
        key = TABLES[table].key
        self.add = Statement(insert(table, *key, "body"))
        self.find = Statement(f"SELECT body FROM {table} WHERE {equal(*key)}")
        of_kind = f"{equal(*key[:-1])} AND version <= CAST(:through AS bigint)"
        self.drop = Statement(f"DELETE FROM {table} WHERE {of_kind}")


Resource = TypeVar("Resource", bound=Agent | Conversation)


class ConfigurableRepository(Repository, ABC, Generic[Resource]):
    """Stores the settings of one kind of resource, and the versions of its lists."""

    versions: ClassVar[VersionStatements]

    @abstractmethod
    def _key(self, tenant_id: str, resource_id: str) -> dict[str, Any]: ...

    @abstractmethod
    async def change(self, tenant_id: str, resource: Resource) -> None:
        """Store the settings of a resource that exists."""

    async def add_version(
        self, tenant_id: str, resource_id: str, kind: SettingsList, version: int, body: str
    ) -> None:
        """Store a version of a list; call it in the transaction that makes it the newest."""
        key = self._key(tenant_id, resource_id)
        await self._session.run(self.versions.add, kind=kind, version=version, body=body, **key)
        if (through := version - KEPT_VERSIONS) > 0:
            await self._session.run(self.versions.drop, kind=kind, through=through, **key)

    async def find_version(
        self, tenant_id: str, resource_id: str, kind: SettingsList, version: int
    ) -> str | None:
        """Return a version of a list as it was given, None for an unknown version."""
        key = self._key(tenant_id, resource_id)
        found: str | None = await self._session.value(
            self.versions.find, kind=kind, version=version, **key
        )
        return found


def change_parameters(resource: Agent | Conversation) -> dict[str, Any]:
    """Return the fields of a resource and the parameters of `SET_SETTINGS`."""
    versions = {f"{kind}_version": getattr(resource.versions, kind) for kind in SettingsList}
    return fields_of(resource) | fields_of(resource.settings) | versions
