"""Compaction over a real database: forced, failing, concurrent.

[compaction.state, compaction.forced, compaction.receipt, compaction.failure-keeps-state]
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.adapters.postgres.database import PostgresDatabase
from app.domain.common.errors import Conflict, NotFound, ServiceUnavailable, ValidationError
from app.domain.compaction.summaries.model_calls import EXTRACTIVE
from app.domain.compaction.summaries.prompt import SummaryRequest
from app.domain.conversations.compaction_receipt import Compaction
from app.domain.conversations.view import Span, View
from app.domain.prompt.resolved_settings import RequestSettings
from app.services.compaction.runs import CompactRequest
from app.services.compaction.summaries.extractive import SummaryScope
from app.services.compaction.summariser import PAGE_MESSAGES, summarise_paged
from tests.domain.histories import raw_logs
from tests.services.fakes import (
    SUMMARISER,
    TENANT,
    Clock,
    Harness,
    ScriptedGateway,
    WatchedDatabase,
    asks,
    new_id,
    own_text,
    result,
    says,
    user,
)
from tests.services.payload.builders import check, is_extension, policy

DOWN = ServiceUnavailable("no", {"reason": "provider_error"})
TIMED_OUT = ServiceUnavailable("no", {"reason": "timeout"})
GOOD = "<summary>what was said</summary>"


@pytest.fixture
def database_watched(database: PostgresDatabase) -> WatchedDatabase:
    """The database of this test, watched."""
    return WatchedDatabase(database)


@pytest.fixture
def harness(database_watched: WatchedDatabase) -> Harness:
    """One process's services with a model that summarises."""
    clock = Clock()
    return Harness(database_watched, ScriptedGateway(clock=clock), clock, model=SUMMARISER)


async def receipt(harness: Harness, cid: str) -> Compaction:
    """Return the active receipt."""
    state = (await harness.stored(cid)).state
    assert state.compaction_id is not None
    async with harness.database.session() as session:
        found = await session.contexts.find_compaction(cid, state.compaction_id)
    assert found is not None
    return found


async def test_a_forced_compaction_returns_its_result(harness: Harness) -> None:
    """Tokens and messages before and after are those of the builds around it."""
    cid = await harness.conversation(policy(20_000))
    await harness.talk(cid, 10)
    before = await harness.build(cid)
    made = await harness.compaction.compact(TENANT, cid, CompactRequest())
    after = await harness.build(cid)
    assert made.compacted
    assert made.reason is None
    assert made.before_tokens == before["tokens_used"]
    assert made.after_tokens == after["tokens_used"]
    assert made.before_msg_count == len(before.messages) == 20
    assert made.after_msg_count == len(after.messages)
    assert made.strategies_run == ("sandwich",)
    assert made.model == SUMMARISER
    assert made.duration_ms == 20
    assert made.summary_tokens == after["budget"].summary
    stored = await receipt(harness, cid)
    assert (stored.trigger, own_text(stored.summary)) == ("forced", "what was said")
    assert (stored.hidden_span.start, stored.hidden_span.end) == made.summary_range
    assert stored.before_tokens == made.before_tokens
    assert after["cache_break_reason"] == "compaction"
    check(after, exact=True)


async def test_the_log_never_changes(harness: Harness) -> None:
    """A compaction changes the view alone: every message stays readable [log.any-format]."""
    cid = await harness.conversation(policy(20_000))
    await harness.talk(cid, 10)

    async def bodies() -> list[str]:
        _, page = await harness.log.page(
            TENANT, cid, after_seq=0, before_seq=10**9, order="asc", limit=1000
        )
        return [message.body for message in page]

    before = await bodies()
    await harness.compaction.compact(TENANT, cid, CompactRequest())
    assert await bodies() == before


async def test_ranges_of_successive_compactions_contain_one_another(harness: Harness) -> None:
    """Each includes the summary before it, reads only new messages and has a parent."""
    harness.gateway.replies = [f"<summary>so far {n}</summary>" for n in range(4)]
    cid = await harness.conversation(policy(20_000))
    spans: list[Span] = []
    parent = None
    for number in range(4):
        await harness.talk(cid, 8)
        made = await harness.compaction.compact(TENANT, cid, CompactRequest())
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


