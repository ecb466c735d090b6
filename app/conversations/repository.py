"""Conversations in PostgreSQL: their settings, and their deletion."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from app.common.ids import ConversationId
from app.conversations.agents.agent import Agent
from app.conversations.conversation import Conversation
from app.conversations.rows import (
    CONVERSATION_COLUMNS,
    SETTINGS_JOINS,
    STATE_COLUMNS,
    newest_message_at,
    versions_of,
)
from app.conversations.settings import SettingsList, StoredSettings
from app.conversations.settings_statements import (
    FIRST_VERSIONS,
    SET_SETTINGS,
    ConfigurableRepository,
    VersionStatements,
    change_parameters,
)
from app.conversations.snapshot_removal import remove_from_snapshots
from app.conversations.windows.active_window import INHERIT, OwnWindow, conversation_window
from app.database.connections import Statement
from app.database.conversation_tables import CONVERSATION_TABLES, NOT_EXPIRED
from app.database.sql import assigned, equal, fields_of, insert

_OWN = (
    *("conversation_id", "tenant_id", "agent_id", "model", "policy", "metadata"),
    *("rolling_window_seconds", "expires_at", "own_id"),
)
ADD_CONVERSATION = Statement(f"""
    {insert("conversations", *_OWN, "sections", "tools", **FIRST_VERSIONS)}
    ON CONFLICT (conversation_id) DO NOTHING
""")

ADD_HEAD = Statement(insert("heads", "conversation_id", "counter", "window_seconds"))
ADD_HEAD_OF_AGENT = Statement("""
    INSERT INTO heads (conversation_id, counter, window_seconds, cleared_at, newest_at)
    SELECT :conversation_id, :counter, :window_seconds, a.last_cleared_at,
        a.last_cleared_at + interval '1 microsecond'
    FROM (SELECT 1) AS added
    LEFT JOIN agents a ON a.tenant_id = :tenant_id AND a.agent_id = :agent_id
""")
_FIND = f"""
    FROM conversations c
    JOIN heads h ON h.conversation_id = c.conversation_id
    {SETTINGS_JOINS}
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
    UPDATE conversations
    SET {SET_SETTINGS}, {assigned("agent_id", "rolling_window_seconds", "expires_at")}
    WHERE {equal("conversation_id", "tenant_id")}
""")
VERSIONS = VersionStatements("conversation_versions")
IDS_OF_AGENT = Statement(
    f"SELECT conversation_id FROM conversations WHERE {equal('tenant_id', 'agent_id')}"
)
FIND_OWNER = Statement(
    f"SELECT tenant_id, own_id FROM conversations WHERE {equal('conversation_id')}"
)
DELETE_STATEMENTS = {
    table: Statement(f"DELETE FROM {table} WHERE conversation_id = :conversation_id", is_long=True)
    for table in CONVERSATION_TABLES
}


class ConversationRepository(ConfigurableRepository[Conversation]):
    """Stores conversations and their settings."""

    versions = VERSIONS

    def _key(self, tenant_id: str, resource_id: str) -> dict[str, Any]:
        return {"conversation_id": resource_id}

    async def add(
        self,
        tenant_id: str,
        conversation_id: str,
        agent: Agent | None,
        counter: str,
        settings: StoredSettings,
        metadata: str,
        own_window: OwnWindow = INHERIT,
        own_id: str | None = None,
        expires_at: datetime | None = None,
    ) -> bool:
        """Create one with an empty log; False when the key is taken."""
        window = conversation_window(
            own_window,
            agent.rolling_window if agent is not None else None,
            self._settings_cache.defaults,
        )
        key = {"conversation_id": conversation_id, "tenant_id": tenant_id}
        agent_id = agent.agent_id if agent is not None else None
        added = await self._session.run(
            ADD_CONVERSATION,
            **key,
            agent_id=agent_id,
            metadata=metadata,
            own_id=own_id,
            rolling_window_seconds=window.stored,
            expires_at=expires_at,
            **fields_of(settings),
        )
        if not added:
            return False
        await self._session.run(
            ADD_HEAD if agent_id is None else ADD_HEAD_OF_AGENT,
            **key,
            agent_id=agent_id,
            counter=counter,
            window_seconds=window.seconds,
        )
        for kind, body in ((kind, getattr(settings, kind)) for kind in SettingsList):
            if body != "[]":
                await self.add_version(tenant_id, conversation_id, kind, 1, body)
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

    async def change(self, tenant_id: str, resource: Conversation) -> None:
        """Store the settings of a conversation that exists."""
        values = change_parameters(resource)
        values["rolling_window_seconds"] = resource.rolling_window.stored
        await self._session.run(CHANGE_CONVERSATION, tenant_id=tenant_id, **values)

    async def ids_of_agent(self, tenant_id: str, agent_id: str) -> list[ConversationId]:
        """Return the ids of an agent's conversations."""
        rows = await self._session.all(IDS_OF_AGENT, tenant_id=tenant_id, agent_id=agent_id)
        return [ConversationId(str(row["conversation_id"])) for row in rows]

    async def remove(self, conversation_id: str) -> Mapping[str, int]:
        """Delete it with all data derived from it; returns deleted rows by table."""
        owner = await self._session.first(FIND_OWNER, conversation_id=conversation_id)
        snapshot_rows: dict[str, int] = {}
        if owner is not None:
            public_id = owner["own_id"] or conversation_id
            snapshot_rows = await remove_from_snapshots(
                self._session, owner["tenant_id"], conversation_id, public_id
            )
        deleted = {
            name: await self._session.run(statement, conversation_id=conversation_id)
            for name, statement in DELETE_STATEMENTS.items()
        }
        return deleted | snapshot_rows
