"""Statements and shards: what concerns a conversation touches the shard of that one alone.

Each statement of the adapter is planned by PostgreSQL itself, with its parameters unknown. Every
place of the plan that reads or writes a table of conversations must be bound to one parameter.

[storage.conversation-key]
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import cache
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

import app
from app.database.connections import PLANNING, Statement
from app.database.tables import CONVERSATION_TABLES, TABLES
from tests.conftest import CITUS, Server

pytestmark = pytest.mark.one_server

KEY = "conversation_id"
BY_TENANT = {"tenant_usage"}
"""Tables that the script distributes by the tenant; every table without a key is on each node."""


@cache
def statements() -> Mapping[str, Statement]:
    """Return every statement on the service's tables, by module and name."""
    found: dict[str, Statement] = {}
    for module in pkgutil.walk_packages(app.__path__, "app."):
        own = module.name.removeprefix("app.")
        for name, held in vars(importlib.import_module(module.name)).items():
            for part, statement in _within(held):
                known = next((key for key, it in found.items() if it is statement), None)
                if known is None:
                    found[f"{own}.{name}{part}"] = statement
    return found


def _within(held: object) -> Iterator[tuple[str, Statement]]:
    if isinstance(held, Statement):
        yield "", held
    elif isinstance(held, Mapping):
        for key, value in held.items():
            if isinstance(value, Statement):
                yield f"[{key}]", value


async def plan_of(connection: Any, statement: Statement) -> dict[str, Any]:
    """Return the plan of a statement with unknown parameters."""
    await connection.execute(f"PREPARE it AS {statement.sql}")
    nulls = ", ".join(["NULL"] * len(statement.names))
    given = f"({nulls})" if nulls else ""
    text = await connection.fetchval(f"EXPLAIN (VERBOSE, FORMAT JSON) EXECUTE it {given}")
    await connection.execute("DEALLOCATE it")
    found: dict[str, Any] = json.loads(text)[0]["Plan"]
    return found


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every node of a plan."""
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


_TERM = r'(?:"[^"]+"|\w+)\.conversation_id|\$\d+'
_EQUAL = re.compile(rf"({_TERM}) = ({_TERM})(?![\w(])")


class Bonds:
    """Which of a plan's terms are equal: columns `alias.conversation_id`, and parameters `$1`."""

    def __init__(self) -> None:
        self._next: dict[str, str] = {}

    def root(self, term: str) -> str:
        """Return the term that stands for all that are equal to this one."""
        while term in self._next:
            term = self._next[term]
        return term

    def bind(self, one: str, other: str) -> None:
        """Note that two terms are equal."""
        first, second = self.root(one), self.root(other)
        if first != second:
            # A parameter stands for the columns that are bound to it.
            first, second = (second, first) if first.startswith("$") else (first, second)
            self._next[first] = second


def shards_of(plan: dict[str, Any]) -> set[str]:
    """Return what decides on the shards that a plan touches; `$1` for a parameter.

    Whatever begins otherwise is a place that no parameter binds.
    """
    bonds, found = Bonds(), list(nodes(plan))
    for node in found:
        for name, condition in node.items():
            if name.endswith(("Cond", "Filter")) and isinstance(condition, str):
                for one, other in _EQUAL.findall(condition):
                    bonds.bind(one, other)
        for source in _sources_of(node, found):
            for term in source.get("Output", ()):
                if term.endswith(f".{KEY}"):
                    bonds.bind(f"{node['Alias']}.{KEY}", term)
        if _inserts(node):
            bonds.bind(f"{node['Alias']}.{KEY}", _inserted(node))
    touching = [node for node in found if node.get("Relation Name") in CONVERSATION_TABLES]
    # What is changed or deleted was found by the scan below.
    places = [it for it in touching if it["Node Type"] != "ModifyTable" or _inserts(it)]
    return {bonds.root(f"{node['Alias']}.{KEY}") for node in places}


def _inserts(node: dict[str, Any]) -> bool:
    return bool(node["Node Type"] == "ModifyTable" and node["Operation"] == "Insert")


