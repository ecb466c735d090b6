"""What is seen of requests: their ids, their log lines and `/metrics`.

[operation.metrics, operation.request-id]
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from app.http.middleware import RequestLoggingMiddleware
from app.main import create_app
from app.settings import Settings
from tests.api.talk import assert_problem, new_conversation
from tests.conftest import started
from tests.logged import Lines, lines

__all__ = ["lines"]

UUID_LENGTH = 36
TRACE = "0af7651916cd43dd8448eb211c80319c"


class Counted:
    """The recorded requests."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, str, int]] = []
        self.open_streams = 0

    def answered(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """Note it."""
        self.answers.append((method, route, status))

    def streaming(self, change: int) -> None:
        """Note it."""
        self.open_streams += change


# --- ids --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/healthz", 200),
        ("GET", "/metrics", 200),
        ("GET", "/openapi.json", 200),
        ("GET", "/v1/conversations", 200),
        ("POST", "/v1/conversations", 201),
        ("POST", "/v1/conversations?limit=1", 422),
        ("GET", "/v1/conversations/unknown", 404),
        ("GET", "/nowhere", 404),
        ("PATCH", "/v1/conversations", 405),
        ("GET", "/v1/conversations?limit=0", 422),
    ],
)
async def test_every_response_has_an_id(
    client: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    """An answer of any kind has the id that was sent, or else one of its own."""
    body: dict[str, Any] | None = {} if method == "POST" else None
    answer = await client.request(method, path, json=body, headers={"X-Request-Id": "mine-1"})
    assert answer.status_code == status, answer.text
    assert answer.headers.get_list("x-request-id") == ["mine-1"]
    first, second = [await client.request(method, path, json=body) for _ in range(2)]
    ids = {first.headers["x-request-id"], second.headers["x-request-id"]}
    assert {len(id) for id in ids} == {UUID_LENGTH} and len(ids) == 2
    if status >= 400:
        for given in (answer, first):
            assert given.json()["request_id"] == given.headers["x-request-id"]


# --- errors above the routes ------------------------------------------------------------------


async def test_an_error_after_the_start_of_a_response(lines: Lines) -> None:
    """An interrupted response is logged with the status of its start. [errors.codes]"""

    async def fail(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise LookupError("secret words")

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    counted = Counted()
    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    await RequestLoggingMiddleware(fail, counted, access_log=True)(scope, send, send)  # type: ignore[arg-type]
    assert [message["type"] for message in sent] == ["http.response.start"]
    assert counted.answers == [("GET", "none", 200)]
    assert len(lines.told("request_failed")) == 1


# --- lines ------------------------------------------------------------------------------------


async def test_the_log_line_of_a_request(client: httpx.AsyncClient, lines: Lines) -> None:
    """One line has method, template, status, time, tenant, key, id and trace; no path."""
    path = await new_conversation(client)
    lines.texts.clear()
    parent = f"00-{TRACE}-b7ad6b7169203331-01"
    headers = {"X-Request-Id": "one", "traceparent": parent}
    await client.get(f"{path}/messages?limit=7&query=zebra", headers=headers)
    (text,) = lines.texts
    line = json.loads(text)
    assert line.pop("duration_ms") > 0
    assert line.pop("pid") > 0
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "logger": "app.requests",
        "event": "request",
        "request_id": "one",
        "method": "GET",
        "route": "/v1/conversations/{conversation_id}/messages",
        "status": 200,
        "tenant_id": "default",
        "key_id": None,
        "trace_id": TRACE,
    }


# --- who may read the metrics -----------------------------------------------------------------


async def test_the_token_of_the_metrics(settings: Settings) -> None:
    """With a token in the settings `/metrics` requires it."""
    async with started(
        create_app(settings.model_copy(update={"metrics_token": "s3cret"}))
    ) as client:
        for given in ("", "Bearer", "Bearer wrong", "Basic s3cret", "s3cret"):
            answer = await client.get("/metrics", headers={"Authorization": given})
            assert_problem(answer, 401, "UNAUTHENTICATED")
            assert answer.headers["www-authenticate"] == "Bearer"
        answer = await client.get("/metrics", headers={"Authorization": "Bearer s3cret"})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
