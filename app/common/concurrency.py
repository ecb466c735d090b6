"""Work at once: in threads, with a bound, and in slots that tenants share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import ParamSpec, TypeVar

from app.common.errors import ContextError, RateLimited, ServiceUnavailable

THREAD_BYTES = 100_000
"""The length of a text from which it is parsed, checked and written in a thread.

Below it a thread costs more than the work: 100 messages of 1 KB are parsed in 0.3 ms.
"""
RETRY_SECONDS = 5
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")


async def in_thread_if(
    is_long: bool,
    work: Callable[_Arguments, _Result],
    *args: _Arguments.args,
    **options: _Arguments.kwargs,
) -> _Result:
    """Call a function, in a thread if it takes long."""
    if is_long:
        return await asyncio.to_thread(work, *args, **options)
    return work(*args, **options)


async def for_each(
    items: Iterable[_Item], work: Callable[[_Item], Awaitable[_Result]], max_at_once: int
) -> list[_Result]:
    """Do the work for all items, and return the results.

    An error is raised after the work for all items has ended, so that none continues in the
    background.
    """
    slots = asyncio.Semaphore(max_at_once)

    async def limited(item: _Item) -> _Result:
        async with slots:
            return await work(item)

    results = await asyncio.gather(*map(limited, items), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


class Slots:
    """Counts concurrent work of one kind, and refuses work over the limits.

    `kind` names it in errors. Work that finds no slot waits `wait_seconds` for one.
    """

    def __init__(
        self, kind: str, max_total: int, max_per_tenant: int, wait_seconds: float = 0.0
    ) -> None:
        self._kind = kind
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
        if (refusal := self._refusal(tenant_id, slots)) is not None:
            raise refusal

    def _refusal(self, tenant_id: str, slots: int) -> ContextError | None:
        used, free = self._in_use[tenant_id], self._max_total - self._in_use.total()
        is_over_share = slots <= free < used + slots
        plural = self._kind.replace("_", " ")
        if is_over_share or used + slots > self._max_per_tenant:
            return RateLimited(
                f"A tenant has at most {self._max_per_tenant} {plural} at once in a process,"
                " and never more than it leaves to others",
                {"limit": self._max_per_tenant, "kind": self._kind, "retry_after": RETRY_SECONDS},
            )
        if slots > free:
            return ServiceUnavailable(
                f"All {self._max_total} {plural} of this process are in use",
                {"reason": f"too_many_{self._kind}", "retry_after": RETRY_SECONDS},
            )
        return None

    async def acquire(self, tenant_id: str, slots: int = 1) -> int:
        """Take slots, at most those that a tenant may have, and return their number.

        Raises as `check` does where there are none in time.
        """
        slots = min(slots, self._max_per_tenant, self._max_total)
        with suppress(TimeoutError):
            async with asyncio.timeout(self.wait_seconds):
                while self._refusal(tenant_id, slots) is not None:
                    self._released.clear()
                    await self._released.wait()
        self.check(tenant_id, slots)
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
