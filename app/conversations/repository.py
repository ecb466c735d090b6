"""Agents and conversations in PostgreSQL: their settings with versions, and their deletion."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Generic

from app.common.errors import Conflict, NotFound
from app.common.ids import keys_of
from app.common.pages import UNBOUNDED, Bound, Page
from app.conversations.conversation import (
    NO_SETTINGS,
    Agent,
    Conversation,
    Resource,
    SettingsList,
    StoredSettings,
    rolling_window_of,
)
from app.conversations.from_rows import (
    AGENT_JOIN,
    CONVERSATION_COLUMNS,
    STATE_COLUMNS,
    agent_from,
    newest_message_at,
    versions_of,
)
from app.database.connections import Repository, Statement
from app.database.sql import assigned, bounded, equal, fields_of, insert, lengths, limits, page_of
from app.database.tables import CONVERSATION_TABLES, NOT_EXPIRED, TABLES

_KEPT_VERSIONS = 50
"""The newest versions of a list, which are kept."""
_SETTINGS = ("model", "policy", "sections", "tools", "sections_version", "tools_version")
_SET_SETTINGS = f"{assigned(*_SETTINGS, 'metadata')}, updated_at = statement_timestamp()"


class _Versions:
    """The versions of lists in a table, whose key ends with `kind` and `version`."""

    def __init__(self, table: str) -> None:
        key = TABLES[table].key
        self.add = Statement(insert(table, *key, "body"))
        self.find = Statement(f"SELECT body FROM {table} WHERE {equal(*key)}")
        of_kind = f"{equal(*key[:-1])} AND version <= CAST(:through AS bigint)"
        self.drop = Statement(f"DELETE FROM {table} WHERE {of_kind}")


class ConfigurableRepository(Repository, ABC, Generic[Resource]):
    """Stores the settings of one kind of resource, and the versions of its lists."""

    versions: ClassVar[_Versions]
    changed: ClassVar[Statement]

    @abstractmethod
    async def get(self, tenant_id: str, key: str, /) -> Resource:
        """Return one; raises NotFound."""

    async def change(self, tenant_id: str, before: Resource, after: Resource) -> None:
        """Store what has changed of a locked resource."""
        values = fields_of(after) | fields_of(after.settings)
        values |= {"tenant_id": tenant_id, "rolling_window_seconds": after.own_window}
        await self._session.run(self.changed, **values)
        await self._add_versions(tenant_id, after.key, before.settings, after.settings)

    async def version(self, tenant_id: str, key: str, kind: SettingsList, version: int) -> str:
        """Return a version of a list as it was given; raises NotFound."""
        await self.get(tenant_id, key)
        found: str | None = await self._session.value(
            self.versions.find, kind=kind, version=version, **_key(tenant_id, key)
        )
        if found is None:
            raise NotFound(f"There is no version {version} of the {kind}", {"version": version})
        return found

    async def _add_versions(
        self, tenant_id: str, key: str, before: StoredSettings, after: StoredSettings
    ) -> None:
        for kind in SettingsList:
            version = getattr(after, f"{kind}_version")
            if version == getattr(before, f"{kind}_version"):
                continue
            of_kind = {"kind": kind, **_key(tenant_id, key)}
            body = getattr(after, kind)
            await self._session.run(self.versions.add, version=version, body=body, **of_kind)
            if (through := version - _KEPT_VERSIONS) > 0:
                await self._session.run(self.versions.drop, through=through, **of_kind)


def _key(tenant_id: str, key: str) -> dict[str, str]:
    """Return the parameters for the key of any resource."""
    return {"tenant_id": tenant_id, "agent_id": key, "conversation_id": key}


# --- agents ---------------------------------------------------------------------------------------

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
    SET {_SET_SETTINGS}, {assigned("name", "rolling_window_seconds")}
    WHERE {_IS_AGENT}
""")
SET_CLEARED = Statement(f"UPDATE agents SET last_cleared_at = :at WHERE {_IS_AGENT}")
DELETE_PARTS = """
    removed_parts AS (
        DELETE FROM snapshot_parts p USING deleted
        WHERE p.tenant_id = deleted.tenant_id AND p.snapshot_id = deleted.snapshot_id
        RETURNING p.snapshot_id
    )
    SELECT (SELECT count(*) FROM deleted) AS snapshots,
        (SELECT count(*) FROM removed_parts) AS snapshot_parts
"""
REMOVE_SNAPSHOTS = Statement(f"""
    WITH deleted AS (
        DELETE FROM snapshots WHERE {_IS_AGENT} RETURNING tenant_id, snapshot_id
    ), {DELETE_PARTS}
""")
_DELETE_AGENT = {
    table: Statement(f"DELETE FROM {table} WHERE {_IS_AGENT}")
    for table in ("agents", "agent_versions")
}


