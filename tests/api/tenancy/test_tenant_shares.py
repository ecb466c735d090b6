"""Shares of a process, over HTTP with two tenants. [quotas.fair-share]"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx

from app.common.errors import RateLimited
from app.main import create_app
from app.settings import Settings
from tests.api.talk import assert_problem, new_conversation
from tests.conftest import serving
from tests.keys import create
from tests.patience import PATIENCE_SECONDS


@asynccontextmanager
async def tenants(settings: Settings, base: str) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Yield clients of two tenants."""
    async with AsyncExitStack() as stack:
        clients = []
        for tenant in ("acme", "other"):
            key = await create(tenant, "tests", None, settings)
            opened = httpx.AsyncClient(base_url=base, headers={"Authorization": f"Bearer {key}"})
            clients.append(await stack.enter_async_context(opened))
        yield clients


async def test_streams_of_one_tenant_leave_room_for_others(settings: Settings) -> None:
    """A tenant at its limit of streams gets 429, while another tenant opens one."""
    limited = settings.model_copy(update={"events_max_streams": 8})
    with serving(create_app(limited)) as base:
        async with tenants(settings, base) as (acme, other), AsyncExitStack() as stack:
            paths = [await new_conversation(client) for client in (acme, other)]
            lines: list[AsyncIterator[str]] = []
            for _ in range(2):
                stream = acme.stream("GET", f"{paths[0]}/events")
                opened = await stack.enter_async_context(stream)
                lines.append(opened.aiter_lines())  # it would close the stream when it is gone
                await anext(lines[-1])
            refused = await acme.get(f"{paths[0]}/events")
            assert assert_problem(refused, 429, "RATE_LIMITED")["kind"] == "event_streams"
            assert int(refused.headers["retry-after"]) > 0
            async with other.stream("GET", f"{paths[1]}/events") as opened:
                assert opened.status_code == 200


async def test_heavy_requests_of_one_tenant_leave_room_for_others(settings: Settings) -> None:
    """Running uploads count towards their tenant's limit only."""
    limited = settings.model_copy(update={"heavy_requests": 4})
    app = create_app(limited)
    app.state.heavy.wait_seconds = 0

    def is_begun() -> bool:
        try:
            app.state.heavy.check("acme")
        except RateLimited:
            return True
        return False

    with serving(app) as base:
        async with tenants(settings, base) as (acme, other):
            paths = [await new_conversation(client) for client in (acme, other)]
            going = asyncio.Event()

            async def slowly() -> AsyncIterator[bytes]:
                yield b"begun"
                await going.wait()

            async def upload() -> httpx.Response:
                return await acme.post(
                    f"{paths[0]}/blobs", content=slowly(), timeout=PATIENCE_SECONDS
                )

            uploads = [asyncio.create_task(upload()) for _ in range(2)]
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while not is_begun():
                        await asyncio.sleep(0.05)
                refused = await acme.post(f"{paths[0]}/blobs", content=b"x")
                assert assert_problem(refused, 429, "RATE_LIMITED")["kind"] == "heavy_requests"
                assert (await acme.get(paths[0])).status_code == 200
                done = await other.post(f"{paths[1]}/blobs", content=b"x")
                assert done.status_code == 201
            finally:
                going.set()
                assert [(await each).status_code for each in uploads] == [201, 201]
            assert (await acme.post(f"{paths[0]}/blobs", content=b"x")).status_code == 201
