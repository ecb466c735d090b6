"""Sections and tools that change inside an epoch, over HTTP [epochs.changes]."""

from __future__ import annotations

import copy
from typing import Any

import httpx
import pytest

from tests.api.talk import append, assistant, calling, new_conversation, result, talk, user
from tests.judge import Facts, refusals
from tests.judge.epochs import ITEMS

MODELS = {"openai_responses": "gpt-5.6", "anthropic": "claude-opus-5"}
BASE, RULES = ({"name": name, "content": text} for name, text in (("a", "Be kind."), ("b", "Hum.")))
NEW_RULES = {**RULES, "content": "Whistle."}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "a": {"type": "string"}}}
SURVEY, CRANE = ({"name": name, "parameters": SCHEMA} for name in ("survey", "crane"))
formats = pytest.mark.parametrize("format", MODELS)


class Chat:
    """A conversation, and its builds in one format, each of which is judged."""

    def __init__(self, client: httpx.AsyncClient, path: str, format: str) -> None:
        self.client, self.path, self.format = client, path, format

    async def build(self, **body: Any) -> dict[str, Any]:
        """Build, and judge the payload by the SDK's types."""
        body = {"format": self.format, "model": MODELS.get(self.format), **body}
        answer = await self.client.post(f"{self.path}/context", json=body)
        assert answer.is_success, answer.text
        build: dict[str, Any] = answer.json()
        if not build["delta"]:
            facts = Facts(betas=build["betas"] or None, takes_system=True)
            assert refusals(self.format, build["payload"], facts) == []
        return build

    async def change(self, **settings: Any) -> None:
        """Change settings of the conversation."""
        answer = await self.client.patch(self.path, json=settings)
        assert answer.is_success, answer.text

    def items(self, build: dict[str, Any]) -> list[Any]:
        """Return the items without cache breakpoints, and no longer than without a tail."""
        key = ITEMS[self.format]
        items: list[Any] = copy.deepcopy(build["payload"][key])
        for item in items:
            for part in item.get("content") or ():
                part.pop("prompt_cache_breakpoint", None)
                part.pop("cache_control", None)
        return items


async def start(client: httpx.AsyncClient, format: str, **more: Any) -> Chat:
    """Return a conversation with two sections, a tool and a message."""
    policy = {"sends_betas": True}
    settings = {"sections": [BASE, RULES], "tools": [SURVEY], "policy": policy, **more}
    chat = Chat(client, await new_conversation(client, **settings), format)
    await append(client, chat.path, user("Hello."))
    return chat


@formats
async def test_changes_are_items_behind_the_prefix(client: httpx.AsyncClient, format: str) -> None:
    """The epoch goes on, its prefix stays, and deltas, replays and ids are those of the payload.

    [delta.equals-full, payload.as-of]
    """
    chat = await start(client, format)
    first = await chat.build()
    await chat.change(sections=[BASE, NEW_RULES])
    second = await chat.build()
    await chat.change(tools=[SURVEY, CRANE])
    third = await chat.build()
    await append(client, chat.path, assistant("Hi."), user("Go on."))
    fourth = await chat.build()
    builds = first, second, third, fourth
    for build in builds[1:]:
        assert (build["epoch"], build["cache_break_reason"], build["degraded"]) == (1, None, [])
        assert build["payload"].get("tools") == first["payload"].get("tools")
        assert build["payload"].get("system") == first["payload"].get("system")
        assert chat.items(build)[: len(chat.items(first))] == chat.items(first)
    assert "Whistle." in str(chat.items(second)[-1]) and "Hum." in str(second["payload"])
    assert "crane" not in str(second["payload"]) and "crane" in str(chat.items(third)[-1])
    assert (
        third["betas"]
        == fourth["betas"]
        == ["inline-tools-2026-09-15"] * ("system" in third["payload"])
    )
    assert [build["build_id"].split(".")[1] for build in builds] == ["1", "1-1", "1-2", "3"]
    used = [build["tokens_used"] for build in builds]
    assert used == sorted(set(used))
    for build in builds:
        answer = await client.get(f"{chat.path}/context", params={"as_of": build["build_id"]})
        assert answer.json()["payload"] == build["payload"], build["build_id"]
        known = {"build_id": build["build_id"]}
        delta = await chat.build(known=known)
        assert delta["delta"]
        kept = chat.items(build)[: delta["base_items"]]
        assert kept + chat.items(delta) == chat.items(fourth)
    assert (
        await client.get(f"{chat.path}/context", params={"as_of": third["build_id"][:-1] + "3"})
    ).status_code == 404
    listed = (await client.get(f"{chat.path}/epochs")).json()["data"]
    assert [(each["epoch"], each["changed_after"]) for each in listed] == [(1, [1, 1])]


