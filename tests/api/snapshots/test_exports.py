"""`/v1/conversations/{id}/export` and `/v1/conversations/import`."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.api.talk import append, assert_problem, calling, new_conversation, result, talk, user

ID = "0199a1b2-9f8e-7d6c-8b5a-4c3d2e1f0a9b"
OWN_ID = "customer 42: tïcket"
SECRET = "my number is 4711-0815"


async def exported(client: httpx.AsyncClient, path: str) -> bytes:
    """Return the export of a conversation."""
    answer = await client.get(f"{path}/export")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return answer.content


async def imported(client: httpx.AsyncClient, body: bytes, **query: str) -> str:
    """Import an export and return the path of the new conversation."""
    answer = await client.post("/v1/conversations/import", content=body, params=query)
    assert answer.status_code == 201, answer.text
    return answer.headers["location"]


def after_first(export: bytes) -> bytes:
    """Return the lines that do not name the conversation and its times."""
    return export.partition(b"\n")[2]


async def payload(client: httpx.AsyncClient, path: str, **body: Any) -> Any:
    """Return the payload of a build, without the key that is the conversation's id."""
    answer = await client.post(f"{path}/context", json=body)
    assert answer.status_code == 200, answer.text
    built = answer.json()["payload"]
    return {name: value for name, value in built.items() if name != "prompt_cache_key"}


async def test_an_export_has_everything_to_go_on(client: httpx.AsyncClient) -> None:
    """Log, blob, settings, pins, a compaction, a rewind and open calls. [exports.format]"""
    path = await new_conversation(
        client,
        model="gpt-4o",
        metadata={"a": "ü"},
        expires_at="2100-01-01T00:00:00Z",
        sections=[{"name": "base", "content": "Be careful."}],
        policy={"strategy": "sliding_window", "sliding_window": {"keep_last_n": 4}},
    )
    output = "a line of output\n" * 20_000
    await append(client, path, user("look", id="first"), calling("c1"), result("c1", output))
    await append(client, path, *talk(12), user(SECRET, id="secret"))
    pinned = await client.put(f"{path}/messages/first/pin")
    assert pinned.status_code < 300, pinned.text
    compacted = await client.post(f"{path}/compact", json={})
    assert compacted.status_code == 200, compacted.text
    await append(client, path, user("not this"))
    rewound = await client.post(f"{path}/rewind", json={"to_seq": 16})
    assert rewound.json()["message_count"] == 1
    await append(client, path, user("again"), calling("c2", "c3"), result("c3"))
    redacted = await client.post(f"{path}/messages/secret/redact", json={"reason": "asked"})
    assert redacted.status_code == 200, redacted.text
    export = await exported(client, path)
    assert SECRET.encode() not in export
    lines = [json.loads(line) for line in export.splitlines()]
    middle = b"".join(export.splitlines(keepends=True)[1:-1])
    assert lines[-1] == {
        "type": "end",
        "messages": 20,
        "blobs": 1,
        "lines": len(lines),
        "sha256": hashlib.sha256(middle).hexdigest(),
    }
    blob = b"".join(base64.b64decode(it["data"]) for it in lines if it["type"] == "blob_piece")
    assert output.encode() in blob
    copy = await imported(client, export, conversation_id=OWN_ID)
    assert copy == f"/v1/conversations/{quote(OWN_ID, safe='')}"
    again = await client.post(f"{copy}/messages/secret/redact", json={"reason": "else"})
    assert again.json()["redacted_at"] == redacted.json()["redacted_at"]
    listed = await client.get("/v1/conversations", params={"metadata[a]": "ü"})
    assert listed.json()["data"][0]["conversation_id"] == OWN_ID
    assert after_first(await exported(client, copy)) == after_first(export)
    for body in ({}, {"format": "anthropic", "model": "claude-sonnet-4-5"}):
        assert await payload(client, copy, **body) == await payload(client, path, **body)
    shown, origin = (await client.get(copy)).json(), (await client.get(path)).json()
    # A redacted message counts what it has, no longer what it had.
    own = ("conversation_id", "created_at", "updated_at", "token_count")
    assert {**origin, **{name: shown[name] for name in own}} == shown
    await append(client, copy, result("c2"))
    found = (await client.get(f"{copy}/messages", params={"content": "full"})).json()["data"]
    assert found[2]["content"] == output


