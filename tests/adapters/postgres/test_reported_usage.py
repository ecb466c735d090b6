"""Usage and calibrations in Postgres. [usage.calibration, usage.any-provider]"""

from __future__ import annotations

import asyncio
import re
from functools import reduce
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.context.repository import READ
from app.context.usage.repository import HAS_REASONING, NEWEST_EPOCH, NEWEST_REPORT
from app.conversations.repository import FIND_CONVERSATION, LOCK
from app.conversations.view import WHOLE, Span
from app.database.connections import Statement
from app.models.calibration import SEALED_PRIOR, Calibration, Lesson, Tally
from app.repositories import Database
from tests.conftest import execute
from tests.plans import plan_of
from tests.services.fakes import new_id

PAYLOADS = st.tuples(st.integers(1, 10**12), st.integers(200, 10**6))


@settings(max_examples=7, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PAYLOADS, min_size=1, max_size=12))
async def test_the_statement_adds_as_the_tally_does(
    database: Database, payloads: list[tuple[int, int]]
) -> None:
    """One statement and the pure sums make the same calibration of the same reports."""
    tally, model = Tally(), new_id()
    for reported, counted in payloads:
        tally = tally.with_report(reported, counted)
        async with database.session() as session:
            made = await session.usage.calibrate("t", model, "tokenizer", Lesson(reported, counted))
        expected = tally.calibration
        assert made.reports == expected.reports
        assert made.factor == pytest.approx(expected.factor, rel=1e-12)
        assert made.margin == pytest.approx(expected.margin, rel=1e-9)


async def test_sealed_text_has_sums_of_its_own(database: Database) -> None:
    """Reports of sealed text begin at a prior and leave the model's factor as it is."""
    model, reported, counted = new_id(), float(SEALED_PRIOR), float(SEALED_PRIOR)
    async with database.session() as session:
        before = await session.usage.calibrate("t", model, "tokenizer", Lesson(1_300, 1_000))
        assert before.sealed == 1
        for told in (300, 2_000, 0):
            reported, counted = 0.8 * reported + told, 0.8 * counted + 1_000
            made = await session.usage.calibrate(
                "t", model, "tokenizer", Lesson(told, 1_000, is_sealed=True)
            )
            assert made.sealed == pytest.approx(reported / counted)
            assert (made.factor, made.reports) == (before.factor, 1)
            unreported = await session.usage.calibrate(
                "t", f"{model}{told}", "tokenizer", Lesson(told, 1_000, is_sealed=True)
            )
            assert unreported.sealed == pytest.approx((800 + told) / 1_800)
            assert (unreported.factor, unreported.reports) == (1, 0)


async def test_reports_at_once_are_all_added(database: Database, database_url: str) -> None:
    """Equal reports from many sessions at once end where they would have ended in turn."""

    async def calibrate() -> Calibration:
        async with database.session() as session:
            return await session.usage.calibrate("t", "m", "tokenizer", Lesson(1_300, 1_000))

    made = await asyncio.gather(*(calibrate() for _ in range(20)))
    assert sorted(item.reports for item in made) == list(range(1, 21))
    in_turn = reduce(lambda tally, _: tally.with_report(1_300, 1_000), range(20), Tally())
    (row,) = await execute(database_url, "SELECT * FROM calibrations")
    assert row["reported_sum"] == pytest.approx(in_turn.reported)
    assert row["counted_sum"] == pytest.approx(in_turn.counted)
    assert row["deviation_sum"] == pytest.approx(in_turn.deviation)


@pytest.mark.one_server  # it reads the plans of one server
@pytest.mark.parametrize(
    ("statement", "index"),
    [
        (READ, "calibrations_pkey"),
        (LOCK, "calibrations_pkey"),
        (FIND_CONVERSATION, "calibrations_pkey"),
        (NEWEST_REPORT, "usage_reports_pkey"),
        (NEWEST_EPOCH, "epochs_pkey"),
        (HAS_REASONING, "messages_pkey"),
    ],
    ids=[
        *("read", "lock", "find", "report", "epoch", "reasoning"),
    ],
)
async def test_lookups_use_their_index(database_url: str, statement: Statement, index: str) -> None:
    """Cost model: the hot statements find a calibration by its key, a report by its age."""
    plan = await plan_of(database_url, statement)
    assert re.search(rf"(using|on) {index}", plan), plan
    assert "Seq Scan on calibrations" not in plan


async def test_reasoning_is_looked_for_in_spans(database: Database, database_url: str) -> None:
    """Reasoning counts between two seqs and inside the spans alone [compaction.new-epoch]."""
    conversation_id = new_id()
    for seq, tokens in enumerate((0, 5, 0, 5, 0), start=1):
        await execute(
            database_url,
            """
            INSERT INTO messages (conversation_id, seq, message_id, turn, role, format, tokens,
                reasoning_tokens, total_tokens, has_media, joins, body)
            VALUES ($1, $2, $3, 1, 'assistant', 'anthropic', 1, $4, $2, false, false, '{}')
            """,
            UUID(conversation_id),
            seq,
            str(seq),
            tokens,
        )
    async with database.session() as session:

        async def found(spans: tuple[Span, ...], after: int, through: int) -> bool:
            return await session.usage.has_reasoning(conversation_id, spans, after, through)

        assert await found(WHOLE, 0, 5)
        assert not await found(WHOLE, 0, 1)
        assert await found(WHOLE, 2, 4)
        assert not await found(WHOLE, 2, 3)
        assert not await found(WHOLE, 4, 5)
        assert not await found((Span(1, 2), Span(5, 9)), 0, 5)
        assert await found((Span(1, 2), Span(4, 9)), 0, 5)
        assert not await found((), 0, 5)
