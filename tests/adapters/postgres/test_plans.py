"""The plans of the hot reads, as a process that starts with an empty database keeps them."""

from __future__ import annotations

import re

import pytest

from app.adapters.postgres.common.connections import Statement
from app.adapters.postgres.conversations.active_windows import (
    COUNT_TOKENS,
    FIND_GAPS,
    FIND_OLDEST,
    FIND_START,
)
from app.adapters.postgres.conversations.log_statements import (
    ENTRIES,
    OPEN_CALLS,
    PAGE,
    TOOL_NAMES,
)
from app.adapters.postgres.payload.build_reads import READ, ROWS
from tests.plans import plan_of


@pytest.mark.parametrize(
    ("statement", "scans"),
    [
        (READ, 3),
        (ROWS, 1),
        (ENTRIES, 1),
        (PAGE["asc"], 1),
        (PAGE["desc"], 1),
        (OPEN_CALLS, 1),
        (TOOL_NAMES, 2),
        (FIND_START, 2),
        (FIND_GAPS, 2),
        (FIND_OLDEST, 1),
        (COUNT_TOKENS, 1),
    ],
    ids=[
        *("read", "rows", "entries", "asc", "desc", "open_calls", "tool_names"),
        *("start", "gaps", "oldest", "count"),
    ],
)
async def test_reads_go_by_seq_before_there_are_statistics(
    database_url: str, statement: Statement, scans: int
) -> None:
    """Cost model: a plan made for an empty log is kept, and must not walk a long one."""
    plan = await plan_of(database_url, statement)
    assert len(re.findall("using messages_pkey", plan)) == scans, plan
    assert "messages_by_id" not in plan
