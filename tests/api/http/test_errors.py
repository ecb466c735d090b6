"""Errors on the wire. [errors.problem-json]"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from app.common.errors import ContextError
from app.common.logs import JsonLines
from app.composition import Services
from app.http import errors as wire_errors
from app.http.errors import answer_error, kinds_of
from app.main import ROUTERS, create_app
from app.settings import Settings
from tests.api.http.openapi_document import OPERATIONS, schema_of
from tests.api.talk import assert_problem, new_conversation
from tests.conftest import started

UNKNOWN_ID = "00000000-0000-7000-8000-000000000000"


@pytest.mark.parametrize("kind", list(kinds_of()), ids=lambda kind: kind.__name__)
def test_every_error_has_its_response(kind: type[ContextError]) -> None:
    """Each error class becomes a problem with its own code and status. [errors.codes]"""
    answer = answer_error(kind("why", {"fact": 1, "status": "kept out"}))
    assert answer.status_code == kind.status >= 400
    assert answer.media_type == wire_errors.MEDIA_TYPE
    assert f'"code":"{kind.code}"'.encode() in answer.body
    assert b'"fact":1' in answer.body
    assert b"kept out" not in answer.body


async def test_wrong_method(client: httpx.AsyncClient) -> None:
    """A wrong method is a 405 problem that names the right ones."""
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
    b"[" * 90,
    b'"\\ud800' + b"[" * 90,
    b'{"caf\xe9": 1}',
    b'{"a": "\\ud800 \xff"}',
    '{"a": 1}'.encode("utf-16"),
]


@pytest.mark.parametrize("body", MALFORMED[1:], ids=range(1, len(MALFORMED)))
async def test_malformed_json(client: httpx.AsyncClient, body: bytes) -> None:
    """What is no JSON is a 400 VALIDATION_ERROR on every kind of endpoint. [api.json-only]"""
    headers = {"content-type": "application/json"}
    for path in ("/v1/conversations", f"/v1/conversations/{UNKNOWN_ID}/messages"):
        answer = await client.post(path, content=body, headers=headers)
        assert_problem(answer, 400, "VALIDATION_ERROR")


@pytest.mark.parametrize("coding", ["gzip", " GZIP", "br", "identity, gzip", "x" * 1000])
async def test_coded_bodies(client: httpx.AsyncClient, coding: str) -> None:
    """A compressed body is a 415 that names the header, on every kind of endpoint. [api.limits]"""
    headers = {"content-type": "application/json", "content-encoding": coding}
    for path in ("/v1/conversations", f"/v1/conversations/{UNKNOWN_ID}/messages"):
        answer = await client.post(path, content=gzip.compress(b"{}"), headers=headers)
        found = assert_problem(answer, 415, "VALIDATION_ERROR", "/header/content-encoding")
        assert f"Content-Encoding {coding.strip()[:40]}" in found["detail"]
        assert answer.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/xml", ";;;", "é"]
)
async def test_other_content_types(client: httpx.AsyncClient, kind: str | None) -> None:
    """A body that is not said to be JSON is refused, which keeps web pages out. [api.limits]"""
    headers = {} if kind is None else {b"content-type": kind.encode("latin-1")}
    for path in ("/v1/conversations", f"/v1/conversations/{UNKNOWN_ID}/messages"):
        answer = await client.post(path, content=b"{}", headers=headers)
        assert_problem(answer, 422, "VALIDATION_ERROR", "/header/content-type")


BODIES = [
    each
    for each in OPERATIONS
    if "application/json" in each[2].get("requestBody", {}).get("content", ())
]


@pytest.mark.parametrize(("method", "path", "operation"), BODIES)
async def test_every_operation_refuses_unknown_fields(
    client: httpx.AsyncClient, method: str, path: str, operation: dict[str, Any]
) -> None:
    """Also beside the fields of an example. [api.unknown-fields]"""
    example = schema_of(operation["requestBody"])["examples"][0]
    url = re.sub(r"{\w+}", UNKNOWN_ID, path)
    answer = await client.request(method, url, json=example | {"zzz": 1})
    places = assert_problem(answer, 422, "VALIDATION_ERROR")["errors"]
    assert places == [{"pointer": "/zzz", "detail": "is an unknown field"}]


@pytest.fixture
async def small_client(settings: Settings) -> Any:
    """A client of an app that takes bodies of 1000 bytes."""
    async with started(create_app(settings.model_copy(update={"max_body_bytes": 1000}))) as opened:
        yield opened


async def test_oversized_bodies(small_client: httpx.AsyncClient) -> None:
    """A body over the limit is 413, whether its size is declared or it comes in chunks."""

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


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "limit=%ff", "cursor=nonsense", "cursor=WzFd"]
)
async def test_invalid_query_parameters_are_refused(client: httpx.AsyncClient, query: str) -> None:
    """Every list refuses parameters out of range and cursors it has not given."""
    path = await new_conversation(client)
    for listing in ("/v1/conversations", "/v1/agents", "/v1/models", f"{path}/messages"):
        pointer = f"/query/{query.partition('=')[0]}"
        answer = await client.get(f"{listing}?{query}")
        assert_problem(answer, 422, "VALIDATION_ERROR", pointer)


ROUTES = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.operation_id)
async def test_unknown_parameters(client: httpx.AsyncClient, route: APIRoute) -> None:
    """Every operation under /v1 refuses parameters that it does not have, before all else."""
    path = route.path_format
    for name in route.param_convertors:
        path = path.replace(f"{{{name}}}", UNKNOWN_ID)
    assert route.methods is not None
    (method,) = route.methods
    answer = await client.request(method, f"{path}?limit~=5&%ff=&limit~=6")
    if path.startswith("/v1/"):
        pointers = [place["pointer"] for place in answer.json()["errors"]]
        assert_problem(answer, 422, "VALIDATION_ERROR")
        assert pointers == ["/query/limit~0", "/query/\ufffd"]
    else:
        assert answer.status_code == 200


async def test_unexpected_errors_have_no_details(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """What nobody expected is a 500 without internals, and its words are not logged."""

    async def broken(*_arguments: Any) -> Any:
        raise LookupError("secret words")

    app = create_app(settings)
    found: Services = app.state.services
    found.context.build = broken  # type: ignore[method-assign, assignment]
    found.conversations.clear = broken  # type: ignore[method-assign, assignment]
    async with started(app) as client:
        path = await new_conversation(client)
        for answer in (await client.post(f"{path}/context"), await client.post(f"{path}/clear")):
            body = assert_problem(answer, 500, "INTERNAL")
            assert "secret" not in answer.text and "LookupError" not in answer.text
            assert body["errors"] == []
    lines = [JsonLines().format(record) for record in caplog.records if record.levelname == "ERROR"]
    assert [json.loads(line)["event"] for line in lines] == ["request_failed"] * 2
    assert json.loads(lines[0])["route"] == "/v1/conversations/{conversation_id}/context"
    assert "secret" not in "".join(lines)