class AgentRepository(ConfigurableRepository[Agent]):
    """Stores agents."""

    versions, changed = _Versions("agent_versions"), CHANGE_AGENT

    async def add(
        self, tenant_id: str, agent_id: str, settings: StoredSettings, **others: Any
    ) -> None:
        """Create one, with its other columns; raises Conflict when the id is taken."""
        values = fields_of(settings) | {"tenant_id": tenant_id, "agent_id": agent_id} | others
        if not await self._session.run(ADD_AGENT, **values):
            raise Conflict(f"The id {agent_id!r} is taken", {"agent_id": agent_id})
        await self._add_versions(tenant_id, agent_id, NO_SETTINGS, settings)

    async def find(self, tenant_id: str, agent_id: str, *, lock: bool = False) -> Agent | None:
        """Return one, or None; `lock` locks its row until the transaction ends."""
        statement = LOCK_AGENT if lock else FIND_AGENT
        row = await self._session.first(statement, tenant_id=tenant_id, agent_id=agent_id)
        return agent_from(row) if row is not None else None

    async def get(self, tenant_id: str, agent_id: str, /, *, lock: bool = False) -> Agent:
        """Return one as `find` does; raises NotFound."""
        agent = await self.find(tenant_id, agent_id, lock=lock)
        if agent is None:
            raise NotFound.agent(agent_id)
        return agent

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
        await self._session.run(SET_CLEARED, at=at, tenant_id=tenant_id, agent_id=agent_id)

    async def remove(self, tenant_id: str, agent_id: str) -> Mapping[str, int]:
        """Delete it and its snapshots without its conversations; returns rows by table."""
        own = {"tenant_id": tenant_id, "agent_id": agent_id}
        snapshot_rows = await self._session.first(REMOVE_SNAPSHOTS, **own)
        deleted = {
            name: await self._session.run(statement, **own)
            for name, statement in _DELETE_AGENT.items()
        }
        return deleted | dict(snapshot_rows or {})


# --- conversations --------------------------------------------------------------------------------

