"""Errors on the wire (M)."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from app.api import errors as wire_errors
from app.api.deps import Services
from app.api.errors import STATUS, answer_error
from app.api.wire import MalformedJson, is_deeper
from app.domain import errors as domain_errors
from app.domain.errors import ContextError, RateLimited, ServiceUnavailable
from app.logs import JsonLines
from app.main import create_app
from app.settings import Settings
from tests.api.talk import assert_problem, new_conversation, user
from tests.conftest import started

UNKNOWN_ID = "00000000-0000-7000-8000-000000000000"


def test_the_status_table_is_complete() -> None:
    """M: every error class of the domain and of the wire has its status, and no other has one."""
    classes = {
        kind
        for kind in vars(domain_errors).values()
        if inspect.isclass(kind) and issubclass(kind, ContextError) and kind is not ContextError
    }
    assert set(STATUS) == classes | {MalformedJson}


@pytest.mark.parametrize("kind", list(STATUS), ids=lambda kind: kind.__name__)
def test_every_error_has_its_answer(kind: type[ContextError]) -> None:
    """M: each error class becomes a problem with its own code and status."""
    answer = answer_error(kind("why", {"fact": 1, "status": "kept out"}))
    assert answer.status_code == STATUS[kind]
    assert answer.media_type == wire_errors.MEDIA_TYPE
    assert f'"code":"{kind.code}"'.encode() in answer.body
    assert b'"fact":1' in answer.body
    assert b"kept out" not in answer.body


@pytest.mark.parametrize("kind", [ServiceUnavailable, RateLimited])
def test_what_passes_says_when_to_try_again(kind: type[ContextError]) -> None:
    """M: 503 and 429 carry Retry-After, from the facts where they know better."""
    assert answer_error(kind("busy")).headers["retry-after"] == "1"
    assert answer_error(kind("busy", {"retry_after": 7})).headers["retry-after"] == "7"


async def test_unknown_path(client: httpx.AsyncClient) -> None:
    """M: an unknown path is a 404 problem, with or without a slash at its end."""
    assert_problem(await client.get("/v1/nothing"), 404, "NOT_FOUND")
    assert_problem(await client.get("/v1/conversations/"), 404, "NOT_FOUND")


async def test_wrong_method(client: httpx.AsyncClient) -> None:
    """M: a wrong method is a 405 problem that names the right ones."""
    answer = await client.put("/v1/agents", json={})
    assert_problem(answer, 405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == "GET, POST"


MALFORMED = [
    b"",
    b"{",
    b"nonsense",
    b'{"messages": [',
    b"\xff\xfe{}",
    b'{"a": NaN}',
    b'{"a": Infinity, "b": "\\ud800"}',
    b'{"a": 1e999}',
    b"[" * 100_000,
    b'"\\ud800' + b"[" * 100_000,
]


@pytest.mark.parametrize("body", MALFORMED[1:], ids=range(1, len(MALFORMED)))
async def test_malformed_json(client: httpx.AsyncClient, body: bytes) -> None:
    """M: what is no JSON is a 400 VALIDATION_ERROR on every kind of endpoint."""
    headers = {"content-type": "application/json"}
    for path in ("/v1/conversations", f"/v1/conversations/{UNKNOWN_ID}/messages"):
        answer = await client.post(path, content=body, headers=headers)
        assert_problem(answer, 400, "VALIDATION_ERROR")


async def test_missing_body(client: httpx.AsyncClient) -> None:
    """M: a body that is needed and missing is a 422."""
    for path in ("/v1/conversations", f"/v1/conversations/{UNKNOWN_ID}/messages"):
        assert_problem(await client.post(path), 422, "VALIDATION_ERROR")


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/xml", ";;;", "é"]
)
async def test_other_content_types(client: httpx.AsyncClient, kind: str | None) -> None:
    """M: a body that is not said to be JSON is refused, which keeps web pages out."""
    headers = {} if kind is None else {b"content-type": kind.encode("latin-1")}
    for path in ("/v1/conversations", f"/v1/conversations/{UNKNOWN_ID}/messages"):
        answer = await client.post(path, content=b"{}", headers=headers)
        assert_problem(answer, 422, "VALIDATION_ERROR", "/header/content-type")


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/vnd.x+json"])
async def test_json_content_types(client: httpx.AsyncClient, kind: str) -> None:
    """M: every way to say JSON is taken."""
    headers = {"content-type": kind}
    answer = await client.post("/v1/conversations", content=b"{}", headers=headers)
    assert answer.status_code == 201


async def test_deeply_nested_json(client: httpx.AsyncClient) -> None:
    """M: nesting beyond the limit is refused before anything walks it."""
    path = await new_conversation(client)
    for depth, status in ((90, 201), (101, 422), (900, 422)):
        deep: Any = "x"
        for _ in range(depth):
            deep = [deep]
        answer = await client.post(f"{path}/messages", json={"messages": [user("hi", extra=deep)]})
        assert answer.status_code == status, depth


@pytest.mark.parametrize(("depth", "most", "deeper"), [(3, 3, False), (4, 3, True), (0, 1, False)])
def test_depth_is_counted_in_levels(depth: int, most: int, deeper: bool) -> None:
    """M: a list in a list is two levels."""
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    assert is_deeper(value, most) is deeper


async def test_unknown_fields_are_refused(client: httpx.AsyncClient) -> None:
    """M: unknown envelope fields are named by their pointers, escaped as RFC 6901 says."""
    answer = await client.post("/v1/conversations", json={"a/b~c": 1, "policy": {"nope": 1}})
    assert_problem(answer, 422, "VALIDATION_ERROR", "/a~1b~0c", "/policy/nope")


@pytest.fixture
async def small_client(settings: Settings) -> Any:
    """A client of an app that takes bodies of 1000 bytes."""
    async with started(create_app(replace(settings, max_body_bytes=1000))) as opened:
        yield opened


async def test_oversized_bodies(small_client: httpx.AsyncClient) -> None:
    """M: a body over the limit is 413, whether its size is declared or it comes in chunks."""

    def chunks() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 100

    async def streamed() -> Any:
        for chunk in chunks():
            yield chunk

    headers = {"content-type": "application/json"}
    for path in ("/v1/conversations", f"/v1/conversations/{UNKNOWN_ID}/messages"):
        declared = await small_client.post(path, content=b" " * 1001, headers=headers)
        assert assert_problem(declared, 413, "PAYLOAD_TOO_LARGE")["limit"] == 1000
        chunked = await small_client.post(path, content=streamed(), headers=headers)
        assert_problem(chunked, 413, "PAYLOAD_TOO_LARGE")
    at_limit = await small_client.post(
        "/v1/conversations", content=b"{}" + b" " * 998, headers=headers
    )
    assert at_limit.status_code == 201


WEIRD = [
    "\x00",
    "a\x00b",
    "..%2f",
    "%ED%A0%80",
    "%00",
    "a" * 5000,
    "'; DROP TABLE conversations; --",
    "🜁",
    "{x}",
    "%0a",
    " ",
]


@pytest.mark.parametrize("text", WEIRD, ids=range(len(WEIRD)))
async def test_weird_ids_in_paths(client: httpx.AsyncClient, text: str) -> None:
    """M: an id that cannot be is an id that is not there."""
    quoted = text.replace("\x00", "%00")
    for path in ("/v1/conversations/{}", "/v1/agents/{}", "/v1/models/{}"):
        answer = await client.get(path.format(quoted))
        assert_problem(answer, 404, "NOT_FOUND")
    for suffix in ("messages", "context", "compact"):
        answer = await client.post(f"/v1/conversations/{quoted}/{suffix}", json={"messages": []})
        assert answer.status_code in {404, 422}


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        "limit=-1",
        "limit=x",
        "limit=" + "9" * 5000,
        "limit=%00",
        "limit=%ff",
        "cursor=nonsense",
        "cursor=%00",
        "cursor=" + "A" * 2000,
        "cursor=WzFd",
        "cursor=%F0%9F%9C%81",
    ],
)
async def test_weird_queries(client: httpx.AsyncClient, query: str) -> None:
    """M: every list refuses parameters out of range and cursors it has not given."""
    path = await new_conversation(client)
    for listing in ("/v1/conversations", "/v1/agents", "/v1/models", f"{path}/messages"):
        pointer = f"/query/{query.partition('=')[0]}"
        answer = await client.get(f"{listing}?{query}")
        assert_problem(answer, 422, "VALIDATION_ERROR", pointer)


async def test_unexpected_errors_say_nothing(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """M: what nobody expected is a 500 without internals, and its words are not logged."""

    async def broken(*_arguments: Any) -> Any:
        raise LookupError("secret words")

    app = create_app(settings)
    found: Services = app.state.services
    found.context.build = broken  # type: ignore[method-assign, assignment]
    found.conversations.get = broken  # type: ignore[method-assign, assignment]
    async with started(app) as client:
        path = await new_conversation(client)
        for answer in (await client.post(f"{path}/context"), await client.get(path)):
            body = assert_problem(answer, 500, "INTERNAL")
            assert "secret" not in answer.text and "LookupError" not in answer.text
            assert body["errors"] == []
    lines = [JsonLines().format(record) for record in caplog.records if record.levelname == "ERROR"]
    assert [json.loads(line)["event"] for line in lines] == ["request_failed"] * 2
    assert json.loads(lines[0])["route"] == "/v1/conversations/{conversation_id}/context"
    assert "secret" not in "".join(lines)
