"""Conversations and agents in Postgres: their settings, and their deletion (A7)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from app.adapters.postgres.common.connections import Session, Statement
from app.adapters.postgres.common.paging import bounded, lengths, limits, page_of
from app.adapters.postgres.common.rows import (
    CONVERSATION_COLUMNS,
    HEAD_COLUMNS,
    LAYER_JOINS,
    LISTED_COLUMNS,
    NOTHING_HELD,
    agent_from,
    conversation_from,
)
from app.adapters.postgres.conversations.snapshot_removal import forget_agent, forget_conversation
from app.domain.common.pages import UNBOUNDED, Bound, Page
from app.domain.conversations.agent import Agent
from app.domain.conversations.conversation import Conversation
from app.domain.conversations.settings import Settings, Versioned, Versions

# The lists of a layer that was just made, as rows; one that was not given has no version.
_FIRST_LISTS = """
    (VALUES ('sections', CAST(:sections AS text)), ('tools', CAST(:tools AS text)))
        AS list (kind, body)
"""
_FIRST_VERSIONS = """
    CASE WHEN CAST(:sections AS text) = '[]' THEN 0 ELSE 1 END,
    CASE WHEN CAST(:tools AS text) = '[]' THEN 0 ELSE 1 END
"""

ADD_CONVERSATION = Statement(
    f"""
        WITH added AS (
            INSERT INTO conversations (
                conversation_id, tenant_id, agent_id, model, policy, sections, tools,
                metadata, sections_version, tools_version
            ) VALUES (
                CAST(:conversation_id AS uuid), CAST(:tenant_id AS text), CAST(:agent_id AS text),
                CAST(:model AS text), CAST(:policy AS text),
                CAST(:sections AS text), CAST(:tools AS text), CAST(:metadata AS text),
                {_FIRST_VERSIONS}
            ) ON CONFLICT (conversation_id) DO NOTHING
            RETURNING conversation_id
        ), versions AS (
            INSERT INTO conversation_versions (conversation_id, kind, version, body)
            SELECT added.conversation_id, list.kind, 1, list.body
            FROM added, {_FIRST_LISTS}
            WHERE list.body <> '[]'
        )
        INSERT INTO heads (conversation_id, counter, window_seconds, cleared_at, newest_at)
        SELECT added.conversation_id, CAST(:counter AS text), a.rolling_window_seconds,
            a.last_cleared_at, a.last_cleared_at + interval '1 microsecond'
        FROM added
        LEFT JOIN agents a ON a.tenant_id = CAST(:tenant_id AS text)
            AND a.agent_id = CAST(:agent_id AS text)
        """
)
FIND_CONVERSATION = Statement(
    f"""
        SELECT {CONVERSATION_COLUMNS}, {HEAD_COLUMNS}
        FROM conversations c
        JOIN heads h ON h.conversation_id = c.conversation_id
        {LAYER_JOINS}
        WHERE c.conversation_id = CAST(:conversation_id AS uuid)
            AND c.tenant_id = CAST(:tenant_id AS text)
        """
)
LIST_CONVERSATIONS = Statement(
    bounded(
        f"""
            SELECT {LISTED_COLUMNS}, {HEAD_COLUMNS}
            FROM conversations c
            JOIN heads h ON h.conversation_id = c.conversation_id
            {LAYER_JOINS}
            WHERE c.tenant_id = CAST(:tenant_id AS text)
                AND (CAST(:agent_id AS text) IS NULL OR c.agent_id = CAST(:agent_id AS text))
                AND (CAST(:before AS timestamptz) IS NULL OR (c.created_at, c.conversation_id)
                    < (CAST(:before AS timestamptz), CAST(:before_id AS uuid)))
            ORDER BY c.created_at DESC, c.conversation_id DESC
            LIMIT CAST(:limit AS bigint)
        """,
        ("*",),
        lengths("metadata"),
        "created_at DESC, conversation_id DESC",
    )
)
CHANGE_CONVERSATION = Statement(
    """
        WITH counted AS (
            UPDATE heads SET counter = CAST(:counter AS text)
            WHERE conversation_id = CAST(:conversation_id AS uuid)
                AND counter <> CAST(:counter AS text)
        )
        UPDATE conversations
        SET agent_id = CAST(:agent_id AS text), model = CAST(:model AS text),
            policy = CAST(:policy AS text),
            sections = CAST(:sections AS text), tools = CAST(:tools AS text),
            sections_version = CAST(:sections_version AS bigint),
            tools_version = CAST(:tools_version AS bigint),
            metadata = CAST(:metadata AS text), updated_at = clock_timestamp()
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND tenant_id = CAST(:tenant_id AS text)
        """
)
ADD_VERSION = Statement(
    """
        INSERT INTO conversation_versions (conversation_id, kind, version, body)
        VALUES (CAST(:conversation_id AS uuid), CAST(:kind AS text), CAST(:version AS bigint),
            CAST(:body AS text))
        """
)
FIND_VERSION = Statement(
    """
        SELECT body FROM conversation_versions
        WHERE conversation_id = CAST(:conversation_id AS uuid) AND kind = CAST(:kind AS text)
            AND version = CAST(:version AS bigint)
        """
)
IDS_OF_AGENT = Statement(
    """
    SELECT conversation_id FROM conversations
    WHERE tenant_id = CAST(:tenant_id AS text) AND agent_id = CAST(:agent_id AS text)
    """
)
# Chunks go after the rows that let more of them in: the locks on those are waited for, and what
# was stored meanwhile is seen.
PER_CONVERSATION = (
    "conversations",
    "heads",
    "messages",
    "idempotency_keys",
    "compactions",
    "compaction_leases",
    "epochs",
    "prompt_texts",
    "pins",
    "events",
    "jobs",
    "blobs",
    "blob_uses",
    "log_sizes",
    "blob_uploads",
    "blob_chunks",
    "conversation_versions",
    "usage_reports",
    "message_words",
    "snapshot_parts",
)
"""Every table whose rows go when their conversation is deleted (A7)."""
REMOVALS = {
    table: Statement(
        f"DELETE FROM {table} WHERE conversation_id = CAST(:conversation_id AS uuid)", is_long=True
    )
    for table in PER_CONVERSATION
}

ADD_AGENT = Statement(
    f"""
        WITH added AS (
            INSERT INTO agents (
                tenant_id, agent_id, name, model, policy, sections, tools, metadata,
                rolling_window_seconds, sections_version, tools_version
            ) VALUES (
                CAST(:tenant_id AS text), CAST(:agent_id AS text), CAST(:name AS text),
                CAST(:model AS text), CAST(:policy AS text), CAST(:sections AS text),
                CAST(:tools AS text), CAST(:metadata AS text),
                CAST(:rolling_window_seconds AS bigint), {_FIRST_VERSIONS}
            ) ON CONFLICT (tenant_id, agent_id) DO NOTHING
            RETURNING tenant_id, agent_id
        ), versions AS (
            INSERT INTO agent_versions (tenant_id, agent_id, kind, version, body)
            SELECT added.tenant_id, added.agent_id, list.kind, 1, list.body
            FROM added, {_FIRST_LISTS}
            WHERE list.body <> '[]'
        )
        SELECT agent_id FROM added
        """
)
_AGENT_COLUMNS = """agent_id, name, model, policy, sections, tools, metadata, sections_version,
    tools_version, rolling_window_seconds, last_cleared_at, created_at, updated_at"""
FIND_AGENT = Statement(
    f"""
        SELECT {_AGENT_COLUMNS} FROM agents
        WHERE tenant_id = CAST(:tenant_id AS text) AND agent_id = CAST(:agent_id AS text)
        """
)
LOCK_AGENT = Statement(
    f"""
        SELECT {_AGENT_COLUMNS} FROM agents
        WHERE tenant_id = CAST(:tenant_id AS text) AND agent_id = CAST(:agent_id AS text)
        FOR UPDATE
        """
)
# The list shows neither policies nor sections nor tools, which may be large.
LIST_AGENTS = Statement(
    bounded(
        """
            SELECT agent_id, name, model, metadata, sections_version, tools_version,
                rolling_window_seconds, last_cleared_at, created_at, updated_at,
                '{}' AS policy, '[]' AS sections, '[]' AS tools
            FROM agents
            WHERE tenant_id = CAST(:tenant_id AS text)
                AND (CAST(:before AS timestamptz) IS NULL OR (created_at, agent_id)
                    < (CAST(:before AS timestamptz), CAST(:before_id AS text)))
            ORDER BY created_at DESC, agent_id DESC
            LIMIT CAST(:limit AS bigint)
        """,
        ("*",),
        lengths("metadata"),
        "created_at DESC, agent_id DESC",
    )
)
CHANGE_AGENT = Statement(
    """
        UPDATE agents
        SET name = CAST(:name AS text), model = CAST(:model AS text),
            policy = CAST(:policy AS text), sections = CAST(:sections AS text),
            tools = CAST(:tools AS text), metadata = CAST(:metadata AS text),
            sections_version = CAST(:sections_version AS bigint),
            tools_version = CAST(:tools_version AS bigint),
            rolling_window_seconds = CAST(:rolling_window_seconds AS bigint),
            updated_at = clock_timestamp()
        WHERE tenant_id = CAST(:tenant_id AS text) AND agent_id = CAST(:agent_id AS text)
        """
)
ADD_AGENT_VERSION = Statement(
    """
        INSERT INTO agent_versions (tenant_id, agent_id, kind, version, body)
        VALUES (CAST(:tenant_id AS text), CAST(:agent_id AS text), CAST(:kind AS text),
            CAST(:version AS bigint), CAST(:body AS text))
        """
)
FIND_AGENT_VERSION = Statement(
    """
        SELECT body FROM agent_versions
        WHERE tenant_id = CAST(:tenant_id AS text) AND agent_id = CAST(:agent_id AS text)
            AND kind = CAST(:kind AS text) AND version = CAST(:version AS bigint)
        """
)
CLEAR_AGENT = Statement(
    """
        UPDATE agents
        SET last_cleared_at = greatest(last_cleared_at, CAST(:at AS timestamptz))
        WHERE tenant_id = CAST(:tenant_id AS text) AND agent_id = CAST(:agent_id AS text)
        RETURNING last_cleared_at
        """
)
PER_AGENT = ("agents", "agent_versions")
"""Every table whose rows go when their agent is deleted, besides its conversations' (A7)."""
AGENT_REMOVALS = {
    table: Statement(
        f"""
        DELETE FROM {table}
        WHERE tenant_id = CAST(:tenant_id AS text) AND agent_id = CAST(:agent_id AS text)
        """
    )
    for table in PER_AGENT
}

