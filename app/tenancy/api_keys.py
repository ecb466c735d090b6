"""API keys, the tenants that they authenticate, and a short cache in front of the database.

1. A key is `ctx_{id}_{secret}`. The id is public: it selects the row and appears in logs and lists.
2. Only the SHA-256 of the secret is stored. A secret is 32 random bytes and cannot be guessed from
   a dictionary, so a slow password hash would add cost and no safety.
3. Secrets are compared in constant time. An unknown id costs a comparison as well.
4. A key is revoked, never deleted. While no key was ever created, no key is required and every
   caller is the default tenant. The first key ends this for good.
5. A key that was read is cached for a few seconds, so that a request costs no round trip. A revoked
   key works that much longer. While the database is unavailable the cached keys stay valid. Unknown
   keys have a cache of their own, and few are looked up at once, so that guessing neither evicts
   keys in use nor takes up the connections.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
import string
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from cachetools import LRUCache, TTLCache

from app.common.answer_schemas import answer
from app.common.errors import (
    Conflict,
    NotFound,
    ServiceUnavailable,
    Unauthenticated,
    ValidationError,
)
from app.database.sql import fields_of, read
from app.repositories import Database
from app.tenancy.repository import (
    ADD,
    ADD_KEY,
    ANY_KEY,
    EXPIRE_KEY,
    FIND_KEY,
    LIST_KEYS,
    REVOKE_KEY,
)

DEFAULT_TENANT = "default"
"""The tenant of all requests while there are no keys."""
CACHE_SECONDS = 10.0
RETRY_SECONDS = 1.0
"""Seconds between two attempts to read a cached key from an unavailable database."""

_ID_CHARACTERS = string.digits + string.ascii_lowercase
_TENANT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_KEY = re.compile(r"ctx_([0-9a-z]{12})_([A-Za-z0-9_-]{43})", re.ASCII)
_MAX_KEYS = 10_000
_MAX_LOOKUPS = 2
_FIRST_KEY_SECONDS = 1.0
"""Seconds between two checks whether a first key exists."""
_log = logging.getLogger("app.tenancy.api_keys")


@answer()
@dataclass(frozen=True, slots=True)
class Caller:
    """The tenant of a key, and what the key may do."""

    tenant_id: str
    """The tenant."""
    key_id: str | None = None
    """Id of the key; null while the service has no keys."""
    read_only: bool = False
    """Whether it may only read."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A stored key; `secret_hash` is hexadecimal."""

    key_id: str
    tenant_id: str
    name: str
    secret_hash: str
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    read_only: bool = False

    def state(self, now: datetime) -> str:
        """Return `usable`, `revoked` or `expired`."""
        if self.revoked_at is not None:
            return "revoked"
        return "usable" if self.expires_at is None or self.expires_at > now else "expired"


