"""Who a request comes from: its API key, checked without asking the database each time (34).

1. While no key was ever made, nobody is asked for one, and all are the default tenant. With the
   first key that is over for good, also when every key is revoked.
2. What the database says of a key is held for a few seconds: a revoked key works that much longer,
   and a request costs no round trip. What lasts longer than that asks again. While the database is
   away, what was held goes on. Keys nobody knows are held apart, and few are asked for at once, so
   that guessing drives out neither those in use nor those who need a connection.
3. Uses are counted here and written at most once a minute, from where and how often: the audit of
   a key. What cannot be written is written with the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import dataclass
from datetime import datetime

from cachetools import LRUCache, TTLCache

from app.domain.common.errors import NotFound, ServiceUnavailable, Unauthenticated
from app.domain.tenancy.api_keys import (
    DEFAULT_TENANT,
    ApiKey,
    Caller,
    KeyUse,
    PresentedKey,
    bearer_of,
    hash_of,
    is_address,
    key_text,
    presented_key,
    require_tenant_id,
)
from app.services.ports import Database

AGAIN_SECONDS = 1.0
"""How often a database that is away is asked again for what is held already."""
WRITE_SECONDS = 60.0
"""How seldom the uses of keys are written (decision 34)."""
MAX_ADDRESSES = 100
"""How many addresses of a key are told apart in an hour between two writings."""
OTHER_ADDRESSES = "other"

_MAX_KEYS = 10_000
_ASKS_AT_ONCE = 2
"""How many keys that are not held are looked up together."""
_ASK_SECONDS = 1.0
"""How often it is asked whether there is a first key."""
_log = logging.getLogger("app.keys")


@dataclass(slots=True)
class _Counts:
    admitted: int = 0
    refused: int = 0


@dataclass(slots=True)
class _Held:
    key: ApiKey
    until: float


_Use = tuple[str, datetime, str]
"""A key, the hour it came in, and from where."""


class KeyService:
    """Makes, lists, revokes and checks keys."""

    def __init__(
        self,
        database: Database,
        now: Callable[[], datetime],
        clock: Callable[[], float],
        *,
        held_seconds: float = 10.0,
    ) -> None:
        self._database = database
        self._now = now
        self._clock = clock
        self._held_seconds = held_seconds
        self._held: LRUCache[str, _Held] = LRUCache(_MAX_KEYS)
        self._unknown: TTLCache[str, bool] = TTLCache(_MAX_KEYS, held_seconds, clock)
        self._has_keys: bool | None = None
        self._asked_at = float("-inf")
        self._asks = asyncio.Semaphore(_ASKS_AT_ONCE)
        self._away_until = float("-inf")
        self._uses = KeyUses(database, now, clock)

    async def admit(self, authorization: str, address: str) -> Caller:
        """Return whose key a request brought in its `Authorization` header.

        Raises Unauthenticated, or ServiceUnavailable where only the database could tell.
        """
        presented = presented_key(bearer_of(authorization) or "")
        if presented is None:
            if await self._are_needed():
                detail = "An API key is needed" if not authorization else "That is no API key"
                raise Unauthenticated(f"{detail}: send Authorization: Bearer ctx_…")
            return Caller(DEFAULT_TENANT)
        address = address if is_address(address) else OTHER_ADDRESSES
        key = await self._find(presented.key_id)
        is_open = presented.opens(key, self._now())
        if key is not None:
            self._uses.count(key.key_id, address, is_admitted=is_open)
        if key is None or not is_open:
            self._tell(presented, key, address)
            raise Unauthenticated("The API key is unknown, revoked or expired")
        return Caller(key.tenant_id, key.key_id)

    async def still_admits(self, caller: Caller) -> bool:
        """Tell whether who was admitted would be so again; for what lasts, such as a stream."""
        try:
            if caller.key_id is None:
                return not await self._are_needed()
            key = await self._find(caller.key_id)
        except ServiceUnavailable:
            return False  # it is not held any more, so that only the database could tell
        return key is not None and key.is_usable(self._now())

    async def create(
        self, key_id: str, secret: str, tenant_id: str, name: str, expires_at: datetime | None
    ) -> str:
        """Store a new key and return its text, which nothing can tell again.

        Raises ValidationError for what could be no tenant's id.
        """
        require_tenant_id(tenant_id)
        key = ApiKey(key_id, tenant_id, name, hash_of(secret), self._now(), expires_at)
        async with self._database.transaction() as records:
            await records.keys.add_tenant(tenant_id)
            await records.keys.add(key)
        return key_text(key_id, secret)

    async def of_tenant(self, tenant_id: str | None = None) -> list[ApiKey]:
        """Return the keys, revoked ones too, by tenant and age."""
        async with self._database.session() as records:
            return await records.keys.of_tenant(tenant_id)

    async def revoke(self, key_id: str) -> ApiKey:
        """End a key for good, within `held_seconds` in every process; raises NotFound."""
        async with self._database.session() as records:
            key = await records.keys.revoke(key_id, self._now())
        if key is None:
            raise NotFound(f"No API key {key_id}", {"key_id": key_id})
        self._held.pop(key_id, None)
        return key

    async def uses(self, key_id: str, since: datetime) -> list[KeyUse]:
        """Return how often a key came, by hour and address, the newest first."""
        async with self._database.session() as records:
            if await records.keys.find(key_id) is None:
                raise NotFound(f"No API key {key_id}", {"key_id": key_id})
            return await records.keys.uses(key_id, since)

    async def has_keys(self) -> bool:
        """Tell whether a key was ever made (rule 1)."""
        async with self._database.session() as records:
            return await records.keys.any()

    async def close(self) -> None:
        """Write the uses that are not written yet."""
        await self._uses.close()

    async def _are_needed(self) -> bool:
        if self._has_keys:
            return True
        if self._clock() - self._asked_at >= _ASK_SECONDS:
            if self._has_keys is not None:
                self._asked_at = self._clock()  # one asks, the others go on
            try:
                self._has_keys = await self.has_keys()
            except ServiceUnavailable:
                # Nobody can have made the first key while the database is away.
                if self._has_keys is None:
                    raise
            self._asked_at = self._clock()
        return bool(self._has_keys)

    async def _find(self, key_id: str) -> ApiKey | None:
        held = self._held.get(key_id)
        if held is not None and self._clock() < held.until:
            return held.key
        if held is not None:
            held.until = self._clock() + AGAIN_SECONDS  # one asks, the others go on
            try:
                return await self._ask(key_id)
            except ServiceUnavailable:
                return held.key
        if key_id in self._unknown:
            return None
        async with self._asks:
            if (held := self._held.get(key_id)) is not None:
                return held.key  # by one who came before
            if key_id in self._unknown:
                return None
            if self._clock() < self._away_until:
                facts = {"reason": "away", "retry_after": int(AGAIN_SECONDS)}
                raise ServiceUnavailable("The database does not answer", facts)
            try:
                return await self._ask(key_id)
            except ServiceUnavailable:
                self._away_until = self._clock() + AGAIN_SECONDS
                raise

    async def _ask(self, key_id: str) -> ApiKey | None:
        async with self._database.session() as records:
            key = await records.keys.find(key_id)
        if key is None:
            self._held.pop(key_id, None)
            self._unknown[key_id] = True
            return None
        self._has_keys = True
        self._held[key_id] = _Held(key, self._clock() + self._held_seconds)
        return key

    def _tell(self, presented: PresentedKey, key: ApiKey | None, address: str) -> None:
        reason = "unknown"
        if key is not None:
            reason = "wrong_secret" if key.is_usable(self._now()) else "revoked_or_expired"
        data = {"key_id": presented.key_id, "reason": reason, "address": address}
        _log.warning("key_refused", extra={"data": data})


class KeyUses:
    """Counts how often keys come, and writes it now and then (rule 3)."""

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
        self._later: asyncio.TimerHandle | None = None

    def count(self, key_id: str, address: str, *, is_admitted: bool) -> None:
        """Count a use, and see to it that it is written in time."""
        hour = self._now().replace(minute=0, second=0, microsecond=0)
        use = key_id, hour, address
        if use not in self._counts:
            if self._addresses[key_id, hour] >= MAX_ADDRESSES:
                use = key_id, hour, OTHER_ADDRESSES
            self._addresses[key_id, hour] += use not in self._counts
        counts = self._counts.setdefault(use, _Counts())
        if is_admitted:
            counts.admitted += 1
        else:
            counts.refused += 1
        self._see_to_writing()

    async def close(self) -> None:
        """Write what is not written yet."""
        if self._writing is not None:
            await asyncio.wait({self._writing})
        if self._later is not None:
            self._later.cancel()
            self._later = None
        await self._write()

    def _see_to_writing(self) -> None:
        if self._writing is not None and not self._writing.done():
            return
        left = self._written_at + self._write_seconds - self._clock()
        if left <= 0:
            self._begin()
        elif self._later is None:
            loop = asyncio.get_running_loop()
            self._later = loop.call_later(left, self._begin, context=Context())

    def _begin(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        # It writes for all, and so is not of the request that happens to begin it.
        self._writing = asyncio.create_task(self._write(), context=Context())
        self._writing.add_done_callback(self._written)

    def _written(self, _writing: asyncio.Task[None]) -> None:
        if self._counts:
            self._see_to_writing()

    async def _write(self) -> None:
        taken, self._counts = self._counts, {}
        self._addresses.clear()
        self._written_at = self._clock()
        if not taken:
            return
        at = self._now()
        try:
            async with self._database.session() as records:
                await records.keys.count_uses(_uses_of(taken), at)
        except ServiceUnavailable:
            for use, counts in taken.items():
                left = self._counts.setdefault(use, _Counts())
                left.admitted += counts.admitted
                left.refused += counts.refused
        except Exception as error:  # an audit that fails must not fail those who are served
            data = {"error": type(error).__name__, "uses": len(taken)}
            _log.error("key_uses_not_written", extra={"data": data})


def _uses_of(taken: Mapping[_Use, _Counts]) -> list[KeyUse]:
    return [
        KeyUse(key_id, hour, address, counts.admitted, counts.refused)
        for (key_id, hour, address), counts in taken.items()
    ]
