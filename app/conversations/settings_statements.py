"""Statements for the settings of agents and conversations, and for the versions of their lists."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict
from typing import Any, ClassVar, Generic, TypeVar

from app.conversations.agents.agent import Agent
from app.conversations.conversation import Conversation
from app.conversations.settings import SettingsList
from app.database.connections import Statement
from app.database.repository import Repository

KEPT_VERSIONS = 50
"""The newest versions of a list, which are kept."""
FIRST_LISTS = """
    (VALUES ('sections', :sections), ('tools', :tools))
        AS list (kind, body)
"""
"""The lists of a new resource, as rows."""
FIRST_VERSIONS = """
    CASE WHEN :sections = '[]' THEN 0 ELSE 1 END, CASE WHEN :tools = '[]' THEN 0 ELSE 1 END
"""
"""The versions of these lists: an empty list has none."""
SET_SETTINGS = """
    model = :model, policy = :policy, sections = :sections, tools = :tools, metadata = :metadata,
    sections_version = :sections_version,
    tools_version = :tools_version, updated_at = statement_timestamp()
"""


class VersionStatements:
    """Adds and finds the versions of lists in a table; `key` are the types of its key columns."""

    def __init__(self, table: str, **key: str) -> None:
        values = ", ".join(f"CAST(:{name} AS {type_})" for name, type_ in key.items())
        where = " AND ".join(f"{name} = CAST(:{name} AS {type_})" for name, type_ in key.items())
        self.add = Statement(f"""
            INSERT INTO {table} ({", ".join(key)}, kind, version, body)
            VALUES ({values}, :kind, :version, :body)
        """)
        self.find = Statement(f"""
            SELECT body FROM {table}
            WHERE {where} AND kind = :kind AND version = :version
        """)
        self.drop = Statement(f"""
            DELETE FROM {table}
            WHERE {where} AND kind = :kind AND version <= CAST(:through AS bigint)
        """)


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
        row = await self._session.first(self.versions.find, kind=kind, version=version, **key)
        return row["body"] if row is not None else None


def change_parameters(resource: Agent | Conversation) -> dict[str, Any]:
    """Return the parameters of `SET_SETTINGS`."""
    return asdict(resource.settings) | {
        "metadata": resource.metadata,
        "sections_version": resource.versions.sections,
        "tools_version": resource.versions.tools,
    }
