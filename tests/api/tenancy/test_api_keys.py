"""Requests with and without keys, over HTTP. [tenancy.key-required]"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import httpx
import pytest_asyncio

from app.http.middleware import PUBLIC_PATHS
from app.main import create_app
from app.settings import Settings
from app.tenancy.limits import TenantLimits
from tests.api.http.openapi_document import OPERATIONS
from tests.api.talk import assert_problem, new_conversation
from tests.conftest import started
from tests.keys import create


@pytest_asyncio.fixture
async def key(settings: Settings) -> str:
    """A key of the tenant acme."""
    return await create("acme", "tests", None, settings)


@pytest_asyncio.fixture
async def guarded(settings: Settings, key: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client without a key of a service that requires one."""
    async with started(create_app(settings)) as opened:
        yield opened


def bearer(key: str) -> dict[str, str]:
    """Return the header with a key."""
    return {"Authorization": f"Bearer {key}"}


async def test_every_operation_requires_a_key(guarded: httpx.AsyncClient, key: str) -> None:
    """Without a key all but the open paths are 401, whatever else is wrong with the request.

    A path that does not exist is one of them, so that a stranger learns nothing.

    [errors.problem-json]
    """
    calls = [(method, path) for method, path, _ in OPERATIONS] + [("get", "/v1/nothing")]
    for method, path in calls:
        for headers in ({}, {"Authorization": "Basic x"}, bearer("x"), bearer(key + "x")):
            answer = await guarded.request(method, path, headers=headers)
            if path in PUBLIC_PATHS:
                assert answer.status_code == 200
            else:
                assert_problem(answer, 401, "UNAUTHENTICATED")
                assert answer.headers["www-authenticate"] == "Bearer"
    assert (await guarded.get("/openapi.json")).status_code == 200
    assert (await guarded.get("/docs")).status_code in (200, 404)  # as it is built or not
    assert (await guarded.get("/v1/agents", headers=bearer(key))).status_code == 200


async def test_a_refusal_reads_no_body(guarded: httpx.AsyncClient) -> None:
    """The body of an unauthenticated upload is not read. [tenancy.not-found]"""

    async def body() -> AsyncIterator[bytes]:
        yield b"x"
        raise AssertionError("the body was read")

    answer = await guarded.post(
        "/v1/conversations/0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b/blobs", content=body()
    )
    assert_problem(answer, 401, "UNAUTHENTICATED")


async def statuses_of(client: httpx.AsyncClient, hosts: Iterable[str]) -> dict[str, int]:
    """Return the status of a request with each `Host`; a refusal is FORBIDDEN."""
    found = {}
    for host in hosts:
        answer = await client.get("/v1/agents", headers={"Host": host})
        found[host] = answer.status_code
        if answer.status_code != 200:
            assert_problem(answer, 403, "FORBIDDEN")
    return found


async def test_without_a_key_names_of_pages_are_refused(
    settings: Settings, client: httpx.AsyncClient
) -> None:
    """A page that rebinds its name to the loopback gets FORBIDDEN; with a key any name goes."""
    own = ("127.0.0.1:8080", "[::1]:8080", "localhost", "context.localhost:8080", "api:8080")
    other = ("evil.example", "127.0.0.1.evil.example:8080", "[::1.evil.example", "a.b@[", "[]:8080")
    expected = dict.fromkeys(own, 200) | dict.fromkeys(other, 403)
    assert await statuses_of(client, expected) == expected
    trusting = settings.model_copy(update={"allow_unauthenticated": True, "allowed_hosts": ("*",)})
    async with started(create_app(trusting)) as trusted:
        assert set((await statuses_of(trusted, expected)).values()) == {200}
    client.headers.update(bearer(await create("acme", "", None, settings)))
    assert set((await statuses_of(client, expected)).values()) == {200}


async def test_names_can_be_allowed(settings: Settings) -> None:
    """Who listens for others without a key names the hosts; a page of theirs is still refused.

    That something else keeps strangers out does not keep out the pages in a browser inside.

    [errors.problem-json, tenancy.loopback-names]
    """
    allowed = ("context.svc.example", "Other.example")
    given = {"allow_unauthenticated": True, "allowed_hosts": allowed}
    async with started(create_app(settings.model_copy(update=given))) as client:
        own = ("context.svc.example", "CONTEXT.svc.example:8080", "other.example", "127.0.0.1:8080")
        other = ("evil.example", "svc.example", "x" * 2_000 + ".example")
        expected = dict.fromkeys(own, 200) | dict.fromkeys(other, 403)
        assert await statuses_of(client, expected) == expected
        headers = {"Host": "other.example", "Origin": "https://evil.example"}
        assert (await client.get("/v1/agents", headers=headers)).status_code == 403


async def test_without_a_key_pages_of_others_are_refused(
    settings: Settings, client: httpx.AsyncClient
) -> None:
    """A page cannot clear, fork or compact by a request that needs no leave of its browser."""
    await client.post("/v1/agents", json={"agent_id": "bot", "name": "Bot"})
    own = ("http://127.0.0.1:8080", "http://localhost:3000")
    other = ("https://evil.example", "http://127.0.0.1.evil.example", "null", "http://[]")
    for header in ({}, bearer(await create("default", "", None, settings))):
        for origin in (*own, *other):
            headers = {"Origin": origin, "Host": "127.0.0.1:8080", **header}
            answer = await client.post("/v1/agents/bot/clear", headers=headers)
            if header or origin in own:
                assert answer.status_code == 200
            else:
                assert_problem(answer, 403, "FORBIDDEN")


async def test_the_first_key_makes_keys_required(
    client: httpx.AsyncClient, settings: Settings
) -> None:
    """What was stored before stays the default tenant's, and a key of it opens it again.

    [tenancy.default]
    """
    path = await new_conversation(client)
    mine = await create("default", "", None, settings)
    other = await create("other", "", None, settings)
    assert (await client.get(path, headers=bearer(mine))).status_code == 200
    assert_problem(await client.get(path, headers=bearer(other)), 404, "NOT_FOUND")
    assert_problem(await client.get(path), 401, "UNAUTHENTICATED")


async def test_too_many_requests_are_429(settings: Settings, key: str) -> None:
    """RATE_LIMITED with Retry-After; other tenants and the open paths go on. [api.limits]"""
    other, app = await create("other", "", None, settings), create_app(settings)
    async with started(app) as client:
        await app.state.services.limits.set("acme", TenantLimits(requests_per_minute=3))
        answers = [await client.get("/v1/agents", headers=bearer(key)) for _ in range(12)]
        refused = [answer for answer in answers if answer.status_code != 200]
        # The clock's minute may end in between, and then three more are let in.
        assert 6 <= len(refused) <= 9
        for answer in refused:
            problem = assert_problem(answer, 429, "RATE_LIMITED")
            assert problem["limit"] == 3
            assert 1 <= int(answer.headers["retry-after"]) <= 61
        assert (await client.get("/v1/agents", headers=bearer(other))).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
