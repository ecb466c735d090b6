"""User and assistant texts that are larger than the window, over HTTP.

Tokens are counted by a walk of the finished payload that shares no code with the service.

[tool-output.shorten-oversized]
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.api.talk import append, assert_problem, new_conversation, talk, user
from tests.payload_tokens import payload_texts, payload_tokens

OUTPUT = "".join(f"line {number:05} of what the command printed\n" for number in range(4000))
PROVIDERS = ["openai_chat", "openai_responses", "anthropic", "gemini"]
STRATEGIES = ["sandwich", "sliding_window", "full_history", "tree_summary", "retain_summary"]
STRATEGIES += ["chain"]


def counted(payload: dict[str, Any]) -> int:
    """Count the texts of a payload, those of its tools left out."""
    config = {key: value for key, value in payload.get("config", {}).items() if key != "tools"}
    rest = {key: value for key, value in payload.items() if key != "tools"}
    return payload_tokens({**rest, "config": config})


def told(payload: dict[str, Any]) -> str:
    """Return the text of a payload's items."""
    items = payload.get("messages") or payload.get("input") or payload.get("contents")
    return "\n".join(payload_texts({"items": items}))


def tools_of(body: dict[str, Any]) -> str:
    """Return the tools of a payload as text."""
    payload = body["payload"]
    return json.dumps(payload.get("tools") or payload.get("config", {}).get("tools") or [])


async def built(client: httpx.AsyncClient, path: str, **ask: Any) -> dict[str, Any]:
    """Build, check that the payload fits and is counted right, and return the answer."""
    answer = await client.post(f"{path}/context", json=ask)
    assert answer.status_code == 200, answer.text[:2000]
    body: dict[str, Any] = answer.json()
    check(body)
    return body


def check(body: dict[str, Any]) -> None:
    """Check that a payload is inside its window by the walk's count, and counted right."""
    walked, budget = counted(body["payload"]), body["diagnostics"]["budget"]
    assert body["tokens_used"] <= budget["effective_window"]
    assert walked + budget["tool_descriptions"] <= budget["effective_window"]
    assert body["tokens_used"] - budget["tool_descriptions"] >= 0.99 * walked


async def read_whole(client: httpx.AsyncClient, path: str, ref: str) -> str:
    """Return a text read by bytes through the whole of it."""
    texts: list[str] = []
    offset: int | None = 0
    while offset is not None:
        answer = await client.get(f"{path}/blobs/{ref}/bytes?offset={offset}&limit=50000")
        assert answer.status_code == 200, answer.text
        texts.append(answer.json()["text"])
        offset = answer.json()["next_offset"]
    return "".join(texts)


def window(tokens: int = 8000, **leaves: Any) -> dict[str, Any]:
    """Return a policy with a window of so many tokens."""
    return {"budget": {"context_window": tokens}} | leaves


# --- one message ------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("format", PROVIDERS)
async def test_the_newest_user_message_keeps_its_head_and_its_tail(
    client: httpx.AsyncClient, format: str, strategy: str
) -> None:
    """A user message of 156 KB is shown as its beginning, a note and its end; the rest is read."""
    path = await new_conversation(client, policy=window(strategy=strategy))
    await append(client, path, *talk(4), user(f"Look: {OUTPUT}And then?", id="big"))
    body = await built(client, path, format=format)
    said = told(body["payload"])
    assert body["degraded"] == ["messages_shortened"]
    assert "Look: line 00000" in said and said.rstrip().endswith("And then?")
    assert 'tool_output_cache ref_id="big" offset=' in said
    for name in ("tool_output_cache", "tool_output_cache_grep"):
        assert name in tools_of(body)
    again = await built(client, path, format=format)
    assert (again["payload"], again["epoch"]) == (body["payload"], body["epoch"])
    earlier = await client.get(f"{path}/context?as_of={body['build_id']}")
    assert earlier.json()["payload"] == body["payload"]


