"""The sum rule over a real database: old tool output gives way, in batches.

[tool-output.clear-in-batches]
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.common.errors import ContextOverflow, ValidationError
from app.context.repository import ContextRepository
from app.formats.message import FormatName
from tests.domain.histories import raw_logs
from tests.services.fakes import (
    ANTHROPIC,
    CHAT,
    SUMMARISER,
    TENANT,
    Build,
    Harness,
    asks,
    result,
    says,
    user,
)
from tests.services.payload.builders import ASKS, SECTIONS, TOOLS, both, check, is_extension, policy

pytestmark = pytest.mark.services(model=SUMMARISER)

PLACEHOLDER = "[tool output trimmed; ref="
COMPACTING = ("sandwich", "retain_summary", "tree_summary", "chain")


def limited(tokens: Any = 1_300, least: Any = 600, window: int = 20_000, **leaves: Any) -> Any:
    """Return a policy with a budget for tool output: four results of `use`, cleared by three."""
    output = {"context_budget_tokens": tokens, "clear_at_least": least}
    output |= leaves.pop("tool_output", {})
    return policy(window, tool_output=output, **({"agent_tools": "none"} | leaves))


def calls(call_id: str, name: str) -> dict[str, Any]:
    """Return an assistant message that calls one tool."""
    raw = asks(call_id)
    raw["tool_calls"][0]["function"] = {"name": name, "arguments": "{}"}
    return raw


async def use(
    harness: Harness, cid: str, *numbers: int, words: int = 150, name: str = "read_file"
) -> None:
    """Append calls of a tool, each with one result of about two tokens a word, 307 in all."""
    for number in numbers:
        call, text = calls(f"c{number}", name), f"r{number} " * words
        await harness.append(cid, call, result(f"c{number}", text))


async def reader(harness: Harness, own: Any, *numbers: int, sections: Any = ()) -> str:
    """Return a conversation with this policy whose agent has read these."""
    cid = await harness.conversation(own, sections, TOOLS)
    await harness.append(cid, user("read it all"))
    await use(harness, cid, *numbers)
    return cid


def shown(build: Build) -> list[int]:
    """Return the numbers of the results that a payload shows whole."""
    return [number for number in range(200) if f"r{number} r{number} " in build.contents]


def cleared(build: Build) -> int:
    """Return how many results of a payload are placeholders."""
    return build.contents.count(PLACEHOLDER)


async def triggers(harness: Harness, cid: str) -> list[str]:
    """Return what made the receipts, the newest first."""
    return [receipt.trigger for receipt in await harness.receipts.page(TENANT, cid, 50, None)]


# --- the rule -------------------------------------------------------------------------------


async def test_a_clearing_has_a_receipt(harness: Harness) -> None:
    """It lists the cleared results and the step, without a model; the budget follows.

    [tool-output.clearing-receipt]
    """
    cid = await reader(harness, limited(), *range(6), sections=SECTIONS)
    build = await harness.build(cid)
    receipt = await harness.receipt(cid)
    assert (receipt.trigger, receipt.strategy) == ("tool_output", "sandwich")
    assert receipt.stages == ("clear_tool_results",)
    assert (receipt.model, receipt.calls, receipt.made) == (None, 0, ())
    assert (receipt.hidden_span.start, receipt.hidden_span.end) == (1, 8)
    assert receipt.view.results_cleared_through == 7
    state = (await harness.stored(cid)).state
    assert state.hidden_tokens == receipt.before_tokens - receipt.after_tokens > 0
    assert (state.hidden_messages, state.hidden_span) == (0, None)
    reading = await harness.context.budget(TENANT, cid)
    assert reading is not None
    assert build["tokens_used"] == reading.budget.tokens_used <= receipt.after_tokens
    (event,) = await harness.events_of(cid)
    assert event[1]["compaction_id"] == receipt.compaction_id


async def test_a_pin_changes_no_payload_that_shows_it(harness: Harness) -> None:
    """A request before the cleared results stays as it is, and the log is not read again for it.

    It stays after a rewind and its undo, too.
    """
    cid = await reader(harness, limited(), *range(6))
    before = await harness.build(cid)
    await harness.pin(cid, 1)
    await harness.append(cid, user("go on"))
    with mock.patch.object(ContextRepository, "rows", side_effect=AssertionError):
        build = await harness.build(cid)
    assert is_extension(build, before)
    assert (build["epoch"], build["cache_break_reason"]) == (before["epoch"], None)
    head_seq = (await harness.stored(cid)).state.head_seq
    await harness.rewinds.rewind(TENANT, cid, head_seq - 1)
    assert (await harness.build(cid)).messages == before.messages
    await harness.undo(cid)
    assert (await harness.build(cid)).messages == build.messages


# --- what never gives way -------------------------------------------------------------------


async def test_excluded_results_are_never_cleared(harness: Harness) -> None:
    """They stay whole while newer results of other tools are cleared, repeatedly."""
    cid = await reader(harness, limited(tool_output={"exclude_tools": ["keep"]}), 0)
    await use(harness, cid, 1, name="keep")
    await use(harness, cid, *range(2, 6))
    for build in await both(harness, cid):
        assert shown(build) == [1, 4, 5]
    assert (await harness.stored(cid)).state.protected_seqs == (5,)
    await use(harness, cid, 6, 7, 8)
    for build in await both(harness, cid):
        assert shown(build) == [1, 7, 8]
    reading = await harness.context.budget(TENANT, cid)
    assert reading is not None
    receipt = await harness.receipt(cid)
    assert reading.budget.tokens_used <= receipt.after_tokens


# --- undo -----------------------------------------------------------------------------------


async def test_an_undone_clearing_is_repeated_under_pressure(harness: Harness) -> None:
    """At `compact_trigger` the results are cleared again [compaction.undo-suspends]."""
    cid = await reader(harness, limited(1_500, 0, 2_600), *range(6), sections=SECTIONS)
    reading = await harness.context.budget(TENANT, cid)
    assert reading is not None
    await harness.append(cid, says("well " * (2_320 - reading.budget.tokens_used)))
    await harness.build(cid)
    await harness.undo(cid)
    whole = await harness.build(cid)
    assert (len(shown(whole)), whole["pressure"]) == (6, "due")
    await harness.append(cid, user("well " * 80))  # less than 5 % of the window
    build = await harness.build(cid)
    check(build, exact=True)
    assert await triggers(harness, cid) == ["tool_output"] * 2
    assert build["compaction"] is None


# --- at once, and never by halves -----------------------------------------------------------


# --- any log --------------------------------------------------------------------------------

OUTPUTS = st.fixed_dictionaries(
    {
        "context_budget_tokens": st.sampled_from([0, 100, 600, 2_000]),
        "clear_at_least": st.sampled_from(["auto", 0, 300]),
        "exclude_tools": st.sampled_from([[], ["read_file"], ["other"]]),
    }
)


@given(
    log=raw_logs(8),
    output=OUTPUTS,
    strategy=st.sampled_from([*COMPACTING, "sliding_window"]),
    window=st.sampled_from([1_500, 5_000, 100_000]),
    format=st.sampled_from([CHAT, ANTHROPIC]),
    pin=st.integers(0, 9),
)
@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_any_log_is_cleared_as_the_policy_requires(
    harness: Harness,
    log: Any,
    output: Mapping[str, Any],
    strategy: str,
    window: int,
    format: FormatName,
    pin: int,
) -> None:
    """Whatever log, strategy, window, format: valid, in budget, warm as cold, prefix kept.

    [tool-output.clear-in-batches, budget.total]
    """
    cid = await harness.conversation(policy(window, strategy=strategy, tool_output=output))
    before: Build | None = None
    for number, (raw_format, raw) in enumerate(log.messages, 1):
        await harness.append(cid, raw, format=raw_format)
        if number == pin:
            with suppress(ValidationError):  # it would take too much of the window
                await harness.pin(cid, number)
        try:
            build = await harness.build(cid, ASKS[format])
        except ContextOverflow:
            before = None
            continue
        check(build, exact=format is CHAT)
        if before is not None and build["epoch"] == before["epoch"]:
            assert is_extension(build, before)
        cold = await harness.build(cid, ASKS[format], harness.cold())
        assert (cold.text, cold["epoch"]) == (build.text, build["epoch"])
        before = build
