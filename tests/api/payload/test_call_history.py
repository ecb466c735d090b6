"""The lists of epochs and reported calls over HTTP. [epochs.listed, usage.reports-listed]"""

from __future__ import annotations

from typing import Any

import httpx

from tests.api.talk import append, assistant, new_conversation, user

MODEL = "gpt-4o"


async def pages(client: httpx.AsyncClient, path: str, limit: int) -> list[dict[str, Any]]:
    """Return all items of a list, read in pages."""
    items: list[dict[str, Any]] = []
    cursor = None
    while True:
        params = {"limit": limit} | ({"cursor": cursor} if cursor else {})
        page = (await client.get(path, params=params)).json()
        items += page["data"]
        if (cursor := page["next_cursor"]) is None:
            return items


async def test_each_epoch_is_listed_with_its_reason(client: httpx.AsyncClient) -> None:
    """Epochs come newest first, each with the reason that its first build gave."""
    path = await new_conversation(client, model=MODEL)
    builds = []
    for number in range(3):
        await append(client, path, user(f"{number}?"), assistant("!"))
        sections = [{"name": "base", "content": f"Version {number}."}]
        assert (await client.patch(path, json={"sections": sections})).is_success
        builds.append((await client.post(f"{path}/context", json={})).json())
    small = {"format": "anthropic", "context_window": 9000}
    builds.append((await client.post(f"{path}/context", json=small)).json())
    listed = await pages(client, f"{path}/epochs", 2)
    names = ("epoch", "cache_break_reason", "format")
    assert [[item[name] for name in names] for item in reversed(listed)] == [
        [{**built, **built["diagnostics"]}[name] for name in names] for built in builds
    ]
    assert all(
        built["build_id"].startswith(item["epoch_id"])
        for item, built in zip(reversed(listed), builds, strict=True)
    )
    assert [item["context_window"] for item in listed] == [9000, None, None, None]
    assert [item["start_seq"] for item in listed] == [6, 6, 4, 2]
    assert {item["model"] for item in listed} == {MODEL}


async def test_each_report_is_listed(client: httpx.AsyncClient) -> None:
    """Reports come newest first, with their payload and its regions. [usage.reports-listed]"""
    path = await new_conversation(client, model=MODEL)
    section = {"name": "base", "content": "You know the harbour."}
    assert (await client.patch(path, json={"sections": [section]})).is_success
    budgets = []
    for cached in (0, 40, 60):
        await append(client, path, user("?"))
        built = (await client.post(f"{path}/context", json={})).json()
        budgets.append(built["diagnostics"]["budget"])
        usage = {
            "prompt_tokens": 100,
            "completion_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        answer = await client.post(
            f"{path}/usage", json={"usage": usage, "build_id": built["build_id"]}
        )
        assert answer.is_success
    listed = await pages(client, f"{path}/usage/reports", 2)
    assert [item["token_usage"]["cache_read_tokens"] for item in listed] == [60, 40, 0]
    assert [item["token_usage"]["total_tokens"] for item in listed] == [107, 107, 107]
    assert [item["through_seq"] for item in listed] == [3, 2, 1]
    assert all(item["epoch"] == 1 and item["format"] == "openai_chat" for item in listed)
    for item, budget in zip(reversed(listed), budgets, strict=True):
        assert sum(item["regions"].values()) == item["estimated_tokens"]
        assert item["regions"] == {name: budget[name] for name in item["regions"]}