_OF_CONVERSATION = ("rolling_window_seconds", "expires_at")
_NO_OTHERS = dict.fromkeys(("own_id", *_OF_CONVERSATION))
_KEYS = ("conversation_id", "tenant_id", "own_id", "agent_id")
_IS_CONVERSATION = equal("conversation_id")
ADD_CONVERSATION = Statement(f"""
    {insert("conversations", *_KEYS, "metadata", *_SETTINGS, *_OF_CONVERSATION)}
    ON CONFLICT (conversation_id) DO NOTHING
""")
ADD_HEAD = Statement("""
    INSERT INTO states (conversation_id, counter, window_seconds, cleared_at, newest_at)
    SELECT :conversation_id, :counter, :window_seconds, a.last_cleared_at,
        a.last_cleared_at + interval '1 microsecond'
    FROM (SELECT 1) AS added
    LEFT JOIN agents a ON a.tenant_id = :tenant_id AND a.agent_id = :agent_id
""")
_FIND = f"""
    FROM conversations c
    JOIN states h ON h.conversation_id = c.conversation_id
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
        UPDATE states SET counter = :counter
        WHERE conversation_id = :conversation_id AND counter <> :counter
    )
    UPDATE conversations SET {_SET_SETTINGS}, {assigned(*_OF_CONVERSATION)}
    WHERE {equal("conversation_id", "tenant_id")}
""")
IDS_OF_AGENT = Statement(f"SELECT conversation_id FROM conversations WHERE {_IS_AGENT}")
FIND_TENANT = Statement(f"SELECT tenant_id FROM conversations WHERE {_IS_CONVERSATION}")
REMOVED_SUMMARY = "(the summary told of a conversation that was deleted)"
"""The summary of a snapshot after one of its conversations was deleted."""
LOCK_SNAPSHOTS = Statement(f"""
    SELECT s.snapshot_id
    FROM snapshots s WHERE s.tenant_id = :tenant_id AND s.snapshot_id = ANY (ARRAY(
            SELECT snapshot_id FROM snapshot_parts WHERE {_IS_CONVERSATION}
        ))
    ORDER BY s.snapshot_id
    FOR UPDATE OF s
""")
REMOVE_PARTS = Statement(f"""
    DELETE FROM snapshot_parts WHERE {_IS_CONVERSATION} RETURNING snapshot_id, message_count
""")
REDUCE_SNAPSHOTS = Statement(f"""
    UPDATE snapshots s
    SET message_count = s.message_count - removed.messages, summary = '{REMOVED_SUMMARY}'
    FROM unnest(CAST(:snapshot_ids AS text[]), CAST(:counts AS bigint[]))
        AS removed (snapshot_id, messages)
    WHERE s.tenant_id = :tenant_id AND s.snapshot_id = removed.snapshot_id
""")
REMOVE_EMPTY = Statement("""
    DELETE FROM snapshots
    WHERE tenant_id = :tenant_id AND snapshot_id = ANY (:snapshot_ids) AND message_count <= 0
""")
_DELETE = {
    table: Statement(f"DELETE FROM {table} WHERE {_IS_CONVERSATION}", is_long=True)
    for table in CONVERSATION_TABLES
}