@formats
async def test_the_next_epoch_has_them_in_its_prompt(
    client: httpx.AsyncClient, format: str
) -> None:
    """Whatever begins it: a compaction, a restored snapshot, or the first build of an import. A
    fork goes on with that of its source. [forks.same-prefix]
    """
    chat = await start(client, format)
    await append(client, chat.path, *talk(20, "word " * 300)[1:], user("More."))
    await chat.build()
    await chat.change(sections=[BASE, NEW_RULES], tools=[SURVEY, CRANE])
    assert (await chat.build())["epoch"] == 1
    source = await chat.build()
    copied = await client.post(f"{chat.path}/fork", json={})
    early = await client.post(f"{chat.path}/fork", json={"through_seq": 19})
    exported = (await client.get(f"{chat.path}/export")).content
    moved = await client.post("/v1/conversations/import", content=exported)
    paths = [
        f"/v1/conversations/{made.json()['conversation_id']}" for made in (copied, early, moved)
    ]
    fork, part, imported = [await Chat(client, path, format).build() for path in paths]
    assert fork["payload"] == source["payload"]
    assert (fork["epoch"], fork["cache_break_reason"]) == (1, None)
    assert chat.items(imported)[: len(chat.items(part))] == chat.items(part)
    assert (await client.post(f"{chat.path}/compact", json={})).is_success
    folded = await chat.build()
    assert folded["cache_break_reason"] == "compaction"
    saved = (await client.post(f"{chat.path}/snapshots", json={})).json()
    assert (await client.post(f"{chat.path}/clear")).is_success
    answer = await client.post(f"/v1/snapshots/{saved['snapshot_id']}/restore", json={})
    assert answer.json()["restored"] > 0
    restored = await chat.build()
    assert restored["epoch"] > folded["epoch"]
    for build in (folded, part, imported, restored):
        text = str(build["payload"])
        assert "Hum." not in text and "have changed" not in text and build["betas"] == []
        tools = [tool["name"] for tool in build["payload"]["tools"]]
        assert tools == [tool["name"] for tool in folded["payload"]["tools"]]
        assert {"survey", "crane"} < {*tools}


async def test_a_change_without_an_item_begins_an_epoch(client: httpx.AsyncClient) -> None:
    """As does one that may not stand there, or is large."""
    responses, claude = [await start(client, format) for format in MODELS]
    plain = await start(client, "openai_chat", model="gpt-5.6")
    hosted = {"type": "web_search"}
    for chat, reason, settings in (
        (plain, "sections_changed", {"sections": [BASE, NEW_RULES]}),
        (responses, "tools_changed", {"tools": [{**SURVEY, "description": "New."}]}),
        (responses, "tools_changed", {"tools": [CRANE]}),
        (responses, "tools_changed", {"tools": [CRANE, hosted]}),
        (responses, "sections_changed", {"sections": [{**BASE, "content": "word " * 120_000}]}),
        (claude, "tools_changed", {"tools": [SURVEY, {**CRANE, "name": "recall"}]}),
        (claude, "tools_changed", {"tools": []}),
        (claude, "tools_changed", {"tools": [SURVEY]}),
        (claude, "policy_changed", {"policy": {"sends_betas": False}}),
        (claude, "tools_changed", {"tools": [SURVEY, CRANE]}),
        (claude, "tools_changed", {"tools": []}),
        (claude, "tools_changed", {"tools": [SURVEY]}),
    ):
        await chat.build()
        await chat.change(**settings)
        build = await chat.build()
        assert build["cache_break_reason"] == reason, settings


