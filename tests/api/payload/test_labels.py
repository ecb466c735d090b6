"""Labels over HTTP: content that a format cannot carry is a label and listed in `degraded`.

[formats.labels]
"""

from __future__ import annotations

from typing import Any

import httpx

from tests.api.talk import append, new_conversation, user
from tests.judge import Facts, judge
from tests.judge.findings import errors

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


async def test_a_change_of_tools_is_a_label(client: httpx.AsyncClient) -> None:
    """A system message is sent as the user's, which Anthropic refuses to have changes of tools."""
    path = await new_conversation(client, model="claude-opus-5")
    change = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "crane"}}
    system = {"role": "system", "content": [change, {"type": "text", "text": "No crane today."}]}
    await append(client, path, user("Hello."), system, format="anthropic")
    built = await build(client, path, format="anthropic")
    assert errors(judge("anthropic", built["payload"], Facts(tokens=built["tokens_used"]))) == []
    text = str(built["payload"]["messages"])
    assert "No crane today." in text and "[tool_removal" in text
