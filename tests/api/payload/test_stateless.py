"""Stateless operations over HTTP, and token counts.

[stateless.operations, tokens.what-counts, tokens.counters]
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from app.main import create_app
from app.settings import Settings
from tests import fake_llm as behave
from tests.api.talk import assert_problem, calling, result, talk, user
from tests.conftest import started
from tests.fake_llm import FakeLLM

MESSAGES = talk(20, "word " * 40)


@pytest_asyncio.fixture
async def model_client(with_model: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an app whose summariser is the scriptable model."""
    async with started(create_app(with_model)) as opened:
        yield opened


async def build(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    """Build a stateless context and return it."""
    body = {"messages": MESSAGES, "context_window": 1000, **body}
    answer = await client.post("/v1/context/build", json=body)
    assert answer.status_code == 200, answer.text
    built: dict[str, Any] = answer.json()
    return built


async def test_cx_t2_over_threshold_triggers_compression(client: httpx.AsyncClient) -> None:
    """Over the threshold one system message stands for the middle, and the ends stay.

    [stateless.rule, stateless.summary]
    """
    built = await build(client)
    sent = built["messages"]
    assert [sent[:5], sent[6:]] == [MESSAGES[:5], MESSAGES[-5:]]
    text = f"[Earlier conversation summary: {built['new_state']['summary']}]"
    assert sent[5] == {"role": "system", "content": text}
    assert built["summary_used"] is True
    assert built["new_state"]["summary_range"] == [5, 15]
    assert built["new_state"]["strategy"] == "sandwich"
    need = await client.post(
        "/v1/context/needs-compression", json={"messages": MESSAGES, "context_window": 1000}
    )
    assert need.json()["needs_compression"] is True


async def test_cx_t5_cached_summary_reused_when_valid(
    model_client: httpx.AsyncClient, fake_llm: FakeLLM
) -> None:
    """A valid state is used again without a model call [stateless.cached-state]."""
    first = await build(model_client)
    calls = fake_llm.calls
    again = await build(model_client, cached_state=first["new_state"])
    assert again["messages"] == first["messages"]
    assert again["summary_used"] is True and again["new_state"] is None
    assert fake_llm.calls == calls == 1
    other = first["new_state"] | {"strategy": "tree_summary"}
    assert (await build(model_client, cached_state=other))["new_state"] is not None
    grown = await build(
        model_client, cached_state=first["new_state"], messages=[*MESSAGES, MESSAGES[-1]]
    )
    assert grown["new_state"]["summary_range"] == [5, 16]
    assert fake_llm.calls == 3


async def test_cx_nt1_zero_limit(client: httpx.AsyncClient) -> None:
    """A zero limit is a VALIDATION_ERROR in the documented words, and nothing is returned."""
    for operation in ("build", "needs-compression"):
        body = {"messages": MESSAGES, "context_window": 0}
        answer = await client.post(f"/v1/context/{operation}", json=body)
        found = assert_problem(answer, 422, "VALIDATION_ERROR", "/context_window")
        assert found["detail"] == "Context limit must be positive"
        assert "messages" not in found


async def test_cx_nt3_model_failure(model_client: httpx.AsyncClient, fake_llm: FakeLLM) -> None:
    """A model that fails is 503 SERVICE_UNAVAILABLE, without a new state [stateless.errors]."""
    state = (await build(model_client))["new_state"]
    fake_llm.always(behave.status(500))
    grown = [*MESSAGES, *talk(2, "word " * 40)]
    body = {"messages": grown, "context_window": 1000, "cached_state": state}
    answer = await model_client.post("/v1/context/build", json=body)
    found = assert_problem(answer, 503, "SERVICE_UNAVAILABLE")
    assert "new_state" not in found
    answer = await model_client.post("/v1/context/compress", json={"messages": MESSAGES})
    assert_problem(answer, 503, "SERVICE_UNAVAILABLE")
    fake_llm.always(behave.answer())
    assert (await build(model_client, cached_state=state))["new_state"] is None


async def test_history_with_tools_and_system_messages(client: httpx.AsyncClient) -> None:
    """A caller's own history may hold system messages, earlier summaries and tool calls."""
    history = [
        {"role": "system", "content": "Be kind."},
        *MESSAGES[:6],
        {"role": "system", "content": "[Earlier conversation summary: x]"},
        calling("c1"),
        result("c1", "word " * 200),
        *MESSAGES[6:16],
    ]
    built = await build(client, messages=history)
    assert built["summary_used"] is True
    answer = await client.post("/v1/context/compress", json={"messages": history})
    assert answer.json()["model"] == "extractive" and answer.json()["summary"]


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("build", {"messages": [5], "context_window": 10}, "/messages/0"),
    ("build", {"messages": "x", "context_window": 10}, "/messages"),
    ("build", {"messages": MESSAGES}, "/context_window"),
    ("build", {"messages": MESSAGES, "context_window": 10**30}, "/context_window"),
    ("build", {"messages": MESSAGES, "context_window": 1, "preserve_top": -1}, "/preserve_top"),
    (
        "build",
        {"messages": MESSAGES, "context_window": 1, "cached_state": {"summary": "x"}},
        "/cached_state/strategy",
    ),
    ("build", {"messages": MESSAGES, "context_window": 1, "model": "gpt-4o"}, "/model"),
    (
        "build",
        {"messages": [{"role": "robot", "content": "x" * 90}] * 11, "context_window": 1},
        "/messages/5/role",
    ),
    ("needs-compression", {"messages": [None], "context_window": 10}, "/messages/0"),
    ("needs-compression", {"messages": MESSAGES, "context_window": 1, "model": "x"}, "/model"),
    ("compress", {"messages": ["x"]}, "/messages/0"),
    ("compress", {"messages": [{"role": "user", "content": 5}]}, "/messages/0/content"),
    ("compress", {"messages": [{"role": ["user"], "content": "x"}]}, "/messages/0/role"),
    ("compress", {"messages": MESSAGES, "model": "a\x00"}, "/model"),
]


