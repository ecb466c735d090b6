"""Builds without effects over HTTP. [dry-run.next-build, dry-run.no-effects]"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from app.settings import Settings
from tests.api.talk import append, assistant, calling, new_conversation, result, talk, user
from tests.conftest import execute

PROVIDERS = ("openai_chat", "openai_responses", "anthropic", "gemini")
SHARED = (
    "format",
    "payload",
    "epoch",
    "through_seq",
    "stable_items",
    "prefix_hash",
    "breakpoints",
    "tail",
    "tokens_used",
    "budget",
    "pressure",
    "cache_break_reason",
    "degraded",
)


async def dry_run(client: httpx.AsyncClient, path: str, **params: Any) -> dict[str, Any]:
    """Return a dry run, its diagnostics beside the rest."""
    answer = await client.get(f"{path}/context/dry-run", params=params)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return {**body, **body["diagnostics"]}


@pytest.mark.parametrize("format", PROVIDERS)
async def test_a_dry_run_is_the_next_build(client: httpx.AsyncClient, format: str) -> None:
    """A dry run has all that a build then returns, in each format, at first and in an epoch."""
    path = await new_conversation(client, sections=[{"name": "base", "content": "Be brief."}])
    asked = {"format": format, "model": "claude-3-5-sonnet"}
    built: dict[str, Any] = {}
    for messages in ([*talk(6), user("?"), calling("a"), result("a")], [assistant("!"), user(".")]):
        await append(client, path, *messages)
        answered = await dry_run(client, path, **asked)
        built = (await client.post(f"{path}/context", json=asked)).json()
        built |= built["diagnostics"]
        assert {name: answered[name] for name in SHARED} == {name: built[name] for name in SHARED}
        assert answered["shown_ranges"] == [[1, built["through_seq"] + 1]]
        assert answered["stable_through_seq"] <= built["through_seq"]
        places = [place for place in built["breakpoints"] if place["after"] == "message"]
        assert len(answered["breakpoint_seqs"]) == len(places)
        assert all(1 <= seq <= built["through_seq"] for seq in answered["breakpoint_seqs"])
    without = await dry_run(client, path, **asked, payload=False)
    assert without["payload"] is None and without["tokens_used"] == built["tokens_used"]


async def test_a_dry_run_has_no_effects(settings: Settings, client: httpx.AsyncClient) -> None:
    """Nothing is stored by dry runs, not even where the window is over every threshold."""
    policy = {"budget": {"context_window": 1500, "max_output_tokens": 100}}
    path = await new_conversation(client, policy=policy, model="gpt-4o")
    await append(client, path, *talk(40))
    tables = ("epochs", "compactions", "prompt_texts", "events")

    async def counts() -> list[int]:
        url = settings.database_url
        assert url is not None
        rows = [await execute(url, f"SELECT count(*) FROM {name}") for name in tables]
        return [row[0][0] for row in rows]

    before, state = await counts(), (await client.get(f"{path}/state")).json()
    answered = await dry_run(client, path)
    small = await dry_run(client, path, format="anthropic", context_window=700)
    assert small["budget"]["context_window"] == 700 and small["tokens_used"] <= 600
    assert answered["tokens_used"] <= 1400
    assert sum(end - start for start, end in small["shown_ranges"]) < 40
    assert await counts() == before
    assert (await client.get(f"{path}/state")).json() == state
    thresholds = answered["thresholds"]
    assert thresholds == {"due": 1190, "notice": 1260, "compact": 1330, "blocked": 1372}


async def test_a_dry_run_lists_its_messages(client: httpx.AsyncClient) -> None:
    """Each shown message has its tokens, and how it is shown: their sum is that of the budget.

    [dry-run.messages]
    """
    path = await new_conversation(
        client, model="gpt-4o", policy={"tool_output": {"max_message_bytes": 2_000}}
    )
    for number in range(8):
        call, size = f"c{number}", 40_000 if number == 1 else 300
        await append(client, path, user("?"), calling(call), result(call, "word " * size))
        await append(client, path, assistant("!"))
    first = (await client.get(f"{path}/messages")).json()["data"][0]
    assert (await client.put(f"{path}/messages/{first['id']}/pin")).is_success
    answered = await dry_run(client, path, payload=False)
    shown = answered["shown_messages"]
    assert [item["seq"] for item in shown] == [*range(1, 33)]
    assert sum(item["token_count"] for item in shown) == answered["budget"]["conversation"]
    assert [item["seq"] for item in shown if item["pinned"]] == [1]
    assert {item["seq"]: item["state"] for item in shown if item["state"] != "verbatim"} == {
        7: "preview"
    }
    limited = {"policy": {"tool_output": {"context_budget_tokens": 1_000}}}
    assert (await client.patch(path, json=limited)).is_success
    assert (await client.post(f"{path}/context", json={})).is_success  # clears old results
    later = await dry_run(client, path, payload=False)
    states = {item["seq"]: item["state"] for item in later["shown_messages"]}
    assert states[3] == "cleared" and states[31] == "verbatim"
    costs = {item["seq"]: item["token_count"] for item in later["shown_messages"]}
    assert costs[3] <= 80 < shown[2]["token_count"] == costs[31]
