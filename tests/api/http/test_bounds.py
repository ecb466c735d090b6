"""Bounds on the structure of bodies and on the size of problems, on every route.

[api.limits, errors.bounded]
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from app.common.json_text import MAX_MESSAGE_VALUES, StructureLimits
from app.conversations.messages.draft import MAX_TEXT_BYTES
from app.http.errors import MAX_PROBLEM_BYTES
from app.main import create_app
from app.settings import Settings
from tests.api.talk import assert_problem, new_conversation, user
from tests.conftest import started
from tests.snapshot_files import entries, snapshot_file

HEADERS = {"content-type": "application/json"}
UNKNOWN_ID = "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"
VALUES, KEYS = 500, 300


@pytest.fixture
async def tight(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an app with low limits."""
    app = create_app(settings)
    app.state.json_limits = StructureLimits(VALUES, KEYS, 30)
    async with started(app) as opened:
        yield opened


def routes_with_bodies(settings: Settings) -> list[tuple[str, str]]:
    """Return the method and path of every route that takes a JSON body."""
    app = create_app(settings)
    found = [("POST", "/mcp")]
    for route in app.routes:
        if isinstance(route, APIRoute) and route.body_field is not None:
            path = re.sub(r"{conversation_id}|{job_id}|{snapshot_id}", UNKNOWN_ID, route.path)
            path = re.sub(r"{[a-z_:]+}", "x", path)
            found += [(method, path) for method in sorted(route.methods or ())]
    return found


async def test_every_route_bounds_values_keys_and_depth(
    tight: httpx.AsyncClient, settings: Settings
) -> None:
    """A body over a limit is refused by its limit, whatever it is sent to."""
    routes = routes_with_bodies(settings)
    assert len(routes) > 25
    many = b'{"messages":[' + b",".join([b"[]"] * VALUES) + b"]}"
    keys = b"{" + b",".join(b'"k%d":0' % place for place in range(KEYS + 1)) + b"}"
    deep = b'{"a":' * 31 + b"1" + b"}" * 31
    for method, path in routes:
        answer = await tight.request(method, path, content=many, headers=HEADERS)
        assert assert_problem(answer, 413, "PAYLOAD_TOO_LARGE")["limit"] == VALUES, path
        answer = await tight.request(method, path, content=keys, headers=HEADERS)
        found = assert_problem(answer, 413, "PAYLOAD_TOO_LARGE")
        assert "300 JSON keys" in found["detail"], path
        answer = await tight.request(method, path, content=deep, headers=HEADERS)
        assert assert_problem(answer, 422, "VALIDATION_ERROR")["limit"] == 30, path


async def test_a_message_has_a_limit_of_its_own(client: httpx.AsyncClient) -> None:
    """A message over the limit of values is refused by append and import."""
    path = await new_conversation(client)
    for count, status in ((MAX_MESSAGE_VALUES - 20, 201), (MAX_MESSAGE_VALUES, 413)):
        message = user("hi", extra=[[]] * count)
        for target, ask in (
            (f"{path}/messages", {"messages": [user("a"), message]}),
            ("/v1/snapshots", snapshot_file(entries(user("a"), message))),
        ):
            answer = await client.post(target, json=ask)
            assert answer.status_code == status, answer.text
            if status == 413:
                found = assert_problem(answer, 413, "PAYLOAD_TOO_LARGE", "/messages/1")
                assert found["limit"] == MAX_MESSAGE_VALUES
    assert len((await client.get(f"{path}/messages")).json()["data"]) == 2


def _result(text: str) -> list[dict[str, Any]]:
    call = {"id": "call_1", "type": "function", "function": {"name": "t", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": text},
    ]


async def test_a_message_has_a_limit_of_text(client: httpx.AsyncClient) -> None:
    """Text of 4 MiB is stored, and of more refused with the way of larger outputs; media may be
    longer.
    """
    path = await new_conversation(client)
    longest = "é" * (MAX_TEXT_BYTES // 2)
    for text, status in ((longest, 201), (longest + "a", 413)):
        for messages, pointer in ((_result(text), "/messages/1"), ([user(text)], "/messages/0")):
            target = f"{await new_conversation(client)}/messages"
            answer = await client.post(target, json={"messages": messages})
            assert answer.status_code == status, answer.text[:500]
            if status == 413:
                found = assert_problem(answer, 413, "PAYLOAD_TOO_LARGE", pointer)
                assert found["limit"] == MAX_TEXT_BYTES and found["found"] == MAX_TEXT_BYTES + 1
                assert "/blobs" in found["detail"] and "output_ref" in found["detail"]
    url = "data:image/png;base64," + "A" * (MAX_TEXT_BYTES + 4)
    image = {"type": "image_url", "image_url": {"url": url}}
    answer = await client.post(f"{path}/messages", json={"messages": [user([image])]})
    assert answer.status_code == 201, answer.text[:500]
    chat, claude = {"model": "gpt-4o"}, {"model": "claude-sonnet-4-5", "format": "anthropic"}
    for ask in (chat, claude, chat):  # long rows are read apart, and the last build is warm
        await client.post(f"{path}/messages", json={"messages": [user("and?")]})
        answer = await client.post(f"{path}/context", json=ask)
        assert answer.status_code == 200, answer.text[:500]
        assert url.partition(",")[2] in answer.text and "and?" in answer.text


def keys_of(count: int, length: int = 1) -> bytes:
    """Return so many members with different names."""
    return b",".join(b'"%s%d":0' % (b"k" * length, place) for place in range(count))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/tokens/count", b'{"messages":[' + b",".join([b"0"] * 100_000) + b"]}"),
        ("/v1/tokens/count", b'{"' + b"k" * 1_000_000 + b'":0}'),
        ("/v1/tokens/count", b"{" + keys_of(200, 10_000) + b"}"),
        ("/v1/conversations", b'{"sections":[' + b",".join([b"{}"] * 50_000) + b"]}"),
        ("/v1/conversations", b'{"model":"' + b"m" * 100_000 + b'","nope":1}'),
        ("/v1/conversations", b'{"agent_id":"' + "é".encode() * 100_000 + b'"}'),
        (f"/v1/conversations/{UNKNOWN_ID}/messages", b"{" + keys_of(100_000) + b"}"),
        ("/v1/tokens/count", b'{"messages":[],"' + b"\\u00e9" * 50_000 + b'":[]}'),
    ],
    ids=range(8),
)
async def test_a_problem_document_is_bounded(
    client: httpx.AsyncClient, path: str, body: bytes
) -> None:
    """A problem has at most 64 KiB and 100 places, and repeats no long key."""
    answer = await client.post(path, content=body, headers=HEADERS)
    assert answer.status_code == 422, answer.text[:500]
    assert len(answer.content) <= MAX_PROBLEM_BYTES
    found = answer.json()
    assert len(found["errors"]) <= 100
    assert all(len(error["pointer"]) < 1_100 for error in found["errors"])
    assert b"k" * 1_100 not in answer.content