async def test_compacting_again_at_once_does_nothing(harness: Harness) -> None:
    """Right after a compaction there is nothing to do. [strategy.idempotent]"""
    cid = await harness.conversation(policy(20_000))
    await harness.talk(cid, 10)
    await harness.compaction.compact(TENANT, cid, CompactRequest())
    again = await harness.compaction.compact(TENANT, cid, CompactRequest())
    assert not again.compacted
    assert again.reason
    assert len(harness.gateway.calls) == 1
    assert (await harness.stored(cid)).state.view_version == 1


async def test_a_dry_run_calls_no_model_and_changes_nothing(harness: Harness) -> None:
    """`dry_run` shows range and sizes of what would be done. [compaction.dry-run]"""
    cid = await harness.conversation(policy(20_000))
    await harness.talk(cid, 10)
    shown = await harness.compaction.compact(TENANT, cid, CompactRequest(dry_run=True))
    assert not shown.compacted
    assert shown.after_tokens <= shown.before_tokens
    assert harness.gateway.calls == []
    assert (await harness.stored(cid)).state.hidden_span is None
    made = await harness.compaction.compact(TENANT, cid, CompactRequest())
    assert made.summary_range == shown.summary_range
    assert made.after_tokens <= shown.after_tokens
    assert made.after_msg_count == shown.after_msg_count


@pytest.mark.parametrize("failure", [DOWN, TIMED_OUT, "no tags at all", "<summary></summary>"])
async def test_a_failing_model_leaves_the_state_as_it_was(harness: Harness, failure: Any) -> None:
    """Timeout, failure or a bad answer: the forced call fails, and nothing changed."""
    cid = await harness.conversation(policy(20_000))
    await harness.talk(cid, 10)
    await harness.compaction.compact(TENANT, cid, CompactRequest())
    before = await harness.build(cid)
    state = (await harness.stored(cid)).state
    await harness.talk(cid, 10)
    harness.gateway.replies = [failure]
    with pytest.raises(ServiceUnavailable):
        await harness.compaction.compact(TENANT, cid, CompactRequest())
    after = (await harness.stored(cid)).state
    assert (after.hidden_span, after.view_version) == (state.hidden_span, state.view_version)
    later = await harness.build(cid)
    assert later["epoch"] == before["epoch"]
    assert is_extension(later, before)
    harness.gateway.replies = [GOOD]
    assert (await harness.compaction.compact(TENANT, cid, CompactRequest())).compacted


@pytest.mark.parametrize(
    ("leaves", "word"),
    [
        ({"compaction": {"enabled": False}}, "disabled"),
        ({"strategy": "full_history"}, "full_history"),
        ({"strategy": "sliding_window"}, "sliding_window"),
    ],
)
async def test_a_strategy_that_never_compacts_returns_a_reason(
    harness: Harness, leaves: dict[str, Any], word: str
) -> None:
    """A forced call on a policy that never compacts answers false with the reason."""
    cid = await harness.conversation(policy(20_000, **leaves))
    await harness.talk(cid, 30)
    made = await harness.compaction.compact(TENANT, cid, CompactRequest())
    assert not made.compacted
    assert word in str(made.reason)
    assert made.before_tokens == made.after_tokens
    assert harness.gateway.calls == []


async def test_an_empty_conversation_has_nothing_to_compact(harness: Harness) -> None:
    """No messages: nothing to do. No conversation: not found."""
    cid = await harness.conversation(policy(20_000))
    made = await harness.compaction.compact(TENANT, cid, CompactRequest())
    assert (made.compacted, made.reason) == (False, "the conversation has no messages")
    with pytest.raises(NotFound):
        await harness.compaction.compact(TENANT, new_id(), CompactRequest())
    with pytest.raises(NotFound):
        await harness.receipts.state("another tenant", cid)


async def test_one_call_may_set_model_and_instructions(harness: Harness) -> None:
    """A call may set instructions and an allowed model, and no other. [summary.allowed-models]"""
    cid = await harness.conversation(policy(20_000))
    await harness.talk(cid, 10)
    with pytest.raises(ValidationError):
        await harness.compaction.compact(TENANT, cid, CompactRequest(model="gpt-4o"))
    options = CompactRequest(model=SUMMARISER, instructions="Keep the numbers.")
    assert (await harness.compaction.compact(TENANT, cid, options)).model == SUMMARISER
    assert "Keep the numbers." in harness.gateway.calls[-1].messages[-1]["content"]
    await harness.talk(cid, 10)
    made = await harness.compaction.compact(TENANT, cid, CompactRequest(model=EXTRACTIVE))
    assert made.model == EXTRACTIVE
    assert len(harness.gateway.calls) == 1


