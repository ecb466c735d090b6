"""Lists of a million conversations: `python -m benchmarks.lists [CONVERSATIONS]`, run by hand.

1. One tenant has all conversations, made by SQL: one a second, in 100 agents, every fourth with one
   of 10 models of its own, with a message at a time of its own.
2. Labels of their metadata differ in how many conversations have each value: `env` half of them,
   `team` a hundredth, `customer` a thousandth, `ticket` one.
3. Each list is read by the service. Its statements are then explained with the same values:
   `entries` are those that the indexes of the list give, `looked up` are rows read by primary key.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from time import perf_counter
from typing import Any

import asyncpg
import uvloop

from app.adapters.postgres.common.connections import PLANNING, Session, Statement
from app.adapters.postgres.migrate import migrate
from app.composition import Parts, compose
from app.domain.conversations.listing import ConversationFilter, ListOrder, TimeRange
from app.settings import Settings
from benchmarks.figures import Section, ms, p50, p95
from benchmarks.stage import database, report

TENANT = "default"
CONVERSATIONS = 1_000_000
ROUNDS = 20
LIMIT = 50
START = datetime(2026, 1, 1, tzinfo=UTC)

# Without triggers, which would take a few minutes more.
FILL = """
    SET session_replication_role = replica;
    CREATE TEMP TABLE made AS
    SELECT n, gen_random_uuid() AS conversation_id,
        TIMESTAMPTZ '{start}' + n * interval '1 s' AS at,
        TIMESTAMPTZ '{start}' + (n + (n * 7919) % 500000) * interval '1 s' AS active_at
    FROM generate_series(CAST(1 AS bigint), {count}) AS n;
    INSERT INTO conversations (
        conversation_id, tenant_id, agent_id, model, metadata, created_at, updated_at)
    SELECT conversation_id, '{tenant}', 'agent-' || n % 100,
        CASE WHEN n % 4 = 0 THEN 'model-' || n / 4 % 10 END,
        format('{{"env":"e%s","team":%s,"customer":"c%s","ticket":"t%s"}}',
            n % 2, n % 100, n % 1000, n), at, at
    FROM made;
    INSERT INTO heads (conversation_id, counter, head_seq, turns, tokens)
    SELECT conversation_id, 'bytes_4', 1, 1, 1 FROM made;
    INSERT INTO messages (conversation_id, seq, message_id, turn, role, format, tokens,
        reasoning_tokens, total_tokens, has_media, continues, body, created_at)
    SELECT conversation_id, 1, 'm', 1, 'user', 'openai_chat', 1, 0, 1, false, false,
        '{{"role":"user","content":"x"}}', active_at
    FROM made;
    INSERT INTO conversation_activity (conversation_id, tenant_id, active_at)
    SELECT conversation_id, '{tenant}', active_at FROM made;
    INSERT INTO conversation_labels (conversation_id, key, value, tenant_id, created_at)
    SELECT conversation_id, label.key, label.value, '{tenant}', at
    FROM made CROSS JOIN LATERAL (VALUES ('env', 'e' || n % 2), ('team', CAST(n % 100 AS text)),
        ('customer', 'c' || n % 1000), ('ticket', 't' || n)) AS label (key, value);
    RESET session_replication_role;
