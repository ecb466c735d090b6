"""Labels over HTTP: content that a format cannot carry is a label and listed in `degraded`.

[formats.labels]
"""

from __future__ import annotations

from typing import Any

import httpx

from tests.api.talk import append, new_conversation, user

AUDIO = {"type": "input_audio", "input_audio": {"data": "aGVsbG8=", "format": "wav"}}
REFUSAL = {"role": "assistant", "content": None, "refusal": "I can't help with that."}
CLAUDE = {"format": "anthropic", "model": "claude-3-opus"}


async def build(client: httpx.AsyncClient, path: str, **asked: Any) -> dict[str, Any]:
    """Build and return the answer."""
    answer = await client.post(f"{path}/context", json=asked)
    assert answer.status_code == 200, answer.text
    built: dict[str, Any] = answer.json()
    return built


async def test_labels_stay_the_same(client: httpx.AsyncClient) -> None:
    """A cold build, a warm one and a delta have the same labels [neutral.same-bytes]."""
    path = await new_conversation(client)
    asked = user([{"type": "text", "text": "So?"}, AUDIO])
    await append(client, path, user([AUDIO]), REFUSAL, asked)
    first = await build(client, path, **CLAUDE)
    said = [[block["text"] for block in m["content"]] for m in first["payload"]["messages"]]
    assert said == [
        ["[input_audio: wav]"],
        ["[refusal: I can't help with that.]"],
        ["So?", "[input_audio: wav]"],
    ]
    assert (await build(client, path, **CLAUDE))["payload"] == first["payload"]
    own = await build(client, path, model="gpt-4o")
    assert own["degraded"] == [] and own["payload"]["messages"][0]["content"] == [AUDIO]
