"""Tenants in PostgreSQL: keys, limits, model entries, creation keys, and what is deleted by age.

A creation key is the idempotency key of a request that creates a resource outside a conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum

from app.database.connections import Statement
from app.database.conversation_tables import CONVERSATION_TABLES
from app.database.repository import Repository
from app.database.sql import delete_some, equal, fields_of, insert, read
from app.database.tables import TABLES
from app.tenancy.api_keys import ApiKey


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """The limits of a tenant; None is no limit."""

    requests_per_minute: int | None = None
    summarizer_calls_per_hour: int | None = None


class RetainedKind(StrEnum):
    """Kinds of rows that are deleted by age, by the names of their tables."""

    IDEMPOTENCY_KEYS = "idempotency_keys"
    CREATIONS = "creations"
    EVENTS = "events"
    JOBS = "jobs"


ADD = Statement(f"{insert('tenants', 'tenant_id')} ON CONFLICT (tenant_id) DO NOTHING")
DISABLE = Statement("UPDATE tenants SET disabled_at = :at WHERE tenant_id = :tenant_id")
LIST_DISABLED = Statement("SELECT tenant_id FROM tenants WHERE disabled_at IS NOT NULL")
FIND_CREATION = Statement("""
    SELECT request_hash, resource_id FROM creations
    WHERE tenant_id = :tenant_id AND key = :key AND created_at > now() - interval '24 hours'
""")
# The key's row is inserted before the resource, so that of two equal concurrent requests the second
# waits for the first and then finds its resource.
ADD_CREATION = Statement(f"""
    {insert("creations", "tenant_id", "key", "request_hash", "resource_id", created_at="now()")}
    ON CONFLICT (tenant_id, key) DO UPDATE
    SET request_hash = excluded.request_hash, resource_id = excluded.resource_id,
        created_at = excluded.created_at
    WHERE excluded.created_at - creations.created_at >= interval '24 hours'
""")
ADD_MODEL = Statement(f"""
    {insert("models", "tenant_id", "model", "entry", updated_at="statement_timestamp()")}
    ON CONFLICT (tenant_id, model) DO UPDATE
    SET entry = excluded.entry, updated_at = excluded.updated_at
""")
LIST_MODELS = Statement(
    "SELECT model, entry FROM models WHERE tenant_id = :tenant_id ORDER BY model"
)
_IS_MODEL = equal("tenant_id", "model")
FIND_MODEL = Statement(f"SELECT entry FROM models WHERE {_IS_MODEL}")
REMOVE_MODEL = Statement(f"DELETE FROM models WHERE {_IS_MODEL}")

SET_LIMITS = Statement(f"""
    {insert("tenants", "tenant_id", "requests_per_minute", "summarizer_calls_per_hour")}
    ON CONFLICT (tenant_id) DO UPDATE
    SET requests_per_minute = excluded.requests_per_minute,
        summarizer_calls_per_hour = excluded.summarizer_calls_per_hour
""")
FIND_LIMITS = Statement("SELECT * FROM tenants WHERE tenant_id = :tenant_id")
LIST_LIMITS = Statement("SELECT * FROM tenants ORDER BY tenant_id")
ADD_SUMMARIZER_CALL = Statement("""
    INSERT INTO tenants AS t (tenant_id, summarizer_hour, summarizer_calls)
    VALUES (:tenant_id, CAST(:hour AS timestamptz), 1)
    ON CONFLICT (tenant_id) DO UPDATE
    SET summarizer_hour = excluded.summarizer_hour,
        summarizer_calls = 1 + CASE
            WHEN t.summarizer_hour = excluded.summarizer_hour THEN t.summarizer_calls ELSE 0
        END
    RETURNING summarizer_calls