"""

CREATED, ACTIVE = ListOrder.CREATED, ListOrder.ACTIVE


def lists(count: int) -> Iterator[tuple[str, ConversationFilter, ListOrder]]:
    """Yield each list with what it is called."""
    late = START + timedelta(seconds=count * 0.99)
    middle = TimeRange(START + timedelta(seconds=count / 2), late)
    ticket = f"t{count // 3 // 4 * 4}"
    for order in (CREATED, ACTIVE):
        for name, wanted in (
            ("all", ConversationFilter()),
            ("created between", ConversationFilter(created=middle)),
            ("active between", ConversationFilter(active=middle)),
            ("active lately", ConversationFilter(active=TimeRange(late))),
            ("one agent of 100", ConversationFilter(agent_id="agent-7")),
            ("one model of 10", ConversationFilter(model="model-7")),
            ("env, half of all", ConversationFilter({"env": "e1"})),
            ("team, 1 of 100", ConversationFilter({"team": "7"})),
            ("customer, 1 of 1000", ConversationFilter({"customer": "c7"})),
            ("ticket, one", ConversationFilter({"ticket": ticket})),
            ("no such value", ConversationFilter({"team": "none"})),
            ("env and customer", ConversationFilter({"env": "e1", "customer": "c7"})),
            ("env and team that never meet", ConversationFilter({"env": "e0", "team": "7"})),
            (
                "agent, model and team",
                ConversationFilter({"team": "8"}, agent_id="agent-8", model="model-2"),
            ),
        ):
            yield f"{order}: {name}", wanted, order


class Statements:
    """The statements that sessions run, with their values."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, list[Any]]] = []
        run = Session._execute
        ran = self.ran

        async def noting(
            self: Session, execute: Any, statement: Statement, values: dict[str, Any]
        ) -> Any:
            ran.append((statement.sql, statement.arguments(values)))
            return await run(self, execute, statement, values)

        Session._execute = noting  # type: ignore[method-assign]


def rows_read(plan: Mapping[str, Any]) -> Counter[str]:
    """Return the rows that a plan reads, as entries of lists or looked up by key."""
    found: Counter[str] = Counter()
    if "Relation Name" in plan and "Actual Loops" in plan:
        removed = plan.get("Rows Removed by Filter", 0)
        rows = round((plan["Actual Rows"] + removed) * plan["Actual Loops"])
        index = plan.get("Index Name", plan["Node Type"])
        found["looked up" if index.endswith("_pkey") else index] += rows
    for inner in plan.get("Plans", ()):
        found += rows_read(inner)
    return found


async def measure(url: str, count: int) -> Section:
    """Fill the database, read every list, and explain what was run."""
    section = Section("lists", f"{count:,} conversations of one tenant")
    connection = await asyncpg.connect(url, server_settings=PLANNING)
    begun = perf_counter()
    await connection.execute(FILL.format(count=count, tenant=TENANT, start=START.isoformat()))
    await connection.execute("VACUUM ANALYZE")
    report(f"filled in {perf_counter() - begun:.0f} s")
    parts = compose(Settings(database_url=url))
    statements = Statements()
    rows = []
    async with parts.opened():
        for name, wanted, order in lists(count):
            rows.append(await _row(parts, connection, statements, name, wanted, order))
            report(" | ".join(rows[-1]))
    header = ("list", "items", "more", "entries", "looked up", "p50 ms", "p95 ms", "indexes")
    section.add_table(header, rows)
    await connection.close()
    return section


async def _row(
    parts: Parts,
    connection: Any,
    statements: Statements,
    name: str,
    wanted: ConversationFilter,
    order: ListOrder,
) -> tuple[str, ...]:
    times = []
    for _ in range(ROUNDS):
        begun = perf_counter()
        await parts.conversations.list(TENANT, wanted, order, LIMIT)
        times.append(perf_counter() - begun)
    statements.ran.clear()
    page = await parts.conversations.list(TENANT, wanted, order, LIMIT)
    read: Counter[str] = Counter()
    for sql, values in statements.ran:
        text = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", *values)
        read += rows_read(json.loads(text)[0]["Plan"])
    looked_up = read.pop("looked up", 0)
    return (
        name,
        str(len(page.items)),
        "yes" if page.end else "no",
        str(read.total()),
        str(looked_up),
        ms(p50(times)),
        ms(p95(times)),
        ", ".join(read),
    )


def main() -> None:
    """Measure, and print the results."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else CONVERSATIONS
    with database() as (_, url, _):
        migrate(url)
        print(uvloop.run(measure(url, count)).text("python -m benchmarks.lists", "", 0))


if __name__ == "__main__":
    main()
