"""`GET …/usage`: of a conversation, an agent and the tenant.

Expected figures are sums of this test over what it reported, with prices calculated by hand.
[usage.totals, usage.cost, usage.saved, usage.totals-outlive]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import date, timedelta
from typing import Any

import httpx
import pytest
from anthropic.types.beta import BetaUsage
from google.genai.types import GenerateContentResponseUsageMetadata
from openai.types import CompletionUsage
from openai.types.completion_usage import PromptTokensDetails

from app.main import create_app
from app.settings import Settings
from tests import fake_llm as behave
from tests.api.talk import append, assert_problem, new_conversation, talk, user
from tests.conftest import execute, started
from tests.fake_llm import FakeLLM

MODEL, UNPRICED, FAKE = "acme/large", "acme/unpriced", "openai/fake"
# USD of a million tokens: 2 for input, 8 for output, 0.5 and 2.5 for cache reads and writes.
PRICES = {
    "input_price": 2e-6,
    "output_price": 8e-6,
    "cache_read_price": 5e-7,
    "cache_write_price": 2.5e-6,
}
STEP = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
OPENAI = CompletionUsage(
    prompt_tokens=1_000,
    completion_tokens=50,
    total_tokens=1_050,
    prompt_tokens_details=PromptTokensDetails(cached_tokens=600),
)
ANTHROPIC = BetaUsage(
    input_tokens=400, output_tokens=50, cache_creation_input_tokens=100, cache_read_input_tokens=600
)
COMPACTED = BetaUsage.model_validate(
    {
        "input_tokens": 400,
        "output_tokens": 50,
        "iterations": [
            {"type": "compaction", "input_tokens": 10_000, "output_tokens": 200, **STEP},
            {"type": "message", "input_tokens": 400, "output_tokens": 50, **STEP},
        ],
    }
)
GEMINI = GenerateContentResponseUsageMetadata(
    prompt_token_count=1_000,
    cached_content_token_count=600,
    candidates_token_count=30,
    thoughts_token_count=20,
)
# Input, output, written, read; then the price in millionths of USD by hand:
# 400 x 2 + 600 x 0.5 + 50 x 8, and for Anthropic 100 x 2.5 more, or 10,400 x 2 + 250 x 8.
BILLED = {
    "openai_chat": (OPENAI, (400, 50, 0, 600), 1_500),
    "anthropic": (ANTHROPIC, (400, 50, 100, 600), 1_750),
    "steps": (COMPACTED, (10_400, 250, 0, 0), 22_800),
    "gemini": (GEMINI, (400, 50, 0, 600), 1_500),
}
NAMES = ("input_tokens", "output_tokens", "cache_creation_tokens", "cache_read_tokens")
NOTHING = {"calls": 0, **dict.fromkeys(NAMES, 0), "total_tokens": 0} | {
    "cost_usd": 0.0,
    "unpriced_calls": 0,
}


async def read(client: httpx.AsyncClient, path: str, **query: Any) -> dict[str, Any]:
    """Return an answer of usage totals; `/v1#a` is the agent `a`."""
    path, _, agent_id = path.partition("#")
    answer = await client.get(
        f"{path}/usage", params=query | ({"agent_id": agent_id} if agent_id else {})
    )
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def report(client: httpx.AsyncClient, path: str, shape: str, model: str = MODEL) -> None:
    """Report a call."""
    usage = BILLED[shape][0].model_dump(mode="json", exclude_none=True)
    answer = await client.post(f"{path}/usage", json={"usage": usage, "model": model})
    assert answer.status_code == 200, answer.text


def summed(reports: Iterable[tuple[str, str]]) -> dict[str, dict[str, Any]]:
    """Return the expected totals by model of reports, each a shape and a model."""
    sums: dict[str, dict[str, Any]] = defaultdict(lambda: dict(NOTHING))
    for shape, model in reports:
        _, tokens, price = BILLED[shape]
        total = sums[model]
        for name, count in zip(NAMES, tokens, strict=True):
            total[name] += count
        total["calls"] += 1
        total["total_tokens"] += sum(tokens)
        total["unpriced_calls"] += model == UNPRICED
        total["cost_usd"] += 0 if model == UNPRICED else price / 10**6
    for total in sums.values():
        is_priced = total["calls"] > total["unpriced_calls"]
        total["cost_usd"] = pytest.approx(total["cost_usd"]) if is_priced else None
    return dict(sums)


async def test_a_bill_is_the_sum_of_what_was_reported(client: httpx.AsyncClient) -> None:
    """By model, for a conversation, its agent and the tenant, and after deletions too.

    Cached tokens have their own price and are counted once; calls without a price are counted.
    """
    await client.put(f"/v1/models/{MODEL}", json=PRICES)
    for agent in ("a", "b"):
        await client.post("/v1/agents", json={"agent_id": agent, "name": agent})
    paths = [await new_conversation(client, agent_id=agent) for agent in ("a", "a", "b")]
    paths.append(await new_conversation(client))
    made = [
        (0, "openai_chat", MODEL),
        (0, "anthropic", MODEL),
        (0, "gemini", UNPRICED),
        (1, "gemini", MODEL),
        (1, "steps", MODEL),
        (2, "openai_chat", UNPRICED),
        (3, "anthropic", MODEL),
    ]
    for place, shape, model in made:
        await report(client, paths[place], shape, model)
    owners = {
        paths[0]: {0},
        paths[1]: {1},
        paths[2]: {2},
        "/v1#a": {0, 1},
        "/v1#b": {2},
        "/v1": {0, 1, 2, 3},
    }

    async def check(path: str) -> None:
        told = await read(client, path)
        expected = summed((shape, model) for at, shape, model in made if at in owners[path])
        assert {row["model"]: row["reported"] for row in told["data"]} == expected, path
        assert told["totals"]["reported"]["calls"] == sum(it["calls"] for it in expected.values())
        assert told["totals"]["summaries"] == NOTHING
        assert told["totals"]["cost_usd"] == told["totals"]["reported"]["cost_usd"]

    for path in owners:
        await check(path)
    deleted = (await client.delete(paths[0])).json()["deleted"]
    assert deleted["conversation_usage"] == 2
    assert_problem(await client.get(f"{paths[0]}/usage"), 404, "NOT_FOUND")
    await client.delete("/v1/agents/b")
    for path in ("/v1#a", "/v1#b", "/v1"):
        await check(path)


# --- days, groups and pages -----------------------------------------------------------------

FIRST = date(2026, 1, 30)
PLANTED = {
    (FIRST + timedelta(days=day), model): 10 * day + place
    for day in range(5)
    for place, model in enumerate(("m1", "m2", "m3"), start=1)
    if (day, model) != (2, "m2")
}
"""Calls by day and model; each has as many input tokens."""


async def plant(database_url: str) -> None:
    """Store the planted calls, and those of a day before and a day after."""
    outside = {(FIRST - timedelta(days=1), "m1"): 1_000, (FIRST + timedelta(days=5), "m1"): 1_000}
    for (day, model), calls in {**PLANTED, **outside}.items():
        await execute(
            database_url,
            "INSERT INTO tenant_usage VALUES"
            " ('default', '', $1, $2, 'reported', $3, $3, 0, 0, 0, 0, $3, 0, 0)",
            day,
            model,
            calls,
        )


@pytest.mark.parametrize("limit", [2, 1000])
async def test_rows_of_a_range_of_days(
    client: httpx.AsyncClient, database_url: str, limit: int
) -> None:
    """Page by page, each row of the range comes once; totals are of all pages."""
    await plant(database_url)
    span = {"from": FIRST.isoformat(), "to": (FIRST + timedelta(days=4)).isoformat()}
    found: dict[tuple[str, str], int] = {}
    cursor: dict[str, Any] = {}
    while True:
        page = await read(client, "/v1", **span, limit=limit, **cursor)
        assert len(page["data"]) <= limit
        assert page["totals"]["reported"]["input_tokens"] == sum(PLANTED.values())
        assert (page["from"], page["to"]) == (span["from"], span["to"])
        found |= {(row["day"], row["model"]): row["reported"]["calls"] for row in page["data"]}
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    expected = {(day.isoformat(), model): calls for (day, model), calls in PLANTED.items()}
    assert list(found.items()) == sorted(expected.items())


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ({"from": "2026-13-01"}, "/query/from"),
        ({"from": "20260101"}, "/query/from"),
        ({"from": "1767225600"}, "/query/from"),
        ({"to": "2026-02-30"}, "/query/to"),
        ({"to": "0001-01-05"}, "/query/to"),
        ({"from": "2026-02-02", "to": "2026-02-01"}, "/query/from"),
        ({"from": "2025-01-01", "to": "2026-01-02"}, "/query/from"),
        ({"from": "9999-12-31"}, "/query/from"),
        ({"limit": 1001}, "/query/limit"),
        ({"cursor": "x"}, "/query/cursor"),
        ({"cursor": "WyJ1c2FnZSIsImRheSIsIjIwMjYtMDEtMDEiLG51bGxd"}, "/query/cursor"),
        ({"day": "2026-01-01"}, "/query/day"),
    ],
    ids=str,
)
async def test_wrong_questions(
    client: httpx.AsyncClient, query: dict[str, str], pointer: str
) -> None:
    """What cannot be asked is a 422, or a 400 for an unknown parameter, that points at it."""
    answer = await client.get("/v1/usage", params=query)
    assert_problem(answer, 422, "VALIDATION_ERROR", pointer)


# --- summaries and savings ------------------------------------------------------------------


async def test_summaries_are_part_of_the_bill(with_model: Settings, fake_llm: FakeLLM) -> None:
    """The service's own calls cost, in compactions that succeed, fail or gain nothing.

    Snapshots and stateless summaries are on the tenant's bill alone.
    """
    async with started(create_app(with_model)) as client:
        await client.put(f"/v1/models/{FAKE}", json=PRICES)
        path = await new_conversation(client)
        await append(client, path, *talk(60, "word " * 60))
        receipt = (await client.post(f"{path}/compact", json={})).json()
        assert receipt["compacted"]
        assert await calls_of(client, path) == (1, 100, 20, 0.00036)
        assert receipt["cost_usd"] == pytest.approx(0.00036)
        await append(client, path, *talk(60, "word " * 60))
        fake_llm.always(behave.no_tags())
        failed = await client.post(f"{path}/compact", json={})
        assert failed.status_code == 503
        answered = fake_llm.calls
        assert answered > 1
        assert (await calls_of(client, path))[0] == answered
        fake_llm.always(behave.answer())
        saved = await client.post(f"{path}/snapshots", json={})
        assert saved.status_code == 201, saved.text
        body = {"messages": talk(4), "model": FAKE}
        compressed = await client.post("/v1/context/compress", json=body)
        assert compressed.status_code == 200, compressed.text
        assert fake_llm.calls == answered + 2
        assert (await calls_of(client, path))[0] == answered
        count, sent, received, cost = await calls_of(client, "/v1")
        assert (count, sent, received) == (fake_llm.calls, 100 * count, 20 * count)
        assert cost == pytest.approx(count * 0.00036)


async def calls_of(client: httpx.AsyncClient, path: str) -> tuple[int, int, int, float]:
    """Return calls, tokens and cost of the summariser's calls."""
    told = await read(client, path)
    assert [row["model"] for row in told["data"]] == [FAKE]
    assert told["totals"]["reported"] == NOTHING
    calls = told["totals"]["summaries"]
    assert told["totals"]["cost_usd"] == calls["cost_usd"]
    cost_usd = round(calls["cost_usd"], 10)
    return calls["calls"], calls["input_tokens"], calls["output_tokens"], cost_usd