async def small_export(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    """Return the lines of an export with two blobs and a pin."""
    path = await new_conversation(client)
    for name in ("c1", "c2"):
        output = f"a line of {name}\n" * 4_000
        await append(client, path, user("look"), calling(name), result(name, output))
    await append(client, path, user("thanks", id="last"))
    assert (await client.put(f"{path}/messages/last/pin")).status_code < 300
    return [json.loads(line) for line in (await exported(client, path)).splitlines()]


def written(lines: list[dict[str, Any]], *, sealed: bool = True) -> bytes:
    """Return lines as an export, by default with the counts and the hash that fit them."""
    raw = [json.dumps(line).encode() + b"\n" for line in lines]
    if sealed and lines[-1]["type"] == "end":
        sha256 = hashlib.sha256(b"".join(raw[1:-1])).hexdigest()
        raw[-1] = json.dumps({**lines[-1], "lines": len(lines), "sha256": sha256}).encode() + b"\n"
    return b"".join(raw)


def at(lines: list[dict[str, Any]], type: str) -> int:
    """Return the index of the first line of a type."""
    return next(index for index, line in enumerate(lines) if line["type"] == type)


def changed(type: str, /, **fields: Any) -> Any:
    """Return a function that changes fields of the first line of a type."""

    def change(lines: list[dict[str, Any]]) -> int:
        index = at(lines, type)
        lines[index] = {**lines[index], **fields}
        return index + 1

    return change


def swapped(lines: list[dict[str, Any]]) -> int:
    """Exchange the first two messages."""
    index = at(lines, "message")
    lines[index : index + 2] = reversed(lines[index : index + 2])
    return index + 1


def doubled(type: str, follows: int = 1) -> Any:
    """Return a function that repeats the first line of a type."""

    def double(lines: list[dict[str, Any]]) -> int:
        index = at(lines, type)
        lines.insert(index, dict(lines[index]))
        return index + 1 + follows

    return double


def without(type: str, *, follows: int = 0) -> Any:
    """Return a function that removes the first line of a type."""

    def remove(lines: list[dict[str, Any]]) -> int:
        index = at(lines, type)
        del lines[index]
        return index + 1 + follows

    return remove


def longer(lines: list[dict[str, Any]]) -> int:
    """Add a line after the end."""
    lines.append(dict(lines[at(lines, "message")]))
    return len(lines)


REFUSED: dict[str, Any] = {
    "another format": changed("export", format="x"),
    "a newer version": changed("export", version=2),
    "no first line": without("export"),
    "no settings": without("settings"),
    "no state": without("state"),
    "settings twice": doubled("settings"),
    "an unknown type": changed("message", type="more"),
    "a number as text": changed("pin", seq="1"),
    "a negative number": changed("pin", seq=-1),
    "a NUL": changed("message", message_id="a\x00"),
    "a body that is no message": changed("message", body="[]"),
    "a body of another role": changed("message", role="assistant"),
    "a body that is refused": changed("message", body='{"role":"user"}'),
    "messages in another order": swapped,
    "a message twice": doubled("message"),
    "a missing message": without("message"),
    "a result without its call": changed("message", role="tool", body='{"role":"tool"}'),
    "a blob's bytes missing": without("blob_piece"),
    "a blob's bytes twice": doubled("blob_piece"),
    "a blob's bytes changed": changed("blob_piece", data="AAAA"),
    "no base64": changed("blob_piece", data="*"),
    "a pin beyond the log": changed("pin", seq=99),
    "a time that is none": changed("pin", created_at="2026"),
    "a window beyond the log": changed("state", since=99),
    "parts that are none": changed("state", window_parts="{}"),
    "another head": changed("state", head_seq=6),
    "a call group beyond the log": changed("state", group_seq=99),
    "an open call that is not in the log": changed("state", open_calls=["c9"]),
    "a compaction that is missing": changed("state", compaction_id=ID),
    "an unknown agent": changed("settings", agent_id="nobody"),
    "sections that are none": changed("settings", sections="[1]"),
    "an unknown policy": changed("settings", policy='{"x":1}'),
    "metadata that is too long": changed("settings", metadata=json.dumps({"a": "x" * 70_000})),
    "a line after the end": longer,
}


LIES = {"tokens": 1, "reasoning_tokens": -1, "call_names": "[]", "needs_body": "no", "turn": 9}
LIES |= {"total_tokens": 0, "chat_item": '{"role":"user","content":"x"}'}


async def test_what_follows_from_a_message_is_computed(client: httpx.AsyncClient) -> None:
    """Counts and conversions of a file are not read. [exports.import]"""
    path = await new_conversation(client, model="gpt-4o")
    await append(client, path, user("why " * 5_000), calling("c1"), result("c1", "row " * 900))
    await append(client, path, *(user(f"{at} " + "because " * 300) for at in range(14)))
    compacted = await client.post(f"{path}/compact", json={})
    assert compacted.json()["compacted"], compacted.text
    export = await exported(client, path)
    lines = [json.loads(line) for line in export.splitlines()]
    for line in lines:
        if line["type"] == "message":
            line.update(LIES)
    copy = await imported(client, written(lines))
    assert after_first(await exported(client, copy)) == after_first(export)
    for other in ({"trigger": "x"}, {"strategy": "x"}, {"calls": "x"}):
        tried = [dict(line) for line in lines]
        changed("compaction", **other)(tried)
        answer = await client.post("/v1/conversations/import", content=written(tried))
        assert_problem(answer, 422, "VALIDATION_ERROR")
    for body in ({}, {"format": "anthropic", "model": "claude-sonnet-4-5"}):
        ask = {"context_window": 8_000, **body}
        one, two = [(await client.post(f"{at}/context", json=ask)).json() for at in (path, copy)]
        assert one["tokens_used"] == two["tokens_used"] <= 8_000
        assert await payload(client, copy, **ask) == await payload(client, path, **ask)


async def test_what_is_no_export_is_refused(client: httpx.AsyncClient) -> None:
    """Each error names a line or a setting, and leaves nothing behind. [exports.refused]"""
    lines = await small_export(client)
    assert await imported(client, written(lines))
    before = (await client.get("/v1/conversations")).json()["data"]
    without_line = ("an unknown agent", "sections", "an unknown policy", "metadata", "a compaction")
    for name, change in REFUSED.items():
        tried = [dict(line) for line in lines]
        change(tried)
        query = {"conversation_id": ID}
        answer = await client.post("/v1/conversations/import", content=written(tried), params=query)
        body = assert_problem(answer, 422, "VALIDATION_ERROR")
        assert body["detail"].startswith("Line ") or name.startswith(without_line), (name, body)
    whole = written(lines)
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        answer = await client.post("/v1/conversations/import", content=whole[:cut])
        assert_problem(answer, 422, "VALIDATION_ERROR")
    foreign = [b"\n", b"{}\n", b"\xff\n", b"[" * 5000 + b"\n", whole + whole, b'{"type":1}\n']
    for content in foreign:
        answer = await client.post("/v1/conversations/import", content=content)
        assert_problem(answer, 422, "VALIDATION_ERROR")
    later = {"created_at": "2031-01-01T00:00:00+00:00"}
    bent = [{**line, **later} if line["type"] == "message" else line for line in lines]
    answer = await client.post("/v1/conversations/import", content=written(bent, sealed=False))
    assert_problem(answer, 422, "VALIDATION_ERROR", f"/{len(lines)}/sha256")
    long = b'{"type":"' + b"x" * (65 << 20)
    answer = await client.post("/v1/conversations/import", content=long)
    assert_problem(answer, 413, "PAYLOAD_TOO_LARGE")
    assert (await client.get("/v1/conversations")).json()["data"] == before
    assert await imported(client, whole, conversation_id=ID)


AT = "2026-01-05T09:30:01+00:00"
SECTIONS = '[{"name":"base","content":"Be brief."}]'
CALL = '{"id":"c1","type":"function","function":{"name":"look","arguments":"{}"}}'
BODIES = {
    "user": '{"role":"user","content":"look"}',
    "assistant": f'{{"role":"assistant","content":null,"tool_calls":[{CALL}]}}',
    "tool": '{"role":"tool","tool_call_id":"c1","content":"done"}',
}


def a_file() -> list[dict[str, Any]]:
    """Return the lines of a file of version 1, as every release has to read it."""
    nothing = dict.fromkeys(("agent_id", "model", "rolling_window_seconds", "expires_at"))
    lists = {"policy": "{}", "sections": SECTIONS, "tools": "[]", "metadata": "{}"}
    versions = {"sections_version": 1, "tools_version": 0, "counter": "tokenizer"}
    zero = dict.fromkeys(("resume_at_tokens", "promoted_turn", "cleared_seq"), 0)
    names = ("open_calls", "promoted", "named_tools", "protected_seqs")
    empty: dict[str, Any] = {name: [] for name in names}
    unset = dict.fromkeys(("window_seconds", "cleared_at", "compaction_id"))
    window = {"since": 1, "window_parts": "", "oldest_at": AT, "newest_at": AT}
    first = {"format": "context-service.conversation", "version": 1, "conversation_id": ID}
    lines: list[dict[str, Any]] = [
        {"type": "export", **first, "created_at": AT, "exported_at": AT},
        {"type": "settings", **nothing, **lists, **versions},
        {"type": "state", "head_seq": 3, "group_seq": 2, **zero, **empty, **unset, **window},
        {"type": "version", "kind": "sections", "version": 1, "body": SECTIONS, "created_at": AT},
    ]
    for seq, (role, body) in enumerate(BODIES.items(), start=1):
        own = {"seq": seq, "message_id": f"m{seq}", "role": role, "format": "openai_chat"}
        calls = {"call_ids": None if role == "user" else '["c1"]', "joins": role == "tool"}
        times = {"timestamp": None, "created_at": AT, "at": None, "late_at": None}
        lines.append({"type": "message", **own, **calls, "body": body, **times, "output": None})
    lines.append({"type": "pin", "seq": 1, "created_at": AT})
    return [*lines, {"type": "end", "messages": 3, "blobs": 0, "lines": 0, "sha256": ""}]


async def test_a_file_of_the_first_version_is_read(client: httpx.AsyncClient) -> None:
    """What was exported is stored as it is, and exported again. [exports.format]"""
    copy = await imported(client, written(a_file()))
    again = [json.loads(line) for line in (await exported(client, copy)).splitlines()]
    assert again[1:-1] == a_file()[1:-1]
    built = await payload(client, copy)
    assert [item["role"] for item in built["messages"]] == ["system", *BODIES]


@pytest.mark.parametrize("end", ["fork", "clear"])
async def test_no_message_joins_a_call_group_that_was_ended(
    client: httpx.AsyncClient, end: str
) -> None:
    """A fork and a clear end the last call group, in a copy as well. [exports.format]"""
    path = await new_conversation(client)
    await append(client, path, user("look"), calling("c1"))
    ended = await client.post(f"{path}/{end}", json={})
    assert ended.is_success, ended.text
    source = f"/v1/conversations/{ended.json()['conversation_id']}" if end == "fork" else path
    joins = []
    for each in (source, await imported(client, await exported(client, source))):
        await append(client, each, {"role": "assistant", "content": "I have it."})
        lines = map(json.loads, (await exported(client, each)).splitlines())
        joins.append([line["joins"] for line in lines if line["type"] == "message"])
    assert joins == [[False, False, False]] * 2


async def test_the_id_and_the_agent_of_an_import(client: httpx.AsyncClient) -> None:
    """An id that is used is a conflict, and another agent can be named. [exports.import]"""
    whole = written(await small_export(client))
    url = "/v1/conversations/import"
    first = await client.post(url, content=whole)
    assert first.json()["head_seq"] == 7
    taken = {"conversation_id": first.json()["conversation_id"]}
    assert_problem(await client.post(url, content=whole, params=taken), 409, "CONFLICT")
    made = await client.post("/v1/agents", json={"agent_id": "other", "name": "Other"})
    assert made.status_code == 201
    path = await imported(client, whole, agent_id="other")
    assert (await client.get(path)).json()["agent_id"] == "other"
    missing = await client.get(f"/v1/conversations/{ID}/export")
    assert_problem(missing, 404, "NOT_FOUND")
