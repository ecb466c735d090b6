"""Agents and conversations in PostgreSQL: their settings with versions, and their deletion."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Generic, TypeVar

from app.common.pages import UNBOUNDED, Bound, Page
from app.conversations.conversation import (
    NO_SETTINGS,
    Agent,
    Conversation,
    SettingsList,
    StoredSettings,
    window_of,
)
from app.conversations.rows import (
    AGENT_JOIN,
    CONVERSATION_COLUMNS,
    STATE_COLUMNS,
    agent_from,
    newest_message_at,
    versions_of,
)
from app.conversations.snapshot_removal import delete_snapshots_of_agent, remove_from_snapshots
from app.database.connections import Repository, Statement
from app.database.sql import assigned, bounded, equal, fields_of, insert, lengths, limits, page_of
from app.database.tables import CONVERSATION_TABLES, NOT_EXPIRED, TABLES

_KEPT_VERSIONS = 50
"""The newest versions of a list, which are kept."""
_SETTINGS = ("model", "policy", "sections", "tools", "sections_version", "tools_version")
SET_SETTINGS = f"{assigned(*_SETTINGS, 'metadata')}, updated_at = statement_timestamp()"
Resource = TypeVar("Resource", Agent, Conversation)
"""A kind of resource with settings of its own."""


class VersionStatements:
    """Adds and finds the versions of lists in a table, whose key ends with `kind` and `version`."""

    def __init__(self, table: str) -> None:
        key = TABLES[table].key
        self.add = Statement(insert(table, *key, "body"))
        self.find = Statement(f"SELECT body FROM {table} WHERE {equal(*key)}")
        of_kind = f"{equal(*key[:-1])} AND version <= CAST(:through AS bigint)"
        self.drop = Statement(f"DELETE FROM {table} WHERE {of_kind}")


class ConfigurableRepository(Repository, ABC, Generic[Resource]):
    """Stores the settings of one kind of resource, and the versions of its lists."""

    versions: ClassVar[VersionStatements]
    changed: ClassVar[Statement]

    @abstractmethod
    def _key(self, tenant_id: str, resource_id: str) -> dict[str, Any]: ...

    async def change(self, tenant_id: str, before: Resource, after: Resource) -> None:
        """Store what has changed of a locked resource."""
        values = fields_of(after) | fields_of(after.settings)
        values |= {"tenant_id": tenant_id, "rolling_window_seconds": after.own_window}
        await self._session.run(self.changed, **values)
        await self._add_versions(tenant_id, after.key, before.settings, after.settings)

    async def find_version(
        self, tenant_id: str, resource_id: str, kind: SettingsList, version: int
    ) -> str | None:
        """Return a version of a list as it was given, None for an unknown version."""
        key = self._key(tenant_id, resource_id)
        found: str | None = await self._session.value(
            self.versions.find, kind=kind, version=version, **key
        )
        return found

    async def _add_versions(
        self, tenant_id: str, resource_id: str, before: StoredSettings, after: StoredSettings
    ) -> None:
        for kind in SettingsList:
            version = getattr(after, f"{kind}_version")
            if version == getattr(before, f"{kind}_version"):
                continue
            of_kind = {"kind": kind, **self._key(tenant_id, resource_id)}
            body = getattr(after, kind)
            await self._session.run(self.versions.add, version=version, body=body, **of_kind)
            if (through := version - _KEPT_VERSIONS) > 0:
                await self._session.run(self.versions.drop, through=through, **of_kind)


_IS_AGENT = equal("tenant_id", "agent_id")
_OF_AGENT = ("name", "metadata", "rolling_window_seconds")
ADD_AGENT = Statement(f"""
    {insert("agents", "tenant_id", "agent_id", *_OF_AGENT, *_SETTINGS)}
    ON CONFLICT (tenant_id, agent_id) DO NOTHING
""")
FIND_AGENT = Statement(f"SELECT * FROM agents WHERE {_IS_AGENT}")
LOCK_AGENT = Statement(f"SELECT * FROM agents WHERE {_IS_AGENT} FOR UPDATE")
# The list omits policies, sections and tools, which may be large.
LIST_AGENTS = Statement(
    bounded(
        f"""
            SELECT {", ".join(TABLES["agents"].without("policy", "sections", "tools"))},
                '{{}}' AS policy, '[]' AS sections, '[]' AS tools
            FROM agents
            WHERE tenant_id = :tenant_id
                AND (CAST(:before AS timestamptz) IS NULL OR (created_at, agent_id)
                    < (CAST(:before AS timestamptz), CAST(:before_id AS text)))
            ORDER BY created_at DESC, agent_id DESC LIMIT :limit
        """,
        ("*",),
        lengths("metadata"),
        "created_at DESC, agent_id DESC",
    )
)
CHANGE_AGENT = Statement(f"""
    UPDATE agents
    SET {SET_SETTINGS}, {assigned("name", "rolling_window_seconds")}
    WHERE {_IS_AGENT}
