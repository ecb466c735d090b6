"""The statements as Citus plans them: none is refused, and those of a step go to one shard.

These tests need a cluster. `test_sharding.py` checks what can be checked without one.

[storage.conversation-key]
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest
import pytest_asyncio

from app.adapters.postgres.common.connections import PLAN_FOR_CITUS, PLANNING, Statement
from tests.adapters.postgres.test_sharding import KEY, ran, recorded, statements
from tests.api.talk import append, new_conversation, user
from tests.conftest import CITUS, CITUS_URL

__all__ = ["ran", "recorded"]

pytestmark = pytest.mark.skipif(CITUS_URL is None, reason="they need a Citus cluster")

REPLACED = {
    "active_windows.LOCK_ALL": "nothing: what deadlocks there is 503 and is sent again",
    "append_statements.APPENDS": "MOVES, then a row for each message",
    "search.FIND": "another form of it, under the key True",
    "search.POSTINGS": "another form of it, under the key True",
    "tenant_search.BY_PLACES": "another form of it, under the key True",
    "tenant_search.BY_TIME": "a statement for each conversation",
    "tenant_search.NEWEST": "a statement for each conversation",
    "transcripts.CHAINS": "a statement for each conversation",
    "transcripts.OF_AGENT": "a statement for each conversation",
}
"""The statements that Citus refuses, and what runs on a cluster instead of them."""

CACHED = {
    "append_statements.MOVES",
    "single_rows.ADD_MESSAGE",
    "contexts.BEGIN_EPOCH",
    "contexts.STORE_EPOCH",
    "contexts.STORE_TEXT",
}
"""Statements of one table that name its key by a parameter: Citus keeps their plans."""

VALUES: dict[str, Any] = {
    "uuid": UUID("01a2143e-cc24-71f3-a319-2461af98e906"),
    "text": "{}",  # a text, JSON, and an array for those that are cast to one
    "json": "[]",
    "bytea": b"{}",
    "bool": True,
    "timestamptz": datetime(2026, 1, 1, tzinfo=UTC),
    "date": date(2026, 1, 1),
    "float8": 1.0,
    "interval": timedelta(days=1),
}


@dataclass
class Planner:
    """A connection to the coordinator that plans as those of the service do."""

    connection: asyncpg.Connection

    async def values(self, statement: Statement) -> list[Any]:
        """Return a value for each parameter of a statement."""
        types = (await self.connection.prepare(statement.sql)).get_parameters()
        return [[] if kind.kind == "array" else VALUES.get(kind.name, 1) for kind in types]

    async def shards(self, statement: Statement) -> int:
        """Return to how many shards a statement goes, by its plan for certain values."""
        values = await self.values(statement)
        plan = await self.connection.fetch(f"EXPLAIN {statement.sql}", *values)
        return sum(int(count) for row in plan for count in re.findall(r"Task Count: (\d+)", row[0]))

    async def is_cached(self, statement: Statement) -> bool:
        """Return whether a statement has a plan for unknown values, which is kept."""
        given = [f"'{VALUES['uuid']}'" if name == KEY else "NULL" for name in statement.names]
        await self.connection.execute(f"PREPARE it AS {statement.sql}")
        await self.connection.execute("SET plan_cache_mode = force_generic_plan")
        try:
            await self.connection.execute(f"EXPLAIN EXECUTE it ({', '.join(given)})")
        except asyncpg.FeatureNotSupportedError:
            return False
        finally:
            await self.connection.execute("SET plan_cache_mode = auto")
            await self.connection.execute("DEALLOCATE it")
        return True


@pytest_asyncio.fixture
async def planner(database_url: str) -> AsyncIterator[Planner]:
    """A connection to this test's database on the coordinator."""
    connection = await asyncpg.connect(database_url, server_settings=PLANNING)
    await connection.execute(PLAN_FOR_CITUS)
    yield Planner(connection)
    await connection.close()


async def refusal(planner: Planner, statement: Statement, mode: str) -> str | None:
    """Return why a statement is refused when it is run, or None."""
    connection, values = planner.connection, await planner.values(statement)
    await connection.execute(f"SET plan_cache_mode = {mode}")
    for _ in range(7 if mode == "auto" else 1):  # PostgreSQL plans for certain values five times
        transaction = connection.transaction()
        await transaction.start()
        try:
            await connection.fetch(statement.sql, *values)
        except (asyncpg.FeatureNotSupportedError, asyncpg.InternalServerError) as error:
            return str(error)
        finally:
            await transaction.rollback()
    return None


@pytest.mark.parametrize("mode", ["force_custom_plan", "auto"])
async def test_no_statement_is_refused(planner: Planner, mode: str) -> None:
    """Scaling: Citus runs each, for certain values and when PostgreSQL may keep a plan."""
    refused: dict[str, str] = {}
    for name, statement in statements().items():
        why = await refusal(planner, statement, mode)
        if why is not None:
            refused[name] = why
    unexpected = {n: why for n, why in refused.items() if n.partition("[")[0] not in REPLACED}
    assert unexpected == {}
    # Those that are not refused any more could be used here as well.
    assert {name.partition("[")[0] for name in refused} == set(REPLACED)


async def test_a_step_goes_to_one_shard(
    planner: Planner, recorded: httpx.AsyncClient, ran: set[str]
) -> None:
    """Scaling: each statement of a creation, an append and a build, and most plans are kept."""
    names = {statement.sql: name.partition("[")[0] for name, statement in statements().items()}
    by_sql = {statement.sql: statement for statement in statements().values()}

    async def look() -> None:
        for sql in ran:
            name, statement = names[sql], by_sql[sql]
            shards = await planner.shards(statement)
            assert shards == 1, (name, shards)
            assert await planner.is_cached(statement) == (name in CACHED), name
        ran.clear()

    path = await new_conversation(recorded)
    for _ in range(2):  # the first append and the first build read the whole state
        ran.clear()
        await append(recorded, path, user("next"))
        await look()
        answer = await recorded.post(f"{path}/context", json={})
        assert answer.status_code == 200, answer.text
        await look()


async def test_an_append_is_committed_on_one_node(planner: Planner) -> None:
    """Scaling: its statements end in a plain COMMIT, so that no other worker can stop it."""
    sent: list[str] = []
    connection = planner.connection
    names = ("append_statements.MOVES[True]", "single_rows.ADD_MESSAGE")
    written = [statements()[name] for name in names]
    values = [await planner.values(statement) for statement in written]
    await connection.execute("SET citus.log_remote_commands = on")
    connection.add_log_listener(lambda _, said: sent.append(said.message))
    async with connection.transaction():
        for statement, given in zip(written, values, strict=True):
            await connection.execute(statement.sql, *given)
    ends = [it for it in sent if it.startswith(("issuing COMMIT", "issuing PREPARE"))]
    assert ends == ["issuing COMMIT"]


async def test_the_nodes_have_the_settings_of_the_file(planner: Planner) -> None:
    """Scaling: what `node.conf` says is in force on each node of the cluster."""
    pairs = re.findall(r"(?m)^([\w.]+) = '?([^'\n]+)", (CITUS / "node.conf").read_text("utf-8"))
    for name, value in pairs:
        rows = await planner.connection.fetch(
            "SELECT result FROM run_command_on_all_nodes($1)", f"SHOW {name}"
        )
        assert {row["result"] for row in rows} == {value}, name
