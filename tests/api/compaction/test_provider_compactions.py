"""Compactions of providers over HTTP. [compaction.provider-item, strategy.provider]"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.talk import append, new_conversation

GPT, CLAUDE = "gpt-5", "claude-3-opus"
ITEM = {"type": "compaction", "id": "cmp_1", "encrypted_content": "c2VjcmV0" * 40}
ROOM = {"budget": {"context_window": 200_000}, "agent_tools": "none"}


def said(text: str) -> dict[str, Any]:
    """Return an answer of the assistant as an item."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content}


async def built(
    client: httpx.AsyncClient, path: str, format: str = "openai_responses", model: str = GPT
) -> dict[str, Any]:
    """Return the answer to a build."""
    answer = await client.post(f"{path}/context", json={"format": format, "model": model})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def read(client: httpx.AsyncClient, url: str) -> dict[str, Any]:
    """Return the answer to a read."""
    answer = await client.get(url)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def compacted(client: httpx.AsyncClient, **body: Any) -> str:
    """Return the path of a conversation that OpenAI compacted after its tenth message."""
    path = await new_conversation(client, **{"policy": ROOM, "model": GPT, **body})
    questions = [{"role": "user", "content": f"Ask {n}: use tabs. " * 20} for n in range(10)]
    await append(client, path, *questions, format="openai_responses")
    await built(client, path)
    await append(client, path, ITEM, said("Going on."), format="openai_responses")
    return path


async def test_transcript_receipt_events_and_search_know_it(client: httpx.AsyncClient) -> None:
    """[transcript.visibility, compaction.receipt, compaction.expand]"""
    path = await compacted(client)
    page = await read(client, f"{path}/messages")
    states = [item["visibility"]["state"] for item in page["data"]]
    assert states == ["summarised"] * 10 + ["verbatim"]
    (receipt,) = (await read(client, f"{path}/compactions"))["data"]
    assert {item["visibility"]["compaction_id"] for item in page["data"][:10]} == {
        receipt["compaction_id"]
    }
    assert (receipt["trigger"], receipt["strategy"], receipt["status"]) == (
        "provider",
        "provider",
        "active",
    )
    assert receipt["hidden_range"] == [1, 11]
    assert receipt["model"] == GPT
    expanded = await read(client, f"{path}/compactions/{receipt['compaction_id']}/messages")
    assert len(expanded["data"]) == 10
    state = await read(client, f"{path}/state")
    assert state["strategy"] == "provider"
    assert state["summary_range"] == [1, 11]
    found = await read(client, f"{path}/messages?query=tabs")
    assert found["data"]
    assert page["data"][10]["output"][0] == ITEM


async def test_forks_and_imports_begin_with_the_item(client: httpx.AsyncClient) -> None:
    """[forks.visible-state, exports.format] The copy builds the same items."""
    path = await compacted(client)
    before = (await built(client, path))["payload"]["input"]
    assert before[0] == ITEM
    fork = await client.post(f"{path}/fork", json={})
    assert fork.status_code == 201, fork.text
    early = await client.post(f"{path}/fork", json={"through_seq": 10})
    assert early.status_code == 201, early.text
    export = (await client.get(f"{path}/export")).content
    copy = await client.post("/v1/conversations/import", content=export)
    assert copy.status_code == 201, copy.text
    for answer in (fork, copy):
        other = f"/v1/conversations/{answer.json()['conversation_id']}"
        assert (await built(client, other))["payload"]["input"] == before
        chat = await built(client, other, "openai_chat", "gpt-4o")
        assert "Earlier summary, lossy" in str(chat["payload"])
    cut = f"/v1/conversations/{early.json()['conversation_id']}"
    assert len((await built(client, cut))["payload"]["input"]) == 10


async def test_a_restored_snapshot_begins_with_the_item(client: httpx.AsyncClient) -> None:
    """[snapshots.restore-elsewhere] In an empty conversation: it stands for no other messages."""
    path = await compacted(client)
    saved = await client.post(f"{path}/snapshots", json={})
    assert saved.status_code == 201, saved.text
    assert saved.json()["message_count"] == 11
    for others in (0, 1):
        other = await new_conversation(client, policy=ROOM, model=GPT)
        if others:
            message = {"role": "user", "content": "Not in the item."}
            await append(client, other, message, format="openai_responses")
        at = f"/v1/snapshots/{saved.json()['snapshot_id']}/restore"
        restored = await client.post(at, json={"conversation_id": other.rpartition("/")[2]})
        assert restored.status_code == 200, restored.text
        items = (await built(client, other))["payload"]["input"]
        assert (items[0] == ITEM, ITEM in items) == (not others, not others)
        assert len([item for item in items if item.get("role") == "user"]) == 11 * others
    assert (await built(client, path))["payload"]["input"][0] == ITEM


@pytest.mark.parametrize("redacted", [3, 11])
async def test_a_redaction_ends_the_boundary(client: httpx.AsyncClient, redacted: int) -> None:
    """[compaction.redaction] The item cannot be made again, so it is not sent any more.

    That holds for a message behind it, and for its own.
    """
    path = await compacted(client)
    await built(client, path, "openai_chat", "gpt-4o")
    page = await read(client, f"{path}/messages")
    message_id = page["data"][redacted - 1]["id"]
    answer = await client.post(f"{path}/messages/{message_id}/redact", json={"reason": "asked"})
    assert answer.status_code == 200, answer.text
    (receipt,) = (await read(client, f"{path}/compactions"))["data"]
    assert receipt["status"] == "undone"
    build = await built(client, path)
    assert ITEM not in build["payload"]["input"]
    assert build["cache_break_reason"] == "redacted"
    assert len(build["payload"]["input"]) == 11
    assert "[redacted]" in str(build["payload"])


async def test_clear_forgets_the_item(client: httpx.AsyncClient) -> None:
    """[window.clear] The item is before the clear, like what it stands for."""
    path = await compacted(client)
    assert (await client.post(f"{path}/clear")).status_code == 200
    await append(client, path, {"role": "user", "content": "New."}, format="openai_responses")
    items = (await built(client, path))["payload"]["input"]
    assert len(items) == 1