async def test_a_summary_longer_than_it_frees_is_not_applied(harness: Harness) -> None:
    """A compaction that would not shrink the payload is dropped. [strategy.target]"""
    harness.gateway.replies = ["<summary>" + "🫠" * 40 + "</summary>"]
    cid = await harness.conversation(policy(20_000))
    await harness.append(cid, *(user(f"{n} " + "x " * 5) for n in range(13)))
    made = await harness.compaction.compact(TENANT, cid, CompactRequest())
    assert not made.compacted
    assert made.reason == "the summary would not be shorter"
    assert (await harness.stored(cid)).state.hidden_span is None


async def test_the_state_is_the_active_summary(harness: Harness) -> None:
    """ContextState has strategy, summary, range of seqs and time; None before."""
    cid = await harness.conversation(policy(20_000))
    await harness.talk(cid, 10)
    assert await harness.receipts.state(TENANT, cid) is None
    made = await harness.compaction.compact(TENANT, cid, CompactRequest())
    state = await harness.receipts.state(TENANT, cid)
    assert state is not None
    assert (state.strategy, own_text(state.summary)) == ("sandwich", "what was said")
    assert state.summary_range == made.summary_range
    assert "T" in state.compressed_at


# --- at once --------------------------------------------------------------------------------


async def test_appends_and_builds_go_on_during_a_model_call(harness: Harness) -> None:
    """A running compaction blocks neither appends nor builds, and is applied afterwards."""
    cid = await harness.conversation(policy(20_000))
    await harness.talk(cid, 10)
    before = await harness.build(cid)
    harness.gateway.release.clear()
    running = asyncio.create_task(harness.compaction.compact(TENANT, cid, CompactRequest()))
    await harness.gateway.waiting.wait()
    await harness.append(cid, user("meanwhile"), asks("a"), result("a", "found"))
    build = await harness.build(cid)
    assert build["epoch"] == before["epoch"]
    assert is_extension(build, before)
    assert "meanwhile" in build.contents
    harness.gateway.release.set()
    made = await running
    assert made.compacted
    after = await harness.build(cid)
    check(after, exact=True)
    assert "meanwhile" in after.contents
    assert after["summary_used"]
    assert made.summary_range is not None
    assert made.summary_range[1] <= 20


async def test_the_second_of_two_forced_compactions_waits(harness: Harness) -> None:
    """The second waits for the first and has nothing to do then."""
    cid = await harness.conversation(policy(20_000))
    await harness.talk(cid, 10)
    made = await asyncio.gather(
        *(harness.compaction.compact(TENANT, cid, CompactRequest()) for _ in range(2))
    )
    assert sorted(one.compacted for one in made) == [False, True]
    assert len(harness.gateway.calls) == 1


async def test_a_conversation_deleted_meanwhile_leaves_nothing(harness: Harness) -> None:
    """A compaction of a conversation deleted during the model call stores nothing."""
    cid = await harness.conversation(policy(20_000))
    await harness.talk(cid, 10)
    harness.gateway.release.clear()
    running = asyncio.create_task(harness.compaction.compact(TENANT, cid, CompactRequest()))
    await harness.gateway.waiting.wait()
    await harness.conversations.remove(TENANT, cid)
    harness.gateway.release.set()
    with pytest.raises((NotFound, Conflict)):
        await running
    await harness.conversation(policy(20_000), conversation_id=cid)
    await harness.append(cid, user("hello"))
    build = await harness.build(cid)
    assert [item["content"] for item in build.messages] == ["hello"]
    async with harness.database.session() as session:
        removed = await session.conversations.remove(cid)
    assert removed["compactions"] == 0


# --- any log --------------------------------------------------------------------------------


