"""Counts over HTTP: builds and `/tokens/count` agree on what is sent.

[tokens.what-counts]
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from app.formats.message import FormatName
from tests.api.talk import append, new_conversation, result, user
from tests.domain.compaction.strategies_messages import png
from tests.judge.epochs import ITEMS
from tests.payload_tokens import payload_tokens

SPACES = '{"a":' + "\n \t" * 20_000 + "1}"
EDITS = json.dumps([{"path": f"src/{n}.py", "lines": [n, n + 1]} for n in range(300)], indent=4)
MODELS = {
    FormatName.OPENAI_CHAT: "gpt-4.1",
    FormatName.OPENAI_RESPONSES: "gpt-5.6",
    FormatName.ANTHROPIC: "claude-sonnet-4-5",
    FormatName.GEMINI: "gemini-2.5-pro",
    FormatName.INTERACTIONS: "gemini-2.5-flash",
}


def calling(arguments: str) -> dict[str, Any]:
    """Return an assistant message with a call of these arguments."""
    function = {"name": "edit", "arguments": arguments}
    call = {"id": "c1", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


async def talked(client: httpx.AsyncClient, arguments: str, window: int) -> str:
    """Return the path of a conversation with a call of these arguments."""
    budget = {"context_window": window, "max_output_tokens": 500}
    path = await new_conversation(client, policy={"budget": budget})
    await append(client, path, user("Go."), calling(arguments), result("c1"), user("And now?"))
    return path


async def built(client: httpx.AsyncClient, path: str, format: FormatName) -> dict[str, Any]:
    """Build in a format and return the answer, every text of it counted and inside its window."""
    asked = {"format": format, "model": MODELS[format]}
    answer = await client.post(f"{path}/context", json=asked)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    texts = payload_tokens(body["payload"])
    assert texts <= body["diagnostics"]["budget"]["effective_window"]
    assert body["tokens_used"] >= 0.99 * texts
    return body


@pytest.mark.parametrize("arguments", [SPACES, EDITS])
@pytest.mark.parametrize("format", FormatName)
async def test_all_counts_of_a_payload_agree(
    client: httpx.AsyncClient, format: FormatName, arguments: str
) -> None:
    """The build and /tokens/count count a payload equally."""
    path = await talked(client, arguments, 100_000)
    body = await built(client, path, format)
    messages = body["payload"][ITEMS[format]]
    asked = {"messages": messages, "format": format, "model": body["payload"]["model"]}
    counted = await client.post("/v1/tokens/count", json=asked)
    assert counted.json()["token_count"] == body["diagnostics"]["budget"]["conversation"]
    if format in (FormatName.OPENAI_CHAT, FormatName.OPENAI_RESPONSES):
        text = await client.post("/v1/tokens/count", json={"text": arguments})
        assert body["tokens_used"] > text.json()["token_count"]


PNG = {"type": "base64", "media_type": "image/png", "data": png(640, 480)}
SPEAKS: list[tuple[str, dict[str, Any]]] = [
    ("openai_chat", calling('{"path": "a.txt", "text": "' + "word " * 50 + '"}')),
    ("openai_chat", {"role": "assistant", "content": None, "reasoning_content": "why " * 50}),
    ("openai_chat", user([{"type": "image_url", "image_url": {"url": "https://x.test/a.png"}}])),
    ("anthropic", {"role": "user", "content": [{"type": "image", "source": PNG}]}),
    (
        "openai_responses",
        {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "word " * 50},
    ),
    (
        "gemini",
        {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"a": "b" * 99}}}]},
    ),
]


@pytest.mark.parametrize("counter", ["bytes_4", "chars_4", "chars_2_5", "tokenizer"])
@pytest.mark.parametrize(("format", "message"), SPEAKS)
async def test_every_counter_counts_calls(
    client: httpx.AsyncClient, counter: str, format: str, message: dict[str, Any]
) -> None:
    """Calls, reasoning and images count with every counter [tokens.media]."""
    body = {"messages": [message], "format": format, "counter": counter}
    counted = (await client.post("/v1/tokens/count", json=body)).json()
    assert 20 < counted["token_count"] < 1_200
