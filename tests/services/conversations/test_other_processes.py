"""Appends and builds of several processes on one conversation.

A second process is a second database object over the same store: it knows nothing of the first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from app.common.errors import UnpairedToolResult
from app.context.own_models import ADD_MODEL
from app.conversations.schemas import AgentPatch, ConversationPatch
from app.formats.message import FormatName
from app.prompt.resolved_settings import RequestSettings
from app.repositories import Database
from tests.services.fakes import (
    MODEL,
    TENANT,
    Build,
    Harness,
    WatchedDatabase,
    asks,
    result,
    says,
    user,
)


def another(harness: Harness) -> Harness:
    """Return the services of another process, which has nothing in memory."""
    return Harness(WatchedDatabase(Database(harness.database.store, MODEL)), clock=harness.clock)


async def rows(harness: Harness, sql: str, cid: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query about a conversation."""
    async with harness.database.store.session() as session:
        return [tuple(row) for row in await session._connection.fetch(sql, cid)]


def seen(built: dict[str, Any]) -> dict[str, Any]:
    """Return what must not depend on what is in memory."""
    names = ("epoch", "through_seq", "stable_items", "prefix_hash", "tokens_used", "budget")
    build = Build(built)
    return {name: build[name] for name in names} | {"payload": build.payload}


async def test_a_result_after_its_window_is_shown(harness: Harness) -> None:
    """Also where this process has not read the call, whose window has ended. [window.appended]"""
    other = another(harness)
    cid = await harness.conversation(agent_id=await harness.agent(3600))
    with pytest.raises(UnpairedToolResult):
        await other.append(cid, result("c0", "unasked"))  # it knows the empty log now
    await harness.append(cid, user("look"), asks("c1"))
    harness.clock.pass_seconds(3601)
    await other.append(cid, result("c1", "found it"))
    for each in (harness, other):
        assert "found it" in str((await each.build(cid)).messages)


@pytest.mark.one_server
async def test_an_append_is_one_statement(harness: Harness, ran: list[str]) -> None:
    """Also with results, once the process knows the settings. [log.one-statement]"""
    cid = await harness.conversation()
    await harness.append(cid, user("first"))
    ran.clear()
    await harness.append(cid, asks("c1"))
    await harness.append(cid, result("c1", "short"), says("done"))
    await harness.append(cid, user("with an id") | {"id": "mine"})
    assert len(ran) == 3


async def test_a_warm_build_is_one_select(harness: Harness, ran: list[str]) -> None:
    """In each format, also after appends of another process. [log.one-statement]"""
    cid = await harness.conversation()
    await harness.append(cid, user("first"))
    for format in (FormatName.OPENAI_CHAT, FormatName.ANTHROPIC):
        ask = RequestSettings(format)
        await harness.context.build(TENANT, cid, ask)
        await another(harness).append(cid, asks("c1"), result("c1", "x" * 50), says("by another"))
        ran.clear()
        warm = await harness.context.build(TENANT, cid, ask)
        assert len(ran) == 1
        assert seen(warm) == seen(await another(harness).context.build(TENANT, cid, ask))


async def _policy(other: Harness, cid: str) -> None:
    await other.set_policy(cid, {"budget": {"context_window": 20_000}})


async def _sections(other: Harness, cid: str) -> None:
    await other.conversations.change(
        TENANT,
        cid,
        ConversationPatch.model_validate({"sections": [{"name": "a", "content": "Be brief."}]}),
    )


async def _agent(other: Harness, cid: str) -> None:
    patch = AgentPatch(policy={"budget": {"context_window": 30_000}})
    agent_id = (await other.stored(cid)).agent_id
    assert agent_id is not None
    await other.agents.change(TENANT, agent_id, patch)


async def _model(other: Harness, cid: str) -> None:
    entry = {"context_window": 40_000, "max_output_tokens": 1_000}
    async with other.database.session() as session:
        text = orjson.dumps(entry).decode()
        await session.session.run(ADD_MODEL, tenant_id=TENANT, model=MODEL, info=text)


async def _calibration(other: Harness, cid: str) -> None:
    async with other.database.session() as session:
        for _ in range(4):
            await session.usage.calibrate(TENANT, MODEL, "tokenizer", 3_000, 2_000)


async def _pin(other: Harness, cid: str) -> None:
    await other.pin(cid, 1)


async def _compact(other: Harness, cid: str) -> None:
    assert (await other.compact(cid)).compacted


async def _clear(other: Harness, cid: str) -> None:
    await other.conversations.clear(TENANT, cid)


async def _epoch(other: Harness, cid: str) -> None:
    patch = orjson.dumps([{"name": "only now", "content": "For this call."}]).decode()
    await other.context.build(TENANT, cid, RequestSettings(sections=patch))


CHANGES: list[Callable[[Harness, str], Awaitable[None]]] = [
    *(_policy, _sections, _agent, _model, _calibration),
    *(_pin, _compact, _clear, _epoch),
]


@pytest.mark.parametrize("change", CHANGES)
async def test_what_another_process_changes_is_seen_at_once(
    harness: Harness, change: Callable[[Harness, str], Awaitable[None]]
) -> None:
    """No append or build uses a state or settings that are no longer stored. [log.known-state]"""
    agent_id = await harness.agent()
    cid = await harness.conversation(agent_id=agent_id)
    for number in range(12):
        await harness.append(cid, user(f"question {number} " + "why " * 40), says("because " * 60))
        await harness.build(cid)
    await change(another(harness), cid)
    await harness.append(cid, user("and now?"))
    built = await harness.context.build(TENANT, cid, RequestSettings())
    cold = await another(harness).context.build(TENANT, cid, RequestSettings())
    assert seen(built) == seen(cold)
    third = await another(harness).append(cid, says("read"))
    known = await harness.append(cid, says("read"))
    assert known.budget is not None and third.budget is not None
    assert known.budget.context_window == third.budget.context_window


async def test_a_new_conversation_with_the_id_of_a_deleted_one(harness: Harness) -> None:
    """What a process knows of a deleted conversation is not used for a later one with its id."""
    cid = await harness.conversation({"budget": {"context_window": 20_000}})
    await harness.append(cid, user("first"))
    await harness.build(cid)
    other = another(harness)
    await other.conversations.remove(TENANT, cid)
    assert await other.conversation(conversation_id=cid) == cid
    answer = await harness.append(cid, user("anew"))
    assert (answer.head_seq, answer.messages[0].turn) == (1, 1)
    assert answer.budget is not None and answer.budget.context_window != 20_000
    built = await harness.build(cid)
    assert "first" not in str(built.payload)
