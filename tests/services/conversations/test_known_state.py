"""Appends and builds by a state in memory: they do what those that read the state do.

A second process is a second database object over the same store: it knows nothing of the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.adapters.postgres.conversations import group_commit
from app.adapters.postgres.conversations.append_statements import APPENDS
from app.adapters.postgres.database import PostgresDatabase
from app.domain.common.errors import Conflict, UnpairedToolResult
from app.domain.common.messages import FormatName
from app.domain.conversations.settings import SettingsList
from app.domain.prompt.resolved_settings import RequestSettings
from app.services.conversations.batches import Append
from app.services.conversations.log import AppendResult
from app.services.conversations.own_settings import Patch
from tests.domain.histories import RawLog, raw_logs
from tests.services.fakes import (
    CHAT,
    TENANT,
    Build,
    Harness,
    WatchedDatabase,
    asks,
    result,
    says,
    user,
)

_ROWS = """
    SELECT seq, turn, role, format, tokens, reasoning_tokens, total_tokens, call_ids, call_names,
        has_media, continues, body, fragment, output, timestamp, late_at
    FROM messages WHERE conversation_id = $1 ORDER BY seq
"""
_STATE = """
    SELECT head_seq, turns, tokens, open_calls, view_version, hidden_tokens, summary_tokens,
        hidden_messages, kept, due_at IS NOT NULL, mentions, since, outside_tokens, open_outside,
        oldest_at IS NOT NULL, newest_at IS NOT NULL
    FROM heads WHERE conversation_id = $1
"""
KNOWN = {statement.sql for statement in group_commit.STATEMENTS}
READING = {statement.sql for statement in APPENDS.values()}


def another(harness: Harness) -> Harness:
    """Return the services of another process, which has nothing in memory."""
    return Harness(WatchedDatabase(PostgresDatabase(harness.database.store)), clock=harness.clock)


async def rows(harness: Harness, sql: str, cid: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query about a conversation."""
    async with harness.database.store.session() as session:
        return [tuple(row) for row in await session._connection.fetch(sql, cid)]


async def step(harness: Harness, cid: str, *messages: Any, format: FormatName = CHAT) -> Any:
    """Append and build in one request, and return the payload with its seq and prefix."""
    stored = await harness.log.append_for_build(TENANT, cid, Append(messages, CHAT))
    assert isinstance(stored, AppendResult)
    built = await harness.context.build(
        TENANT, cid, RequestSettings(format), appended=stored.appended
    )
    return built


