"""Builds, budgets, states and compactions over HTTP.

[budget.of-the-payload, budget.window-sources, budget.levels, budget.within-window,
 compaction.state, summary.accepted-answers, compaction.forced, compaction.failure-keeps-state,
 payload.valid]
"""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

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
from tests.payload_tokens import payload_tokens


@pytest.mark.parametrize("body", [None, {}, {"known": {"build_id": "x"}}])
async def test_a_build_needs_no_body(client: httpx.AsyncClient, body: Any) -> None:
    """The body may be left out; a first build has no known payload [payload.valid]."""
    path = await new_conversation(client)
    await append(client, path, user("hi"))
    answer = await client.post(f"{path}/context", json=body)
    built = answer.json()
    assert answer.status_code == 200
    assert built["payload"]["messages"] == [{"role": "user", "content": "hi"}]
    assert built["delta"] is False and built["through_seq"] == 1
    parts = ("system_prompt", "skill_prompts", "tool_descriptions", "summary", "conversation")
    assert sum(built["diagnostics"]["budget"][part] for part in parts) == built["tokens_used"]


async def test_a_request_brings_sections_and_tools(client: httpx.AsyncClient) -> None:
    """A request's sections and tools merge by name over the stored ones [sections.sources]."""
    stored = {"sections": [{"name": "a", "content": "Stored."}], "policy": {"agent_tools": "none"}}
    path = await new_conversation(client, **stored)
    await append(client, path, user("hi"))
    asked = {
        "sections": [
            {"name": "a", "content": "Asked."},
            {"name": "r", "content": "Rule.", "kind": "rules"},
        ],
        "tools": [{"name": "search", "input_schema": {"type": "object"}}],
        "max_output_tokens": 77,
    }
    payload = (await client.post(f"{path}/context", json=asked)).json()["payload"]
    assert payload["messages"][0]["content"] == "Asked.\n\nRule."
    assert payload["max_completion_tokens"] == 77
    assert [tool["function"]["name"] for tool in payload["tools"]] == ["search"]
    asked |= {"format": "anthropic", "model": "claude-3-opus"}
    payload = (await client.post(f"{path}/context", json=asked)).json()["payload"]
    assert [block["text"] for block in payload["system"]] == ["Asked.", "Rule."]
    assert (payload["model"], payload["max_tokens"]) == ("claude-3-opus", 77)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"format": "bedrock"}, "/format"),
    ({"status": "x" * 2_000_001}, "/status"),
    ({"known": {"build_id": "x", "seq": 1}}, "/known/seq"),
    ({"model": "a\x00"}, "/model"),
    ({"sections": [{"name": "a"}]}, "/sections/0/content"),
    ({"tools": [{"name": "a b"}]}, "/tools/0/name"),
    ({"known": {"through_seq": 1}}, "/known/build_id"),
    ({"known": {"build_id": "x", "through_seq": -1}}, "/known/through_seq"),
    ({"strategy": "sandwich"}, "/strategy"),
]


@pytest.mark.parametrize(("body", "pointer"), WRONG, ids=lambda value: str(value)[:50])
async def test_wrong_builds(client: httpx.AsyncClient, body: dict[str, Any], pointer: str) -> None:
    """Each wrong field of a build is a 422 that points at it. [errors.problem-json]"""
    path = await new_conversation(client)
    await append(client, path, user("hi"))
    answer = await client.post(f"{path}/context", json=body)
    assert_problem(answer, 422, "VALIDATION_ERROR", pointer)


async def test_deltas_over_http(client: httpx.AsyncClient) -> None:
    """Known items are left out, with system and tools; the tail is separate.

    [delta.fallback, epochs.tail-last]
    """
    path = await new_conversation(
        client,
        sections=[{"name": "base", "content": "Be kind."}],
        tools=[{"name": "search", "input_schema": {"type": "object"}}],
    )
    await append(client, path, user("hi"))
    whole = (await client.post(f"{path}/context", json={"status": "Busy."})).json()
    await append(client, path, assistant("Hello"), user("Go on"))
    known = {"build_id": whole["build_id"]}
    delta = (await client.post(f"{path}/context", json={"known": known, "status": "Free."})).json()
    assert delta["delta"] and "tools" not in delta["payload"]
    assert delta["payload"]["messages"] == [assistant("Hello"), user("Go on")]
    assert delta["base_items"] == 2
    (tail,) = delta["tail"]
    assert tail["content"] == "[Status]\nFree."
    full = (await client.post(f"{path}/context", json={"status": "Free."})).json()
    held = whole["payload"]["messages"][:2] + delta["payload"]["messages"] + delta["tail"]
    assert held == full["payload"]["messages"]
    assert delta["build_id"] == full["build_id"]
    other = {"model": "gpt-4.1"}
    assert (await client.post(f"{path}/context", json=other)).json()["epoch"] == whole["epoch"]
    answer = await client.post(f"{path}/context", json={"known": known, **other})
    assert answer.json()["delta"] is False, "each model has an epoch 1"


