"""Limits of what tenants do in one process: work at once, and work in a rate window."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from app.common.errors import ContextError, RateLimited, ServiceUnavailable

RETRY_SECONDS = 5


class Slots:
    """Counts concurrent work of one kind, and refuses work over the limits.

    `kind` is its name in the facts of errors, `plural` its name in messages. Work that finds no
    slot waits `wait_seconds` for one.
    """

    def __init__(
        self,
        kind: str,
        plural: str,
        max_total: int,
        max_per_tenant: int,
        wait_seconds: float = 0.0,
    ) -> None:
        self._kind = kind
        self._plural = plural
        self._max_total = max_total
        self._max_per_tenant = max_per_tenant
        self.wait_seconds = wait_seconds
        self._in_use: Counter[str] = Counter()
        self._released = asyncio.Event()

    def check(self, tenant_id: str, slots: int = 1) -> None:
        """Raise RateLimited at the tenant's limit, or ServiceUnavailable at the total limit.

        The tenant's limit is checked first, because the tenant itself can end some of its work. A
        tenant takes no more than it leaves free, so that another one always finds some.
        """
        used, free = self._in_use[tenant_id], self._max_total - self._in_use.total()
        is_over_share = slots <= free < used + slots
        if is_over_share or used + slots > self._max_per_tenant:
            raise RateLimited(
                f"A tenant has at most {self._max_per_tenant} {self._plural} at once in a process,"
                " and never more than it leaves to others",
                {"limit": self._max_per_tenant, "kind": self._kind, "retry_after": RETRY_SECONDS},
            )
        if slots > free:
            raise ServiceUnavailable(
                f"All {self._max_total} {self._plural} of this process are in use",
                {"reason": f"too_many_{self._kind}", "retry_after": RETRY_SECONDS},
            )

    async def acquire(self, tenant_id: str, slots: int = 1) -> int:
        """Take slots, at most those that a tenant may have, and return their number.

        Raises as `check` does where there are none in time.
        """
        slots = min(slots, self._max_per_tenant, self._max_total)
        refusal: ContextError | None = None
        try:
            async with asyncio.timeout(self.wait_seconds):
                while True:
                    try:
                        self.check(tenant_id, slots)
                        break
                    except (RateLimited, ServiceUnavailable) as error:
                        refusal = error
                    self._released.clear()
                    await self._released.wait()
        except TimeoutError:
            assert refusal is not None
            raise refusal from None
        self.take(tenant_id, slots)
        return slots

    def take(self, tenant_id: str, slots: int = 1) -> None:
        """Count work without a check of the limits."""
        self._in_use[tenant_id] += slots

    def release(self, tenant_id: str, slots: int = 1) -> None:
        """Count work that has ended."""
        self._in_use[tenant_id] -= slots
        if not self._in_use[tenant_id]:
            del self._in_use[tenant_id]
        self._released.set()


@dataclass(frozen=True, slots=True)
class RateState:
    """What a tenant has used of a limit in the current rate window."""

    kind: str
    plural: str
    limit: int
    used: int
    reset_seconds: int

    @property
    def remaining(self) -> int:
        """What is left."""
        return max(0, self.limit - self.used)

    def require(self) -> None:
        """Raise RateLimited if more than the limit is used."""
        if self.used > self.limit:
            raise RateLimited(
                f"The {self.limit:,} {self.plural} are used up",
                {"limit": self.limit, "kind": self.kind, "retry_after": self.reset_seconds},
            )


class Rate:
    """Counts work of one kind in rate windows, which begin at multiples of their length."""

    def __init__(self, kind: str, plural: str, seconds: int, now: Callable[[], float]) -> None:
        self._kind = kind
        self._plural = plural
        self._seconds = seconds
        self._now = now
        self._window = 0
        self._used: Counter[str] = Counter()

    def count(self, tenant_id: str, limit: int) -> RateState:
        """Count one more, and return the state after it."""
        now = self._now()
        window = int(now // self._seconds)
        if window != self._window:
            self._window, self._used = window, Counter()
        self._used[tenant_id] += 1
        reset_seconds = max(1, ceil((window + 1) * self._seconds - now))
        used = self._used[tenant_id]
        return RateState(self._kind, self._plural, limit, used, reset_seconds)