class KeyService:
    """Creates, lists, expires, revokes and checks API keys; `refused` gets why one is refused."""

    def __init__(
        self,
        database: Database,
        now: Callable[[], datetime],
        clock: Callable[[], float],
        refused: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        self._database = database
        self._now = now
        self._clock = clock
        self._refused = refused
        self._cached: LRUCache[str, tuple[ApiKey, float]] = LRUCache(_MAX_KEYS)
        self._unknown: TTLCache[str, bool] = TTLCache(_MAX_KEYS, CACHE_SECONDS, clock)
        self._lookups = asyncio.Semaphore(_MAX_LOOKUPS)
        self._has_keys: bool | None = None
        self._checked_at = float("-inf")

    async def admit(self, authorization: str) -> Caller:
        """Return the caller that the `Authorization` header authenticates.

        Raises Unauthenticated, or ServiceUnavailable when the key is not cached and the database
        does not answer.
        """
        match = _KEY.fullmatch(bearer_of(authorization) or "")
        if match is None:
            if not await self._is_key_required():
                return Caller(DEFAULT_TENANT)
            if authorization:
                self._refused("malformed")
            raise Unauthenticated("An API key is needed: send Authorization: Bearer ctx_…")
        key_id, secret = match.groups()
        key = await self._find(key_id)
        is_same = hmac.compare_digest(hash_of(secret), key.secret_hash if key else "0" * 64)
        if key is None or not is_same or key.state(self._now()) != "usable":
            reason = "unknown" if key is None else "revoked_or_expired"
            reason = reason if key is None or is_same else "wrong_secret"
            self._refused(reason)
            _log.warning("key_refused", extra={"data": {"key_id": key_id, "reason": reason}})
            raise Unauthenticated("The API key is unknown, revoked or expired")
        return Caller(key.tenant_id, key_id, read_only=key.read_only)

    async def still_admits(self, caller: Caller) -> bool:
        """Return whether the caller is still authenticated; for long answers such as a stream."""
        try:
            if caller.key_id is None:
                return not await self._is_key_required()
            key = await self._find(caller.key_id)
        except ServiceUnavailable:
            return False  # the key is not cached any more, and the database does not answer
        return key is not None and key.state(self._now()) == "usable"

    async def create(
        self, tenant_id: str, name: str, expires_at: datetime | None, *, read_only: bool = False
    ) -> str:
        """Store a new key and return its text, which is not stored anywhere.

        Raises ValidationError for an invalid tenant id.
        """
        require_tenant_id(tenant_id)
        key_id = "".join(secrets.choice(_ID_CHARACTERS) for _ in range(12))
        secret = secrets.token_urlsafe(32)
        key = ApiKey(key_id, tenant_id, name, hash_of(secret), self._now(), expires_at)
        async with self._database.transaction() as repositories:
            await repositories.session.run(ADD, tenant_id=tenant_id)
            await repositories.session.run(ADD_KEY, **fields_of(replace(key, read_only=read_only)))
        return f"ctx_{key_id}_{secret}"

    async def expire(self, key_id: str, expires_at: datetime | None) -> ApiKey:
        """Set when a key expires, None for never, and return it; effective as a revocation is.

        Raises NotFound, and Conflict for a key that is revoked.
        """
        async with self._database.session() as repositories:
            row = await repositories.session.first(EXPIRE_KEY, key_id=key_id, at=expires_at)
        key = self._changed(key_id, row)
        if key.revoked_at is not None:
            raise Conflict(f"API key {key_id} is revoked", {"key_id": key_id})
        return key

    async def revoke(self, key_id: str) -> ApiKey:
        """Revoke a key, effective within the cache's time in every process; raises NotFound."""
        async with self._database.session() as repositories:
            row = await repositories.session.first(REVOKE_KEY, key_id=key_id, at=self._now())
        return self._changed(key_id, row)

    def _changed(self, key_id: str, row: object) -> ApiKey:
        if row is None:
            raise NotFound(f"No API key {key_id}", {"key_id": key_id})
        self._cached.pop(key_id, None)
        return read(ApiKey, row)

    async def list_keys(self, tenant_id: str | None = None) -> list[ApiKey]:
        """Return the keys of a tenant or of all, revoked ones included, by tenant and age."""
        async with self._database.session() as repositories:
            rows = await repositories.session.all(LIST_KEYS, tenant_id=tenant_id)
        return [read(ApiKey, row) for row in rows]

    async def has_keys(self) -> bool:
        """Return whether a key was ever created (rule 4)."""
        async with self._database.session() as repositories:
            return await repositories.session.first(ANY_KEY) is not None

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

    async def _find(self, key_id: str) -> ApiKey | None:
        key, fresh_until = self._cached.get(key_id, (None, 0.0))
        if key is not None:
            if self._clock() >= fresh_until:
                # Other requests do not wait for this one.
                self._cached[key_id] = key, self._clock() + RETRY_SECONDS
                with suppress(ServiceUnavailable):
                    return await self._look_up(key_id)
            return key
        async with self._lookups:
            if key_id in self._unknown:
                return None
            if key_id in self._cached:  # by a lookup before this one
                return self._cached[key_id][0]
            return await self._look_up(key_id)

    async def _look_up(self, key_id: str) -> ApiKey | None:
        async with self._database.session() as repositories:
            row = await repositories.session.first(FIND_KEY, key_id=key_id)
        if row is None:
            self._cached.pop(key_id, None)
            self._unknown[key_id] = True
            return None
        self._has_keys = True
        key = read(ApiKey, row)
        self._cached[key_id] = key, self._clock() + CACHE_SECONDS
        return key


def require_tenant_id(text: str) -> None:
    """Raise ValidationError unless the text is a valid tenant id."""
    if not _TENANT_ID.fullmatch(text):
        raise ValidationError(
            "A tenant's id has 1 to 64 letters, digits, dots, dashes and underscores, and begins"
            " with a letter or digit"
        )


def hash_of(secret: str) -> str:
    """Return the stored hash of a secret (rule 2)."""
    return hashlib.sha256(secret.encode()).hexdigest()


def bearer_of(header: str) -> str | None:
    """Return the token of an `Authorization` header, None when it holds none."""
    scheme, _, token = header.strip().partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None
