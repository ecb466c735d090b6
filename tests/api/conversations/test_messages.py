"""`/v1/conversations/{id}/messages` over HTTP.

[log.append-only, log.message-id, log.pairing, log.any-format, transcript.visibility]
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from app.formats.message import NO_RESULT
from app.main import create_app
from app.settings import Settings
from tests.api.talk import (
    append,
    assert_problem,
    assistant,
    calling,
    new_conversation,
    result,
    talk,
    user,
)
from tests.conftest import started
from tests.patience import PATIENCE_SECONDS

JSON = {"content-type": "application/json"}


async def read(client: httpx.AsyncClient, path: str, **query: Any) -> list[dict[str, Any]]:
    """Return the messages of one page."""
    answer = await client.get(f"{path}/messages", params=query)
    assert answer.status_code == 200, answer.text
    data: list[dict[str, Any]] = answer.json()["data"]
    return data


async def test_append_and_read_back(client: httpx.AsyncClient) -> None:
    """Appended messages are returned unchanged, with their positions in the log.

    [log.append-only]
    """
    path = await new_conversation(client)
    given_messages = [
        user([{"type": "text", "text": "é\u2028"}], custom={"a": [1.5, None]}, name="Ann"),
        calling("c1", "c2"),
        result("c1", "one"),
        result("c2", ""),
        assistant("done", reasoning_content="because", timestamp="2026-01-01T00:00:00Z"),
        user("next"),
    ]
    answer = await client.post(f"{path}/messages", json={"messages": given_messages})
    body = answer.json()
    assert answer.headers["location"] == f"{path}/messages"
    assert [entry["seq"] for entry in body["messages"]] == [1, 2, 3, 4, 5, 6]
    assert [entry["turn"] for entry in body["messages"]] == [1, 1, 1, 1, 1, 2]
    assert body["head_seq"] == 6 and body["pressure"] == "ok" and body["notice"] is False
    stored = await read(client, path)
    for place, (item, original) in enumerate(zip(stored, given_messages, strict=True)):
        assert {key: item[key] for key in original} == original
        assert {key: item[key] for key in body["messages"][place]} == body["messages"][place]
        assert path.endswith(item["conversation_id"])


async def test_fields_of_the_service_replace_those_of_the_message(
    client: httpx.AsyncClient,
) -> None:
    """Fields of a message never hide those of the service [log.append-only]."""
    path = await new_conversation(client)
    await append(client, path, user("x", seq=99, turn="y", token_count=-1, agent_id="me"))
    (item,) = await read(client, path)
    assert (item["seq"], item["turn"], item["agent_id"]) == (1, 1, None)
    assert item["given"] == {"seq": 99, "turn": "y", "token_count": -1, "agent_id": "me"}
    assert item["token_count"] > 0


async def test_nul_and_surrogates_are_returned_unchanged(client: httpx.AsyncClient) -> None:
    """NUL and lone surrogates come back; payloads replace them [log.identical-strings]."""
    path = await new_conversation(client)
    raw = rb'{"messages": [{"role": "user", "content": "a\u0000b\ud800c", "k\udfff": 1}]}'
    answer = await client.post(f"{path}/messages", content=raw, headers=JSON)
    assert answer.status_code == 201
    (item,) = await read(client, path)
    assert item["content"] == "a\x00b\ud800c" and item["k\udfff"] == 1
    for name in ("openai_chat", "anthropic"):
        built = await client.post(f"{path}/context", json={"format": name})
        assert "\ufffd" in built.text and "\\ud800" not in built.text


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "/messages"),
    ({"messages": [user("x")] * 1001}, "/messages"),
    ({"messages": ["x"]}, "/messages/0"),
    ({"messages": [user("x"), {"role": "oracle", "content": "x"}]}, "/messages/1/role"),
    ({"messages": [{"content": "x"}]}, "/messages/0/role"),
    ({"messages": [user(5)]}, "/messages/0/content"),
    ({"messages": [user("x", id="")]}, "/messages/0/id"),
    ({"messages": [user("x", id="a\x00")]}, "/messages/0/id"),
    ({"messages": [user("x", id="i" * 257)]}, "/messages/0/id"),
    ({"messages": [user("x", id="a"), user("y", id="a")]}, "/messages/1/id"),
    ({"messages": [calling("a\x00")]}, "/messages/0"),
    ({"messages": [user("x")], "format": "bedrock"}, "/format"),
    ({"messages": [user("x")], "format": "gemini"}, "/messages/0/parts"),
    ({"messages": [user("x")], "expected_seq": -1}, "/expected_seq"),
]


@pytest.mark.parametrize(("body", "pointer"), WRONG, ids=lambda value: str(value)[:50])
async def test_invalid_batches_are_refused(
    client: httpx.AsyncClient, body: dict[str, Any], pointer: str
) -> None:
    """An invalid field is a 422 with its pointer, and nothing is stored."""
    path = await new_conversation(client)
    answer = await client.post(f"{path}/messages", json=body)
    found = assert_problem(answer, 422, "VALIDATION_ERROR")["errors"]
    assert any(place["pointer"].startswith(pointer) for place in found), found
    assert await read(client, path) == []


async def test_a_batch_is_atomic(client: httpx.AsyncClient) -> None:
    """One invalid message refuses the whole batch; a batch of 1000 valid ones is stored."""
    path = await new_conversation(client)
    answer = await client.post(
        f"{path}/messages", json={"messages": [*talk(10), result("nobody's")]}
    )
    assert_problem(answer, 409, "UNPAIRED_TOOL_RESULT")
    assert await read(client, path) == []
    appended = await append(client, path, *talk(1000, "x"))
    assert appended["head_seq"] == 1000


async def test_tool_pairing(client: httpx.AsyncClient) -> None:
    """Orphans and second results are a 409; a call stays open until it is answered.

    [log.open-calls, payload.late-results]
    """
    path = await new_conversation(client)

    async def refused(*messages: dict[str, Any]) -> None:
        answer = await client.post(f"{path}/messages", json={"messages": messages})
        assert_problem(answer, 409, "UNPAIRED_TOOL_RESULT")

    await append(client, path, user("go"), calling("c1", "c2"))
    await refused(result("c3"))
    await refused(result("c1"), result("c1"))
    await append(client, path, result("c1"))
    await refused(result("c1"))
    await append(client, path, user("never mind"))
    await append(client, path, calling("c1"), result("c1"))
    built = (await client.post(f"{path}/context")).json()["payload"]["messages"]
    assert [item["content"] for item in built if item.get("tool_call_id") == "c2"] == [NO_RESULT]
    await append(client, path, result("c2", "the late output"))
    await refused(result("c2"))
    assert [item["seq"] for item in await read(client, path)] == list(range(1, 8))
    again = (await client.post(f"{path}/context")).json()
    assert again["cache_break_reason"] is None
    assert again["payload"]["messages"][: len(built)] == built
    assert "the late output" in str(again["payload"]["messages"][-1]["content"])


async def test_message_ids(client: httpx.AsyncClient) -> None:
    """The same id and content is a no-op, the same id with other content is 409."""
    path = await new_conversation(client)
    first = await append(client, path, user("one", id="m1"), assistant("two", id="m2"))
    again = await append(client, path, user("one", id="m1"))
    assert again["messages"] == first["messages"][:1] and again["head_seq"] == 2
    mixed = await append(client, path, user("one", id="m1"), user("three", id="m3"))
    assert [entry["seq"] for entry in mixed["messages"]] == [1, 3]
    answer = await client.post(f"{path}/messages", json={"messages": [user("other", id="m1")]})
    assert assert_problem(answer, 409, "CONFLICT")["id"] == "m1"
    other = await new_conversation(client)
    await append(client, other, user("other", id="m1"))


async def test_expected_seq(client: httpx.AsyncClient) -> None:
    """Another newest seq than expected is a 409 with the newest seq. [log.expected-seq]"""
    path = await new_conversation(client)
    await append(client, path, user("one"), expected_seq=0)
    answer = await client.post(
        f"{path}/messages", json={"messages": [user("two")], "expected_seq": 0}
    )
    body = assert_problem(answer, 409, "CONFLICT")
    assert (body["head_seq"], body["expected_seq"]) == (1, 0)
    await append(client, path, user("two"), expected_seq=body["head_seq"])


async def test_idempotency_keys(client: httpx.AsyncClient) -> None:
    """A key replays the first answer; with another body it is 409. [log.idempotency-key]"""
    path = await new_conversation(client)
    headers = {"Idempotency-Key": "k1"}
    body = {"messages": [user("one")]}
    first = await client.post(f"{path}/messages", json=body, headers=headers)
    await append(client, path, assistant("two"))
    again = await client.post(f"{path}/messages", json=body, headers=headers)
    assert (again.status_code, again.json()) == (201, first.json())
    for other in ({"messages": [user("two")]}, {**body, "expected_seq": 0}):
        answer = await client.post(f"{path}/messages", json=other, headers=headers)
        assert_problem(answer, 409, "CONFLICT")
    elsewhere = await new_conversation(client)
    answer = await client.post(f"{elsewhere}/messages", json=body, headers=headers)
    assert answer.json()["head_seq"] == 1
    assert len(await read(client, path)) == 2
    for wrong in (b"", b"a b", b"k" * 256, b"\xe9", b"a\x00b"):
        answer = await client.post(
            f"{path}/messages", json=body, headers={b"idempotency-key": wrong}
        )
        assert_problem(answer, 422, "VALIDATION_ERROR", "/header/idempotency-key")


async def test_concurrent_equal_appends(client: httpx.AsyncClient) -> None:
    """Of concurrent equal appends with one key one is stored, and all return the same answer."""
    path = await new_conversation(client)
    posts = [
        client.post(
            f"{path}/messages", json={"messages": [user("one")]}, headers={"Idempotency-Key": "k"}
        )
        for _ in range(8)
    ]
    answers = await asyncio.gather(*posts)
    assert len({answer.text for answer in answers}) == 1
    assert len(await read(client, path)) == 1


async def test_concurrent_writers_with_one_expected_seq(client: httpx.AsyncClient) -> None:
    """Of writers that expect the same newest seq exactly one succeeds [log.concurrent-writers]."""
    path = await new_conversation(client)
    posts = [
        client.post(f"{path}/messages", json={"messages": [user(str(n))], "expected_seq": 0})
        for n in range(8)
    ]
    answers = await asyncio.gather(*posts)
    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 7


weird_text = st.text(st.characters(codec=None), max_size=20)
weird_json = st.recursive(
    st.none() | st.booleans() | st.integers() | weird_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(weird_text, inner, max_size=4),
    max_leaves=12,
)
kinds = st.sampled_from(["text", "image_url", "tool_use", "tool_result", "x"])
part = st.fixed_dictionaries({"type": kinds}, optional={"text": weird_json, "input": weird_json})
call = st.fixed_dictionaries({"id": weird_json, "function": weird_json})
weird_message = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "tool", "system"]) | weird_json,
        "content": weird_json | st.lists(part, max_size=3),
    },
    optional={
        "tool_calls": weird_json | st.lists(call, max_size=2),
        **dict.fromkeys(("tool_call_id", "reasoning_content", "name", "id"), weird_json),
    },
)


async def test_no_message_gives_a_500(settings: Settings) -> None:
    """An append of any message is a 201, 409 or 422, and the transcript can be read."""
    async with started(create_app(settings)) as client:
        loop = asyncio.get_running_loop()

        @hypothesis_settings(
            max_examples=75, deadline=None, suppress_health_check=list(HealthCheck)
        )
        @given(st.lists(weird_message, max_size=3), st.sampled_from(["openai_chat", "anthropic"]))
        def check(messages: list[dict[str, Any]], name: str) -> None:
            async def run() -> None:
                path = await new_conversation(client)
                raw = json.dumps({"messages": messages, "format": name})
                answer = await client.post(f"{path}/messages", content=raw, headers=JSON)
                assert answer.status_code in {201, 409, 422}, answer.text
                page = await client.get(f"{path}/messages")
                assert page.status_code == 200
                if answer.status_code == 201 and answer.json()["head_seq"]:  # not a section alone
                    for shown in ("openai_chat", "anthropic"):
                        built = await client.post(f"{path}/context", json={"format": shown})
                        assert built.status_code == 200, built.text

            asyncio.run_coroutine_threadsafe(run(), loop).result(PATIENCE_SECONDS)

        await asyncio.to_thread(check)


async def test_a_concurrent_retry_stores_one_message(client: httpx.AsyncClient) -> None:
    """A retry that overtakes the first attempt stores nothing and is no error [log.message-id]."""
    path = await new_conversation(client)
    for number in range(5):
        body = {"messages": [user("same", id=f"m{number}")]}
        answers = await asyncio.gather(
            *(client.post(f"{path}/messages", json=body) for _ in range(6))
        )
        assert [answer.status_code for answer in answers] == [201] * 6
        assert {answer.json()["messages"][0]["seq"] for answer in answers} == {number + 1}