KEPT_CREATION = Statement(
    """
        SELECT request_hash, resource_id FROM creations
        WHERE tenant_id = CAST(:tenant_id AS text) AND key = CAST(:key AS text)
            AND created_at > now() - interval '24 hours'
        """
)
# The key's row is taken before the resource is made, so that of two equal requests at once
# the second waits for the first and then finds its resource.
KEEP_CREATION = Statement(
    """
        INSERT INTO creations (tenant_id, key, request_hash, resource_id)
        VALUES (CAST(:tenant_id AS text), CAST(:key AS text),
                CAST(:request_hash AS text), CAST(:resource_id AS text))
        ON CONFLICT (tenant_id, key) DO UPDATE
        SET request_hash = excluded.request_hash, resource_id = excluded.resource_id,
            created_at = now()
        WHERE creations.created_at <= now() - interval '24 hours'
        """
)
ADD_MODEL = Statement(
    """
        INSERT INTO models (tenant_id, model, entry)
        VALUES (CAST(:tenant_id AS text), CAST(:model AS text), CAST(:entry AS text))
        ON CONFLICT (tenant_id, model) DO UPDATE
        SET entry = excluded.entry, updated_at = clock_timestamp()
        """
)
LIST_MODELS = Statement(
    """
        SELECT model, entry FROM models
        WHERE tenant_id = CAST(:tenant_id AS text) ORDER BY model
        """
)
FIND_MODEL = Statement(
    """
        SELECT entry FROM models
        WHERE tenant_id = CAST(:tenant_id AS text) AND model = CAST(:model AS text)
        """
)
REMOVE_MODEL = Statement(
    """
        DELETE FROM models
        WHERE tenant_id = CAST(:tenant_id AS text) AND model = CAST(:model AS text)
        """
)