async def test_what_was_saved(client: httpx.AsyncClient) -> None:
    """It is the log up to the newest message of a call, minus what the provider was sent."""
    await client.put(f"/v1/models/{MODEL}", json=PRICES)
    path = await new_conversation(client, model=MODEL)
    appended = await append(client, path, *talk(60, "word " * 60))
    log = sum(item["token_count"] for item in appended["messages"])
    head_seq = appended["messages"][-1]["seq"]

    async def saved_by(sent: int, cached: int = 0, model: str = MODEL) -> dict[str, Any]:
        usage = {
            "prompt_tokens": sent,
            "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        body = {"usage": usage, "through_seq": head_seq, "model": model}
        answer = await client.post(f"{path}/usage", json=body)
        assert answer.status_code == 200, answer.text
        rows = (await read(client, path))["data"]
        (totals,) = [row for row in rows if row["model"] == model]
        return {name: totals[name] for name in ("saved_tokens", "saved_usd")}

    # A call that sends more than the log saves nothing.
    assert await saved_by(log + 100) == {"saved_tokens": 0, "saved_usd": 0}
    await append(client, path, user("after the call"))
    expected = {"saved_tokens": log - 1_000, "saved_usd": pytest.approx((log - 1_000) * 2e-6)}
    assert await saved_by(1_000, cached=600) == expected
    assert await saved_by(log - 50, model=UNPRICED) == {"saved_tokens": 50, "saved_usd": None}
    whole = (await read(client, "/v1"))["totals"]
    assert whole["saved_tokens"] == log - 1_000 + 50
