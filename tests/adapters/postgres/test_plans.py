"""The plans of the hot reads, as a process that starts with an empty database keeps them."""

from __future__ import annotations

import re

import pytest

from app.context.repository import READ, ROWS
from app.conversations.listing import (
    BY_IDS,
    BY_IDS_WITH_USAGE,
    LABELLED,
    LATEST,
    PLACES,
    PLACES_OF_AGENT,
)
from app.conversations.messages.repository import ENTRIES, OPEN_CALLS, PAGE, TOOL_NAMES
from app.conversations.moving_window import FIND_GAPS, FIND_OLDEST, FIND_START
from app.conversations.search.index import LAST_BLOCK, MESSAGES
from app.conversations.search.service import BLOCKS
from app.database.connections import Statement
from tests.conftest import execute
from tests.plans import plan_of, rows_read

pytestmark = pytest.mark.one_server


@pytest.mark.parametrize(
    ("statement", "scans"),
    [
        (READ, 2),
        (ROWS, 1),
        (ENTRIES, 1),
        (PAGE["asc"], 1),
        (PAGE["desc"], 1),
        (OPEN_CALLS, 1),
        (TOOL_NAMES, 2),
        (FIND_START, 2),
        (FIND_GAPS, 2),
        (FIND_OLDEST, 1),
    ],
    ids=[
        *("read", "rows", "entries", "asc", "desc", "open_calls", "tool_names"),
        *("start", "gaps", "oldest"),
    ],
)
async def test_reads_go_by_seq_before_there_are_statistics(
    database_url: str, statement: Statement, scans: int
) -> None:
    """Cost model: a plan made for an empty log is kept, and must not walk a long one."""
    plan = await plan_of(database_url, statement)
    assert len(re.findall("using messages_pkey", plan)) == scans, plan
    assert "messages_by_id" not in plan


@pytest.mark.parametrize(
    ("statement", "index"),
    [(PLACES, "conversations_by_tenant"), (PLACES_OF_AGENT, "conversations_by_agent")],
    ids=["tenant", "agent"],
)
async def test_lists_are_read_by_their_index(
    database_url: str, statement: Statement, index: str
) -> None:
    """A list is read in the order of its index. [lists.bounded]"""
    plan = await plan_of(database_url, statement)
    used = re.findall(r"(Scan(?: Backward)?) using (\w+) on", plan)
    assert used == [("Scan Backward", index)], plan
    assert not re.search("Seq Scan|Hash|Merge|Bitmap|Sort", plan), plan


async def test_metadata_is_found_by_its_index(database_url: str) -> None:
    """Values of metadata are looked up, those of the tenant alone. [lists.bounded]"""
    plan = await plan_of(database_url, LABELLED)
    assert "Bitmap Index Scan on conversations_by_label" in plan, plan
    assert "Seq Scan" not in plan, plan


async def test_conversations_are_read_by_their_keys(database_url: str) -> None:
    """The items of a page are read by primary keys. [lists.bounded]"""
    for statement in (BY_IDS, BY_IDS_WITH_USAGE):
        plan = await plan_of(database_url, statement)
        used = re.findall(r"Scan(?: Backward)?(?: using| on) (\w+)", plan)
        assert used and "Seq Scan" not in plan, plan
        named = [name for name in used if name.startswith(("conversation", "states", "messages"))]
        assert all(name.endswith("_pkey") or name + "_pkey" in plan for name in named), plan


async def test_a_page_reads_hardly_more_than_it_shows(database_url: str) -> None:
    """Rows before and after a page, and those of other tenants, cost nothing. [lists.bounded]"""
    await execute(
        database_url,
        "INSERT INTO conversations (conversation_id, tenant_id, agent_id, metadata, created_at)"
        " SELECT gen_random_uuid(), 't' || n % 2, 'a',"
        " json_build_object('k', 'v', 'ticket', n / 20)::text,"
        " timestamptz '2026-01-01Z' + n * interval '1 s' FROM generate_series(1, 800) AS n",
    )
    values = {
        **{"tenant_id": "t1", "agent_id": "a", "labels": '{"k":"v"}'},
        **{"until": "2026-01-01T00:10:00Z", "until_id": LATEST[1], "limit": 11},
    }
    for statement in (PLACES, PLACES_OF_AGENT):
        assert await rows_read(database_url, statement, values, "conversations") == 11
    few = values | {"labels": '{"ticket":"3"}'}
    assert await rows_read(database_url, LABELLED, few, "conversations") == 10


async def test_searches_read_their_conversations_alone(database_url: str) -> None:
    """Words and messages are read by their keys. [search.tenant]"""
    for statement in (BLOCKS, MESSAGES, LAST_BLOCK):
        plan = await plan_of(database_url, statement)
        used = set(re.findall(r"(?:using|Index Scan on) (\w+)", plan))
        assert used <= {"messages_pkey", "message_words_pkey"}, plan
        assert "Seq Scan" not in plan