@pytest.mark.parametrize("format", PROVIDERS)
async def test_the_rest_is_read_as_a_result_is(client: httpx.AsyncClient, format: str) -> None:
    """The message's ref is read by lines, bytes, pattern and the agent's tools, and downloaded."""
    path = await new_conversation(client, policy=window())
    await append(client, path, user(OUTPUT, id="a long id that is no step of any path"))
    ref = "seq-1"
    assert f'ref_id="{ref}"' in told((await built(client, path, format=format))["payload"])
    assert await read_whole(client, path, ref) == OUTPUT
    lines = await client.get(f"{path}/blobs/{ref}/lines?offset=3000&limit=1")
    assert "line 03000" in lines.json()["text"]
    found = await client.get(f"{path}/blobs/{ref}/grep?pattern=line%2003999")
    assert found.json()["matches"][0]["line"] == 4000
    assert (await client.get(f"{path}/blobs/{ref}/content")).text == OUTPUT
    assert (await client.get(f"{path}/blobs/{ref}")).json()["byte_size"] == len(OUTPUT)
    for name, arguments in (
        ("tool_output_cache", {"ref_id": ref, "offset": 2000, "limit": 2}),
        ("tool_output_cache_grep", {"ref_id": ref, "pattern": "line 02000"}),
        ("read_result", {"ref_id": ref, "offset": OUTPUT.index("line 02000"), "limit": 80}),
    ):
        call = {"id": "c", "type": "function"}
        call["function"] = {"name": name, "arguments": json.dumps(arguments)}  # type: ignore[assignment]
        answer = await client.post(f"{path}/tool-calls", json={"tool_call": call})
        assert "line 02000" in answer.json()["message"]["content"]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("mode", ["background", "inline"])
async def test_a_compaction_keeps_the_rest(
    client: httpx.AsyncClient, strategy: str, mode: str
) -> None:
    """One oversized message costs no other message its place, whatever compacts and when."""
    policy = window(strategy=strategy, compaction={"mode": mode})
    path = await new_conversation(client, policy=policy)
    await append(client, path, user(f"Task. {OUTPUT}"), *talk(7)[1:], user("Now?"))
    body = await built(client, path)
    assert all(f"{number} word" in told(body["payload"]) for number in range(1, 7))
    assert body["diagnostics"]["compaction"] is None
    assert (await client.post(f"{path}/compact")).status_code == 200
    await built(client, path)


async def test_without_the_leaf_the_build_is_refused(client: httpx.AsyncClient) -> None:
    """With `offload_oversized` false a message that is too large is refused with the budget."""
    policy = window(messages={"offload_oversized": False})
    path = await new_conversation(client, policy=policy)
    await append(client, path, user("before"), user(OUTPUT, id="big"))
    body = assert_problem(await client.post(f"{path}/context"), 422, "CONTEXT_OVERFLOW")
    assert body["budget"]["tokens_used"] > body["budget"]["effective_window"]
    changed = {"policy": {"messages": {"offload_oversized": True}}}
    assert (await client.patch(path, json=changed)).status_code == 200
    assert (await built(client, path))["degraded"] == ["messages_shortened"]


@pytest.mark.parametrize("strategy", ["sandwich", "full_history"])
async def test_overflow_shortens_what_is_left(client: httpx.AsyncClient, strategy: str) -> None:
    """After the provider's "too long" the one large text is halved, until little is left of it."""
    path = await new_conversation(client, policy=window(strategy=strategy))
    await append(client, path, *talk(2), user(OUTPUT, id="big"))
    sizes = [(await built(client, path))["tokens_used"]]
    while (answer := await client.post(f"{path}/overflow")).status_code == 200:
        check(answer.json()["context"])
        sizes.append(answer.json()["context"]["tokens_used"])
        assert 'ref_id="big"' in told(answer.json()["context"]["payload"])
        assert len(sizes) < 20
    assert_problem(answer, 422, "CONTEXT_OVERFLOW")
    assert len(sizes) >= 3
    assert sizes == sorted(sizes, reverse=True)
    assert (await built(client, path))["tokens_used"] == sizes[-1]
    receipts = (await client.get(f"{path}/compactions")).json()["data"]
    for receipt in receipts:
        undo = f"{path}/compactions/{receipt['compaction_id']}/undo"
        if receipt["status"] == "active":
            assert (await client.post(undo)).status_code == 200
