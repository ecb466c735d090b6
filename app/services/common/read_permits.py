"""Permits for reads, which limit the stored data that the answers of one process hold in memory.

1. A page has at most `page_bytes`, unless its first item alone is larger.
2. At most `MAX_PAGES` answers have a permit for a page at once, from before the read until the
   answer is sent; at most half of them are of one tenant. Others wait for `WAIT_SECONDS`, and then
   get ServiceUnavailable.
3. One answer at a time holds an item that is larger than a page. It takes this permit after that
   of rule 2, and no permit after it, so that answers cannot deadlock.
4. Streams are read in batches of `BATCH_BYTES`, by at most `MAX_STREAMS` answers at once. A stream
   that has begun is not refused: it waits for rule 3 without a timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from app.domain.common.errors import ServiceUnavailable
from app.domain.common.pages import UNBOUNDED, Bound, Page

PAGE_BYTES = 8 * 2**20
BATCH_BYTES = 2**20
MAX_PAGES = 8
MAX_STREAMS = 16
WAIT_SECONDS = 10.0

_Item = TypeVar("_Item")


class ReadPermits:
    """Issues the permits of one process."""

    def __init__(self, page_bytes: int = PAGE_BYTES, wait_seconds: float = WAIT_SECONDS) -> None:
        self.page_bytes = page_bytes
        self._wait_seconds = wait_seconds
        self._pages = _Permits(MAX_PAGES)
        self._streams = _Permits(MAX_STREAMS)
        self._large = asyncio.Semaphore(1)

    @asynccontextmanager
    async def page(self, tenant_id: str) -> AsyncIterator[ReadPermit]:
        """Hold a permit for one page until the end of the block; raises ServiceUnavailable."""
        async with self._permit(self._pages, tenant_id), AsyncExitStack() as large_permit:
            acquire_large = partial(self._acquired, self._large, self._wait_seconds)
            yield ReadPermit(self.page_bytes, self.page_bytes, acquire_large, large_permit)

    @asynccontextmanager
    async def stream(self, tenant_id: str) -> AsyncIterator[ReadPermit]:
        """Hold a permit for one stream until the end of the block; raises ServiceUnavailable."""
        batch = min(BATCH_BYTES, self.page_bytes)
        async with self._permit(self._streams, tenant_id), AsyncExitStack() as large_permit:
            acquire_large = partial(self._acquired, self._large, None)
            yield ReadPermit(batch, self.page_bytes, acquire_large, large_permit)

    @asynccontextmanager
    async def _permit(self, permits: _Permits, tenant_id: str) -> AsyncIterator[None]:
        share = permits.share_of(tenant_id)
        async with (
            self._acquired(share, self._wait_seconds),
            self._acquired(permits.all, self._wait_seconds),
        ):
            yield

    @asynccontextmanager
    async def _acquired(
        self, semaphore: asyncio.Semaphore, seconds: float | None
    ) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                await semaphore.acquire()
        except TimeoutError:
            raise ServiceUnavailable(
                "Too many large answers are being sent at once",
                {"reason": "too_many_reads", "retry_after": 1},
            ) from None
        try:
            yield
        finally:
            semaphore.release()


class _Permits:
    """Permits of one kind, of which a tenant may hold half."""

    def __init__(self, max_count: int) -> None:
        self.all = asyncio.Semaphore(max_count)
        self._max_count = max_count
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def share_of(self, tenant_id: str) -> asyncio.Semaphore:
        """Return the semaphore of a tenant; it exists while the tenant holds or awaits a permit."""
        share = self._shares.get(tenant_id)
        if share is None:
            share = self._shares[tenant_id] = asyncio.Semaphore(max(1, self._max_count // 2))
        return share


class ReadPermit:
    """The permit of one answer: for pages, or batches of a stream, of `max_bytes` each.

    A single item may have `item_bytes`. For a larger one the answer enters the context of
    `acquire_large`, whose permit `large_permit` holds.
    """

    def __init__(
        self,
        max_bytes: int,
        item_bytes: int,
        acquire_large: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
        large_permit: AsyncExitStack | None = None,
    ) -> None:
        self.max_bytes = max_bytes
        self._item_bytes = item_bytes
        self._acquire_large = acquire_large
        self._large_permit = large_permit or AsyncExitStack()
        self._has_large = False

    async def page(self, read: Callable[[Bound], Awaitable[Page[_Item]]]) -> Page[_Item]:
        """Return the page that `read` finds within a bound, with at least one item if any exists.

        For an item that is larger than a page, its permit is held until the answer is sent.
        """
        for max_bytes in sorted({self.max_bytes, self._item_bytes}):
            page = await read(Bound(max_bytes, whole_first=False))
            if page or not page.has_more:
                return page
        await self.acquire_large(self._item_bytes + 1)
        return await read(Bound(self.max_bytes))

    async def acquire_large(self, size_bytes: int) -> None:
        """Take the permit for a large item until the answer is sent, if the item is large."""
        if size_bytes > self._item_bytes and not self._has_large:
            await self._large_permit.enter_async_context(self._acquire_large())
            self._has_large = True

    async def release_large(self) -> None:
        """Release the permit for a large item: it is sent, and the stream continues."""
        await self._large_permit.aclose()
        self._has_large = False


def batches(sizes: Mapping[int, int], max_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield ranges `[start, end)` of seqs with at most `max_bytes`, or of one item."""
    start, end, batch_bytes = 0, 0, 0
    for seq, size in sizes.items():
        if end and batch_bytes + size > max_bytes:
            yield start, end
            end = 0
        if not end:
            start, batch_bytes = seq, 0
        end, batch_bytes = seq + 1, batch_bytes + size
    if end:
        yield start, end


UNLIMITED = ReadPermit(UNBOUNDED.max_bytes, UNBOUNDED.max_bytes)
"""For callers inside the process that limit their reads by the number of items."""
