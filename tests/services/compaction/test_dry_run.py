"""Dry runs show the texts that a compaction stores, and the prompts that it sends.

[compaction.dry-run]
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from app.compaction.schemas import CompactionRequest
from app.conversations.compaction_results import DryRunResult
from app.repositories import Database
from tests.services.fakes import (
    MODELS,
    SUMMARISER,
    TENANT,
    Harness,
    ScriptedGateway,
    WatchedDatabase,
)

STRATEGIES = ["sandwich", "retain_summary", "tree_summary", "chain"]
PRICED = "gpt-4o-mini"
RETAINING = {"compaction": {"retain_directives": ["ids"]}}
PLACEHOLDER = re.compile(r"\[the answer of call (\d+)\]")


def policy(window: int, **leaves: Any) -> dict[str, Any]:
    """Return a policy with this window."""
    return {"budget": {"context_window": window, "max_output_tokens": 100}, **leaves}


def with_model(database: Database, model: str = SUMMARISER) -> Harness:
    """Return services whose summariser is a scripted model."""
    return Harness(WatchedDatabase(database), ScriptedGateway(), model=model)


async def dry_run(
    harness: Harness, cid: str, max_bytes: int = 1 << 20, **options: Any
) -> DryRunResult:
    """Return what a compaction would do."""
    request = CompactionRequest(dry_run=True, **options)
    shown = await harness.compaction.compact(TENANT, cid, request, max_bytes)
    assert isinstance(shown, DryRunResult)
    return shown


async def everything(harness: Harness, cid: str) -> tuple[Any, ...]:
    """Return the state, events and receipts of a conversation."""
    state = (await harness.stored(cid)).state
    receipts = await harness.receipts.page(TENANT, cid, 100, None)
    return state, await harness.events_of(cid), list(receipts)


# --- without a model -------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("own", [{}, RETAINING], ids=["plain", "retaining"])
async def test_the_shown_summaries_are_those_that_are_stored(
    harness: Harness, strategy: str, own: dict[str, Any]
) -> None:
    """Texts, sections, sources and sizes are the same, also of the second compaction."""
    cid = await harness.conversation(policy(6_000, strategy=strategy, **own))
    for number in range(3):
        await harness.talk(cid, 60)
        await harness.append(
            cid, {"role": "user", "content": f"From now on use port {8000 + number} for tests."}
        )
        await harness.talk(cid, 10)
        before = await everything(harness, cid)
        shown = await dry_run(harness, cid)
        assert await everything(harness, cid) == before
        made = await harness.compact(cid)
        stored = (await harness.receipt(cid)).view
        assert made.compacted and stored.summaries
        assert shown.summaries == stored.summaries
        assert (shown.retain, shown.note) == (stored.retain, stored.note)
        assert not shown.calls and not shown.truncated


async def test_summaries_beyond_the_limit_are_left_out(harness: Harness) -> None:
    """The answer is bounded and says what it lacks; the sizes stay exact."""
    cid = await harness.conversation(policy(6_000))
    await harness.talk(cid, 60)
    whole = await dry_run(harness, cid)
    size = len(whole.summaries[0].text.encode())
    assert (await dry_run(harness, cid, size)).summaries == whole.summaries
    cut = await dry_run(harness, cid, size - 1)
    assert not cut.summaries and cut.truncated
    assert cut.summary_tokens == whole.summary_tokens


# --- with a model ----------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["retain_summary", "sandwich"])
@pytest.mark.parametrize("own", [{}, RETAINING], ids=["plain", "retaining"])
async def test_prompts_with_earlier_answers_name_them(
    database: Database, strategy: str, own: dict[str, Any]
) -> None:
    """A history of several chunks: each later prompt has a placeholder for the answer before."""
    harness = with_model(database)
    harness.gateway.replies = ["<retain>id 7</retain><summary>So it was.</summary>"]
    cid = await harness.conversation(policy(100_000, strategy=strategy, **own))
    rule = "From now on, deploy only to region eu-north-7."
    await harness.append(cid, {"role": "user", "content": rule})
    for _ in range(5):
        await harness.talk(cid, 100, words=90)
    shown = await dry_run(harness, cid)
    await harness.compact(cid)
    sent = harness.gateway.calls
    assert shown.planned_calls == len(shown.calls) >= 3
    assert shown.calls[0].messages == sent[0].messages
    for number, call in enumerate(shown.calls, 1):
        earlier = tuple({int(found) for found in PLACEHOLDER.findall(str(call.messages))})
        assert call.depends_on == earlier == ((number - 1,) if number > 1 else ())
        # An answer of the expected size is counted, and never shown.
        assert call.input_tokens + call.max_output_tokens <= 32_000
        assert not any("\n…" in message["content"] for message in call.messages)
    assert shown.input_tokens == sum(call.input_tokens for call in shown.calls)
    assert shown.output_tokens == sum(call.max_output_tokens for call in shown.calls)
    assert len(sent) <= shown.planned_calls


async def test_the_cost_is_the_most_that_the_calls_can_take(database: Database) -> None:
    """Prompts at the price of input, the longest answers at the price of output."""
    harness = with_model(database, PRICED)
    info = MODELS.find(PRICED)
    assert info is not None and info.input_price and info.output_price
    cid = await harness.conversation(policy(6_000, strategy="tree_summary"))
    await harness.talk(cid, 100)
    shown = await dry_run(harness, cid)
    assert shown.planned_calls > 2 and shown.cost_usd is not None
    most = shown.input_tokens * info.input_price + shown.output_tokens * info.output_price
    assert shown.cost_usd == pytest.approx(most)
    assert sum(call.cost_usd or 0.0 for call in shown.calls) == pytest.approx(most)
