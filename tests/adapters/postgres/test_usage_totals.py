"""Usage totals in PostgreSQL: their plans, and the running sums of offloaded tokens.

[usage.totals, usage.savings-estimate]
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from app.adapters.postgres.common.connections import Statement
from app.adapters.postgres.database import PostgresDatabase
from app.adapters.postgres.payload.usage_totals import (
    MAX_MEASURED,
    OFFLOADED_TOKENS,
    READS_OF_CONVERSATION,
    READS_OF_TENANT,
    UNMARKED,
)
from app.domain.conversations.view import ENDLESS, WHOLE, Span
from app.domain.models.usage_totals import GroupBy
from tests.conftest import execute
from tests.plans import plan_of, rows_read

LOG = "00000000-0000-7000-8000-000000000001"
BODY = "x" * 1_000
RESULTS = {3: 5_000, 4: 9_000, 250: 21_000, 900: 3_000, 5_400: 101_000}
"""The whole size in bytes of offloaded results, each shown as 1,000 bytes of 250 tokens."""


async def plant(database_url: str, head_seq: int, cut: dict[int, int]) -> None:
    """Store a log in which these results have previews, and others are whole."""
    await execute(
        database_url,
        "INSERT INTO messages (conversation_id, seq, message_id, turn, role, format, tokens,"
        " reasoning_tokens, total_tokens, has_media, continues, body, output)"
        " SELECT $1, seq, 'm' || seq, 1, 'tool', 'openai_chat', 250, 0, 250 * seq, false, false,"
        ' $2, CASE WHEN seq % 5 = 0 THEN \'{"bytes":9000,"lines":1,"ref":"blob_1"}\' END'
        " FROM generate_series(1, $3) seq",
        LOG,
        BODY,
        head_seq,
    )
    for seq, size in cut.items():
        output = {"bytes": size, "lines": 1, "ref": "blob_1", "view": "lines", "note": '"view":'}
        text = json.dumps(output, separators=(",", ":"))
        await execute(database_url, "UPDATE messages SET output = $1 WHERE seq = $2", text, seq)


def left_out(spans: Sequence[Span], through_seq: int) -> int:
    """Return the tokens that the planted previews leave out, at four bytes each."""
    return sum(
        (size - len(BODY)) // 4
        for seq, size in RESULTS.items()
        if seq <= through_seq and any(span.holds(seq) for span in spans)
    )


@pytest.mark.one_server  # a report measures less on Citus, and it reads the plan of one server
async def test_offloaded_tokens_are_measured_once(
    database: PostgresDatabase, database_url: str
) -> None:
    """Sums of any spans are exact, in whatever order reports ask, and each reads few rows."""
    await plant(database_url, 6_000, RESULTS)

    async def measured(spans: Sequence[Span], through_seq: int) -> int:
        ended = (Span(span.start, min(span.end, through_seq + 1)) for span in spans)
        bounded = [span for span in ended if span.start < span.end]
        async with database.session() as session:
            return await session.usage_totals.offloaded_tokens(LOG, bounded, through_seq)

    assert await measured(WHOLE, 2) == 0
    assert await measured(WHOLE, 5) == left_out(WHOLE, 5) == 3_000
    assert await measured(WHOLE, 6_000) == left_out(WHOLE, MAX_MEASURED)  # the next one goes on
    windows = (WHOLE, (Span(4, ENDLESS),), (Span(1, 4), Span(200, 901)), (Span(5_401, ENDLESS),))
    for spans in windows:
        for through_seq in (6_000, 900, 899, 4, 3):
            assert await measured(spans, through_seq) == left_out(spans, through_seq)
    values = {
        "conversation_id": LOG,
        "through_seq": 6_000,
        "starts": "{1}",
        "ends": "{6001}",
        "max_measured": MAX_MEASURED,
        "unmarked": UNMARKED,
    }
    assert await rows_read(database_url, OFFLOADED_TOKENS, values) <= UNMARKED


async def test_reports_at_once_measure_the_same(
    database: PostgresDatabase, database_url: str
) -> None:
    """Concurrent measurements of one log store each sum once."""
    await plant(database_url, 500, {seq: size for seq, size in RESULTS.items() if seq <= 500})

    async def measure() -> None:
        async with database.transaction() as session:
            await session.usage_totals.offloaded_tokens(LOG, [Span(1, 501)], 500)

    await asyncio.gather(*(measure() for _ in range(6)))
    rows = await execute(database_url, "SELECT seq, tokens FROM offloaded_totals ORDER BY seq")
    seqs = [3, 4, 250, 500]
    assert [tuple(row) for row in rows] == [(seq, left_out(WHOLE, seq)) for seq in seqs]


@pytest.mark.one_server  # it reads the plans of one server
@pytest.mark.parametrize("group_by", GroupBy)
@pytest.mark.parametrize(
    ("statements", "condition"),
    [
        (READS_OF_CONVERSATION, "(conversation_id = "),
        (READS_OF_TENANT, "(tenant_id = "),
    ],
    ids=["conversation", "tenant"],
)
async def test_a_read_is_a_range_of_the_key(
    database_url: str,
    statements: dict[GroupBy, Statement],
    condition: str,
    group_by: GroupBy,
) -> None:
    """Only the rows of its owner and its days are read."""
    plan = await plan_of(database_url, statements[group_by])
    (found,) = [line for line in plan.splitlines() if "Index Cond" in line]
    assert condition in found and "(day >= " in found and "(day <= " in found
    assert "Seq Scan" not in plan


@pytest.mark.one_server  # it reads the plans of one server
async def test_measuring_reads_by_seq(database_url: str) -> None:
    """The log and the sums are read by ranges of their keys."""
    plan = await plan_of(database_url, OFFLOADED_TOKENS)
    assert "Seq Scan" not in plan and "messages_by_id" not in plan
    assert plan.count("using messages_pkey") == 1
    assert plan.count("using offloaded_totals_pkey") == 2
    (log,) = [line for line in plan.splitlines() if "Index Cond" in line and "seq > " in line]
    assert "conversation_id = " in log and "seq <= " in log
