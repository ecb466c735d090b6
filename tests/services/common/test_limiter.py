"""What tenants do in one process. [quotas.fair-share]"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.common.concurrency import Slots
from app.common.errors import RateLimited, ServiceUnavailable


async def test_work_waits_for_slots() -> None:
    """Work that finds no slot takes the one that is released, or is refused in time."""
    slots = Slots("things", 2, 2, wait_seconds=20)
    await slots.acquire("a", 2)
    waiting = asyncio.create_task(slots.acquire("a", 2))
    await asyncio.sleep(0)
    slots.release("a")
    await asyncio.sleep(0)
    assert not waiting.done()
    slots.release("a")
    assert await waiting == 2
    slots.wait_seconds = 0.01
    with pytest.raises(RateLimited):
        await slots.acquire("a")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4), st.booleans()), max_size=40))
def test_limits_are_never_exceeded(steps: list[tuple[str, int, bool]]) -> None:
    """Property: whatever is taken and released, no more is in use than the limits allow."""

    async def run() -> None:
        slots, used = Slots("things", 5, 3), Counter[str]()
        for tenant_id, count, is_release in steps:
            if is_release:
                slots.release(tenant_id, used.pop(tenant_id, 0))
                continue
            wanted = min(count, 3)
            try:
                assert await slots.acquire(tenant_id, count) == wanted
            except RateLimited:
                assert used[tenant_id] + wanted > min(3, 5 - used.total())
            except ServiceUnavailable:
                assert used.total() + wanted > 5
            else:
                used[tenant_id] += wanted
            assert used.total() <= 5 and max(used.values(), default=0) <= 3

    asyncio.run(run())
