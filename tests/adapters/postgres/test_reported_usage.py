"""Usage and calibrations in Postgres. [usage.calibration, usage.any-provider]"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.models.calibration import MIN_MARGIN, Calibration
from app.models.model_info import INEXACT_MARGIN
from app.repositories import Database
from tests.conftest import execute
from tests.services.fakes import new_id

PAYLOADS = st.tuples(st.integers(1, 10**12), st.integers(200, 10**6))


@settings(max_examples=7, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PAYLOADS, min_size=1, max_size=12))
async def test_the_sums_of_reports_decay(
    database: Database, payloads: list[tuple[int, int]]
) -> None:
    """The factor is the ratio of the sums, the margin what the reports stray by, within bounds."""
    model, factor, sums = new_id(), 1.0, [0.0] * 3
    for number, (reported, counted) in enumerate(payloads, start=1):
        news = (reported, counted, abs(reported - factor * counted))
        sums = [0.8 * old + new for old, new in zip(sums, news, strict=True)]
        async with database.session() as session:
            made = await session.usage.calibrate("t", model, "tokenizer", reported, counted)
        factor = sums[0] / sums[1]
        margin = min(max(sums[2] / sums[0], MIN_MARGIN), INEXACT_MARGIN)
        assert made.reports == number
        assert made.factor == pytest.approx(factor, rel=1e-9)
        assert made.margin == pytest.approx(margin if number > 2 else INEXACT_MARGIN, rel=1e-9)


async def test_reports_at_once_are_all_added(database: Database, database_url: str) -> None:
    """Equal reports from many sessions at once end where they would have ended in turn."""

    async def calibrate() -> Calibration:
        async with database.session() as session:
            return await session.usage.calibrate("t", "m", "tokenizer", 1_300, 1_000)

    made = await asyncio.gather(*(calibrate() for _ in range(20)))
    assert sorted(item.reports for item in made) == list(range(1, 21))
    (row,) = await execute(database_url, "SELECT * FROM calibrations")
    weight = sum(0.8**number for number in range(20))
    assert row["reported_sum"] == pytest.approx(1_300 * weight)
    assert row["counted_sum"] == pytest.approx(1_000 * weight)
