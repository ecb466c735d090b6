"""The summariser's model over HTTP: who may be named, what it costs, how it fails (E5, J5)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI

from app.main import create_app
from app.settings import Settings
from tests.api.talk import append, new_conversation, talk
from tests.conftest import started
from tests.fake_llm import FakeLLM

LONG = "We talked about the harbour, the trains and the weather in Bergen. " * 12
MODEL = "openai/fake"


@pytest.fixture
def app(with_model: Settings) -> FastAPI:
    """The app whose summariser is the scriptable model."""
    return create_app(with_model)


@pytest_asyncio.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of that app."""
    async with started(app) as opened:
        yield opened


async def long_talk(client: httpx.AsyncClient, **body: Any) -> str:
    """Create a conversation with enough to compact, and return its path."""
    path = await new_conversation(client, **body)
    await append(client, path, *talk(60, LONG))
    return path


# --- what it costs --------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["sandwich", "tree_summary", "retain_summary", "chain"])
async def test_a_tenants_prices_make_the_cost(
    client: httpx.AsyncClient, fake_llm: FakeLLM, strategy: str
) -> None:
    """J5, E8: results, receipts and metrics cost what the tenant's entry says per token."""
    entry = {"input_price": 0.25, "output_price": 0.5}
    assert (await client.put(f"/v1/models/{MODEL}", json=entry)).status_code == 200
    path = await long_talk(client, policy={"strategy": strategy})
    result = (await client.post(f"{path}/compact")).json()
    # The scriptable model reports 100 tokens in and 20 out for each call.
    cost = fake_llm.calls * (100 * 0.25 + 20 * 0.5)
    assert fake_llm.calls >= 1
    assert result["cost_usd"] == pytest.approx(cost)
    receipt = (await client.get(f"{path}/compactions/{result['compaction_id']}")).json()
    assert receipt["cost_usd"] == pytest.approx(cost)
    metrics = (await client.get("/metrics")).text
    (line,) = (row for row in metrics.splitlines() if row.startswith("context_llm_cost_usd_total{"))
    assert float(line.rpartition(" ")[2]) == pytest.approx(cost)


async def test_a_cost_without_both_prices_is_unknown(client: httpx.AsyncClient) -> None:
    """J5, E8: one price alone makes no cost, and a deleted entry counts no more."""
    await client.put(f"/v1/models/{MODEL}", json={"input_price": 0.25})
    path = await long_talk(client)
    assert (await client.post(f"{path}/compact")).json()["cost_usd"] is None
    await client.put(f"/v1/models/{MODEL}", json={"input_price": 0.25, "output_price": 0.0})
    await client.delete(f"/v1/models/{MODEL}")
    path = await long_talk(client)
    assert (await client.post(f"{path}/compact")).json()["cost_usd"] is None
