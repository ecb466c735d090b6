"""Shares of a process and limits of tenants, over HTTP with two tenants.

[quotas.fair-share, quotas.requests]
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx

from app.domain.common.errors import RateLimited
from app.domain.tenancy.quotas import TenantLimits
from app.keys import create, set_limits
from app.main import create_app
from app.settings import Settings
from tests.api.talk import assert_problem, new_conversation, user
from tests.conftest import serving, started
from tests.patience import PATIENCE_SECONDS
from tests.snapshot_files import entries, snapshot_file


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
    limited = settings.model_copy(
        update={"events_max_streams": 3, "events_max_streams_per_tenant": 2}
    )
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
            assert assert_problem(refused, 429, "RATE_LIMITED")["kind"] == "streams"
            assert int(refused.headers["retry-after"]) > 0
            async with other.stream("GET", f"{paths[1]}/events") as opened:
                assert opened.status_code == 200


async def test_heavy_requests_of_one_tenant_leave_room_for_others(settings: Settings) -> None:
    """Running uploads count towards their tenant's limit only."""
    limited = settings.model_copy(update={"heavy_requests": 3, "heavy_requests_per_tenant": 2})
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


async def test_a_download_counts_until_its_last_byte(settings: Settings) -> None:
    """A download counts until the last byte of its response is sent."""
    limited = settings.model_copy(update={"heavy_requests_per_tenant": 1})
    app = create_app(limited)
    app.state.heavy.wait_seconds = 0
    with serving(app) as base:
        async with tenants(settings, base) as (acme, _):
            path = await new_conversation(acme)
            blob = (await acme.post(f"{path}/blobs", content=b"x" * 30_000_000)).json()["id"]
            content = f"{path}/blobs/{blob}/content"
            async with acme.stream("GET", content) as opened:
                assert opened.status_code == 200
                assert_problem(await acme.get(content), 429, "RATE_LIMITED")
            async with asyncio.timeout(PATIENCE_SECONDS):
                while (await acme.get(content)).status_code != 200:
                    await asyncio.sleep(0.05)


async def test_copies_count_as_bytes_that_were_sent(settings: Settings) -> None:
    """Bytes that a fork or restore copies count towards the day's limit."""
    limited = settings.model_copy(update={"bytes_per_day": 50_000})
    async with started(create_app(limited)) as client:
        path = await new_conversation(client)
        batch = {"messages": [user("x" * 15_000)]}
        assert (await client.post(f"{path}/messages", json=batch)).status_code == 201
        assert (await client.post(f"{path}/fork")).status_code == 201
        saved = (await client.post(f"{path}/snapshots")).json()["session_id"]
        refused = await client.post(f"{path}/fork", json={"at_seq": 0})
        assert refused.status_code == 201, "nothing is copied"
        target = await new_conversation(client)
        ask = {"conversation_id": target.rpartition("/")[2]}
        restored = await client.post(f"/v1/snapshots/{saved}/restore", json=ask)
        assert restored.status_code == 200, restored.text
        assert_problem(await client.post(f"{path}/fork"), 429, "RATE_LIMITED")
        other = await new_conversation(client)
        ask = {"conversation_id": other.rpartition("/")[2]}
        again = await client.post(f"/v1/snapshots/{saved}/restore", json=ask)
        assert_problem(again, 429, "RATE_LIMITED")


async def test_a_tenant_stores_up_to_its_limit(settings: Settings) -> None:
    """Over its limit a tenant cannot append, upload, import or copy until it deletes data."""
    await set_limits("default", TenantLimits(storage_bytes=100_000), True, settings)
    async with started(create_app(settings)) as client:
        path = await new_conversation(client)
        batch = {"messages": [user("x" * 60_000)]}
        assert (await client.post(f"{path}/messages", json=batch)).status_code == 201
        file = snapshot_file(entries(user("x" * 60_000)))
        refusals = [
            await client.post(f"{path}/messages", json=batch),
            await client.post(f"{path}/blobs", content=b"x" * 60_000),
            await client.post(f"{path}/fork"),
            await client.post("/v1/snapshots", json=file),
        ]
        for refused in refusals:
            assert assert_problem(refused, 413, "STORAGE_LIMIT")["limit"] == 100_000
        assert (await client.get(f"{path}/messages")).status_code == 200
        assert (await client.delete(path)).status_code == 200
        await asyncio.sleep(1.1)
        path = await new_conversation(client)
        assert (await client.post(f"{path}/messages", json=batch)).status_code == 201