class ConversationRepository:
    """Sentences about conversations and their settings."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def add(
        self,
        tenant_id: str,
        conversation_id: str,
        agent_id: str | None,
        counter: str,
        settings: Settings,
        metadata: str,
    ) -> bool:
        """Create one with an empty log; False when the id is taken."""
        added = await self._session.run(
            ADD_CONVERSATION,
            tenant_id=tenant_id,
            conversation_id=UUID(conversation_id),
            agent_id=agent_id,
            counter=counter,
            metadata=metadata,
            **_columns(settings),
        )
        return added == 1

    async def find(
        self,
        tenant_id: str,
        conversation_id: str,
        default_model: str | None,
        model: str | None = None,
    ) -> Conversation | None:
        """Return one with its layers, or None."""
        row = await self._session.first(
            FIND_CONVERSATION,
            tenant_id=tenant_id,
            conversation_id=UUID(conversation_id),
            model=model,
            default_model=default_model,
            **NOTHING_HELD,
        )
        return conversation_from(row) if row is not None else None

    async def page(
        self,
        tenant_id: str,
        agent_id: str | None,
        limit: int,
        before: tuple[Any, str] | None,
        default_model: str | None,
        bound: Bound = UNBOUNDED,
    ) -> Page[Conversation]:
        """Return a page, newest first; `before` is the creation time and id it starts after."""
        rows = await self._session.all(
            LIST_CONVERSATIONS,
            tenant_id=tenant_id,
            agent_id=agent_id,
            before=before[0] if before else None,
            before_id=UUID(before[1]) if before else None,
            model=None,
            default_model=default_model,
            **limits(limit, bound),
        )
        return page_of(rows, conversation_from)

    async def change(self, tenant_id: str, conversation: Conversation) -> None:
        """Store its settings as they are in `conversation`."""
        await self._session.run(
            CHANGE_CONVERSATION,
            tenant_id=tenant_id,
            conversation_id=UUID(conversation.conversation_id),
            agent_id=conversation.agent_id,
            counter=conversation.counter,
            metadata=conversation.metadata,
            **_columns(conversation.settings),
            **_version_columns(conversation.versions),
        )

    async def add_version(
        self, conversation_id: str, kind: Versioned, version: int, body: str
    ) -> None:
        """Keep a version of a list; call it in the transaction that makes it the newest."""
        await self._session.run(
            ADD_VERSION,
            conversation_id=UUID(conversation_id),
            kind=kind,
            version=version,
            body=body,
        )

    async def find_version(self, conversation_id: str, kind: Versioned, version: int) -> str | None:
        """Return a version of a list as it was given, None where there is none."""
        row = await self._session.first(
            FIND_VERSION, conversation_id=UUID(conversation_id), kind=kind, version=version
        )
        return row["body"] if row is not None else None

    async def ids_of_agent(self, tenant_id: str, agent_id: str) -> list[str]:
        """Return the ids of an agent's conversations."""
        rows = await self._session.all(IDS_OF_AGENT, tenant_id=tenant_id, agent_id=agent_id)
        return [str(row["conversation_id"]) for row in rows]

    async def remove(self, conversation_id: str) -> Mapping[str, int]:
        """Delete it and all that is derived from it; returns rows deleted by table (A7)."""
        forgotten = await forget_conversation(self._session, conversation_id)
        deleted = {
            name: await self._session.run(removal, conversation_id=UUID(conversation_id))
            for name, removal in REMOVALS.items()
        }
        return deleted | forgotten


