"""Redaction: a canary in messages is nowhere in the database and in no answer afterwards.

[log.redaction, compaction.redaction, epochs.reasons]
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
import pytest_asyncio

from app.database.tables import TABLES
from app.main import create_app
from app.settings import Settings
from tests import fake_llm as behave
from tests.api.talk import append, assert_problem, assistant, new_conversation, talk, user
from tests.conftest import execute, started
from tests.fake_llm import FakeLLM
from tests.judge import refusals

CANARY = "zyxcanaryqqq"
PROVIDERS = ("openai_chat", "openai_responses", "anthropic", "gemini")
MODELS = {"anthropic": "claude-3-opus", "gemini": "gemini/gemini-1.5-pro"}
LARGE = "\n".join(f"line {number} {CANARY}" for number in range(3000))
POLICY = {
    "agent_tools": "none",
    "sandwich": {"preserve_top": 1, "preserve_bottom": 2},
    "budget": {"context_window": 200_000},
}


def chat_call(call_id: str, secret: str) -> dict[str, Any]:
    """Return a call with a secret argument."""
    function = {"name": "shell", "arguments": f'{{"cmd":"{secret}"}}'}
    call = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": f"I run {secret}", "tool_calls": [call]}


def planted() -> dict[str, list[dict[str, Any]]]:
    """Return batches of every format with the canary in texts, arguments, results and media."""
    image = {"url": f"data:image/png;base64,{CANARY}"}
    use = {"type": "tool_use", "name": "ls"}
    answer = {"type": "tool_result"}
    looked = {"functionResponse": {"name": "look", "response": {"output": CANARY}}}
    peeked = {"functionResponse": {"name": "peek", "response": {"it": [CANARY]}}}
    return {
        "openai_chat": [
            user(f"My name is {CANARY}", id="name"),
            assistant(f"Hello {CANARY}"),
            user([{"type": "text", "text": "see"}, {"type": "image_url", "image_url": image}]),
            chat_call("c1", CANARY),
            {"role": "tool", "tool_call_id": "c1", "content": LARGE},
        ],
        "anthropic": [
            user(f"again {CANARY}"),
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": CANARY, "signature": "c2ln"},
                    use | {"id": "a1", "input": {"at": CANARY}},
                    use | {"id": "a2", "input": {"at": "x"}},
                ],
            },
            user(
                [
                    answer | {"tool_use_id": "a1", "content": CANARY},
                    answer | {"tool_use_id": "a2", "content": LARGE + "!"},
                    {"type": "text", "text": CANARY},
                ]
            ),
        ],
        "gemini": [
            {"role": "user", "parts": [{"text": CANARY}]},
            {
                "role": "model",
                "parts": [
                    {"functionCall": {"name": "look", "args": {"at": CANARY}}},
                    {"functionCall": {"name": "peek", "args": {"at": "x"}}},
                ],
            },
            {"role": "user", "parts": [looked, peeked]},
        ],
        "openai_responses": [
            user([{"type": "input_text", "text": CANARY}]),
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": CANARY},
            {"type": "custom_tool_call", "call_id": "r1", "name": "py", "input": CANARY},
            {"type": "function_call", "call_id": "r2", "name": "sh", "arguments": "{}"},
            {"type": "custom_tool_call_output", "call_id": "r1", "output": CANARY},
            {"type": "function_call_output", "call_id": "r2", "output": CANARY * 400},
        ],
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the object store."""
    return tmp_path / "objects"


@pytest_asyncio.fixture
async def clients(
    with_model: Settings, folder: Path, fake_llm: FakeLLM
) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    """Clients of two processes on one database; the model copies the canary when it reads it."""

    def copying(request: behave.Request) -> behave.Behaviour:
        word = CANARY if CANARY in str(request.body) else "tea"
        return behave.answer(f"<summary>They spoke of {word}.</summary>")

    fake_llm.always(copying)
    folder.mkdir()
    settings = with_model.model_copy(update={"blob_store_url": folder.as_uri()})
    async with started(create_app(settings)) as one, started(create_app(settings)) as other:
        yield one, other


async def dump(url: str) -> str:
    """Return every row of every table as text."""
    connection = await asyncpg.connect(url)
    try:
        rows = [
            row[0]
            for name in sorted(TABLES)
            for row in await connection.fetch(f"SELECT CAST({name} AS text) FROM {name}")
        ]
    finally:
        await connection.close()
    return "\n".join(rows).lower()


async def built(
    client: httpx.AsyncClient, path: str, *, clean: bool = True, **ask: Any
) -> dict[str, dict[str, Any]]:
    """Build in every format, judge each payload, and return the answers by format."""
    answers = {}
    for format in PROVIDERS:
        body = {"format": format, "model": MODELS.get(format, "gpt-4o"), **ask}
        answer = await client.post(f"{path}/context", json=body)
        assert answer.status_code == 200, answer.text
        answers[format] = answer.json()
        assert refusals(format, answers[format]["payload"]) == []
        assert not clean or CANARY not in answer.text.lower()
    return answers