@given(
    log=raw_logs(10),
    top=st.integers(0, 2),
    bottom=st.integers(1, 3),
    more=raw_logs(4),
)
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
        made = await harness.compaction.compact(TENANT, cid, CompactRequest())
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
            if state.hidden_span and state.hidden_span.start <= e.seq < state.hidden_span.end
        ]
        assert state.tokens == sum(entry.tokens for entry in entries)
        assert state.hidden_tokens == sum(entry.tokens for entry in hidden)
        if made.compacted:
            assert made.after_tokens < made.before_tokens
            again = await harness.compaction.compact(TENANT, cid, CompactRequest())
            assert not again.compacted


# --- page by page ---------------------------------------------------------------------------


async def test_long_spans_are_summarised_page_by_page(harness: Harness) -> None:
    """Memory is bounded: each page extends the summary of the page before."""
    harness.gateway.replies = ["<summary>page one</summary>", "<summary>page two</summary>"]
    cid = await harness.conversation(policy(100_000))
    await harness.append(cid, *(user(f"message {n}") for n in range(PAGE_MESSAGES)))
    await harness.append(cid, *(says(f"answer {n}") for n in range(3)))
    run = harness.summariser.start_run(TENANT)
    made = await summarise_paged(
        harness.database,
        harness.summariser,
        cid,
        (Span(1, PAGE_MESSAGES + 4),),
        "before all",
        SummaryRequest(),
        SUMMARISER,
        200,
        run,
        SummaryScope(len),
    )
    assert made.text == "page two"
    assert run.calls == len(harness.gateway.calls) == 2
    assert "before all" in harness.gateway.calls[0].messages[-1]["content"]
    assert "page one" in harness.gateway.calls[1].messages[-1]["content"]
    assert "answer 2" in harness.gateway.calls[1].messages[-1]["content"]
    assert "message 1\n" not in harness.gateway.calls[1].messages[-1]["content"]


async def test_pages_are_cut_at_call_groups(harness: Harness) -> None:
    """A call and its results go to the model in one text. [summary.bounded-input]"""
    harness.gateway.replies = ["<summary>page one</summary>", "<summary>page two</summary>"]
    cid = await harness.conversation(policy(100_000))
    await harness.append(cid, *(user(f"message {n}") for n in range(PAGE_MESSAGES - 1)))
    await harness.append(cid, asks("c1"), result("c1", "the answer"), says("done"))
    await summarise_paged(
        harness.database,
        harness.summariser,
        cid,
        (Span(1, PAGE_MESSAGES + 3),),
        None,
        SummaryRequest(),
        SUMMARISER,
        200,
        harness.summariser.start_run(TENANT),
        SummaryScope(len),
    )
    first, second = (call.messages[-1]["content"] for call in harness.gateway.calls)
    assert "called " not in first and f"message {PAGE_MESSAGES - 2}" in first
    assert "Result of " in second and " with {" in second and "the answer" in second


async def test_cleared_results_are_placeholders_for_a_model(harness: Harness) -> None:
    """A model is sent what the payload shows of a result. [summary.capped-input]"""
    cid = await harness.conversation(policy(100_000))
    await harness.append(cid, user("look"), asks("c1"), result("c1", "first words " * 100))
    await harness.append(cid, asks("c2"), result("c2", "later words " * 100))
    await summarise_paged(
        harness.database,
        harness.summariser,
        cid,
        (Span(1, 6),),
        None,
        SummaryRequest(),
        SUMMARISER,
        200,
        harness.summariser.start_run(TENANT),
        SummaryScope(len, view=View(results_cleared_through=3)),
    )
    (call,) = harness.gateway.calls
    assert "first words" not in call.messages[-1]["content"]
    assert "[tool output trimmed; ref=" in call.messages[-1]["content"]
    assert "later words" in call.messages[-1]["content"]


async def test_spans_without_messages_carry_the_summary_on(harness: Harness) -> None:
    """An empty range keeps the summary before it. [summary.bounded-input]"""
    cid = await harness.conversation(policy(100_000))
    made = await summarise_paged(
        harness.database,
        harness.summariser,
        cid,
        (),
        "so far",
        SummaryRequest(),
        None,
        200,
        harness.summariser.start_run(TENANT),
        SummaryScope(lambda text: len(text) // 4, earlier_tokens=400),
    )
    assert "so far" in made.text