""")
SET_CLEARED = Statement(f"UPDATE agents SET last_cleared_at = :at WHERE {_IS_AGENT}")
AGENT_DELETE_STATEMENTS = {
    table: Statement(f"DELETE FROM {table} WHERE {_IS_AGENT}")
    for table in ("agents", "agent_versions")
}
"""Statements for all tables with rows of an agent, without those of its conversations."""


class AgentRepository(ConfigurableRepository[Agent]):
    """Stores agents."""

    versions, changed = VersionStatements("agent_versions"), CHANGE_AGENT

    def _key(self, tenant_id: str, resource_id: str) -> dict[str, Any]:
        return {"tenant_id": tenant_id, "agent_id": resource_id}

    async def add(
        self, tenant_id: str, agent_id: str, settings: StoredSettings, **others: Any
    ) -> bool:
        """Create one, with its other columns; False when the id is taken."""
        values = fields_of(settings) | self._key(tenant_id, agent_id) | others
        if not await self._session.run(ADD_AGENT, **values):
            return False
        await self._add_versions(tenant_id, agent_id, NO_SETTINGS, settings)
        return True

    async def find(self, tenant_id: str, agent_id: str, *, lock: bool = False) -> Agent | None:
        """Return one, or None; `lock` locks its row until the transaction ends."""
        statement, key = LOCK_AGENT if lock else FIND_AGENT, self._key(tenant_id, agent_id)
        row = await self._session.first(statement, **key)
        return agent_from(row) if row is not None else None

    async def page(
        self, tenant_id: str, limit: int, before: tuple[Any, str] | None, bound: Bound = UNBOUNDED
    ) -> Page[Agent]:
        """Return a page, newest first; `before` is the creation time and id to start after."""
        at, agent_id = before or (None, None)
        rows = await self._session.all(
            LIST_AGENTS, tenant_id=tenant_id, before=at, before_id=agent_id, **limits(limit, bound)
        )
        return page_of(rows, agent_from)

    async def set_cleared(self, tenant_id: str, agent_id: str, at: datetime) -> None:
        """Set the time of its last clear."""
        await self._session.run(SET_CLEARED, at=at, **self._key(tenant_id, agent_id))

    async def remove(self, tenant_id: str, agent_id: str) -> Mapping[str, int]:
        """Delete the agent without its conversations; returns deleted rows by table."""
        snapshot_rows = await delete_snapshots_of_agent(self._session, tenant_id, agent_id)
        deleted = {
            name: await self._session.run(statement, **self._key(tenant_id, agent_id))
            for name, statement in AGENT_DELETE_STATEMENTS.items()
        }
        return deleted | snapshot_rows


_OF_CONVERSATION = ("rolling_window_seconds", "expires_at")
_NO_OTHERS = dict.fromkeys(("own_id", *_OF_CONVERSATION))
_KEYS = ("conversation_id", "tenant_id", "own_id", "agent_id")
ADD_CONVERSATION = Statement(f"""
    {insert("conversations", *_KEYS, "metadata", *_SETTINGS, *_OF_CONVERSATION)}
    ON CONFLICT (conversation_id) DO NOTHING
""")
ADD_HEAD = Statement("""
    INSERT INTO heads (conversation_id, counter, window_seconds, cleared_at, newest_at)
    SELECT :conversation_id, :counter, :window_seconds, a.last_cleared_at,
        a.last_cleared_at + interval '1 microsecond'
    FROM (SELECT 1) AS added
    LEFT JOIN agents a ON a.tenant_id = :tenant_id AND a.agent_id = :agent_id
""")
_FIND = f"""
    FROM conversations c
    JOIN heads h ON h.conversation_id = c.conversation_id
    {AGENT_JOIN}
    WHERE c.conversation_id = :conversation_id AND c.tenant_id = :tenant_id AND {NOT_EXPIRED}
"""
STORED_KEYS = Statement("""
    SELECT conversation_id, tenant_id = :tenant_id
            AND coalesce(own_id, CAST(conversation_id AS text)) = CAST(:public_id AS text) AS is_own
    FROM conversations WHERE conversation_id = ANY (CAST(:keys AS uuid[]))
""")
OWN_IDS = Statement("""
    SELECT conversation_id, own_id FROM conversations
    WHERE conversation_id = ANY (CAST(:keys AS uuid[]))
        AND tenant_id = :tenant_id AND own_id IS NOT NULL
""")
# Two creations of one id wait for each other, although they may choose different keys.
LOCK_ID = Statement("""
    SELECT pg_advisory_xact_lock(
        hashtextextended(:tenant_id || ' ' || CAST(:public_id AS text), 0))
