"""The memory that long request bodies share. [api.limits]"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.http.body_memory import BodyMemory, BodyPermit
from app.domain.common.errors import ServiceUnavailable
from app.main import create_app
from app.settings import Settings
from tests.api.talk import new_conversation, user
from tests.conftest import started

MAX_BYTES = 100
HEADERS = {"content-type": "application/json"}


async def test_a_body_waits_for_memory_until_another_request_is_answered() -> None:
    """What is held goes to a request that waits, when the request that held it is answered."""
    memory = BodyMemory(MAX_BYTES)
    first, second = BodyPermit(memory), BodyPermit(memory)
    await first.take(80)
    waiting = asyncio.create_task(second.take(30))
    await asyncio.sleep(0)
    assert memory.held_bytes == 80
    first.release()
    await waiting
    assert memory.held_bytes == 30


async def test_a_body_that_waits_too_long_is_refused() -> None:
    """A request without memory is told to come back, and holds nothing."""
    memory = BodyMemory(MAX_BYTES, wait_seconds=0)
    first, second = BodyPermit(memory), BodyPermit(memory)
    await first.take(80)
    with pytest.raises(ServiceUnavailable) as refused:
        await second.take(30)
    assert refused.value.facts == {"reason": "too_many_bodies", "retry_after": 1}
    second.release()
    assert memory.held_bytes == 80


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 60)), max_size=40))
def test_requests_hold_at_most_the_limit_and_one_body(steps: list[tuple[int, int]]) -> None:
    """Whatever is taken and released, the requests behind the oldest are within the limit."""

    async def run() -> None:
        memory = BodyMemory(MAX_BYTES, wait_seconds=0)
        permits = [BodyPermit(memory) for _ in range(5)]
        held: dict[int, int] = {}
        for number, count in steps:
            if count < 0:
                permits[number].release()
                held.pop(number, None)
                continue
            held.setdefault(number, 0)
            try:
                await permits[number].take(count)
            except ServiceUnavailable:
                assert number != next(iter(held))
                assert memory.held_bytes + count > MAX_BYTES
            else:
                held[number] += count
            assert memory.held_bytes == sum(held.values())
            own = next(iter(held.values()))
            assert memory.held_bytes <= MAX_BYTES or memory.held_bytes - own <= MAX_BYTES

    asyncio.run(run())


@pytest.mark.parametrize("is_direct", [True, False])
async def test_memory_is_free_after_the_answer(settings: Settings, is_direct: bool) -> None:
    """A body in several parts is held while it is received, and not after its answer.

    Appends are handled by a direct route, token counts by FastAPI's.
    """
    app = create_app(settings)
    memory: BodyMemory = app.state.body_memory
    held = []

    async def parts(body: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(body), 1000):
            held.append(memory.held_bytes)
            yield body[start : start + 1000]

    async with started(app) as client:
        messages = {"messages": [user("word " * 1000)]}
        target = "/v1/tokens/count"
        if is_direct:
            target = f"{await new_conversation(client)}/messages"
        body = orjson.dumps(messages)
        answer = await client.post(target, content=parts(body), headers=HEADERS)
        assert answer.status_code < 300, answer.text
    assert max(held) >= 3000
    assert memory.held_bytes == 0
