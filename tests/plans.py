"""The plans that a process keeps which starts with an empty database (performance.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import asyncpg

from app.database.connections import Statement


async def plan_of(database_url: str, statement: Statement) -> str:
    """Return the plan of a statement."""
    nulls = ["NULL"] * len(statement.names)
    return "\n".join(await _explained(database_url, statement, nulls, "COSTS"))


async def rows_read(
    database_url: str, statement: Statement, values: Mapping[str, Any], table: str = "messages"
) -> int:
    """Run a statement by its plan and return how many rows of a table it reads."""
    quoted = [
        "NULL" if value is None else f"'{value}'" for value in statement.arguments(dict(values))
    ]
    (plan,) = await _explained(database_url, statement, quoted, "ANALYZE, FORMAT JSON")
    return sum(
        round((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
        for node in _nodes([json.loads(plan)[0]["Plan"]])
        if node.get("Relation Name") == table
    )


async def _explained(
    database_url: str, statement: Statement, arguments: Sequence[str], options: str
) -> list[str]:
    given = f"({', '.join(arguments)})" if arguments else ""
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute("SET enable_seqscan = off")
        await connection.execute("SET plan_cache_mode = force_generic_plan")
        await connection.execute(f"PREPARE it AS {statement.sql}")
        rows = await connection.fetch(f"EXPLAIN ({options}) EXECUTE it {given}")
    finally:
        await connection.close()
    return [row[0] for row in rows]


def _nodes(plans: Sequence[Any]) -> Iterator[Any]:
    for plan in plans:
        yield plan
        yield from _nodes(plan.get("Plans", ()))
