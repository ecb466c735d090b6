"""What builds tell a conversation of its agent's others. [agents.status-preamble]"""

from __future__ import annotations

from typing import Any

import pytest

from app.adapters.postgres.database import PostgresDatabase
from app.domain.common.messages import FormatName
from app.domain.conversations.settings import SettingsList
from app.domain.prompt.resolved_settings import RequestSettings
from tests.services.fakes import Harness, WatchedDatabase, asks, user

PLAIN = {"agent_tools": "none", "budget": {"notice_at": 1.0}}


@pytest.fixture
def harness(database: PostgresDatabase) -> Harness:
    """The services of a process over a real database."""
    return Harness(WatchedDatabase(database), service_policy=PLAIN)


async def two(harness: Harness, **policy: Any) -> tuple[str, str]:
    """Return two conversations of an agent, the second waiting for a tool."""
    agent = await harness.agent(3600, policy)
    cid, other = [await harness.conversation(agent_id=agent) for _ in range(2)]
    await harness.append(cid, user("hello"))
    await harness.append(other, user("a secret"), asks("c1"))
    return cid, other


async def test_context_includes_thread_status(harness: Harness) -> None:
    """A build names the agent's other active conversations in its tail."""
    cid, other = await two(harness)
    build = await harness.build(cid)
    status = build.messages[-1]["content"]
    assert status.startswith("[Status]\nOther conversations of this agent:\n- " + other)
    assert "waiting for" in status and "secret" not in build.contents
    assert build["tail"] and build.count() == build["tokens_used"]
    assert build["stable_items"] == 1


async def test_a_status_of_the_request_replaces_it(harness: Harness) -> None:
    """A status of the request, also an empty one, or a stored section of the kind replaces it."""
    cid, _ = await two(harness)
    given = await harness.build(cid, RequestSettings(status="tests are running"))
    assert given.messages[-1]["content"] == "[Status]\ntests are running"
    assert len((await harness.build(cid, RequestSettings(status=""))).messages) == 1
    section = {"name": "now", "kind": "status", "content": "all is quiet"}
    await harness.conversations.set_list("default", cid, SettingsList.SECTIONS, [section])
    assert (await harness.build(cid)).messages[-1]["content"] == "[Status]\nall is quiet"


async def test_a_status_can_be_left_out(harness: Harness) -> None:
    """The policy can omit it, as for agents that serve several people."""
    cid, _ = await two(harness, status_preamble="none")
    assert len((await harness.build(cid)).messages) == 1


async def test_only_active_conversations_are_named(harness: Harness) -> None:
    """Cleared conversations, and those without a message in the window, are not active."""
    cid, other = await two(harness)
    await harness.conversations.clear("default", other)
    assert len((await harness.build(cid)).messages) == 1
    await harness.append(other, user("again"))
    harness.clock.pass_seconds(2)
    assert len((await harness.build(cid)).messages) == 2
    harness.clock.pass_seconds(3000)
    await harness.append(cid, user("still here"))
    harness.clock.pass_seconds(1000)
    assert [m["content"] for m in (await harness.build(cid)).messages] == ["still here"]


async def test_other_agents_are_not_named(harness: Harness) -> None:
    """A conversation without an agent has no status."""
    await two(harness)
    for agent_id in (None, await harness.agent()):
        cid = await harness.conversation(agent_id=agent_id)
        await harness.append(cid, user("hello"))
        assert len((await harness.build(cid)).messages) == 1


async def test_a_status_does_not_break_the_prefix(harness: Harness) -> None:
    """It changes with the messages of the others, and the epoch continues.

    [sections.dynamic-in-tail]
    """
    cid, other = await two(harness)
    first = await harness.build(cid)
    harness.clock.pass_seconds(120)
    await harness.append(other, user("more"))
    second = await harness.build(cid)
    assert second["tail"] != first["tail"]
    assert (second["epoch"], second["prefix_hash"]) == (first["epoch"], first["prefix_hash"])


@pytest.mark.parametrize("format", FormatName)
async def test_a_status_that_appears_does_not_break_the_prefix(
    harness: Harness, format: FormatName
) -> None:
    """In Gemini's format it joins the last item, which is not stable: that is the tail then.

    [sections.dynamic-in-tail]
    """
    agent, ask = await harness.agent(3600), RequestSettings(format)
    cid, other = [await harness.conversation(agent_id=agent) for _ in range(2)]
    await harness.append(cid, user("hello"))
    first = await harness.build(cid, ask)
    await harness.append(other, user("a secret"))
    harness.clock.pass_seconds(2)
    second = await harness.build(cid, ask)
    assert (second["epoch"], second["prefix_hash"]) == (first["epoch"], first["prefix_hash"])
    assert other in second.contents and other not in first.contents
    if format is FormatName.GEMINI:
        (item,), (before,) = second.payload["contents"], first.payload["contents"]
        assert item["parts"][:-1] == before["parts"]
        assert second["stable_items"] == 0


@pytest.mark.parametrize("position", ["tail", "system", "before_window"])
async def test_the_policy_sets_the_position_of_the_status(harness: Harness, position: str) -> None:
    """It is the end of the system prompt, before the history, or the tail.

    [sections.dynamic-position]
    """
    cid, other = await two(harness, dynamic_position=position)
    build = await harness.build(cid)
    places = [number for number, m in enumerate(build.messages) if other in str(m["content"])]
    assert places == [1 if position == "tail" else 0]
    assert build.count() == build["tokens_used"]
