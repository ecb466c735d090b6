"""Labels over HTTP: content that a format cannot carry is a label and listed in `degraded`.

[formats.labels]
"""

from __future__ import annotations

from typing import Any

import httpx

from tests.api.talk import append, assistant, new_conversation, user

AUDIO = {"type": "input_audio", "input_audio": {"data": "aGVsbG8=", "format": "wav"}}
REFUSAL = {"role": "assistant", "content": None, "refusal": "I can't help with that."}
CLAUDE = {"format": "anthropic", "model": "claude-3-opus"}
QUERY = {"query": "fjords"}
NAMED = ["content_not_carried:input_audio", "content_not_carried:refusal"]


async def build(client: httpx.AsyncClient, path: str, **asked: Any) -> dict[str, Any]:
    """Build and return the answer."""
    answer = await client.post(f"{path}/context", json=asked)
    assert answer.status_code == 200, answer.text
    built: dict[str, Any] = answer.json()
    return built


async def test_labels_and_their_types_stay_the_same(client: httpx.AsyncClient) -> None:
    """A cold build, a warm one and a delta name the same types, each once [neutral.same-bytes]."""
    path = await new_conversation(client)
    asked = user([{"type": "text", "text": "So?"}, AUDIO])
    await append(client, path, user([AUDIO]), REFUSAL, asked)
    first = await build(client, path, **CLAUDE)
    assert first["degraded"] == NAMED
    said = [[block["text"] for block in m["content"]] for m in first["payload"]["messages"]]
    assert said == [
        ["[audio: wav]"],
        ["[refusal: I can't help with that.]"],
        ["So?", "[audio: wav]"],
    ]
    again = await build(client, path, **CLAUDE)
    assert (again["payload"], again["degraded"]) == (first["payload"], NAMED)
    await append(client, path, assistant("Well."), user("Go on."))
    known = {key: first[key] for key in ("epoch", "through_seq", "build_id")}
    delta = await build(client, path, known=known, **CLAUDE)
    assert delta["delta"]
    assert delta["degraded"] == NAMED


async def test_carried_content_is_not_listed(client: httpx.AsyncClient) -> None:
    """The format that the content came in gets it back as it was."""
    path = await new_conversation(client)
    await append(client, path, user([AUDIO]), REFUSAL, user("So?"))
    built = await build(client, path, model="gpt-4o")
    assert built["degraded"] == []
    assert built["payload"]["messages"][0]["content"] == [AUDIO]


async def test_a_chat_build_names_what_its_stored_item_lacks(client: httpx.AsyncClient) -> None:
    """A provider's own tool call of another format is named in a chat build as well."""
    path = await new_conversation(client)
    searched = {
        "role": "assistant",
        "content": [
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": QUERY},
            {"type": "text", "text": "Found some."},
        ],
    }
    await append(client, path, user("Look."))
    await append(client, path, searched, format="anthropic")
    for _ in range(2):
        built = await build(client, path, model="gpt-4o")
        assert built["degraded"] == ["content_not_carried:server_tool_use"]
        content = built["payload"]["messages"][1]["content"]
        assert content == '[web_search call: "fjords"]\nFound some.'
