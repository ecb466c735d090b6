"""Pages bounded by bytes: whatever the budget, they concatenate to the whole list.

[storage.memory-bounds]
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.main import create_app
from app.settings import Settings
from tests.conftest import started
from tests.patience import PATIENCE_SECONDS

SIZES = (10, 3_000, 40, 120_000, 5, 5, 30_000, 1_000, 70_000, 2, 9_000, 400)
"""Characters of the messages that are listed, in log order."""
BESIDE_BYTES = 2_000
"""What the service adds to a message and to a page, at most."""


async def pages(client: httpx.AsyncClient, path: str, **query: Any) -> list[tuple[int, list[Any]]]:
    """Return the pages of a list, each with its size in bytes."""
    found: list[tuple[int, list[Any]]] = []
    cursor = None
    while True:
        parameters = query | ({"cursor": cursor} if cursor else {})
        answer = await client.get(path, params=parameters)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found.append((len(answer.content), page["data"]))
        cursor = page["next_cursor"]
        if cursor is None:
            return found


async def filled(client: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
    """Store what is listed, and return the paths of the lists with their queries."""
    agents = [
        {"name": f"agent {n}", "metadata": {"text": "m" * n * 900}, "sections": []}
        for n in range(7)
    ]
    made = [(await client.post("/v1/agents", json=agent)).json()["agent_id"] for agent in agents]
    talks = []
    for number in range(5):
        body = {"model": "gpt-4o", "agent_id": made[0], "metadata": {"text": "é" * number * 700}}
        talks.append((await client.post("/v1/conversations", json=body)).json()["conversation_id"])
    first = f"/v1/conversations/{talks[0]}"
    for number, size in enumerate(SIZES):
        role = "assistant" if number % 2 else "user"
        message = {"role": role, "content": f"found {number} " + "wörd " * (size // 5)}
        sent = await client.post(f"{first}/messages", json={"messages": [message]})
        assert sent.status_code == 201
        other = {"messages": [{"role": "user", "content": "x" * (size % 5_000 + 1)}]}
        await client.post(f"/v1/conversations/{talks[1]}/messages", json=other)
    for number in range(4):
        note = {"description": "d" * number * 2_000}
        saved = await client.post(f"{first}/snapshots", json=note)
        assert saved.status_code == 201
    compacted = await client.post(f"{first}/compact", json={"target_tokens": 2_000})
    assert compacted.status_code == 200
    (receipt,) = (await client.get(f"{first}/compactions")).json()["data"]
    expansion = f"{first}/compactions/{receipt['compaction_id']}/messages"
    return {
        f"{first}/messages": {},
        f"{first}/messages#desc": {"order": "desc"},
        f"{first}/messages#words": {"query": "found"},
        f"{first}/messages#phrase": {"query": '"wörd wörd"'},
        f"{first}/compactions": {},
        expansion: {},
        "/v1/agents": {},
        "/v1/conversations": {},
        "/v1/snapshots": {},
        "/v1/snapshots#agent": {"agent_id": made[0]},
    }


@pytest.fixture
def app(settings: Settings) -> FastAPI:
    """The app, whose budget a test sets."""
    return create_app(settings)


async def test_pages_of_any_budget_concatenate_to_the_whole(app: FastAPI) -> None:
    """Property: no item is lost, doubled or moved, and only a single item is over the budget."""
    async with started(app) as client:
        lists = await filled(client)
        whole = {}
        for path, query in lists.items():
            ((_, whole[path]),) = await pages(client, path.partition("#")[0], limit=1000, **query)
            assert len(whole[path]) > (0 if path.endswith("compactions") else 1), path
        loop = asyncio.get_running_loop()

        async def check(path: str, budget: int, limit: int) -> None:
            app.state.page_bytes = budget
            found = await pages(client, path.partition("#")[0], limit=limit, **lists[path])
            assert [item for _, page in found for item in page] == whole[path]
            assert all(page for _, page in found)
            for size, page in found:
                if len(page) > 1:
                    assert size <= budget + BESIDE_BYTES * (len(page) + 1)

        @settings(max_examples=30, suppress_health_check=list(HealthCheck))
        @given(
            st.sampled_from(sorted(lists)),
            st.one_of(st.integers(1, 4_000), st.integers(1, 400_000)),
            st.sampled_from([1, 2, 3, 7, 50, 1000]),
        )
        def drawn(path: str, budget: int, limit: int) -> None:
            asyncio.run_coroutine_threadsafe(check(path, budget, limit), loop).result(
                PATIENCE_SECONDS
            )

        await asyncio.to_thread(drawn)


async def test_large_results_are_whole_one_to_a_page(app: FastAPI) -> None:
    """With `content=full` a result larger than the budget is complete, on its own page."""
    async with started(app) as client:
        made = await client.post("/v1/conversations", json={"model": "gpt-4o"})
        path = f"/v1/conversations/{made.json()['conversation_id']}/messages"
        texts = [f"{number} " + "line\n" * 40_000 for number in range(3)]
        for number, text in enumerate(texts):
            function = {"name": "shell", "arguments": "{}"}
            call = {"id": f"call_{number}", "type": "function", "function": function}
            messages = [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": f"call_{number}", "content": text},
            ]
            assert (await client.post(path, json={"messages": messages})).status_code == 201
        app.state.page_bytes = 100_000
        found = await pages(client, path, limit=1000, content="full")
        shown = [item["content"] for _, page in found for item in page if item["role"] == "tool"]
        assert shown == texts
        assert len(found) >= len(texts)