""")
_TENANT = equal("tenant_id")
SOME_CONVERSATIONS = Statement(
    f"SELECT conversation_id FROM conversations WHERE {_TENANT} LIMIT :limit"
)
REVOKE_KEYS = Statement(
    f"UPDATE api_keys SET revoked_at = least(revoked_at, statement_timestamp()) WHERE {_TENANT}"
)
DELETE = {
    table: Statement(delete_some(table, _TENANT), is_long=True)
    for table in reversed([*TABLES])  # the tenant's own row is the last
    if "tenant_id" in TABLES[table].columns and table not in (*CONVERSATION_TABLES, "api_keys")
}

ADD_KEY = Statement(
    insert(
        "api_keys",
        *("key_id", "tenant_id", "name", "secret_hash", "created_at", "expires_at", "read_only"),
    )
)
_KEYS = """
    SELECT k.*, t.disabled_at IS NOT NULL AS is_disabled
    FROM api_keys k LEFT JOIN tenants t ON t.tenant_id = k.tenant_id
"""
FIND_KEY = Statement(f"{_KEYS} WHERE k.key_id = :key_id")
LIST_KEYS = Statement(f"""
    {_KEYS} WHERE :tenant_id IS NULL OR k.tenant_id = :tenant_id
    ORDER BY k.tenant_id, k.created_at, k.key_id
""")
ANY_KEY = Statement("SELECT FROM api_keys LIMIT 1")
REVOKE_KEY = Statement("""
    UPDATE api_keys SET revoked_at = coalesce(revoked_at, :at)
    WHERE key_id = :key_id
    RETURNING *, false AS is_disabled
""")
EXPIRE_KEY = Statement("UPDATE api_keys SET expires_at = :at WHERE key_id = :key_id")
SET_LAST_USED = Statement("""
    UPDATE api_keys k SET last_used_at = greatest(k.last_used_at, used.at)
    FROM unnest(CAST(:key_ids AS text[]), CAST(:times AS timestamptz[])) AS used (key_id, at)
    WHERE k.key_id = used.key_id
""")

_OLD = "created_at < CAST(:before AS timestamptz)"
_ENDED = "AND status NOT IN ('queued', 'running') AND updated_at < CAST(:before AS timestamptz)"

DELETE_OLD = {
    # The name of the kind is that of its table.
    kind: Statement(
        delete_some(kind, f"{_OLD} {_ENDED if kind is RetainedKind.JOBS else ''}"), is_long=True
    )
    for kind in RetainedKind
}
# Two workers that delete the same rows at once would wait for each other.
TRY_LOCK = Statement("""
    SELECT pg_try_advisory_xact_lock(
        hashtextextended('retention:' || :kind, 0)) AS is_locked
""")

# OFFSET 0 keeps each subquery a lookup by index. Without it PostgreSQL may scan whole tables.
_IS_IDLE = """
    NOT EXISTS (
        SELECT FROM snapshot_parts p WHERE p.conversation_id = {of} OFFSET 0
    )
    AND c.updated_at < CAST(:before AS timestamptz)
    AND NOT EXISTS (
        SELECT FROM messages m
        WHERE m.conversation_id = {of} AND m.seq = h.head_seq
            AND m.created_at >= CAST(:before AS timestamptz)
        OFFSET 0
    )
""" + "".join(
    f"""
    AND NOT EXISTS (
        SELECT FROM {table} x
        WHERE x.conversation_id = {{of}}
            AND x.{time} >= CAST(:before AS timestamptz)
        OFFSET 0
    )"""
    # Clears, restores, compactions and undos are events.
    for table, time in (
        ("events", "created_at"),
        ("blobs", "created_at"),
        ("blob_uploads", "begun_at"),
        ("jobs", "created_at"),
        ("usage_reports", "created_at"),
        ("pins", "created_at"),
    )
)

# By id, which has an index. An index on the age would have to be updated by every append.
LIST_IDLE = Statement(
    f"""
    SELECT c.tenant_id, c.conversation_id,
        {_IS_IDLE.format(of="c.conversation_id")} AS is_idle
    FROM conversations c LEFT JOIN heads h ON h.conversation_id = c.conversation_id
    WHERE c.conversation_id > CAST(:after AS uuid)
    ORDER BY c.conversation_id LIMIT :limit
    """,
    is_long=True,
)
IS_IDLE = Statement(
    f"""
    SELECT {_IS_IDLE.format(of=":conversation_id")} AS is_idle
    FROM conversations c LEFT JOIN heads h ON h.conversation_id = c.conversation_id
    WHERE c.conversation_id = :conversation_id
