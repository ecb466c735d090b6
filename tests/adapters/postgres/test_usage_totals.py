"""The plans of reads of usage totals in PostgreSQL. [usage.totals]"""

from __future__ import annotations

import pytest

from app.context.usage_repository import READS
from tests.plans import plan_of


@pytest.mark.one_server  # it reads the plans of one server
@pytest.mark.parametrize("table", READS)
async def test_a_read_is_a_range_of_the_key(database_url: str, table: str) -> None:
    """Only the rows of its owner and its days are read."""
    plan = await plan_of(database_url, READS[table])
    (found,) = [line for line in plan.splitlines() if "Index Cond" in line]
    assert "_id = " in found and "(day >= " in found and "(day <= " in found
    assert "Seq Scan" not in plan
