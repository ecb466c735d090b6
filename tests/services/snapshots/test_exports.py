"""Exports and imports of logs of every kind. [exports.format, exports.import]"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.repositories import Database
from app.snapshots.copied_rows import PAGES
from app.snapshots.exports import ExportService, ImportService
from tests.domain.histories import RawLog, raw_logs
from tests.plans import plan_of
from tests.services.fakes import TENANT, Harness, WatchedDatabase, new_id
from tests.services.snapshots.test_forks import CLEARING, PLAIN, SHORT, built, live, stories
from tests.services.snapshots.test_forks import MODELS as FORMAT_MODELS


def exports_of(harness: Harness) -> ExportService:
    """Return the service of this process that exports."""
    return ExportService(harness.database, harness.outputs, harness.clock.utc)


async def export(harness: Harness, cid: str) -> bytes:
    """Return the export of a conversation."""
    return b"".join([lines async for lines in exports_of(harness).export(TENANT, cid)])


async def pieces_of(body: bytes, size: int) -> AsyncIterator[bytes]:
    """Yield a body in pieces."""
    for start in range(0, len(body), size):
        yield body[start : start + size]


async def bring_in(harness: Harness, body: bytes, size: int = 1000) -> str:
    """Import an export and return the new id."""
    own = harness.database, harness.resolver, harness.outputs
    service = ImportService(*own, new_id, harness.clock.utc, (2**20, 2**20))
    return await service.add(TENANT, pieces_of(body, size))


def after_first(body: bytes) -> bytes:
    """Return the lines without the ids and times of the first."""
    return body.partition(b"\n")[2]


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(log=raw_logs(), story=stories(), size=st.sampled_from((997, 10**6)))
async def test_an_import_equals_its_export(
    database: Database, log: RawLog, story: Any, size: int
) -> None:
    """Logs of four formats with clears, pins and compactions: equal exports, equal payloads."""
    harness = Harness(WatchedDatabase(database), service_policy=PLAIN | CLEARING)
    cid = await harness.conversation(SHORT, agent_id=await harness.agent(2400))
    for format, message in log.messages:
        await harness.append(cid, message, format=format)
    await live(harness, cid, story)
    body = await export(harness, cid)
    copy = await bring_in(harness, body, size)
    assert after_first(await export(harness, copy)) == after_first(body)
    if (await harness.stored(copy)).state.shown_messages:
        for format in FORMAT_MODELS:
            one, other = await built(harness, cid, format), await built(harness, copy, format)
            assert other.text.replace(copy.encode(), cid.encode()) == one.text
    await harness.conversations.remove(TENANT, copy)


async def test_a_compaction_during_an_export_is_not_in_it(database: Database) -> None:
    """An export has the receipts of its state, so that none of an import follows another twice."""
    harness = Harness(WatchedDatabase(database), service_policy=PLAIN)
    cid = await harness.conversation(SHORT)
    await harness.talk(cid, 8, words=60)
    assert (await harness.compact(cid)).compacted
    await harness.talk(cid, 8, words=60)
    before = await export(harness, cid)
    lines = exports_of(harness).export(TENANT, cid)
    body = await anext(lines)
    while b'"type":"state"' not in body:
        body += await anext(lines)
    assert (await harness.compact(cid)).compacted
    body += b"".join([line async for line in lines])
    assert after_first(body) == after_first(before)
    assert after_first(await export(harness, cid)) != after_first(before)


@pytest.mark.one_server  # it reads the plans of one server
async def test_pages_are_read_by_an_index(database_url: str) -> None:
    """Each page begins where the last one ended: no rows are read twice, and none sorted."""
    for kind, statement in PAGES.items():
        plan = await plan_of(database_url, statement)
        assert re.search(r"Index Cond: \(\(conversation_id = \$\d+\) AND .*>", plan), plan
        assert "Seq Scan" not in plan and "Sort" not in plan, (kind, plan)