"""
)
LIST_EXPIRED = Statement(
    """
    SELECT tenant_id, conversation_id FROM conversations
    WHERE expires_at <= now() ORDER BY expires_at LIMIT :limit
    """,
    is_long=True,
)
LOCK_EXPIRED = Statement(
    """
    SELECT h.conversation_id
    FROM conversations c JOIN heads h ON h.conversation_id = c.conversation_id
    WHERE c.conversation_id = :conversation_id AND c.expires_at <= now()
    FOR UPDATE OF h, c
"""
)


class TenantRepository(Repository):
    """Stores tenants and what belongs to them alone."""

    async def add(self, tenant_id: str) -> None:
        """Add a tenant with default limits, unless it exists."""
        await self._session.run(ADD, tenant_id=tenant_id)

    async def set_disabled(self, tenant_id: str, at: datetime | None) -> bool:
        """Set since when the keys of a tenant are refused, None for no more; False if unknown."""
        return await self._session.run(DISABLE, tenant_id=tenant_id, at=at) == 1

    async def list_disabled(self) -> frozenset[str]:
        """Return the disabled tenants."""
        rows = await self._session.all(LIST_DISABLED)
        return frozenset(row["tenant_id"] for row in rows)

    async def find_creation(self, tenant_id: str, key: str) -> tuple[str, str] | None:
        """Return the request hash and the resource id stored for an idempotency key."""
        row = await self._session.first(FIND_CREATION, tenant_id=tenant_id, key=key)
        return tuple(row) if row is not None else None

    async def add_creation(
        self, tenant_id: str, key: str, request_hash: str, resource_id: str
    ) -> bool:
        """Store a key for 24 hours; False when an equal request stored it first."""
        values = {"request_hash": request_hash, "resource_id": resource_id}
        return await self._session.run(ADD_CREATION, tenant_id=tenant_id, key=key, **values) == 1

    async def set_model(self, tenant_id: str, model: str, entry: str) -> None:
        """Add or replace the tenant's entry for a model."""
        await self._session.run(ADD_MODEL, tenant_id=tenant_id, model=model, entry=entry)

    async def find_model(self, tenant_id: str, model: str) -> str | None:
        """Return the tenant's own entry for a model, or None."""
        entry: str | None = await self._session.value(FIND_MODEL, tenant_id=tenant_id, model=model)
        return entry

    async def list_models(self, tenant_id: str) -> list[tuple[str, str]]:
        """Return the tenant's own entries, by model name."""
        rows = await self._session.all(LIST_MODELS, tenant_id=tenant_id)
        return list(map(tuple, rows))

    async def remove_model(self, tenant_id: str, model: str) -> bool:
        """Delete the tenant's own entry; False when there was none."""
        return await self._session.run(REMOVE_MODEL, tenant_id=tenant_id, model=model) == 1

    async def set_limits(self, tenant_id: str, limits: TenantLimits) -> None:
        """Store limits for a tenant, which is added if it does not exist."""
        await self._session.run(SET_LIMITS, tenant_id=tenant_id, **fields_of(limits))

    async def find_limits(self, tenant_id: str) -> TenantLimits | None:
        """Return the stored limits of a tenant, None for an unknown tenant."""
        row = await self._session.first(FIND_LIMITS, tenant_id=tenant_id)
        return read(TenantLimits, row) if row is not None else None

    async def list_limits(self) -> Mapping[str, TenantLimits]:
        """Return the stored limits by tenant."""
        rows = await self._session.all(LIST_LIMITS)
        return {row["tenant_id"]: read(TenantLimits, row) for row in rows}

    async def add_summarizer_call(self, tenant_id: str, hour: datetime) -> int:
        """Count a call of the summariser; returns the calls of this hour."""
        return int(await self._session.value(ADD_SUMMARIZER_CALL, tenant_id=tenant_id, hour=hour))

    async def conversations(self, tenant_id: str, limit: int) -> list[str]:
        """Return ids of some conversations."""
        rows = await self._session.all(SOME_CONVERSATIONS, tenant_id=tenant_id, limit=limit)
        return [str(row["conversation_id"]) for row in rows]

    async def revoke_keys(self, tenant_id: str) -> int:
        """Revoke the keys of a tenant; return their number, with those revoked before."""
        return await self._session.run(REVOKE_KEYS, tenant_id=tenant_id)

    async def delete(self, table: str, tenant_id: str, limit: int) -> int:
        """Delete some of a tenant's rows of a table; return their number."""
        return await self._session.run(DELETE[table], tenant_id=tenant_id, limit=limit)

    async def add_key(self, key: ApiKey) -> None:
        """Store a new key."""
        await self._session.run(ADD_KEY, **asdict(key))

    async def find_key(self, key_id: str) -> ApiKey | None:
        """Return a key, revoked or not."""
        row = await self._session.first(FIND_KEY, key_id=key_id)
        return read(ApiKey, row) if row is not None else None

    async def list_keys(self, tenant_id: str | None) -> list[ApiKey]:
        """Return the keys of a tenant, or all."""
        return [
            read(ApiKey, row) for row in await self._session.all(LIST_KEYS, tenant_id=tenant_id)
        ]

    async def any_key(self) -> bool:
        """Return whether any key exists, revoked or not."""
        return await self._session.first(ANY_KEY) is not None

    async def revoke_key(self, key_id: str, at: datetime) -> ApiKey | None:
        """Set the time of revocation unless it is set; returns the key, None if unknown."""
        row = await self._session.first(REVOKE_KEY, key_id=key_id, at=at)
        return read(ApiKey, row) if row is not None else None

    async def expire_key(self, key_id: str, at: datetime | None) -> None:
        """Let a key expire at this time, unless it expires before."""
        await self._session.run(EXPIRE_KEY, key_id=key_id, at=at)

    async def set_last_used(self, used: Mapping[str, datetime]) -> None:
        """Set the times of the last uses by key, unless a later one is stored."""
        await self._session.run(SET_LAST_USED, key_ids=list(used), times=list(used.values()))

    async def delete_old(self, kind: RetainedKind, before: datetime, limit: int) -> int:
        """Delete up to `limit` rows from before a time; returns the number deleted."""
        row = await self._session.first(TRY_LOCK, kind=kind)
        if row is None or not row["is_locked"]:
            return 0
        return await self._session.run(DELETE_OLD[kind], before=before, limit=limit)

    async def list_idle(
        self, after: str, before: datetime, limit: int
    ) -> list[tuple[str, str, bool]]:
        """Return tenant and id of the next conversations, and whether each is idle since a time.

        A conversation is idle without appends, changes, compactions and other work, and outside
        every snapshot.
        """
        rows = await self._session.all(LIST_IDLE, after=after, before=before, limit=limit)
        return [(row["tenant_id"], str(row["conversation_id"]), row["is_idle"]) for row in rows]

    async def list_expired(self, limit: int) -> list[tuple[str, str]]:
        """Return tenant and id of conversations whose expiry has passed, the oldest first."""
        rows = await self._session.all(LIST_EXPIRED, limit=limit)
        return [(row["tenant_id"], str(row["conversation_id"])) for row in rows]

    async def lock_expired(self, conversation_id: str) -> bool:
        """Lock a conversation until the transaction ends; False unless its expiry has passed."""
        row = await self._session.first(LOCK_EXPIRED, conversation_id=conversation_id)
        return row is not None

    async def is_idle(self, conversation_id: str, before: datetime) -> bool:
        """Return whether a conversation is idle since a time; call it with a lock on it."""
        row = await self._session.first(IS_IDLE, conversation_id=conversation_id, before=before)
        return row is not None and row["is_idle"]