@pytest.mark.parametrize(("operation", "body", "pointer"), WRONG, ids=lambda value: str(value)[:40])
async def test_wrong_requests(
    client: httpx.AsyncClient, operation: str, body: dict[str, Any], pointer: str
) -> None:
    """Each wrong field is a 422 that points at it. [errors.problem-json]"""
    answer = await client.post(f"/v1/context/{operation}", json=body)
    assert_problem(answer, 422, "VALIDATION_ERROR", pointer)


async def test_counting(client: httpx.AsyncClient) -> None:
    """Messages, text and tools are counted apart, with the margin of the model.

    [tokens.endpoint]
    """
    tool = {"name": "search", "description": "Find.", "input_schema": {"type": "object"}}
    body = {"messages": [user("hello world")], "text": "hello world", "tools": [tool]}
    counted = (await client.post("/v1/tokens/count", json=body | {"model": "gpt-4o"})).json()
    assert counted["text"] == 2 and counted["messages"] > 2 and counted["tools"] > 2
    parts = (counted["messages"], counted["text"], counted["tools"])
    assert counted["token_count"] == sum(parts)
    assert counted["margin"] == 0.0 and counted["counter"] == "tokenizer"
    other = (
        await client.post("/v1/tokens/count", json={"text": "x", "model": "gemini-pro"})
    ).json()
    assert other["margin"] == 0.05
    nothing = (await client.post("/v1/tokens/count", json={})).json()
    assert nothing["token_count"] == 0


@pytest.mark.parametrize(
    ("counter", "tokens"), [("bytes_4", 3), ("chars_4", 2), ("chars_2_5", 4), ("tokenizer", None)]
)
async def test_counters(client: httpx.AsyncClient, counter: str, tokens: int | None) -> None:
    """Every counter counts text by its own rule. [tokens.counters]"""
    body = {"text": "ééé 123456", "counter": counter}
    counted = (await client.post("/v1/tokens/count", json=body)).json()
    assert counted["counter"] == counter
    assert counted["token_count"] == tokens or tokens is None


@pytest.mark.parametrize(
    "lone",
    [
        calling("c1"),
        calling("c1", "c2"),
        {**calling("c1"), "content": ""},
        {**calling("c1"), "content": "  \n"},
        {**calling("c1"), "reasoning_content": "Let me think."},
    ],
)
async def test_compressing_a_lone_call_is_refused_without_a_model(
    model_client: httpx.AsyncClient, fake_llm: FakeLLM, lone: dict[str, Any]
) -> None:
    """Without its call the message is empty, so there is nothing to summarise."""
    answer = await model_client.post("/v1/context/compress", json={"messages": [lone]})
    problem = assert_problem(answer, 422, "VALIDATION_ERROR", "/messages")
    assert problem["detail"] == "Conversation has no messages"
    assert fake_llm.calls == 0
