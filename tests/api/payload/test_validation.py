"""Payloads of any origin, judged over HTTP. [validation.endpoint]"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from app.domain.common.messages import FormatName
from tests.api.talk import assert_problem
from tests.domain.payload.validation_payloads import payload_of

PATH = "/v1/context/validate"
ITEMS = {
    FormatName.OPENAI_CHAT: "messages",
    FormatName.OPENAI_RESPONSES: "input",
    FormatName.ANTHROPIC: "messages",
    FormatName.GEMINI: "contents",
}


async def judge(client: httpx.AsyncClient, format: FormatName, **body: Any) -> dict[str, Any]:
    """Have a payload judged and return the verdict."""
    answer = await client.post(PATH, json={"format": format, **body})
    assert answer.status_code == 200, answer.text
    verdict: dict[str, Any] = answer.json()
    return verdict


@pytest.mark.parametrize("format", FormatName)
async def test_valid_payloads(client: httpx.AsyncClient, format: FormatName) -> None:
    """A payload that breaks no rule is valid, and its size is not judged."""
    verdict = await judge(client, format, payload=payload_of(format))
    assert verdict == {"valid": True, "violations": [], "tokens": None, "capacity": None}


@pytest.mark.parametrize("format", FormatName)
async def test_lost_results(client: httpx.AsyncClient, format: FormatName) -> None:
    """Rule and place of what is wrong are named.

    [validation.endpoint, openai-chat.calls-answered-next, openai-responses.calls-match-outputs,
     anthropic.calls-answered-next, gemini.responses-follow]
    """
    payload = payload_of(format)
    lost = {FormatName.OPENAI_RESPONSES: 15, FormatName.GEMINI: 6}.get(format, 6)
    del payload[ITEMS[format]][lost]
    verdict = await judge(client, format, payload=payload)
    rules = {"openai_chat": "B1", "openai_responses": "C1", "anthropic": "A2", "gemini": "G1"}
    (violation,) = verdict["violations"]
    assert violation["rule"] == rules[format]
    assert violation["severity"] == "error" and not verdict["valid"]
    assert violation["pointer"].startswith(f"/{ITEMS[format]}/")
    assert violation["message"]


@pytest.mark.parametrize("format", FormatName)
async def test_size(client: httpx.AsyncClient, format: FormatName) -> None:
    """With a model or a window the payload is counted, its own output limit reserved."""
    payload = payload_of(format)
    verdict = await judge(client, format, payload=payload, model="gpt-4o")
    assert verdict["capacity"] == 127_000
    assert 50 < verdict["tokens"] < 1000
    verdict = await judge(client, format, payload=payload, max_context_tokens=1020)
    assert [violation["rule"] for violation in verdict["violations"]] == ["N7"]
    assert verdict["capacity"] == 19 < verdict["tokens"]


async def test_own_models(client: httpx.AsyncClient) -> None:
    """A model's limits are those of the tenant's own entry [validation.endpoint]."""
    entry = {"context_window": 1050, "exact": True}
    assert (await client.put("/v1/models/house", json=entry)).status_code == 200
    payload = payload_of(FormatName.OPENAI_CHAT)
    verdict = await judge(client, FormatName.OPENAI_CHAT, payload=payload, model="house")
    assert verdict["capacity"] == 50 and not verdict["valid"]


async def test_items_that_cannot_be_read_are_not_counted(client: httpx.AsyncClient) -> None:
    """Unreadable items are violations, and the size is not judged. [validation.any-json]"""
    payload = payload_of(FormatName.OPENAI_CHAT)
    payload["messages"].append(5)
    verdict = await judge(client, FormatName.OPENAI_CHAT, payload=payload, model="gpt-4o")
    assert [violation["rule"] for violation in verdict["violations"]] == ["N6"]
    assert verdict["tokens"] is None


async def test_a_changed_prefix_is_a_warning(client: httpx.AsyncClient) -> None:
    """A change of the stable prefix is a violation; a warning leaves the payload valid."""
    previous = payload_of(FormatName.OPENAI_CHAT)
    payload = payload_of(FormatName.OPENAI_CHAT)
    payload["messages"][6]["content"] = "did"
    asked = {"payload": payload, "previous": previous}
    verdict = await judge(client, FormatName.OPENAI_CHAT, **asked)
    (violation,) = verdict["violations"]
    assert (violation["rule"], violation["pointer"]) == ("N9", "/messages/6")
    assert violation["severity"] == "warning" and verdict["valid"]
    verdict = await judge(client, FormatName.OPENAI_CHAT, **asked, previous_stable_items=6)
    assert verdict["violations"] == []


async def test_headers_and_abilities(client: httpx.AsyncClient) -> None:
    """Beta headers are judged if they are sent, and prefill by the model's features."""
    payload = payload_of(FormatName.ANTHROPIC)
    verdict = await judge(client, FormatName.ANTHROPIC, payload=payload, betas=[])
    assert [violation["rule"] for violation in verdict["violations"]] == ["A12"]
    payload["messages"].pop()
    for prefill in (False, True):
        verdict = await judge(client, FormatName.ANTHROPIC, payload=payload, prefill=prefill)
        assert verdict["valid"] is prefill


VALID = payload_of(FormatName.OPENAI_CHAT)
WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "/payload"),
    ({"payload": []}, "/payload"),
    ({"payload": {}}, "/payload/messages"),
    ({"payload": {"messages": 5}}, "/payload/messages"),
    ({"payload": VALID, "previous": {}}, "/previous/messages"),
    ({"payload": VALID, "format": "gemini"}, "/payload/contents"),
    ({"payload": VALID, "format": "smoke"}, "/format"),
    ({"payload": VALID, "model": "unheard-of"}, "/model"),
    ({"payload": VALID, "max_context_tokens": 0}, "/max_context_tokens"),
    ({"payload": VALID, "betas": [5]}, "/betas/0"),
    ({"payload": VALID, "more": 1}, "/more"),
]


@pytest.mark.parametrize(("body", "pointer"), WRONG, ids=lambda value: str(value)[-40:])
async def test_wrong_requests(
    client: httpx.AsyncClient, body: dict[str, Any], pointer: str
) -> None:
    """A request that cannot be judged is a 422 that points at the reason [errors.problem-json]."""
    assert_problem(await client.post(PATH, json=body), 422, "VALIDATION_ERROR", pointer)


async def test_odd_strings(client: httpx.AsyncClient) -> None:
    """NUL and lone surrogates are judged like any other text."""
    message = rb'{"role": "user", "content": "\u0000\ud800"}'
    raw = rb'{"model": "gpt-4o", "payload": {"messages": [%s]}}' % message
    answer = await client.post(PATH, content=raw, headers={"content-type": "application/json"})
    assert answer.status_code == 200 and answer.json()["valid"]