@formats
async def test_a_change_waits_for_no_place(client: httpx.AsyncClient, format: str) -> None:
    """Behind a call or an answer an epoch begins; behind complete results there is an item."""
    chat = await start(client, format)
    await append(client, chat.path, calling("c1"), result("c1"))
    first = await chat.build()
    await chat.change(sections=[NEW_RULES])
    behind = await chat.build()
    assert (behind["epoch"], behind["cache_break_reason"]) == (first["epoch"], None)
    assert "no longer holds" in str(chat.items(behind)[-1])
    for number, last in enumerate((calling("c2"), assistant("Well.")), 1):
        await append(client, chat.path, last)
        await chat.change(sections=[{**BASE, "content": f"Be {number}."}])
        build = await chat.build()
        assert (build["epoch"], build["cache_break_reason"]) == (1 + number, "sections_changed")


async def test_anthropic_takes_no_user_behind_a_change(client: httpx.AsyncClient) -> None:
    """There the next epoch begins, whose prompt has the change; OpenAI goes on."""
    for format, epoch in (("anthropic", 2), ("openai_responses", 1)):
        chat = await start(client, format)
        await chat.build()
        await chat.change(sections=[BASE, NEW_RULES])
        assert (await chat.build())["epoch"] == 1
        await append(client, chat.path, user("Are you there?"))
        build = await chat.build()
        assert (build["epoch"], build["cache_break_reason"]) == (
            epoch,
            "sections_changed" if epoch == 2 else None,
        )


@formats
async def test_usage_is_counted_with_the_changes(client: httpx.AsyncClient, format: str) -> None:
    """The budget has their items, and a report of such a build is compared with all of it.

    An epoch that begins with another factor has the same bytes. [usage.frozen-factor]
    """
    chat = await start(client, format, sections=[{**BASE, "content": "Be kind. " * 300}, RULES])
    before = await chat.build()
    await chat.change(
        sections=[RULES, {**BASE, "content": "Be quick. " * 300}], tools=[SURVEY, CRANE]
    )
    build = await chat.build()
    budgets = [each["diagnostics"]["budget"] for each in (before, build)]
    assert budgets[1]["system_prompt"] > budgets[0]["system_prompt"] + 600
    assert budgets[1]["conversation"] == budgets[0]["conversation"]
    shown = (
        await client.get(
            f"{chat.path}/context/dry-run", params={"format": format, "model": MODELS[format]}
        )
    ).json()
    assert shown["tokens_used"] == build["tokens_used"]
    used = build["tokens_used"]
    usage = {"input_tokens": used, "output_tokens": 5}
    body = {"build_id": build["build_id"], "usage": usage}
    assert (await client.post(f"{chat.path}/usage", json=body)).is_success
    report = (await client.get(f"{chat.path}/usage/reports")).json()["data"][0]
    factor = build["diagnostics"]["estimate"]["factor"]
    assert abs(report["estimated_tokens"] * factor - used) < 8
    early = {"build_id": before["build_id"], "usage": {**usage, "input_tokens": used // 2}}
    assert (await client.post(f"{chat.path}/usage", json=early)).is_success
    report = (await client.get(f"{chat.path}/usage/reports")).json()["data"][0]
    assert abs(report["estimated_tokens"] * factor - before["tokens_used"]) < 8
    body["usage"]["input_tokens"] = 2 * used
    assert (await client.post(f"{chat.path}/usage", json=body)).json()["calibrated"]
    counted = await chat.build()
    assert (counted["epoch"], counted["cache_break_reason"]) == (2, "budget_changed")
    assert counted["payload"] == build["payload"]
    await append(client, chat.path, assistant("Hi."), user("Go on."))
    later = await chat.build()
    assert (later["epoch"], later["cache_break_reason"]) == (2, None)
    assert chat.items(later)[: len(chat.items(build))] == chat.items(build)