""")
FIND_CONVERSATION = Statement(f"""
    SELECT {CONVERSATION_COLUMNS}, {STATE_COLUMNS},
        {newest_message_at(":conversation_id")} AS last_message_at
    {_FIND}
""")
# Both rows are locked: PostgreSQL reads only locked rows again after it waited for a lock.
LOCK = Statement(f"SELECT {CONVERSATION_COLUMNS}, {STATE_COLUMNS} {_FIND} FOR UPDATE OF h, c")
CHANGE_CONVERSATION = Statement(f"""
    WITH counted AS (
        UPDATE heads SET counter = :counter
        WHERE conversation_id = :conversation_id AND counter <> :counter
    )
    UPDATE conversations SET {SET_SETTINGS}, {assigned(*_OF_CONVERSATION)}
    WHERE {equal("conversation_id", "tenant_id")}
""")
IDS_OF_AGENT = Statement(f"SELECT conversation_id FROM conversations WHERE {_IS_AGENT}")
FIND_OWNER = Statement(
    f"SELECT tenant_id, own_id FROM conversations WHERE {equal('conversation_id')}"
)
DELETE_STATEMENTS = {
    table: Statement(f"DELETE FROM {table} WHERE conversation_id = :conversation_id", is_long=True)
    for table in CONVERSATION_TABLES
}


class ConversationRepository(ConfigurableRepository[Conversation]):
    """Stores conversations and their settings."""

    versions, changed = VersionStatements("conversation_versions"), CHANGE_CONVERSATION

    def _key(self, tenant_id: str, resource_id: str) -> dict[str, Any]:
        return {"conversation_id": resource_id}

    async def add(
        self,
        tenant_id: str,
        conversation_id: str,
        agent: Agent | None,
        counter: str,
        settings: StoredSettings,
        metadata: str = "{}",
        **others: Any,
    ) -> bool:
        """Create one with an empty log and its other columns; False when the key is taken."""
        inherited = agent.rolling_window_seconds if agent is not None else None
        values = fields_of(settings) | _NO_OTHERS | others
        values |= {
            "metadata": metadata,
            "conversation_id": conversation_id,
            "tenant_id": tenant_id,
            "agent_id": agent.agent_id if agent is not None else None,
            "window_seconds": window_of(values["rolling_window_seconds"], inherited),
            "counter": counter,
        }
        if not await self._session.run(ADD_CONVERSATION, **values):
            return False
        await self._session.run(ADD_HEAD, **values)
        await self._add_versions(tenant_id, conversation_id, NO_SETTINGS, settings)
        return True

    async def stored_keys(
        self, tenant_id: str, public_id: str, keys: Sequence[str]
    ) -> Mapping[str, bool]:
        """Return which of these keys any tenant has, each with whether this is its conversation."""
        rows = await self._session.all(
            STORED_KEYS, tenant_id=tenant_id, public_id=public_id, keys=list(keys)
        )
        return {str(row["conversation_id"]): row["is_own"] for row in rows}

    async def own_ids(self, tenant_id: str, keys: Collection[str]) -> Mapping[str, str]:
        """Return the callers' own ids of those conversations that have one, by key."""
        rows = await self._session.all(OWN_IDS, tenant_id=tenant_id, keys=list(keys))
        return {str(row["conversation_id"]): row["own_id"] for row in rows}

    async def lock_id(self, tenant_id: str, public_id: str) -> None:
        """Make other creations of a tenant with this id wait until the transaction ends."""
        await self._session.all(LOCK_ID, tenant_id=tenant_id, public_id=public_id)

    async def find(
        self,
        tenant_id: str,
        conversation_id: str,
        default_model: str | None,
        model: str | None = None,
    ) -> Conversation | None:
        """Return one with inherited settings, or None."""
        row = await self._session.first(
            FIND_CONVERSATION,
            tenant_id=tenant_id,
            conversation_id=conversation_id,
            model=model,
            default_model=default_model,
            **versions_of(None),
        )
        if row is None:
            return None
        return self._settings_cache.conversation_from(row, tenant_id, None, model)

    async def ids_of_agent(self, tenant_id: str, agent_id: str) -> list[str]:
        """Return the ids of an agent's conversations."""
        rows = await self._session.all(IDS_OF_AGENT, tenant_id=tenant_id, agent_id=agent_id)
        return [str(row["conversation_id"]) for row in rows]

    async def remove(self, conversation_id: str) -> Mapping[str, int]:
        """Delete it with all data derived from it; returns deleted rows by table."""
        owner = await self._session.first(FIND_OWNER, conversation_id=conversation_id)
        snapshot_rows: dict[str, int] = {}
        if owner is not None:
            snapshot_rows = await remove_from_snapshots(
                self._session, owner["tenant_id"], conversation_id
            )
        deleted = {
            name: await self._session.run(statement, conversation_id=conversation_id)
            for name, statement in DELETE_STATEMENTS.items()
        }
        return deleted | snapshot_rows