async def redact_all(client: httpx.AsyncClient, path: str) -> list[str]:
    """Redact every message that has the canary, and return their ids."""
    ids = []
    page = (await client.get(f"{path}/messages?limit=200&content=full")).json()["data"]
    for item in page:
        if CANARY in str(item):
            answer = await client.post(f"{path}/messages/{item['id']}/redact", json={"reason": "r"})
            assert answer.status_code == 200, answer.text
            assert answer.json()["seq"] == item["seq"]
            ids.append(item["id"])
    return ids


async def test_a_canary_is_nowhere_afterwards(
    clients: tuple[httpx.AsyncClient, httpx.AsyncClient], database_url: str, folder: Path
) -> None:
    """It is in no table, object and answer of two processes, and every payload is valid."""
    one, other = clients
    path = await new_conversation(one, policy=POLICY)
    key = {"Idempotency-Key": "k"}
    first = {"messages": [user("Hi"), assistant("Yes?")]}
    await one.post(f"{path}/messages", json=first, headers=key)
    retried = {"messages": [user(f"once {CANARY}")]}
    stored = await one.post(f"{path}/messages", json=retried, headers={"Idempotency-Key": "k2"})
    for format, messages in planted().items():
        await append(one, path, *messages, format=format)
    await append(one, path, assistant("Done"), *talk(4))
    for client in clients:
        await built(client, path, clean=False)
    compacted = await one.post(f"{path}/compact", json={})
    assert compacted.json()["compacted"], compacted.text
    before = await built(one, path, clean=False)
    assert CANARY in str(before["openai_chat"]["payload"])
    await built(other, path, clean=False)
    forks = []
    source = path
    for at in (None, 8):
        made = await one.post(f"{source}/fork", json={"through_seq": at} if at else {})
        forks.append(f"/v1/conversations/{made.json()['conversation_id']}")
        source = forks[-1]
        await built(one, source, clean=False)
        await built(other, source, clean=False)
    saved = (await one.post(f"{path}/snapshots", json={})).json()["snapshot_id"]
    download = (await one.get(f"/v1/snapshots/{saved}?download=true")).json()
    assert CANARY in str(download) and CANARY in str(download["summary"])
    assert len((await one.get(f"{path}/messages", params={"query": CANARY})).json()["data"]) > 3
    assert CANARY in await dump(database_url)
    cached, *_ = (await one.get(f"{path}/compactions")).json()["data"]

    ids = await redact_all(one, path)
    assert len(ids) >= 14

    assert CANARY not in await dump(database_url)
    for table in ("blobs", "blob_chunks", "blob_uses"):
        assert await execute(database_url, f"SELECT FROM {table}") == []
    assert [file for file in folder.rglob("*") if file.is_file()] == []
    for where in (path, *forks):
        # The other process has these epochs in memory, and is told by the view's version.
        after = await built(other, where)
        assert {item["cache_break_reason"] for item in after.values()} == {"redacted"}
        await built(one, where)
        seen = [await other.get(f"{where}/messages?limit=200&content=full")]
        seen.append(await other.get(f"{where}/messages", params={"query": CANARY}))
        assert seen[-1].json()["data"] == []
        seen.append(await other.get(f"{where}/compactions"))
        seen.append(await other.get(f"{where}/state"))
        seen.append(await other.get(f"{where}/events?follow=false&last_event_id=0.0"))
        assert '"type":"redacted"' in seen[-1].text
        assert all(answer.status_code == 200 for answer in seen)
        assert not any(CANARY in answer.text.lower() for answer in seen)
    for format in PROVIDERS:
        answer = await other.get(f"{path}/context?as_of={before[format]['build_id']}")
        assert_problem(answer, 410, "GONE")
    place = f"{path}/compactions/{cached['compaction_id']}"
    assert (await one.get(place)).json()["status"] == "undone"
    assert_problem(await one.post(f"{place}/undo"), 409, "CONFLICT")
    expanded = await one.get(f"{place}/messages")
    assert expanded.status_code == 200 and CANARY not in expanded.text
    for summary in (await one.get("/v1/snapshots")).json()["data"]:
        shown = await one.get(f"/v1/snapshots/{summary['snapshot_id']}?download=true")
        assert shown.status_code == 200 and CANARY not in shown.text
        for target in ({}, {"conversation_id": (await new_conversation(one)).split("/")[-1]}):
            restore = f"/v1/snapshots/{summary['snapshot_id']}/restore"
            restored = await one.post(restore, json=target)
            assert restored.status_code == 200, restored.text
    again = await one.post(f"{path}/fork", json={})
    await built(other, f"/v1/conversations/{again.json()['conversation_id']}")
    replay = await one.post(f"{path}/messages", json=retried, headers={"Idempotency-Key": "k2"})
    assert replay.status_code == 201 and replay.json()["messages"] == stored.json()["messages"]
    is_due = "SELECT due_at IS NOT NULL FROM states WHERE conversation_id = $1"
    assert await execute(database_url, is_due, path.rpartition("/")[2]) == [(True,)]
    assert (await one.post(f"{path}/compact", json={})).json()["compacted"]
    await built(other, path)
    assert CANARY not in await dump(database_url)


