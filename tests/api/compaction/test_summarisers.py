"""The summariser's model over HTTP: which models are allowed, their cost, their failures.

[summary.model-order, models.registry]
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app.composition import Services
from app.main import create_app
from app.settings import Settings
from app.tenancy.api_keys import DEFAULT_TENANT
from tests import fake_llm as behave
from tests.api.talk import append, assert_problem, new_conversation, talk
from tests.conftest import started
from tests.fake_llm import FakeLLM

LONG = "We talked about the harbour, the trains and the weather in Bergen. " * 12
MODEL = "openai/fake"


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
    """Results, receipts and metrics use the prices of the tenant's entry."""
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


# --- whether it may be named ----------------------------------------------------------------

WRONG = {"compaction": {"model": "openai/not-allowed"}}
PLACE = "/policy/compaction/model"


async def work(app: FastAPI, path: str) -> None:
    """Do what a worker does that was woken for a conversation."""
    services: Services = app.state.services
    await services.compaction.work(DEFAULT_TENANT, path.rpartition("/")[2], None)


async def test_a_policy_with_a_model_that_may_not_summarise_is_refused(
    client: httpx.AsyncClient,
) -> None:
    """In every place of a policy, with the allowed models; nothing is stored."""
    agent = (await client.post("/v1/agents", json={"name": "a"})).json()["agent_id"]
    path = await new_conversation(client)
    for answer in (
        await client.post("/v1/agents", json={"name": "b", "policy": WRONG}),
        await client.patch(f"/v1/agents/{agent}", json={"policy": WRONG}),
        await client.post("/v1/conversations", json={"policy": WRONG}),
        await client.patch(path, json={"policy": WRONG}),
    ):
        problem = assert_problem(answer, 422, "VALIDATION_ERROR", PLACE)
        assert "'openai/not-allowed'" in problem["detail"] and "'openai/fake'" in problem["detail"]
    assert (await client.get(path)).json()["policy"]["compaction"]["model"] is None
    for model in (MODEL, "extractive", None):
        policy = {"compaction": {"model": model}}
        assert (await client.patch(path, json={"policy": policy})).status_code == 200
        assert (await client.patch(f"/v1/agents/{agent}", json={"policy": policy})).is_success


@pytest.fixture
def narrowed(with_model: Settings) -> FastAPI:
    """The app after its operator has taken the model from the allowed ones."""
    return create_app(
        with_model.model_copy(
            update={"summarizer_model": None, "summarizer_allowed_models": ("openai/another",)}
        )
    )


SMALL = {"budget": {"context_window": 3000, "max_output_tokens": 100}}


async def test_a_model_that_is_allowed_no_longer_is_seen_and_can_be_changed(
    client: httpx.AsyncClient, narrowed: FastAPI
) -> None:
    """Stored policies stay readable, report the problem, and can be changed."""
    policy = {**SMALL, "compaction": {"model": MODEL}}
    path = await new_conversation(client, policy=policy)
    async with started(narrowed) as later:
        assert_problem(await later.post(f"{path}/compact"), 422, "VALIDATION_ERROR", PLACE)
        await append(later, path, *talk(16, LONG))
        await work(narrowed, path)
        state = (await later.get(f"{path}/state")).json()
        failure = state["last_failure"]
        assert (failure["code"], failure["trigger"]) == ("VALIDATION_ERROR", "background")
        assert "may not summarise" in failure["detail"] and failure["retry_at"] is not None
        for leaves in ({"target": 0.4}, {"model": "extractive"}):
            change = {"policy": {"compaction": leaves}}
            assert (await later.patch(path, json=change)).status_code == 200
        assert (await later.post(f"{path}/compact")).json()["compacted"]
        assert (await later.get(f"{path}/state")).json()["last_failure"] is None


# --- how it fails ---------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["sandwich", "tree_summary", "retain_summary", "chain"])
async def test_a_failing_compaction_is_seen_until_one_succeeds(
    app: FastAPI, client: httpx.AsyncClient, fake_llm: FakeLLM, strategy: str
) -> None:
    """State and events have time and reason, without content; success clears the state."""
    fake_llm.always(behave.status(500, "secret words of a provider"))
    path = await new_conversation(client, policy={**SMALL, "strategy": strategy})
    await append(client, path, *talk(16, LONG))
    await work(app, path)
    failure = (await client.get(f"{path}/state")).json()["last_failure"]
    assert failure["code"] == "SERVICE_UNAVAILABLE"
    assert (failure["trigger"], failure["reason"]) == ("background", "provider_error")
    assert failure["failures"] == 1 and failure["calls"] == fake_llm.calls >= 1
    assert failure["failed_at"] < failure["retry_at"]
    assert "secret" not in str(failure) and "Bergen" not in str(failure)
    first = {"Last-Event-ID": "0.0"}
    told = (await client.get(f"{path}/events?follow=false", headers=first)).text
    (event,) = (line for line in told.splitlines() if '"type":"failed"' in line)
    assert '"SERVICE_UNAVAILABLE"' in event and '"provider_error"' in event
    assert "secret" not in event
    assert (await client.post(f"{path}/compact")).status_code == 503
    # A forced compaction that fails answers its caller; the state is unchanged.
    assert (await client.get(f"{path}/state")).json()["last_failure"] == failure
    fake_llm.always(behave.answer())
    assert (await client.post(f"{path}/compact")).json()["compacted"]
    assert (await client.get(f"{path}/state")).json()["last_failure"] is None