class ConversationRepository(ConfigurableRepository[Conversation]):
    """Stores conversations and their settings."""

    versions, changed = _Versions("conversation_versions"), CHANGE_CONVERSATION

    async def add(
        self,
        tenant_id: str,
        conversation_id: str,
        agent: Agent | None,
        counter: str,
        settings: StoredSettings,
        **others: Any,
    ) -> bool:
        """Create one with an empty log and its other columns; False when the key is taken."""
        inherited = agent.rolling_window_seconds if agent is not None else None
        values = fields_of(settings) | {"metadata": "{}"} | _NO_OTHERS | others
        values |= {
            "conversation_id": conversation_id,
            "tenant_id": tenant_id,
            "agent_id": agent.agent_id if agent is not None else None,
            "window_seconds": rolling_window_of(values["rolling_window_seconds"], inherited),
            "counter": counter,
        }
        if not await self._session.run(ADD_CONVERSATION, **values):
            return False
        await self._session.run(ADD_HEAD, **values)
        await self._add_versions(tenant_id, conversation_id, NO_SETTINGS, settings)
        return True

    async def find_key(self, tenant_id: str, public_id: str) -> str | None:
        """Return the key of the tenant's conversation with this id, None if there is none."""
        stored = await self._stored_keys(tenant_id, public_id, keys_of(tenant_id, public_id))
        return next((key for key, is_own in stored.items() if is_own), None)

    async def free_key(self, tenant_id: str, public_id: str) -> str:
        """Return the key for a new conversation; raises Conflict if the tenant has one already.

        Other creations with this id wait until the transaction ends.
        """
        await self._session.all(LOCK_ID, tenant_id=tenant_id, public_id=public_id)
        keys = keys_of(tenant_id, public_id)
        stored = await self._stored_keys(tenant_id, public_id, keys)
        free = next((key for key in keys if key not in stored), None)
        if free is None or any(stored.values()):
            raise id_taken(public_id)
        return free

    async def _stored_keys(
        self, tenant_id: str, public_id: str, keys: Sequence[str]
    ) -> Mapping[str, bool]:
        """Return which of these keys any tenant has, each with whether this is its conversation."""
        rows = await self._session.all(
            STORED_KEYS, tenant_id=tenant_id, public_id=public_id, keys=list(keys)
        )
        return {str(row["conversation_id"]): row["is_own"] for row in rows}

    async def public_ids(self, tenant_id: str, keys: Collection[str]) -> dict[str, str]:
        """Return the public ids of conversations by their keys."""
        rows = await self._session.all(OWN_IDS, tenant_id=tenant_id, keys=list(keys))
        return {key: key for key in keys} | {
            str(row["conversation_id"]): row["own_id"] for row in rows
        }

    async def find(
        self, tenant_id: str, key: str, model: str | None = None, *, lock: bool = False
    ) -> Conversation | None:
        """Return one with its inherited settings and what is stored about `model`, or None.

        By default that is its own model. `lock` locks its state until the transaction ends.
        """
        # A lock is usually taken after a read: then the settings are cached.
        cache = self._settings_cache
        cached = cache.get(tenant_id, key) if lock else None
        row = await self._session.first(
            LOCK if lock else FIND_CONVERSATION,
            tenant_id=tenant_id,
            conversation_id=key,
            model=model,
            default_model=cache.default_model,
            **versions_of(cached),
        )
        return None if row is None else cache.conversation_from(row, tenant_id, cached, model)

    async def get(
        self, tenant_id: str, key: str, /, model: str | None = None, *, lock: bool = False
    ) -> Conversation:
        """Return one as `find` does; raises NotFound."""
        conversation = await self.find(tenant_id, key, model, lock=lock)
        if conversation is None:
            raise NotFound.conversation(key)
        return conversation

    async def ids_of_agent(self, tenant_id: str, agent_id: str) -> list[str]:
        """Return the ids of an agent's conversations."""
        rows = await self._session.all(IDS_OF_AGENT, tenant_id=tenant_id, agent_id=agent_id)
        return [str(row["conversation_id"]) for row in rows]

    async def remove(self, conversation_id: str) -> Mapping[str, int]:
        """Delete it with all data derived from it; returns deleted rows by table.

        The summaries of snapshots that it is part of are deleted as well. Call it in a transaction
        that holds the lock of its state.
        """
        own = {"conversation_id": conversation_id}
        tenant_id = await self._session.value(FIND_TENANT, **own)
        snapshot_rows: dict[str, int] = {}
        if await self._session.all(LOCK_SNAPSHOTS, tenant_id=tenant_id, **own):
            parts = await self._session.all(REMOVE_PARTS, **own)
            named = {
                "tenant_id": tenant_id,
                "snapshot_ids": [part["snapshot_id"] for part in parts],
            }
            counts = [part["message_count"] for part in parts]
            await self._session.run(REDUCE_SNAPSHOTS, **named, counts=counts)
            snapshots = await self._session.run(REMOVE_EMPTY, **named)
            snapshot_rows = {"snapshots": snapshots, "snapshot_parts": len(parts)}
        deleted = {name: await self._session.run(each, **own) for name, each in _DELETE.items()}
        return deleted | snapshot_rows


def own_id_of(key: str, public_id: str) -> str | None:
    """Return the id to store beside a key, None if the key is that id."""
    return public_id if public_id != key else None


def id_taken(public_id: str) -> Conflict:
    """Return the error for an id that the tenant uses."""
    return Conflict(f"The id {public_id!r} is taken", {"conversation_id": public_id})