async def test_no_object_of_a_result_is_left(
    clients: tuple[httpx.AsyncClient, httpx.AsyncClient], folder: Path
) -> None:
    """A result that comes again, a retried append and a refused one leave no second object."""
    client, _ = clients
    path = await new_conversation(client, policy=POLICY)
    for call_id in ("c1", "c2"):
        result = {"role": "tool", "tool_call_id": call_id, "content": LARGE}
        await append(client, path, chat_call(call_id, "x"))
        body, key = {"messages": [result]}, {"Idempotency-Key": call_id}
        refused = await client.post(f"{path}/messages", json=body | {"expected_seq": 99})
        assert_problem(refused, 409, "CONFLICT")
        for _ in range(2):
            stored = await client.post(f"{path}/messages", json=body, headers=key)
            assert stored.status_code == 201, stored.text
    assert len([file for file in folder.rglob("*") if file.is_file()]) == 1
    assert len(await redact_all(client, path)) == 2
    assert [file for file in folder.rglob("*") if file.is_file()] == []


@pytest.mark.one_server  # the test runs a statement that Citus refuses
async def test_a_redaction_is_recorded(client: httpx.AsyncClient, database_url: str) -> None:
    """Its record has who, when and why, and stays; a shared blob stays with the other message."""
    path = await new_conversation(client, policy={"agent_tools": "none"})
    call, result = planted()["openai_chat"][3:]
    await append(client, path, user("look"), call, {**result, "id": "one"})
    await append(client, path, chat_call("c2", "x"))
    await append(client, path, {**result, "tool_call_id": "c2", "id": "two"})
    fork = (await client.post(f"{path}/fork", json={"through_seq": 3})).json()["conversation_id"]
    before = (await client.get(f"{path}/messages/one")).json()
    place = f"{path}/messages/one/redact"
    first = await client.post(place, json={"reason": "They asked"})
    assert first.status_code == 200, first.text
    record = first.json()
    assert (record["seq"], record["reason"], record["key_id"]) == (3, "They asked", None)
    assert record["conversation_count"] == 2
    again = await client.post(f"/v1/conversations/{fork}/messages/one/redact")
    assert again.json() | {"redacted_at": 0} == record | {"conversation_count": 0, "redacted_at": 0}
    shown = (await client.get(f"{path}/messages/one")).json()
    changed = {name for name in shown if shown[name] != before[name]}
    assert changed == {"content", "content_truncated", "redacted_at", "output_ref"}
    assert shown["content"] == "[redacted]" and before["redacted_at"] is None
    other = await client.get(f"{path}/messages/two", params={"content": "full"})
    assert other.json()["content"] == LARGE
    later = await client.post(f"/v1/conversations/{path.split('/')[-1]}/messages/two/redact")
    assert later.json()["conversation_count"] == 1
    assert await execute(database_url, "SELECT FROM blobs UNION ALL SELECT FROM blob_chunks") == []
    records = await execute(database_url, "SELECT seq, reason FROM redactions ORDER BY seq, reason")
    assert [tuple(row) for row in records] == [(3, "They asked"), (3, "They asked"), (5, None)]
    answer = await client.post(place, json={"reason": "x" * 501})
    assert_problem(answer, 422, "VALIDATION_ERROR", "/reason")
    for missing in (f"{path}/messages/three/redact", f"{path}x/messages/one/redact"):
        assert_problem(await client.post(missing), 404, "NOT_FOUND")


async def test_concurrent_copies_are_redacted(
    clients: tuple[httpx.AsyncClient, httpx.AsyncClient], database_url: str
) -> None:
    """Forks, builds, compactions, snapshots and searches that run meanwhile keep nothing."""
    one, other = clients
    path = await new_conversation(one, policy=POLICY)
    await append(one, path, user("Hi"), user(f"I am {CANARY}", id="m"), *talk(12))
    asks = [
        *(other.post(f"{path}/fork", json={}) for _ in range(3)),
        *(client.post(f"{path}/context", json={}) for client in (one, other)),
        other.post(f"{path}/compact", json={}),
        other.post(f"{path}/snapshots", json={}),
        other.get(f"{path}/messages", params={"query": CANARY}),
        *(client.post(f"{path}/messages/m/redact") for client in (one, other, one)),
    ]
    answers = await asyncio.gather(*asks)
    assert {answer.status_code for answer in answers} <= {200, 201, 409}
    assert [answer.status_code for answer in answers[-3:]] == [200] * 3
    assert CANARY not in await dump(database_url)
    assert (await one.post(f"{path}/messages/m/redact")).json()["conversation_count"] == 0