def _inserted(node: dict[str, Any]) -> str:
    """Return the first value of the rows that are inserted; the first column is the key's."""
    (rows,) = [it for it in node["Plans"] if it["Parent Relationship"] == "Outer"]
    while rows["Node Type"] == "Subquery Scan":
        (rows,) = rows["Plans"]
    return str(rows["Output"][0]).strip("()")


def _sources_of(node: dict[str, Any], found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the plans whose rows a scan of a WITH clause or of a subquery shows."""
    match node["Node Type"]:
        case "CTE Scan" | "WorkTable Scan":
            return [it for it in found if it.get("Subplan Name") == f"CTE {node['CTE Name']}"]
        case "Subquery Scan":
            return list(node["Plans"])
    return []


async def prepared(url: str) -> Any:
    """Return a connection that plans as the service's own do."""
    connection = await asyncpg.connect(url)
    for name, value in PLANNING.items():
        await connection.execute(f"SET {name} = {value}")
    return connection


@pytest_asyncio.fixture
async def planner(server: Server) -> AsyncIterator[Any]:
    """A connection to an empty database, which no test changes."""
    with server.clone() as url:
        connection = await prepared(url)
        yield connection
        await connection.close()


SPREAD = {
    f"{module}.{name}"
    for module, names in {
        "blobs.repository": "LIST_DUE",
        "conversations.repository": "IDS_OF_AGENT OWN_IDS REMOVE_SNAPSHOTS STORED_KEYS",
        "conversations.listing": ("BY_IDS BY_IDS_WITH_USAGE LABELLED PLACES PLACES_OF_AGENT"),
        "conversations.events": "NEWEST_OF",
        "snapshots.forks": "COPIES COPY_BLOBS COPY_COMPACTIONS COPY_VERSIONS COPY_WORDS",
        "jobs.repository": "COUNT_WAITING WAITING FIND_JOB",
        "conversations.messages.redactions": "COPIES",
        "conversations.service": "SOME_CONVERSATIONS",
        "tenancy.retention": "DELETE_OLD LIST_EXPIRED",
        "snapshots.restores": "FIND",
        "snapshots.service": "ADD LIST REMOVE",
        "conversations.search.index": "UNINDEXED",
        "conversations.search.service": "BLOCKS INDEXED_BEFORE",
        "conversations.moving_window": "COUNT_TOKENS CLEAR ADD_CLEARED",
        "conversations.other_conversations": "ACTIVITIES",
    }.items()
    for name in names.split()
}
"""The statements for several conversations: lists, forks, snapshots, agents, sweeps, deletions."""


async def test_statements_touch_one_shard(planner: Any) -> None:
    """Architecture, storage: each is bound to its conversation, but for those for several."""
    spread = set()
    for name, statement in statements().items():
        shards = shards_of(await plan_of(planner, statement))
        named = {f"${place}" for place, _ in enumerate(statement.names, start=1)}
        if len(shards) > 1 or shards - named:
            spread.add(name.partition("[")[0])
        elif KEY in statement.names:
            assert shards <= {f"${statement.names.index(KEY) + 1}"}, name
    assert spread == SPREAD


def test_the_script_places_every_table_once() -> None:
    """Architecture, storage: the script's calls are for all tables, in an order that works.

    What belongs to a conversation lies with it, and what its statements are joined with is
    everywhere: those tables come first.
    """
    calls = re.findall(
        r"SELECT create_(reference|distributed)_table\('(\w+)'(?:, '(\w+)')?(.*?)\);",
        (CITUS / "distribute.sql").read_text(encoding="utf-8"),
    )
    assert sorted(table for _, table, _, _ in calls) == sorted(TABLES)
    assert {table for _, table, column, _ in calls if column == "tenant_id"} == BY_TENANT
    distributed = [call for call in calls if call[2] == KEY]
    assert {table for _, table, _, _ in distributed} == set(CONVERSATION_TABLES)
    assert distributed[0][1] == "conversations"
    for _, table, column, rest in calls:
        key = TABLES[table].key
        assert not column or key[0] == column
        if column == KEY:
            beside = "none" if table == "conversations" else "conversations"
            assert f"colocate_with => '{beside}'" in rest
