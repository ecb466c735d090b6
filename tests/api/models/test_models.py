"""`/v1/models` and `/v1/strategies`.

[models.registry, budget.window-sources, strategy.pure, strategy.sliding-window]
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.talk import append, assert_problem, new_conversation, user


async def test_reading_a_model(client: httpx.AsyncClient) -> None:
    """Limits and prices come with their sources; the built-in names have their values."""
    body = (await client.get("/v1/models/gpt-4o")).json()
    assert (body["context_window"], body["exact"]) == (128_000, True)
    assert body["sources"]["context_window"]
    numbers = {name for name, value in body.items() if isinstance(value, int | float)}
    assert set(body["sources"]) <= numbers
    assert (await client.get("/v1/models/claude-3-opus")).json()["context_window"] == 200_000
    assert_problem(await client.get("/v1/models/nobody-knows-this"), 404, "NOT_FOUND")


async def test_names_with_slashes(client: httpx.AsyncClient) -> None:
    """A name may hold slashes, quoted or not. [models.registry]"""
    entry = {"context_window": 9000}
    for name in ("lab/tiny:v1", "lab%2Fsmall", "a/b/c d"):
        assert (await client.put(f"/v1/models/{name}", json=entry)).status_code == 200
        assert (await client.get(f"/v1/models/{name}")).json()["context_window"] == 9000
    assert (await client.get("/v1/models/lab/small")).json()["model"] == "lab/small"


async def test_a_tenants_entry_sets_the_context_window(client: httpx.AsyncClient) -> None:
    """A tenant's own values override the bundled ones, apply to builds, and can be deleted."""
    path = await new_conversation(client, model="gpt-4o")
    await append(client, path, user("hi"))
    answer = await client.put("/v1/models/gpt-4o", json={"context_window": 9000})
    body = answer.json()
    assert answer.status_code == 200
    assert (body["context_window"], body["sources"]["context_window"]) == (9000, "tenant")
    assert body["input_price"] is not None and body["sources"]["input_price"] != "tenant"
    assert (await client.get("/v1/models/gpt-4o")).json() == body
    assert (await client.get(f"{path}/budget")).json()["budget"]["context_window"] == 9000
    assert (await client.post(f"{path}/context")).json()["diagnostics"]["budget"][
        "context_window"
    ] == 9000
    deleted = await client.delete("/v1/models/gpt-4o")
    assert deleted.json() == {"deleted": {"models": 1}}
    assert (await client.get("/v1/models/gpt-4o")).json()["context_window"] == 128_000
    assert (await client.get(f"{path}/budget")).json()["budget"]["context_window"] == 128_000
    assert_problem(await client.delete("/v1/models/gpt-4o"), 404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"context_window": 0}, "/context_window"),
        ({"context_window": "9000"}, "/context_window"),
        ({"context_window": 10**20}, "/context_window"),
        ({"input_price": -1}, "/input_price"),
        ({"tokenizer": "\x00"}, "/tokenizer"),
        ({"window": 1}, "/window"),
    ],
    ids=str,
)
async def test_wrong_entries(client: httpx.AsyncClient, body: dict[str, Any], pointer: str) -> None:
    """Each wrong field is a 422 that points at it. [errors.problem-json]"""
    answer = await client.put("/v1/models/mine", json=body)
    assert_problem(answer, 422, "VALIDATION_ERROR", pointer)
    assert_problem(await client.get("/v1/models/mine"), 404, "NOT_FOUND")


async def test_list_in_pages(client: httpx.AsyncClient) -> None:
    """All models are listed by name, the tenant's own among them. [models.tenant-entry]"""
    await client.put("/v1/models/mine", json={"context_window": 9000})
    names: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = (await client.get(f"/v1/models?limit=1000{cursor}")).json()
        names += [item["model"] for item in page["data"]]
        cursor = f"&cursor={page['next_cursor']}" if page["next_cursor"] else None
    assert names == sorted(names) and len(names) == len(set(names))
    assert {"mine", "gpt-4o", "claude-3-opus", "gemini-pro"} <= set(names)


async def test_strategies(client: httpx.AsyncClient) -> None:
    """Name, trigger and preserved ranges of every strategy can be inspected [strategy.pure]."""
    body = (await client.get("/v1/strategies")).json()
    found = {item.pop("name"): item for item in body["data"]}
    by_share = {"sandwich", "tree_summary", "retain_summary", "chain"}
    assert set(found) == by_share | {"sliding_window", "full_history", "provider"}
    assert {found[name]["due_at"] for name in by_share} == {0.85}
    sandwich = found["sandwich"]
    assert (sandwich["preserve_top"], sandwich["preserve_bottom"]) == (5, 5)
    assert sandwich["default"]
    assert found["sliding_window"]["preserve_bottom"] == 20
    assert found["full_history"]["preserve_top"] is None
    assert all(item["description"].endswith(".") for item in found.values())
