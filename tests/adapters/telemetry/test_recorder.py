"""Metrics of real sessions: exact, bounded, and silent about what was said.

[operation.metrics]
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import pytest

from app.composition import Services
from app.main import create_app
from app.operation.recorder import Telemetry, serve_metrics
from app.settings import Settings
from tests.api.talk import append, assistant, calling, new_conversation, result, talk, user
from tests.commands import free_port
from tests.conftest import started
from tests.exposition import Exposed, exposed
from tests.fake_llm import FakeLLM, answer, status
from tests.logged import Lines, lines
from tests.patience import PATIENCE_SECONDS
from tests.processes import is_ready, process, until

__all__ = ["lines"]

MODEL = "openai/gpt-4o-mini"
SMALL = {"budget": {"context_window": 4_096, "max_output_tokens": 512}, "agent_tools": "none"}


@pytest.fixture
def summarised(with_model: Settings) -> Settings:
    """Settings with a summariser whose price is known."""
    return with_model.model_copy(
        update={"summarizer_model": MODEL, "summarizer_allowed_models": (MODEL,)}
    )


async def metrics_of(client: httpx.AsyncClient) -> Exposed:
    """Return what `/metrics` says."""
    answer = await client.get("/metrics")
    assert answer.status_code == 200, answer.text
    return exposed(answer.text)


# --- a session --------------------------------------------------------------------------------


async def test_the_metrics_of_a_session(summarised: Settings, fake_llm: FakeLLM) -> None:
    """Appends, builds, compactions, tokens saved, calls and cost are counted exactly."""
    async with started(create_app(summarised)) as client:
        path = await new_conversation(client, model="gpt-4o", policy=SMALL)
        batch = talk(24)
        first = await append(client, path, *batch[:12])
        second = await append(client, path, *batch[12:], user("once", id="mine"))
        known = await append(client, path, user("once", id="mine"))
        assert known["messages"][0]["seq"] == 25
        keyed = {"messages": [assistant("fine")]}
        answers = [
            await client.post(f"{path}/messages", json=keyed, headers={"Idempotency-Key": "k"})
            for _ in range(2)
        ]
        stored = [*first["messages"], *second["messages"], *answers[0].json()["messages"]]

        built = (await client.post(f"{path}/context", json={})).json()
        have = {"build_id": built["build_id"]}
        await client.post(f"{path}/context", json={"known": have})
        await client.post(f"{path}/context", json={"format": "anthropic", "model": "claude-3-opus"})

        made = (await client.post(f"{path}/compact", json={})).json()
        assert made["compacted"] and made["model"] == MODEL, made
        again = (await client.post(f"{path}/compact", json={})).json()
        assert not again["compacted"]
        fake_llm.always(status(401))
        await append(client, path, *talk(24, "word " * 60))
        assert (await client.post(f"{path}/compact", json={})).status_code == 503
        found = await metrics_of(client)
        late = (await client.get(f"{path}/messages?limit=24&order=desc")).json()["data"]

    stored += late
    assert found.value("appends_total") == 4
    assert found.value("appended_messages_total") == len(stored) == 50
    assert found.value("appended_tokens_total") == sum(item["token_count"] for item in stored)
    assert found.by("builds_total", "format", "kind", "degraded") == {
        ("openai_chat", "full", "no"): 1,
        ("openai_chat", "delta", "no"): 1,
        ("anthropic", "full", "no"): 1,
    }
    assert found.by("compactions_total", "trigger", "strategy", "outcome") == {
        ("forced", "sandwich", "compacted"): 1,
        ("forced", "sandwich", "not_needed"): 1,
        ("forced", "sandwich", "failed"): 1,
    }
    assert found.total("compaction_duration_seconds_count") == 3
    saved = made["before_tokens"] - made["after_tokens"]
    assert found.by("compaction_saved_tokens_total", "trigger") == {("forced",): saved}
    assert found.by("llm_calls_total", "model", "outcome") == {
        (MODEL, "ok"): 1,
        (MODEL, "authentication"): 1,
    }
    assert found.by("llm_tokens_total", "direction") == {("input",): 100, ("output",): 20}
    cost = found.value("llm_cost_usd_total", model=MODEL)
    assert cost == pytest.approx(made["cost_usd"]) == pytest.approx(100 * 15e-8 + 20 * 6e-7)
    route = "/v1/conversations/{conversation_id}/messages"
    assert found.value("http_requests_total", method="POST", route=route, status="201") == 6
    assert found.value("database_errors_total", kind="TimeoutError") is None
    assert found.value("due_conversations") in (0, 1)
    assert found.value("pool_limit") == summarised.pool_max_size


# --- silence ----------------------------------------------------------------------------------

MARKER = "zq7marker"


async def say_it_everywhere(client: httpx.AsyncClient) -> None:
    """Put the marker wherever a caller can put words, and compact what was said."""
    path = await new_conversation(
        client,
        model="gpt-4o",
        policy=SMALL,
        sections=[{"name": "base", "content": f"You are {MARKER}."}],
        metadata={"note": MARKER},
        tools=[{"name": MARKER, "description": MARKER, "input_schema": {"type": "object"}}],
    )
    for number in range(6):
        spoken = f"{number} {MARKER} " * 60
        call_id = f"{MARKER}-{number}"
        await append(client, path, user(spoken), calling(call_id), result(call_id, spoken))
        await append(client, path, assistant(spoken))
    await client.get(f"{path}/messages", params={"query": MARKER, "limit": 5})
    await client.get(f"/v1/agents/{MARKER}", params={MARKER: MARKER})
    await client.get(f"/{MARKER}?{MARKER}={MARKER}", headers={"User-Agent": MARKER})
    await client.post(f"{path}/context", json={"scratchpad": MARKER})
    await client.post(f"{path}/messages", content=f'{{"{MARKER}'.encode())
    await append(client, path, calling("open"))
    await client.post(f"{path}/messages", json={"messages": [result(MARKER, MARKER)]})
    await client.post(f"{path}/tools/search", json={"query": MARKER})
    await client.post(f"{path}/compact", json={"instructions": MARKER})
    await client.post(f"{path}/context", json={"format": "anthropic", "model": MARKER})
    await client.post(f"{path}/compact", json={"model": MARKER})


async def test_nothing_that_was_said_is_told(
    summarised: Settings, fake_llm: FakeLLM, lines: Lines
) -> None:
    """No word of a caller stands in any log line or metric, whatever becomes of it."""
    logging.getLogger("app").setLevel(logging.DEBUG)
    fake_llm.script(status(400, MARKER), answer(f"{MARKER} without tags"), answer(MARKER))
    fake_llm.always(answer(f"<summary>{MARKER} was said.</summary>"))
    app = create_app(summarised)
    found: Services = app.state.services

    async def fail(*_arguments: Any) -> Any:
        raise LookupError(MARKER)

    found.stateless.needs_compression = fail  # type: ignore[method-assign, assignment]
    async with started(app) as client:
        await say_it_everywhere(client)
        await say_it_everywhere(client)
        body = {"messages": [user(MARKER)], "context_window": 1000}
        asked = await client.post("/v1/context/needs-compression", json=body)
        assert asked.status_code == 500
        text = (await client.get("/metrics")).text
    assert any(MARKER in json.dumps(request.body) for request in fake_llm.requests)
    assert len(lines.texts) > 40
    assert exposed(text).by("compactions_total", "outcome").keys() >= {("compacted",)}
    for told in ("\n".join(lines.texts), text):
        assert MARKER not in told


# --- the database away ------------------------------------------------------------------------


@contextmanager
def silent_server() -> Iterator[int]:
    """Yield the port of a server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