async def test_an_empty_conversation(client: httpx.AsyncClient) -> None:
    """A build without messages is refused in the documented words [payload.not-empty]."""
    path = await new_conversation(client)
    body = assert_problem(await client.post(f"{path}/context"), 422, "VALIDATION_ERROR")
    assert body["detail"] == "Conversation has no messages"


async def test_unknown_windows(client: httpx.AsyncClient) -> None:
    """The error for an unknown model names it and the remedy, which works."""
    path = await new_conversation(client, model="my-model")
    await append(client, path, user("hi"))
    stored = assert_problem(await client.post(f"{path}/context"), 422, "CONTEXT_LIMIT_UNKNOWN")
    assert (stored["model"], stored["errors"]) == ("my-model", [])
    asked = await client.post(f"{path}/context", json={"model": "other"})
    found = assert_problem(asked, 422, "CONTEXT_LIMIT_UNKNOWN", "/model")
    assert "'other'" in found["detail"]
    for help in (
        "budget.context_window",
        "PUT /v1/models/{model}",
        "budget.context_window to derive",
    ):
        assert help in stored["detail"] and help in found["detail"]
    await client.put("/v1/models/my-model", json={"context_window": 50_000})
    assert (await client.post(f"{path}/context")).status_code == 200
    policy = {"budget": {"context_window": "derive"}}
    await client.patch(path, json={"policy": policy})
    assert (await client.post(f"{path}/context", json={"model": "other"})).status_code == 200


@pytest.mark.parametrize("format", ["openai_chat", "openai_responses", "anthropic", "gemini"])
async def test_items_of_an_earlier_payload_name_their_messages(
    client: httpx.AsyncClient, format: str
) -> None:
    """Each item has the seq of its newest message, and none before the history. [payload.as-of]"""
    sections = [{"name": "base", "content": "Be brief."}]
    path = await new_conversation(client, model="gpt-4o", sections=sections)
    await append(client, path, *talk(30))
    assert (await client.post(f"{path}/compact", json={})).json()["compacted"]
    await append(client, path, user("?"), calling("a"), result("a", "found-31"), assistant("!"))
    built = (await client.post(f"{path}/context", json={"format": format})).json()
    again = await client.get(f"{path}/context", params={"as_of": built["build_id"]})
    payload, seqs = again.json()["payload"], again.json()["diagnostics"]["item_seqs"]
    items = payload.get("messages") or payload.get("input") or payload.get("contents")
    assert len(seqs) == len(items)
    known = [seq for seq in seqs if seq is not None]
    assert known == sorted(known) and known[-1] == 34
    by_seq = dict(zip(seqs, items, strict=True))
    assert "found-31" in str(by_seq[33])


async def test_the_note_says_how_full_the_window_is(client: httpx.AsyncClient) -> None:
    """From `notice_at` on, and as an independent count of the payload. [sections.usage-note]"""
    policy = {"strategy": "full_history", "budget": {"notice_at": 0.5, "max_output_tokens": 500}}
    path = await new_conversation(client, model="gpt-4o", policy=policy)
    await append(client, path, *talk(12, "word " * 400))
    for window in (12_000, 9_000, 6_500):
        answer = await client.post(f"{path}/context", json={"context_window": window})
        payload, effective = answer.json()["payload"], window - 500
        counted, frames = payload_tokens(payload), 10 * len(payload["messages"])
        said = re.search(r"\[Context: (\d+)% used", json.dumps(payload))
        if counted + frames < effective / 2:
            assert said is None
        else:
            assert said and counted <= (int(said[1]) + 1) / 100 * effective
            assert int(said[1]) / 100 * effective <= counted + frames