def seen(built: dict[str, Any]) -> dict[str, Any]:
    """Return what must not depend on what is in memory."""
    names = ("epoch", "through_seq", "stable_items", "prefix_hash", "tokens_used", "budget")
    return {name: built[name] for name in names} | {"payload": Build(built).payload}


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The SQL of every statement, in order."""
    from app.adapters.postgres.common.connections import Session

    statements: list[str] = []
    execute = Session._execute

    async def noting(self: Session, run: Any, statement: Any, values: Any) -> Any:
        statements.append(statement.sql)
        return await execute(self, run, statement, values)

    monkeypatch.setattr(Session, "_execute", noting)
    return statements


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(log=raw_logs(), sizes=st.lists(st.integers(1, 4), min_size=10, max_size=10))
async def test_a_known_state_stores_what_a_read_one_does(
    harness: Harness, log: RawLog, sizes: list[int]
) -> None:
    """Messages, totals and open calls are equal, whichever statement stores a batch."""
    known, read = await harness.conversation(), await harness.conversation()
    messages = list(log.messages)
    for size in sizes:
        if not messages:
            break
        format = messages[0][0]
        _, same = next(groupby(messages[:size], key=itemgetter(0)))
        batch = [raw for _, raw in same]
        messages = messages[len(batch) :]
        first = await harness.append(known, *batch, format=format)
        second = await another(harness).append(read, *batch, format=format)
        assert replace(first, messages=[]) == replace(second, messages=[])
        assert [(m.seq, m.turn, m.token_count) for m in first.messages] == [
            (m.seq, m.turn, m.token_count) for m in second.messages
        ]
    assert await rows(harness, _ROWS, known) == await rows(harness, _ROWS, read)
    assert await rows(harness, _STATE, known) == await rows(harness, _STATE, read)


@pytest.mark.one_server
async def test_the_second_append_of_a_process_uses_the_lean_statement(
    harness: Harness, ran: list[str]
) -> None:
    """The first append reads the state; the next ones are one statement each, results as well."""
    cid = await harness.conversation()
    await harness.append(cid, user("first"))
    ran.clear()
    await harness.append(cid, asks("c1"))
    await harness.append(cid, result("c1", "short"), says("done"))
    await harness.append(cid, user("with an id") | {"id": "mine"})
    assert len(ran) == 3
    assert set(ran) <= KNOWN


@pytest.mark.one_server
async def test_a_warm_step_is_one_statement(harness: Harness, ran: list[str]) -> None:
    """A build after an append in the same request reads nothing, and equals a cold one."""
    cid = await harness.conversation()
    await step(harness, cid, user("first"))
    for format in (CHAT, FormatName.ANTHROPIC):
        await harness.build(cid, RequestSettings(format))
        ran.clear()
        warm = await step(harness, cid, says("more"), user(f"for {format}"), format=format)
        assert len(ran) == 1
        cold = await another(harness).context.build(TENANT, cid, RequestSettings(format))
        assert seen(warm) == seen(cold)


async def test_a_warm_build_reads_the_versions_and_new_rows(
    harness: Harness, ran: list[str]
) -> None:
    """A build of its own is one small statement, also after appends of another process."""
    cid = await harness.conversation()
    await step(harness, cid, user("first"))
    await another(harness).append(cid, asks("c1"), result("c1", "x" * 50), says("by another"))
    ran.clear()
    warm = await harness.context.build(TENANT, cid, RequestSettings())
    assert len(ran) == 1
    cold = await another(harness).context.build(TENANT, cid, RequestSettings())
    assert seen(warm) == seen(cold)


async def _policy(other: Harness, cid: str) -> None:
    await other.set_policy(cid, {"budget": {"context_window": 20_000}})


async def _sections(other: Harness, cid: str) -> None:
    await other.conversations.set_list(
        TENANT, cid, SettingsList.SECTIONS, [{"name": "a", "content": "Be brief."}], None
    )


async def _agent(other: Harness, cid: str) -> None:
    patch = Patch(frozenset({"policy"}), policy={"budget": {"context_window": 30_000}})
    agent_id = (await other.stored(cid)).agent_id
    assert agent_id is not None
    await other.agents.change(TENANT, agent_id, patch)


async def _pin(other: Harness, cid: str) -> None:
    await other.pin(cid, 1)


async def _compact(other: Harness, cid: str) -> None:
    assert (await other.compact(cid)).compacted


async def _undo(other: Harness, cid: str) -> None:
    await other.compact(cid)
    await other.undo(cid)


async def _clear(other: Harness, cid: str) -> None:
    await other.conversations.clear(TENANT, cid)


async def _epoch(other: Harness, cid: str) -> None:
    patch = [{"name": "only now", "content": "For this call."}]
    import json

    await other.context.build(TENANT, cid, RequestSettings(sections=json.dumps(patch)))


CHANGES: list[Callable[[Harness, str], Awaitable[None]]] = [
    _policy,
    _sections,
    _agent,
    _pin,
    _compact,
    _undo,
    _clear,
    _epoch,
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("in_one_step", [True, False])
async def test_what_another_process_changes_is_seen_at_once(
    harness: Harness, change: Callable[[Harness, str], Awaitable[None]], in_one_step: bool
) -> None:
    """No append or build uses a state or settings that are no longer the stored ones."""
    agent_id = await harness.agent()
    cid = await harness.conversation(agent_id=agent_id)
    for number in range(12):
        await step(harness, cid, user(f"question {number} " + "why " * 40), says("because " * 60))
    other = another(harness)
    await change(other, cid)
    if in_one_step:
        built = await step(harness, cid, user("and now?"))
    else:
        await harness.append(cid, user("and now?"))
        built = await harness.context.build(TENANT, cid, RequestSettings())
    cold = await another(harness).context.build(TENANT, cid, RequestSettings())
    assert seen(built) == seen(cold)
    third = await another(harness).append(cid, says("read"))
    known = await harness.append(cid, says("read"))
    assert known.budget is not None and third.budget is not None
    assert known.budget.total == third.budget.total


async def test_processes_at_once_leave_no_gap(harness: Harness) -> None:
    """Appends of two processes to eight conversations: dense seqs, true totals, nothing twice."""
    processes = [harness, another(harness)]
    cids = [await harness.conversation() for _ in range(8)]
    for process in processes:
        for cid in cids:
            await process.append(cid, user("warm"))
    await asyncio.gather(
        *(
            process.append(cid, user(f"{number}"), says(f"answer {number}"))
            for number in range(12)
            for process in processes
            for cid in cids
        )
    )
    for cid in cids:
        stored = await rows(harness, _ROWS, cid)
        assert [row[0] for row in stored] == list(range(1, 2 + 2 * 24 + 1))
        totals = [sum(row[4] for row in stored[: end + 1]) for end in range(len(stored))]
        assert [row[6] for row in stored] == totals
        pairs = [(stored[i][2], stored[i + 1][2]) for i in range(2, len(stored), 2)]
        assert set(pairs) == {("user", "assistant")}
        state = (await harness.stored(cid)).state
        assert (state.head_seq, state.tokens, state.turns) == (50, totals[-1], 26)


@pytest.mark.one_server
async def test_a_group_stores_each_append_or_none_of_it(harness: Harness, ran: list[str]) -> None:
    """One append of a group that fails leaves the others stored, and gets its own error."""
    cids = [await harness.conversation() for _ in range(6)]
    for cid in cids:
        await harness.append(cid, user("warm"))
    await harness.append(cids[5], asks("c1"))
    ran.clear()
    appends = [Append([user("more")]) for _ in cids]
    appends[3] = Append([user("more")], expected_seq=7)
    appends[4] = Append([result("unknown", "no call")])
    appends[5] = Append([result("c1", "the answer")])
    answers = await asyncio.gather(
        *(
            harness.log.append(TENANT, cid, append)
            for cid, append in zip(cids, appends, strict=True)
        ),
        return_exceptions=True,
    )
    assert group_commit.GROUP.sql in ran
    assert [type(answer) for answer in answers[3:5]] == [Conflict, UnpairedToolResult]
    heads = [(await harness.stored(cid)).state.head_seq for cid in cids]
    assert heads == [2, 2, 2, 1, 1, 3]


async def test_a_text_that_the_database_refuses_fails_alone(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that the database refuses is stored append by append."""
    from asyncpg import DataError

    from app.adapters.postgres.common.connections import Session

    cids = [await harness.conversation() for _ in range(5)]
    for cid in cids:
        await harness.append(cid, user("warm"))
    fetch = Session.all

    async def refusing(self: Session, statement: Any, **values: Any) -> Any:
        if statement is group_commit.GROUP:
            raise DataError("one of them")
        return await fetch(self, statement, **values)

    monkeypatch.setattr(Session, "all", refusing)
    await asyncio.gather(*(harness.append(cid, user("more")) for cid in cids))
    assert [(await harness.stored(cid)).state.head_seq for cid in cids] == [2] * 5


