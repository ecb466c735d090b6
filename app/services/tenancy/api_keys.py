"""Authentication by API key, with a short cache in front of the database.

1. While no key was ever created, no key is required and every caller is the default tenant. The
   first key ends this for good, even when every key is revoked later.
2. A key that was read is cached for a few seconds, so that a request costs no round trip. A revoked
   key works that much longer. While the database is unavailable the cached keys stay valid. Unknown
   keys have a cache of their own, and few are looked up at once, so that guessing neither evicts
   keys in use nor takes up the connections.
3. Many refused keys from one network are answered with RateLimited (`refused_keys.py`).
4. Uses are counted in memory and written at most once a minute, by hour and client address. What
   cannot be written is written with the next batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cachetools import LRUCache, TTLCache

from app.domain.common.errors import (
    Conflict,
    Forbidden,
    NotFound,
    RateLimited,
    ServiceUnavailable,
    Unauthenticated,
)
from app.domain.tenancy.api_keys import (
    DEFAULT_TENANT,
    ApiKey,
    Caller,
    KeyUse,
    bearer_of,
    hash_of,
    is_address,
    key_text,
    presented_key,
    require_tenant_id,
)
from app.domain.tenancy.audit import NO_ACTOR, Actor, AuditAction
from app.services.ports import Database
from app.services.tenancy.refused_keys import RefusedKeys

RETRY_SECONDS = 1.0
"""Seconds between two attempts to read a cached key from an unavailable database."""
WRITE_SECONDS = 60.0
"""Minimum number of seconds between two writes of key uses."""
MAX_ADDRESSES = 100
"""Client addresses that are counted separately for a key in an hour, between two writes."""
OTHER_ADDRESSES = "other"

_MAX_KEYS = 10_000
_MAX_LOOKUPS = 2
"""Keys outside the cache that are looked up at the same time."""
_FIRST_KEY_SECONDS = 1.0
"""Seconds between two checks whether a first key exists."""
_log = logging.getLogger("app.keys")


@dataclass(slots=True)
class _CachedKey:
    key: ApiKey
    fresh_until: float


_Use = tuple[str, datetime, str]
"""The id of the key, the hour and the client address."""
_Counts = tuple[int, int]
"""The numbers of admitted and refused requests."""


class KeyService:
    """Creates, rotates, lists, revokes and checks API keys."""

    def __init__(
        self,
        database: Database,
        now: Callable[[], datetime],
        clock: Callable[[], float],
        *,
        cache_seconds: float = 10.0,
        actor: Actor = NO_ACTOR,
        refused_per_minute: int = 0,
        refused: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        """`refused` gets the reason of each refused key."""
        self._database = database
        self._now = now
        self._clock = clock
        self._cache_seconds = cache_seconds
        self._actor = actor
        self._cached: LRUCache[str, _CachedKey] = LRUCache(_MAX_KEYS)
        self._unknown: TTLCache[str, bool] = TTLCache(_MAX_KEYS, cache_seconds, clock)
        self._has_keys: bool | None = None
        self._checked_at = float("-inf")
        self._lookups = asyncio.Semaphore(_MAX_LOOKUPS)
        self._guesses = asyncio.Semaphore(1)
        self._refused_keys = RefusedKeys(refused_per_minute, clock)
        self._refused = refused
        self._retry_at = float("-inf")
        self._uses = KeyUses(database, now, clock)

    async def admit(self, authorization: str, address: str) -> Caller:
        """Return the caller that the `Authorization` header authenticates.

        Raises Unauthenticated, RateLimited in its place after many refused keys, Forbidden where
        the tenant is disabled, or ServiceUnavailable when the key is not cached and the database
        does not answer.
        """
        presented = presented_key(bearer_of(authorization) or "")
        if presented is None:
            if not await self._is_key_required():
                return Caller(DEFAULT_TENANT)
            if not authorization:
                raise Unauthenticated("An API key is needed: send Authorization: Bearer ctx_…")
            detail = "That is no API key: send Authorization: Bearer ctx_…"
            raise self._refusal(detail, None, "malformed", address)
        address = address if is_address(address) else OTHER_ADDRESSES
        key = await self._find(presented.key_id, address)
        is_valid = presented.matches(key, self._now())
        if key is not None:
            self._uses.count(key.key_id, address, is_admitted=is_valid)
        if key is None or not is_valid:
            reason = "unknown"
            if key is not None:
                reason = "wrong_secret" if key.is_usable(self._now()) else "revoked_or_expired"
            detail = "The API key is unknown, revoked or expired"
            raise self._refusal(detail, presented.key_id, reason, address)
        if key.is_disabled:
            raise Forbidden("The tenant of this key is disabled", {"reason": "tenant_disabled"})
        return Caller(key.tenant_id, key.key_id, read_only=key.read_only)

    async def still_admits(self, caller: Caller) -> bool:
        """Return whether the caller is still authenticated; for long answers such as a stream."""
        try:
            if caller.key_id is None:
                return not await self._is_key_required()
            key = await self._find(caller.key_id)
        except ServiceUnavailable:
            return False  # the key is not cached any more, and the database does not answer
        return key is not None and key.is_usable(self._now()) and not key.is_disabled

    async def create(
        self,
        key_id: str,
        secret: str,
        tenant_id: str,
        name: str,
        expires_at: datetime | None,
        *,
        read_only: bool = False,
    ) -> str:
        """Store a new key and return its text, which is not stored anywhere.

        Raises ValidationError for an invalid tenant id.
        """
        require_tenant_id(tenant_id)
        key = ApiKey(
            key_id,
            tenant_id,
            name,
            hash_of(secret),
            self._now(),
            expires_at,
            read_only=read_only,
        )
        async with self._database.transaction() as session:
            await session.tenants.add(tenant_id)
            await session.keys.add(key)
            details = {"name": name, "expires_at": _text(expires_at), "read_only": read_only}
            await session.audit.add(
                tenant_id, AuditAction.KEY_CREATED, key_id, self._actor, details
            )
        return key_text(key_id, secret)

    async def rotate(
        self, key_id: str, new_id: str, new_secret: str, overlap: timedelta
    ) -> tuple[str, datetime]:
        """Replace a key; returns the text of the new one, and when the old one expires.

        Raises NotFound, and Conflict for a key that is revoked or expired.
        """
        now = self._now()
        async with self._database.transaction() as session:
            old = await session.keys.find(key_id)
            if old is None:
                raise NotFound(f"No API key {key_id}", {"key_id": key_id})
            if not old.is_usable(now):
                raise Conflict(f"API key {key_id} is revoked or expired", {"key_id": key_id})
            expires_at = min(now + overlap, old.expires_at or datetime.max.replace(tzinfo=UTC))
            await session.keys.add(old.replacement(new_id, new_secret, now))
            await session.keys.expire(key_id, expires_at)
            details = {"new_key_id": new_id, "expires_at": _text(expires_at)}
            await session.audit.add(
                old.tenant_id, AuditAction.KEY_ROTATED, key_id, self._actor, details
            )
        self._cached.pop(key_id, None)
        return key_text(new_id, new_secret), expires_at

    async def expire(self, key_id: str, expires_at: datetime | None) -> None:
        """Set when a key expires, None for never; effective as a revocation is.

        Raises NotFound, and Conflict for a key that is revoked.
        """
        async with self._database.transaction() as session:
            key = await session.keys.find(key_id)
            if key is None:
                raise NotFound(f"No API key {key_id}", {"key_id": key_id})
            if key.revoked_at is not None:
                raise Conflict(f"API key {key_id} is revoked", {"key_id": key_id})
            await session.keys.expire(key_id, expires_at)
            details = {"expires_at": _text(expires_at), "before": _text(key.expires_at)}
            await session.audit.add(
                key.tenant_id, AuditAction.KEY_EXPIRY_CHANGED, key_id, self._actor, details
            )
        self._cached.pop(key_id, None)

    async def set_disabled(self, tenant_id: str, *, is_disabled: bool) -> None:
        """Refuse the keys of a tenant from now on, or accept them again; raises NotFound.

        Effective as a revocation is. Requests without a key are not of a disabled tenant.
        """
        action = AuditAction.TENANT_DISABLED if is_disabled else AuditAction.TENANT_ENABLED
        async with self._database.transaction() as session:
            at = self._now() if is_disabled else None
            if not await session.tenants.set_disabled(tenant_id, at):
                raise NotFound(f"No tenant {tenant_id}", {"tenant_id": tenant_id})
            await session.audit.add(tenant_id, action, tenant_id, self._actor, {})

    async def disabled_tenants(self) -> frozenset[str]:
        """Return the disabled tenants."""
        async with self._database.session() as session:
            return await session.tenants.list_disabled()

    async def list_keys(self, tenant_id: str | None = None) -> list[ApiKey]:
        """Return the keys of a tenant or of all, revoked ones included, by tenant and age."""
        async with self._database.session() as session:
            return await session.keys.list_keys(tenant_id)

    async def revoke(self, key_id: str) -> ApiKey:
        """Revoke a key, effective within `cache_seconds` in every process; raises NotFound."""
        async with self._database.transaction() as session:
            now = self._now()
            key = await session.keys.revoke(key_id, now)
            if key is None:
                raise NotFound(f"No API key {key_id}", {"key_id": key_id})
            if key.revoked_at == now:  # it was not revoked before
                await session.audit.add(
                    key.tenant_id, AuditAction.KEY_REVOKED, key_id, self._actor, {}
                )
        self._cached.pop(key_id, None)
        return key

    async def uses(self, key_id: str, since: datetime) -> list[KeyUse]:
        """Return the uses of a key by hour and address, newest first; raises NotFound."""
        async with self._database.session() as session:
            if await session.keys.find(key_id) is None:
                raise NotFound(f"No API key {key_id}", {"key_id": key_id})
            return await session.keys.uses(key_id, since)

    async def has_keys(self) -> bool:
        """Return whether a key was ever created (rule 1)."""
        async with self._database.session() as session:
            return await session.keys.any()

    async def close(self) -> None:
        """Write the remaining counts of uses."""
        await self._uses.close()

    async def _is_key_required(self) -> bool:
        if self._has_keys:
            return True
        if self._clock() - self._checked_at >= _FIRST_KEY_SECONDS:
            if self._has_keys is not None:
                self._checked_at = self._clock()  # other requests do not wait for this one
            try:
                self._has_keys = await self.has_keys()
            except ServiceUnavailable:
                # No first key can be created while the database is unavailable.
                if self._has_keys is None:
                    raise
            self._checked_at = self._clock()
        return bool(self._has_keys)

    async def _find(self, key_id: str, address: str | None = None) -> ApiKey | None:
        cached = self._cached.get(key_id)
        if cached is not None and self._clock() < cached.fresh_until:
            return cached.key
        if cached is not None:
            cached.fresh_until = (
                self._clock() + RETRY_SECONDS
            )  # other requests do not wait for this one
            try:
                return await self._look_up(key_id)
            except ServiceUnavailable:
                return cached.key
        if key_id in self._unknown:
            return None
        is_guessing = address is not None and self._refused_keys.is_over(address)
        async with self._guesses if is_guessing else self._lookups:
            if (cached := self._cached.get(key_id)) is not None:
                return cached.key  # cached by a lookup before this one
            if key_id in self._unknown:
                return None
            if self._clock() < self._retry_at:
                facts = {"reason": "away", "retry_after": int(RETRY_SECONDS)}
                raise ServiceUnavailable("The database does not answer", facts)
            try:
                return await self._look_up(key_id)
            except ServiceUnavailable:
                self._retry_at = self._clock() + RETRY_SECONDS
                raise

    async def _look_up(self, key_id: str) -> ApiKey | None:
        async with self._database.session() as session:
            key = await session.keys.find(key_id)
        if key is None:
            self._cached.pop(key_id, None)
            self._unknown[key_id] = True
            return None
        self._has_keys = True
        self._cached[key_id] = _CachedKey(key, self._clock() + self._cache_seconds)
        return key

    def _refusal(
        self, detail: str, key_id: str | None, reason: str, address: str
    ) -> Unauthenticated | RateLimited:
        """Count and log a refused key, and return the error for it."""
        over = self._refused_keys.count(address)
        data = {"key_id": key_id, "reason": reason, "address": address}
        if not over:
            self._refused(reason)
            if key_id is not None:
                _log.warning("key_refused", extra={"data": data})
            return Unauthenticated(detail)
        self._refused("rate_limited")
        if over == 1:  # one line for all that follow in this minute
            _log.warning("keys_refused_often", extra={"data": data})
        facts = {"reason": "refused_keys", "retry_after": self._refused_keys.seconds_left()}
        return RateLimited("Too many refused API keys from this address", facts)


def _text(at: datetime | None) -> str | None:
    return at.isoformat() if at is not None else None


class KeyUses:
    """Counts uses of keys, and writes the counts now and then (rule 4)."""

    def __init__(
        self,
        database: Database,
        now: Callable[[], datetime],
        clock: Callable[[], float],
        *,
        write_seconds: float = WRITE_SECONDS,
    ) -> None:
        self._database = database
        self._now = now
        self._clock = clock
        self._write_seconds = write_seconds
        self._counts: dict[_Use, _Counts] = {}
        self._addresses: Counter[tuple[str, datetime]] = Counter()
        self._written_at = float("-inf")
        self._writing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def count(self, key_id: str, address: str, *, is_admitted: bool) -> None:
        """Count a use, and schedule the write."""
        hour = self._now().replace(minute=0, second=0, microsecond=0)
        use = key_id, hour, address
        if use not in self._counts:
            if self._addresses[key_id, hour] >= MAX_ADDRESSES:
                use = key_id, hour, OTHER_ADDRESSES
            self._addresses[key_id, hour] += use not in self._counts
        self._add(use, (is_admitted, not is_admitted))
        self._schedule_write()

    async def close(self) -> None:
        """Write the remaining counts."""
        if self._writing is not None:
            await asyncio.wait({self._writing})
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._write()

    def _add(self, use: _Use, counts: _Counts) -> None:
        admitted, refused = self._counts.get(use, (0, 0))
        self._counts[use] = admitted + counts[0], refused + counts[1]

    def _schedule_write(self) -> None:
        if self._writing is not None and not self._writing.done():
            return
        wait_seconds = self._written_at + self._write_seconds - self._clock()
        if wait_seconds <= 0:
            self._start_write()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(wait_seconds, self._start_write, context=Context())

    def _start_write(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # The write belongs to no request, so it gets a context of its own.
        self._writing = asyncio.create_task(self._write(), context=Context())
        self._writing.add_done_callback(self._on_written)

    def _on_written(self, _writing: asyncio.Task[None]) -> None:
        if self._counts:
            self._schedule_write()

    async def _write(self) -> None:
        batch, self._counts = self._counts, {}
        self._addresses.clear()
        self._written_at = self._clock()
        if not batch:
            return
        at, uses = self._now(), [KeyUse(*use, *counts) for use, counts in batch.items()]
        try:
            async with self._database.session() as session:
                await session.keys.count_uses(uses, at)
        except ServiceUnavailable:
            for use, counts in batch.items():
                self._add(use, counts)
        except Exception as error:  # an unexpected error here must not fail requests
            data = {"error": type(error).__name__, "uses": len(batch)}
            _log.error("key_uses_not_written", extra={"data": data})
