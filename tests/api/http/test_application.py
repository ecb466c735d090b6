"""The middleware of the application, and the requests that go to their route without FastAPI's."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import APIRouter, Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.common.concurrency import Slots
from app.http import errors
from app.http.application import Application
from app.http.dependencies import ConversationPath
from app.http.routing import WireRoute, direct
from app.tenancy.api_keys import Caller
from tests.api.talk import new_conversation

router = APIRouter(route_class=WireRoute)


class Found:
    """The services that a direct route needs."""

    conversation_keys = None


@router.post("/c/{conversation_id}/direct")
@direct
async def direct_endpoint(
    request: Request, conversation_id: ConversationPath, body: dict[str, Any] | None = None
) -> Response:
    """Answer with what the route has found."""
    route = request.scope["route"].path
    return Response(f"{conversation_id} {route} {'router' in request.scope}")


@router.get("/fails")
async def failing_endpoint() -> Response:
    """Fail outside of the route, when the response is sent."""

    class Failing(Response):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            raise LookupError("secret words")

    return Failing()


@pytest.fixture
def application() -> Application:
    """An application with one direct route, one other route and two outer middlewares."""
    app = Application(redirect_slashes=False)
    app.router.routes.extend(router.routes)
    errors.install(app)
    app.state.services, app.state.max_body_bytes = Found(), 100
    app.state.heavy = Slots("heavy", 1, 1)
    app.add_outer_middleware(_named("inner"))
    app.add_outer_middleware(_named("outer"))
    return app


def _named(name: str) -> Any:
    def middleware(app: ASGIApp) -> ASGIApp:
        async def handle(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                scope["caller"] = Caller("tenant")

            async def send_named(message: Any) -> None:
                if message["type"] == "http.response.start":
                    header = (b"x-passed", name.encode())
                    message["headers"] = [*message["headers"], header]
                await send(message)

            await app(scope, receive, send_named)

        return handle

    return middleware


def client_of(app: ASGIApp) -> httpx.AsyncClient:
    """Return a client of the app that sees errors as responses only."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test")


async def test_a_direct_route_is_called_without_the_router(application: Application) -> None:
    """A request of its method and path has the route and the id, and did not pass the router."""
    async with client_of(application) as client:
        for _ in range(2):  # the first request builds the middleware
            answer = await client.post("/c/one/direct")
            assert answer.text.endswith(" /c/{conversation_id}/direct False")
            assert answer.headers.get_list("x-passed") == ["inner", "outer"]


async def test_an_encoded_id_is_the_same_on_both_ways(client: httpx.AsyncClient) -> None:
    """The direct route of an append decodes ids as the other routes do."""
    answer = await client.post("/v1/conversations", json={"conversation_id": "a b:c~d"})
    assert answer.status_code == 201, answer.text
    body = {"messages": [{"role": "user", "content": "hello"}]}
    appended = await client.post("/v1/conversations/a%20b%3Ac%7Ed/messages", json=body)
    assert appended.status_code == 201, appended.text
    assert appended.headers["location"] == "/v1/conversations/a%20b%3Ac~d/messages"
    assert (await client.get(appended.headers["location"])).json()["data"][0]["seq"] == 1
    plain = await client.post(f"{await new_conversation(client)}/messages", json=body)
    assert plain.headers["location"].endswith("/messages")
