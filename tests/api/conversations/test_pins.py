"""Pins over HTTP. [pins.verbatim]"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.api.compaction.builders import LONG
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


async def conversation_with_calls(client: httpx.AsyncClient, **body: Any) -> str:
    """Create a conversation with a turn that has calls, and return its path."""
    path = await new_conversation(client, **body)
    await append(client, path, *talk(20, LONG))
    await append(
        client,
        path,
        user("the harbour, please", id="question"),
        calling("h1", "h2") | {"id": "calls"},
        result("h2", "ferries at nine") | {"id": "second"},
        result("h1", "ships at ten") | {"id": "first"},
        assistant("nine and ten", id="answer"),
    )
    await append(client, path, *talk(40, LONG))
    return path


async def shown(client: httpx.AsyncClient, path: str, format: str = "openai_chat") -> list[str]:
    """Return the texts of a payload's messages, each as it stands there."""
    model = "gpt-4o" if format == "openai_chat" else "claude-3-opus"
    answer = await client.post(f"{path}/context", json={"format": format, "model": model})
    assert answer.status_code == 200, answer.text
    texts = []
    for item in answer.json()["payload"]["messages"]:
        content = item["content"] or ""
        parts = [{"text": content}] if isinstance(content, str) else content
        texts += [part.get("text", part.get("content", "")) for part in parts]
    return texts


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("format", ["openai_chat", "anthropic"])
async def test_a_message_is_pinned_and_unpinned(
    client: httpx.AsyncClient, late: bool, format: str
) -> None:
    """A pinned message is shown verbatim; once unpinned, the next compaction may hide it."""
    path = await conversation_with_calls(client)
    if late:
        await client.post(f"{path}/compact")
        assert "the harbour, please" not in await shown(client, path, format)
    pin = f"{path}/messages/question/pin"
    for _ in range(2):
        answer = await client.put(pin)
        assert (answer.status_code, answer.json()) == (200, {"seqs": [21]})
    made = (await client.post(f"{path}/compact")).json()
    assert made["compacted"] is not late
    texts = await shown(client, path, format)
    assert "the harbour, please" in texts and "ferries at nine" not in texts
    active = (await client.get(f"{path}/compactions?limit=1")).json()["data"][0]
    assert active["kept_seqs"] == ([] if late else [21])
    for seqs in ([21], [21]):
        answer = await client.delete(pin)
        assert (answer.status_code, answer.json()) == (200, {"seqs": seqs})
    await append(client, path, *talk(20, LONG))
    await client.post(f"{path}/compact")
    assert "the harbour, please" not in await shown(client, path, format)


async def test_too_many_pins(client: httpx.AsyncClient) -> None:
    """Pins of over half of the history budget are a 422 with the numbers, and nothing is stored.

    [pins.limit]
    """
    budget = {"context_window": 2000, "max_output_tokens": 500}
    path = await new_conversation(client, policy={"budget": budget})
    await append(client, path, *(user(f"{n} {LONG}", id=f"m{n}") for n in range(6)))
    for number in range(4):
        assert (await client.put(f"{path}/messages/m{number}/pin")).status_code == 200
    answer = await client.put(f"{path}/messages/m4/pin")
    body = assert_problem(answer, 422, "VALIDATION_ERROR")
    assert body["pinned_tokens"] > body["limit"] == 750
    texts = await shown(client, path)
    assert all(f"{n} {LONG}" in texts for n in (0, 1, 2, 3))
    assert (await client.delete(f"{path}/messages/m0/pin")).status_code == 200
    assert (await client.put(f"{path}/messages/m4/pin")).status_code == 200


async def test_concurrent_pins_and_compactions(client: httpx.AsyncClient) -> None:
    """After concurrent pins, unpins and compactions all pinned messages are shown."""
    path = await conversation_with_calls(client)
    pin = f"{path}/messages/question/pin"
    answers = await asyncio.gather(
        *(client.put(pin) for _ in range(3)),
        *(client.delete(pin) for _ in range(3)),
        *(client.post(f"{path}/compact") for _ in range(2)),
    )
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert (await client.put(pin)).status_code == 200
    assert "the harbour, please" in await shown(client, path)
    used = (await client.get(f"{path}/budget")).json()["budget"]["tokens_used"]
    assert (await client.post(f"{path}/context")).json()["tokens_used"] == used