class AgentRepository:
    """Sentences about agents."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def add(self, tenant_id: str, agent: Agent) -> bool:
        """Create one; False when the id is taken."""
        added = await self._session.first(
            ADD_AGENT,
            tenant_id=tenant_id,
            agent_id=agent.agent_id,
            name=agent.name,
            metadata=agent.metadata,
            rolling_window_seconds=agent.rolling_window_seconds,
            **_columns(agent.settings),
        )
        return added is not None

    async def find(self, tenant_id: str, agent_id: str, *, lock: bool = False) -> Agent | None:
        """Return one, or None; `lock` keeps others from changing it meanwhile."""
        row = await self._session.first(
            LOCK_AGENT if lock else FIND_AGENT, tenant_id=tenant_id, agent_id=agent_id
        )
        return agent_from(row) if row is not None else None

    async def page(
        self,
        tenant_id: str,
        limit: int,
        before: tuple[Any, str] | None,
        bound: Bound = UNBOUNDED,
    ) -> Page[Agent]:
        """Return a page, newest first; `before` is the creation time and id it starts after."""
        rows = await self._session.all(
            LIST_AGENTS,
            tenant_id=tenant_id,
            before=before[0] if before else None,
            before_id=before[1] if before else None,
            **limits(limit, bound),
        )
        return page_of(rows, agent_from)

    async def change(self, tenant_id: str, agent: Agent) -> None:
        """Store its settings as they are in `agent`."""
        await self._session.run(
            CHANGE_AGENT,
            tenant_id=tenant_id,
            agent_id=agent.agent_id,
            name=agent.name,
            metadata=agent.metadata,
            rolling_window_seconds=agent.rolling_window_seconds,
            **_columns(agent.settings),
            **_version_columns(agent.versions),
        )

    async def clear(self, tenant_id: str, agent_id: str, at: datetime) -> datetime:
        """Move its marker to this time, or leave it where that is later; returns where it is."""
        row = await self._session.first(CLEAR_AGENT, tenant_id=tenant_id, agent_id=agent_id, at=at)
        return row["last_cleared_at"] if row is not None else at

    async def add_version(
        self, tenant_id: str, agent_id: str, kind: Versioned, version: int, body: str
    ) -> None:
        """Keep a version of a list; call it in the transaction that makes it the newest."""
        await self._session.run(
            ADD_AGENT_VERSION,
            tenant_id=tenant_id,
            agent_id=agent_id,
            kind=kind,
            version=version,
            body=body,
        )

    async def find_version(
        self, tenant_id: str, agent_id: str, kind: Versioned, version: int
    ) -> str | None:
        """Return a version of a list as it was given, None where there is none."""
        row = await self._session.first(
            FIND_AGENT_VERSION, tenant_id=tenant_id, agent_id=agent_id, kind=kind, version=version
        )
        return row["body"] if row is not None else None

    async def remove(self, tenant_id: str, agent_id: str) -> Mapping[str, int]:
        """Delete the agent without its conversations; returns rows deleted by table (A7)."""
        forgotten = await forget_agent(self._session, tenant_id, agent_id)
        deleted = {
            name: await self._session.run(removal, tenant_id=tenant_id, agent_id=agent_id)
            for name, removal in AGENT_REMOVALS.items()
        }
        return deleted | forgotten


class TenantRepository:
    """Sentences about what belongs to a tenant alone: its models, creation keys and call counts."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def kept_creation(self, tenant_id: str, key: str) -> tuple[str, str] | None:
        """Return the request hash and the resource id kept under an idempotency key."""
        row = await self._session.first(KEPT_CREATION, tenant_id=tenant_id, key=key)
        return (row["request_hash"], row["resource_id"]) if row is not None else None

    async def keep_creation(
        self, tenant_id: str, key: str, request_hash: str, resource_id: str
    ) -> bool:
        """Take a key for 24 hours; False when an equal request took it first (decision 8)."""
        kept = await self._session.run(
            KEEP_CREATION,
            tenant_id=tenant_id,
            key=key,
            request_hash=request_hash,
            resource_id=resource_id,
        )
        return kept == 1

    async def set_model(self, tenant_id: str, model: str, entry: str) -> None:
        """Add or replace the tenant's own entry for a model (J5)."""
        await self._session.run(ADD_MODEL, tenant_id=tenant_id, model=model, entry=entry)

    async def find_model(self, tenant_id: str, model: str) -> str | None:
        """Return the tenant's own entry for a model, or None."""
        row = await self._session.first(FIND_MODEL, tenant_id=tenant_id, model=model)
        return row["entry"] if row is not None else None

    async def list_models(self, tenant_id: str) -> list[tuple[str, str]]:
        """Return the tenant's own entries, by model name."""
        rows = await self._session.all(LIST_MODELS, tenant_id=tenant_id)
        return [(row["model"], row["entry"]) for row in rows]

    async def remove_model(self, tenant_id: str, model: str) -> bool:
        """Delete the tenant's own entry; False when there was none."""
        return await self._session.run(REMOVE_MODEL, tenant_id=tenant_id, model=model) == 1


def _columns(settings: Settings) -> dict[str, str | None]:
    return {
        "model": settings.model,
        "policy": settings.policy,
        "sections": settings.sections,
        "tools": settings.tools,
    }


def _version_columns(versions: Versions) -> dict[str, int]:
    return {"sections_version": versions.sections, "tools_version": versions.tools}