async def test_a_scrape_without_a_database(settings: Settings) -> None:
    """With the database away or silent `/metrics` answers, without what waits."""
    with silent_server() as port:
        for number in (port, free_port()):
            url = f"postgresql://nobody@127.0.0.1:{number}/nothing"
            app = create_app(settings.model_copy(update={"database_url": url}))
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                begun = monotonic()
                found = await metrics_of(client)
                assert monotonic() - begun < PATIENCE_SECONDS
                assert found.value("due_conversations") is None
                assert found.value("queue_age_seconds") is None
                assert found.value("appends_total") == 0
                assert (await client.get("/v1/conversations")).status_code == 503
                found = await metrics_of(client)
                assert found.total("database_errors_total") >= 1


# --- other processes --------------------------------------------------------------------------


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """The port of a worker's `/metrics`, which asks for a token."""
    telemetry = Telemetry("1.2.3", "s3cret")
    telemetry.appended(2, 30)
    yield serve_metrics(telemetry, "127.0.0.1", 0)


async def test_the_port_of_a_worker(port: int) -> None:
    """A process without an API answers `/metrics` alone, to those who have the token."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        assert (await client.get("/metrics")).status_code == 401
        answer = await client.get("/metrics", headers={"Authorization": "Bearer s3cret"})
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = exposed(answer.text)
    assert found.value("appended_tokens_total") == 30
    assert found.by("service_info", "version") == {("1.2.3",): 1}


def test_two_processes_add_up(database_url: str, fake_llm: FakeLLM, tmp_path: Path) -> None:
    """Each of two processes answers for both, and for one that was killed; what that one had
    open counts no more.
    """
    port, log = free_port(), tmp_path / "log"
    url = f"http://127.0.0.1:{port}"
    arguments = ("serve", "--no-worker", "--workers", "2", "--port", str(port))
    with process(log, database_url, fake_llm, *arguments) as parent:
        until(lambda: is_ready(url), "it answers")
        sent = 0

        def pids() -> set[int]:
            told = [json.loads(line) for line in log.read_text().splitlines() if line[0] == "{"]
            return {line["pid"] for line in told if line["event"] == "request"}

        def ask() -> bool:
            nonlocal sent
            for _ in range(10):  # each on a connection of its own, which either may take
                sent += httpx.get(f"{url}/v1/strategies").status_code == 200
            return len(pids()) == 2

        until(ask, "both have answered")
        for _ in range(6):
            assert _counted(url) == sent
        until(lambda: _limit(url) == 8, "both have told of their pools")
        os.kill(pids().pop(), signal.SIGKILL)
        until(lambda: _limit(url) == 4, "the dead one's pool is forgotten")
        assert _counted(url) == sent
        parent.send_signal(signal.SIGTERM)
        parent.wait(PATIENCE_SECONDS)


def _counted(url: str) -> float:
    found = exposed(httpx.get(f"{url}/metrics").text)
    return found.by("http_requests_total", "route")[("/v1/strategies",)]


def _limit(url: str) -> float | None:
    try:
        return exposed(httpx.get(f"{url}/metrics").text).value("pool_limit")
    except httpx.TransportError:
        return None