async def test_a_locked_conversation_delays_no_other(harness: Harness) -> None:
    """A group leaves out a conversation that another transaction holds; its append waits alone."""
    cids = [await harness.conversation() for _ in range(5)]
    for cid in cids:
        await harness.append(cid, user("warm"))
    async with harness.database.transaction() as session:
        assert await session.log.lock(TENANT, cids[0], None) is not None
        waiting = [asyncio.create_task(harness.append(cid, user("more"))) for cid in cids]
        await asyncio.gather(*waiting[1:])
        assert not waiting[0].done()
    await waiting[0]
    assert [(await harness.stored(cid)).state.head_seq for cid in cids] == [2] * 5


async def test_a_new_conversation_with_the_id_of_a_deleted_one(harness: Harness) -> None:
    """What a process knows of a deleted conversation is not used for a later one with its id."""
    cid = await harness.conversation({"budget": {"context_window": 20_000}})
    await step(harness, cid, user("first"))
    other = another(harness)
    await other.conversations.remove(TENANT, cid)
    assert await other.conversation(conversation_id=cid) == cid
    answer = await harness.append(cid, user("anew"))
    assert (answer.head_seq, answer.messages[0].turn) == (1, 1)
    assert answer.budget is not None and answer.budget.total != 20_000


async def test_a_compaction_becomes_due_once(harness: Harness) -> None:
    """The append that reaches the threshold announces the compaction, as a reading one does."""
    cid = await harness.conversation({"budget": {"context_window": 8_000}})
    await harness.append(cid, user("warm"))
    due = []
    for number in range(24):
        await harness.append(cid, user(f"{number} " + "word " * 300))
        due.append((await harness.stored(cid)).state.is_due)
    assert due.index(True) > 0 and all(due[due.index(True) :])
    assert [kind for kind, _ in await harness.events_of(cid)].count("due") == 1
