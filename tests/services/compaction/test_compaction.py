"""Compaction over a real database: forced, failing, concurrent.

[compaction.state, compaction.forced, compaction.receipt, compaction.failure-keeps-state]
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.compaction.run import CompactionRequest
from app.compaction.summaries.model_summary import SummaryTask
from app.compaction.summaries.prompt import SummaryRequest
from app.compaction.summaries.summariser import PAGE_MESSAGES, summarise_paged
from app.compaction.summaries.writing import SummaryScope
from app.conversations.receipt import Receipt
from app.conversations.view import Span
from app.prompt.resolved_settings import RequestSettings
from app.repositories import Database
from tests.domain.histories import raw_logs
from tests.services.fakes import (
    SUMMARISER,
    TENANT,
    Clock,
    Harness,
    ScriptedGateway,
    WatchedDatabase,
    own_text,
    says,
    user,
)
from tests.services.payload.builders import check, policy


@pytest.fixture
def database_watched(database: Database) -> WatchedDatabase:
    """The database of this test, watched."""
    return WatchedDatabase(database)


@pytest.fixture
def harness(database_watched: WatchedDatabase) -> Harness:
    """One process's services with a model that summarises."""
    clock = Clock()
    return Harness(database_watched, ScriptedGateway(clock=clock), clock, model=SUMMARISER)


async def receipt(harness: Harness, cid: str) -> Receipt:
    """Return the active receipt."""
    state = (await harness.stored(cid)).state
    assert state.compaction_id is not None
    async with harness.database.session() as session:
        found = await session.contexts.find_receipt(cid, state.compaction_id)
    assert found is not None
    return found


async def test_ranges_of_successive_compactions_contain_one_another(harness: Harness) -> None:
    """Each includes the summary before it, reads only new messages and has a parent."""
    harness.gateway.replies = [f"<summary>so far {n}</summary>" for n in range(4)]
    cid = await harness.conversation(policy(20_000))
    spans: list[Span] = []
    parent = None
    for number in range(4):
        await harness.talk(cid, 8)
        made = await harness.compaction.compact(TENANT, cid, CompactionRequest())
        assert made.compacted
        stored = await receipt(harness, cid)
        assert stored.parent_id == parent
        parent = stored.compaction_id
        if spans:
            assert stored.hidden_span.start == spans[-1].start
            assert stored.hidden_span.end > spans[-1].end
            assert f"so far {number - 1}" in harness.gateway.calls[-1].messages[-1]["content"]
        spans.append(stored.hidden_span)
    build = await harness.build(cid)
    assert "so far 3" in build.contents
    assert "so far 2" not in build.contents
    check(build, exact=True)


# --- at once --------------------------------------------------------------------------------


# --- any log --------------------------------------------------------------------------------


@given(log=raw_logs(10), top=st.integers(0, 2), bottom=st.integers(1, 3), more=raw_logs(4))
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_any_log_compacted_at_any_time_builds_on(
    harness: Harness, log: Any, top: int, bottom: int, more: Any
) -> None:
    """Forced compactions of random logs: right numbers, valid builds, matching totals."""
    harness = Harness(harness.database)
    sizes = {"preserve_top": top, "preserve_bottom": bottom}
    cid = await harness.conversation(policy(60_000, sandwich=sizes))
    for part in (log, more):
        for raw_format, raw in part.messages:
            await harness.append(cid, raw, format=raw_format)
        made = await harness.compaction.compact(TENANT, cid, CompactionRequest())
        for options in (RequestSettings(), RequestSettings(model="gpt-4.1")):
            build = await harness.build(cid, options)
            check(build, exact=True)
            assert build["summary_used"] == (
                (await harness.stored(cid)).state.hidden_span is not None
            )
        state = (await harness.stored(cid)).state
        async with harness.database.session() as session:
            entries = await session.log.entries(cid, 1, state.head_seq + 1)
        hidden = [
            e
            for e in entries
            if state.hidden_span
            and state.hidden_span.start <= e.seq < state.hidden_span.end
            and e.seq not in state.protected_seqs  # such as open calls
        ]
        assert state.tokens == sum(entry.tokens for entry in entries)
        assert state.hidden_tokens == sum(entry.tokens for entry in hidden)
        if made.compacted:
            assert made.after_tokens < made.before_tokens
            again = await harness.compaction.compact(TENANT, cid, CompactionRequest())
            assert not again.compacted


# --- page by page ---------------------------------------------------------------------------


async def test_long_spans_are_summarised_page_by_page(harness: Harness) -> None:
    """Memory is bounded: each page extends the summary of the page before."""
    harness.gateway.replies = ["<summary>page one</summary>", "<summary>page two</summary>"]
    cid = await harness.conversation(policy(100_000))
    await harness.append(cid, *(user(f"message {n}") for n in range(PAGE_MESSAGES)))
    await harness.append(cid, *(says(f"answer {n}") for n in range(3)))
    run = harness.summariser.start_run(TENANT)
    task = SummaryTask(
        *(SummaryRequest(), SUMMARISER, 200, run, SummaryScope(len)),
        conversation_id=cid,
        spans=(Span(1, PAGE_MESSAGES + 4),),
        previous="before all",
    )
    made = await summarise_paged(harness.database, harness.summariser, task)
    assert own_text(made.text) == "page two"
    assert run.calls == len(harness.gateway.calls) == 2
    assert "before all" in harness.gateway.calls[0].messages[-1]["content"]
    assert "page one" in harness.gateway.calls[1].messages[-1]["content"]
    assert "answer 2" in harness.gateway.calls[1].messages[-1]["content"]
    assert "message 1\n" not in harness.gateway.calls[1].messages[-1]["content"]
