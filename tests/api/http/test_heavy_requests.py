"""Long bodies and large answers take slots for heavy work. [api.limits, storage.memory-bounds]"""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import orjson
import pytest

from app.common.concurrency import Slots
from app.http.bodies import SLOT_BYTES
from app.main import create_app
from app.settings import Settings
from tests.api.talk import assert_problem, new_conversation, user
from tests.conftest import started

HEADERS = {"content-type": "application/json"}


class Recorded(Slots):
    """Slots that remember what was taken."""

    def __init__(self, max_total: int) -> None:
        super().__init__("heavy_requests", max_total, max_total)
        self.taken: list[int] = []
        self.in_use = 0

    def take(self, tenant_id: str, slots: int = 1) -> None:
        """Count work."""
        super().take(tenant_id, slots)
        self.taken.append(slots)
        self.in_use += slots

    def release(self, tenant_id: str, slots: int = 1) -> None:
        """Count work that has ended."""
        super().release(tenant_id, slots)
        self.in_use -= slots


async def _parts(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 10_000):
        yield body[start : start + 10_000]


@pytest.mark.parametrize("is_direct", [True, False])
async def test_long_bodies_take_slots_by_their_length(settings: Settings, is_direct: bool) -> None:
    """A body that arrives in several parts takes slots until its answer is sent.

    Appends are handled by a direct route, token counts by FastAPI's.
    """
    app = create_app(settings)
    async with started(app) as client:
        target = "/v1/tokens/count"
        if is_direct:
            target = f"{await new_conversation(client)}/messages"
        for size, length_is_known, taken in (
            (60_000, True, []),
            (60_000, False, []),
            (100_000, True, [1]),
            (100_000, False, [1 + settings.max_body_bytes // SLOT_BYTES]),
            (SLOT_BYTES - 1000, True, [1]),
        ):
            slots = app.state.heavy = Recorded(32)
            body = orjson.dumps({"messages": [user("w" * size)]})
            headers = HEADERS | ({"content-length": str(len(body))} if length_is_known else {})
            answer = await client.post(target, content=_parts(body), headers=headers)
            assert answer.status_code < 300, answer.text
            assert (slots.taken, slots.in_use) == (taken, 0)


async def test_pages_and_large_requests_take_slots(settings: Settings) -> None:
    """By what they keep busy; a request without a slot is refused with the time to wait."""
    app = create_app(settings)
    async with started(app) as client:
        path = await new_conversation(client)
        page, large = 1 + settings.page_bytes // SLOT_BYTES, app.state.large_slots
        for method, target, taken in (
            ("GET", "/v1/conversations", page),
            ("GET", f"{path}/messages", page),
            ("GET", f"{path}/messages?limit=5&content=full", large),
            ("GET", f"{path}/messages?query=content=full", page),
            ("GET", f"{path}/export", large),
            ("POST", f"{path}/fork", large),
        ):
            slots = app.state.heavy = Recorded(32)
            answer = await client.request(method, target)
            assert answer.status_code < 300, answer.text
            assert (slots.taken, slots.in_use) == ([taken], 0), target
        slots = app.state.heavy = Recorded(1)
        slots.take("another")
        refused: httpx.Response = await client.get("/v1/conversations")
        assert_problem(refused, 503, "SERVICE_UNAVAILABLE")
        assert int(refused.headers["retry-after"]) > 0
