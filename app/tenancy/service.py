"""Authentication by API key, with a short cache in front of the database.

1. While no key was ever created, no key is required and every caller is the default tenant. The
   first key ends this for good, even when every key is revoked later.
2. A key that was read is cached for a few seconds, so that a request costs no round trip. A revoked
   key works that much longer. While the database is unavailable the cached keys stay valid. Unknown
   keys have a cache of their own, and few are looked up at once, so that guessing neither evicts
   keys in use nor takes up the connections.
3. Refused keys are counted by the client's network, in one process and one minute: many from one
   network are answered with RateLimited, and its lookups wait for each other. More networks than
   a bound push out those that were refused longest ago. A valid key always passes, so that no
   client can lock out others behind the same address.
4. Last uses are noted in memory, and written at most once a minute and at shutdown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from math import ceil

from cachetools import LRUCache, TTLCache

from app.common.errors import (
    Conflict,
    Forbidden,
    NotFound,
    RateLimited,
    ServiceUnavailable,
    Unauthenticated,
)
from app.repositories import Database, Repositories
from app.tenancy.api_keys import (
    DEFAULT_TENANT,
    ApiKey,
    Caller,
    bearer_of,
    hash_of,
    is_address,
    key_text,
    network_of,
    presented_key,
    require_tenant_id,
)

RETRY_SECONDS = 1.0
"""Seconds between two attempts to read a cached key from an unavailable database."""

_MAX_KEYS = 10_000
_MAX_LOOKUPS = 2
"""Keys outside the cache that are looked up at the same time."""
_MAX_NETWORKS = 10_000
_MINUTE = 60
_FIRST_KEY_SECONDS = 1.0
"""Seconds between two checks whether a first key exists."""
_log = logging.getLogger("app.cli.api_keys")


@dataclass(slots=True)
class _CachedKey:
    key: ApiKey
    fresh_until: float


class KeyService:
    """Creates, rotates, lists, revokes and checks API keys."""

    def __init__(
        self,
        database: Database,
        now: Callable[[], datetime],
        clock: Callable[[], float],
        *,
        cache_seconds: float = 10.0,
        refused_per_minute: int = 0,
        refused: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        """`refused` gets the reason of each refused key."""
        self._database = database
        self._now = now
        self._clock = clock
        self._cache_seconds = cache_seconds
        self._cached: LRUCache[str, _CachedKey] = LRUCache(_MAX_KEYS)
        self._unknown: TTLCache[str, bool] = TTLCache(_MAX_KEYS, cache_seconds, clock)
        self._has_keys: bool | None = None
        self._checked_at = float("-inf")
        self._lookups = asyncio.Semaphore(_MAX_LOOKUPS)
        self._guesses = asyncio.Semaphore(1)
        self._refused_per_minute = refused_per_minute
        self._refused_keys: LRUCache[tuple[str, int], int] = LRUCache(_MAX_NETWORKS)
        self._refused = refused
        self._retry_at = float("-inf")
        self._last_uses: dict[str, datetime] = {}
        self._closing = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None

    async def admit(self, authorization: str, address: str) -> Caller:
        """Return the caller that the `Authorization` header authenticates.

        Raises Unauthenticated, RateLimited in its place after many refused keys, Forbidden where
        the tenant is disabled, or ServiceUnavailable when the key is not cached and the database
        does not answer.
        """
        address = address if is_address(address) else ""  # a proxy may forward any text
        presented = presented_key(bearer_of(authorization) or "")
        if presented is None:
            if not await self._is_key_required():
                return Caller(DEFAULT_TENANT)
            if not authorization:
                raise Unauthenticated("An API key is needed: send Authorization: Bearer ctx_…")
            detail = "That is no API key: send Authorization: Bearer ctx_…"
            raise self._refusal(detail, None, "malformed", address)
        key = await self._find(presented.key_id, address)
        is_valid = presented.matches(key, self._now())
        if key is None or not is_valid:
            reason = "unknown"
            if key is not None:
                reason = "wrong_secret" if key.is_usable(self._now()) else "revoked_or_expired"
            detail = "The API key is unknown, revoked or expired"
            raise self._refusal(detail, presented.key_id, reason, address)
        self._last_uses[key.key_id] = self._now()
        if self._writing is None or self._writing.done():
            # The write belongs to no request, so it gets a context of its own.
            self._writing = asyncio.create_task(self._write_last_uses(), context=Context())
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
            await session.tenants.add_key(key)
        return key_text(key_id, secret)

    async def rotate(
        self, key_id: str, new_id: str, new_secret: str, overlap: timedelta
    ) -> tuple[str, ApiKey]:
        """Replace a key; returns the text of the new one, and the old one with its new expiry.

        Raises NotFound, and Conflict for a key that is revoked or expired.
        """
        now = self._now()
        async with self._database.transaction() as session:
            old = await _stored_key(session, key_id)
            if not old.is_usable(now):
                raise Conflict(f"API key {key_id} is revoked or expired", {"key_id": key_id})
            expires_at = min(now + overlap, old.expires_at or datetime.max.replace(tzinfo=UTC))
            await session.tenants.add_key(old.replacement(new_id, new_secret, now))
            await session.tenants.expire_key(key_id, expires_at)
        self._cached.pop(key_id, None)
        return key_text(new_id, new_secret), replace(old, expires_at=expires_at)

    async def expire(self, key_id: str, expires_at: datetime | None) -> ApiKey:
        """Set when a key expires, None for never, and return it; effective as a revocation is.

        Raises NotFound, and Conflict for a key that is revoked.
        """
        async with self._database.transaction() as session:
            key = await _stored_key(session, key_id)
            if key.revoked_at is not None:
                raise Conflict(f"API key {key_id} is revoked", {"key_id": key_id})
            await session.tenants.expire_key(key_id, expires_at)
        self._cached.pop(key_id, None)
        return replace(key, expires_at=expires_at)

    async def set_disabled(self, tenant_id: str, *, is_disabled: bool) -> None:
        """Refuse the keys of a tenant from now on, or accept them again; raises NotFound.

        Effective as a revocation is. Requests without a key are not of a disabled tenant.
        """
        at = self._now() if is_disabled else None
        async with self._database.session() as session:
            if not await session.tenants.set_disabled(tenant_id, at):
                raise NotFound(f"No tenant {tenant_id}", {"tenant_id": tenant_id})

    async def disabled_tenants(self) -> frozenset[str]:
        """Return the disabled tenants."""
        async with self._database.session() as session:
            return await session.tenants.list_disabled()

    async def list_keys(self, tenant_id: str | None = None) -> list[ApiKey]:
        """Return the keys of a tenant or of all, revoked ones included, by tenant and age."""
        async with self._database.session() as session:
            return await session.tenants.list_keys(tenant_id)

    async def revoke(self, key_id: str) -> ApiKey:
        """Revoke a key, effective within `cache_seconds` in every process; raises NotFound."""
        async with self._database.session() as session:
            key = await session.tenants.revoke_key(key_id, self._now())
        if key is None:
            raise NotFound(f"No API key {key_id}", {"key_id": key_id})
        self._cached.pop(key_id, None)
        return key

    async def has_keys(self) -> bool:
        """Return whether a key was ever created (rule 1)."""
        async with self._database.session() as session:
            return await session.tenants.any_key()

    async def close(self) -> None:
        """Write the last uses of keys."""
        self._closing.set()
        if self._writing is not None:
            await asyncio.wait({self._writing})
        self._closing.clear()

    async def _write_last_uses(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_MINUTE):
                await self._closing.wait()
        used, self._last_uses = self._last_uses, {}
        try:
            async with self._database.session() as session:
                await session.tenants.set_last_used(used)
        except ServiceUnavailable:
            self._last_uses = used | self._last_uses  # written with the next use
        except Exception as error:  # an unexpected error here must not fail requests
            data = {"error": type(error).__name__, "keys": len(used)}
            _log.error("last_uses_not_written", extra={"data": data})

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
            # Other requests do not wait for this one.
            cached.fresh_until = self._clock() + RETRY_SECONDS
            try:
                return await self._look_up(key_id)
            except ServiceUnavailable:
                return cached.key
        if key_id in self._unknown:
            return None
        is_guessing = address is not None and self._excess(self._minute_of(address), 1) > 0
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
            key = await session.tenants.find_key(key_id)
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
        minute = self._minute_of(address)
        self._refused_keys[minute] = self._refused_keys.get(minute, 0) + 1
        excess = self._excess(minute)
        data = {"key_id": key_id, "reason": reason, "address": address}
        if excess <= 0:
            self._refused(reason)
            if key_id is not None:
                _log.warning("key_refused", extra={"data": data})
            return Unauthenticated(detail)
        self._refused("rate_limited")
        if excess == 1:  # one line for all that follow in this minute
            _log.warning("keys_refused_often", extra={"data": data})
        seconds_left = ceil(_MINUTE - self._clock() % _MINUTE)
        facts = {"reason": "refused_keys", "retry_after": seconds_left}
        return RateLimited("Too many refused API keys from this address", facts)

    def _minute_of(self, address: str) -> tuple[str, int]:
        return network_of(address), int(self._clock() // _MINUTE)

    def _excess(self, minute: tuple[str, int], more: int = 0) -> int:
        """Return by how much a network is over the limit, where there is one."""
        counted: int = self._refused_keys.get(minute, 0)
        return counted + more - self._refused_per_minute if self._refused_per_minute else 0


async def _stored_key(session: Repositories, key_id: str) -> ApiKey:
    key = await session.tenants.find_key(key_id)
    if key is None:
        raise NotFound(f"No API key {key_id}", {"key_id": key_id})
    return key
