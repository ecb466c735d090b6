"""Builds over a real database: totals, epochs, compaction inside, caches.

[budget.total, budget.levels, budget.within-window, epochs.extend, compaction.state]
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.common.errors import ContextOverflow, ServiceUnavailable
from app.conversations.view import SUMMARY_PREFIX
from app.formats.message import FormatName
from app.prompt.resolved_settings import RequestSettings
from tests.domain.histories import raw_logs
from tests.services.fakes import (
    ANTHROPIC,
    CHAT,
    CLAUDE,
    MODEL,
    SUMMARISER,
    TENANT,
    Build,
    Harness,
    ScriptedGateway,
    after_read,
    asks,
    result,
    says,
    user,
)
from tests.services.payload.builders import ASKS, SECTIONS, TOOLS, check, fill, is_extension, policy

DOWN = ServiceUnavailable("no", {"reason": "provider_error"})


# --- any log --------------------------------------------------------------------------------

POLICIES = st.fixed_dictionaries(
    {
        "strategy": st.sampled_from(["sandwich", "sandwich", "sliding_window", "full_history"]),
        "sandwich": st.fixed_dictionaries(
            {"preserve_top": st.integers(0, 3), "preserve_bottom": st.integers(1, 4)}
        ),
        "sliding_window": st.fixed_dictionaries({"keep_last_n": st.integers(1, 6)}),
        "compaction": st.fixed_dictionaries(
            {
                "auto": st.booleans(),
                "enabled": st.sampled_from([True, True, True, False]),
                "target": st.sampled_from([0.3, 0.5, 0.9]),
            }
        ),
        "budget": st.fixed_dictionaries(
            {
                "context_window": st.sampled_from([250, 600, 1500, 5000, 100_000]),
                "max_output_tokens": st.sampled_from([50, 150]),
            }
        ),
        "summary_role": st.sampled_from(["user", "system"]),
    }
)


@given(
    log=raw_logs(8),
    own=POLICIES,
    format=st.sampled_from([CHAT, ANTHROPIC]),
    smaller=st.none() | st.integers(200, 900),
    has_frame=st.booleans(),
)
@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_any_build_of_any_log_fits_or_says_overflow(
    harness: Harness,
    log: Any,
    own: dict[str, Any],
    format: FormatName,
    smaller: int | None,
    has_frame: bool,
) -> None:
    """Whatever strategy, window, format and log: in budget, valid, true numbers, stable prefix.

    [budget.of-the-payload, budget.within-window, payload.valid, payload.deterministic,
    epochs.extend] A cold process gives the same bytes as a warm one.
    """
    cid = await harness.conversation(own, SECTIONS * has_frame, TOOLS * has_frame)
    ask = RequestSettings(format, MODEL if format is CHAT else CLAUDE, context_window=smaller)
    before: Build | None = None
    for raw_format, raw in log.messages:
        await harness.append(cid, raw, format=raw_format)
        try:
            build = await harness.build(cid, ask)
        except ContextOverflow as overflow:
            assert overflow.facts["budget"].context_window > 0
            before = None
            continue
        check(build, exact=format is CHAT)
        if before is not None and build["epoch"] == before["epoch"]:
            assert is_extension(build, before)
            assert build["cache_break_reason"] is None
        elif before is not None:
            assert build["cache_break_reason"] is not None
        cold = await harness.build(cid, ask, harness.cold())
        assert cold.text == build.text
        assert cold["prefix_hash"] == build["prefix_hash"]
        assert cold["epoch"] == build["epoch"]
        before = build


# --- epochs ---------------------------------------------------------------------------------


async def test_each_change_of_the_settings_names_its_reason(harness: Harness) -> None:
    """Sections, tools, policy, window and model each start an epoch with a reason.

    [epochs.reasons]
    """
    cid = await harness.conversation(policy(50_000), SECTIONS)
    await harness.talk(cid, 3)

    async def reason(ask: RequestSettings | None = None) -> str | None:
        build = await harness.build(cid, ask)
        check(build, exact=(ask or RequestSettings()).format is CHAT)
        again = await harness.build(cid, ask)
        assert again.text == build.text
        assert again["epoch"] == build["epoch"]
        again_cold = await harness.build(cid, ask, harness.cold())
        assert again_cold.text == build.text
        reasons: str | None = build["cache_break_reason"]
        return reasons

    assert await reason() is None
    await harness.patch(cid, sections=SECTIONS[:2])
    assert await reason() == "sections_changed"
    await harness.patch(cid, tools=TOOLS)
    assert await reason() == "tools_changed"
    await harness.set_policy(cid, {"compaction": {"target": 0.4}})
    assert await reason() == "policy_changed"
    assert await reason(RequestSettings(context_window=40_000)) == "budget_changed"
    assert await reason() == "budget_changed"
    assert await reason(RequestSettings(max_output_tokens=60)) == "budget_changed"
    assert await reason(RequestSettings(model="gpt-4.1")) == "model_changed"
    assert await reason(ASKS[ANTHROPIC]) is None
    assert await reason(
        RequestSettings(sections='[{"name":"x","content":"y"}]', max_output_tokens=60)
    ) in ("sections_changed",)
    await harness.set_policy(cid, {"strategy": "sliding_window"})
    assert await reason() is not None


async def test_a_build_reads_only_its_own_payload_stream(harness: Harness) -> None:
    """Payload streams of other formats and models keep epochs of their own. [epochs.stream]"""
    cid = await harness.conversation(policy(50_000))
    await harness.talk(cid, 2)
    first = {format: await harness.build(cid, ASKS[format]) for format in ASKS}
    await harness.talk(cid, 1)
    for format, ask in ASKS.items():
        later = await harness.build(cid, ask)
        assert (later["epoch"], later["cache_break_reason"]) == (
            1,
            first[format]["cache_break_reason"],
        )
        assert is_extension(later, first[format])


async def test_a_stub_tool_appears_with_the_first_call(harness: Harness) -> None:
    """Anthropic requires tools beside calls: the first call starts an epoch [tools.stub]."""
    cid = await harness.conversation(policy(50_000))
    await harness.append(cid, user("hi"), says("hello"), user("go"))
    assert "tools" not in (await harness.build(cid, ASKS[ANTHROPIC])).payload
    await harness.append(cid, asks("a"))
    build = await harness.build(cid, ASKS[ANTHROPIC])
    assert build["cache_break_reason"] == "tools_changed"
    assert [tool["name"] for tool in build.payload["tools"]] == ["no_tools_available"]
    check(build, exact=False)
    await harness.append(cid, result("a"))
    later = await harness.build(cid, ASKS[ANTHROPIC])
    assert later["epoch"] == build["epoch"]


@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "claude-fable-5-1"])
async def test_thinking_outlives_a_prefix_that_it_is_not_bound_to(
    harness: Harness, model: str
) -> None:
    """Claude from 5.1 on refuses thinking behind another prefix: it is left out for good, and
    named. Models before need that of the running loop. [reasoning.running-loop] Behind changed
    sections that are an item the prefix is the same.

    [compaction.new-epoch, epochs.changes]
    """
    ask, is_bound = RequestSettings(ANTHROPIC, model), "5-1" in model
    cid = await harness.conversation(policy(50_000), SECTIONS, TOOLS)
    thinking = {"type": "thinking", "thinking": "let me see", "signature": "c2ln"}
    await harness.append(cid, user("hi"))
    await harness.build(cid, ask)
    call = {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {}}
    await harness.append(cid, {"role": "assistant", "content": [thinking, call]}, format=ANTHROPIC)
    await harness.append(cid, result("toolu_1"))
    kept = await harness.build(cid, ask)
    check(kept, exact=False)
    assert kept.messages[1]["content"][0] == thinking
    lower = await harness.build(cid, replace(ask, max_output_tokens=50))
    assert lower["cache_break_reason"] == "budget_changed"
    assert lower.messages[1]["content"][0] == thinking
    await harness.build(cid, ask)
    await harness.patch(cid, sections=SECTIONS[:1])
    changed = await harness.build(cid, ask)
    assert changed["cache_break_reason"] == (None if is_bound else "sections_changed")
    assert "let me see" in changed.contents and changed["degraded"] == []
    hosted = {"type": "web_search_20260318", "name": "web_search"}
    for tools in ([*TOOLS, hosted], TOOLS):  # there is no item of the service for a hosted tool
        await harness.patch(cid, tools=tools)
        broken = await harness.build(cid, ask)
        assert broken["cache_break_reason"] == "tools_changed"
        assert ("let me see" in broken.contents) is not is_bound
        assert broken["degraded"] == ["reasoning_dropped"] * is_bound
        check(broken, exact=False)


async def test_builds_at_once_add_a_change_once(harness: Harness) -> None:
    """Processes that find the same change at once return the same payload, and extend it."""
    ask = RequestSettings(ANTHROPIC, "claude-opus-5")
    cid = await harness.conversation(policy(50_000), SECTIONS, TOOLS)
    await harness.append(cid, user("hi"))
    services = [harness.context, *(harness.cold() for _ in range(4))]
    first, *_ = [await harness.build(cid, ask, service) for service in services]
    builds = [first]
    for sections in (SECTIONS[:2], SECTIONS[:1]):
        await harness.patch(cid, sections=sections)
        builds = await asyncio.gather(*(harness.build(cid, ask, each) for each in services))
        assert {build.text for build in builds} == {builds[0].text}
        assert {build["cache_break_reason"] for build in builds} == {None}
        assert is_extension(builds[0], first)
    await harness.append(cid, says("well"), user("so?"))
    later = [await harness.build(cid, ask, service) for service in services]
    assert {build.text for build in later} == {later[0].text}
    (change,) = (each["content"] for each in later[0].messages if each["role"] == "system")
    assert len(change) == 2 and is_extension(later[0], builds[0])


# --- pressure -------------------------------------------------------------------------------


async def test_below_compact_trigger_nothing_is_compacted(harness: Harness) -> None:
    """A payload that is only due is returned as it is [compaction.below-trigger]."""
    cid = await harness.conversation(policy(1100, 100, budget={"notice_at": 0.8}))
    await fill(harness, cid, 800)
    build = await harness.build(cid)
    assert (build["pressure"], build["notice"]) == ("due", True)
    assert build["compaction"] is None
    assert not build["summary_used"]
    check(build, exact=True)


async def test_at_compact_trigger_a_build_compacts_before_it_returns(harness: Harness) -> None:
    """The summary is made inside the build and is part of its answer [budget.levels].

    [compaction.in-build]
    """
    harness = Harness(harness.database, ScriptedGateway(clock=harness.clock), model=SUMMARISER)
    cid = await harness.conversation(policy(1100, 100))
    await fill(harness, cid, 955)
    before = await harness.context.budget(TENANT, cid)
    assert before is not None
    build = await harness.build(cid)
    check(build, exact=True)
    made = build["compaction"]
    assert made.compacted
    assert made.model == SUMMARISER
    assert made.before_tokens == before.budget.tokens_used
    assert made.after_tokens == build["tokens_used"] <= 500
    assert build["summary_used"]
    assert SUMMARY_PREFIX in build.contents
    assert "what was said" in build.contents
    assert build["degraded"] == []
    again = await harness.build(cid)
    assert again.text == build.text
    assert again["compaction"] is None
    assert len(harness.gateway.calls) == 1


async def test_without_auto_nothing_is_compacted_below_blocked_at(harness: Harness) -> None:
    """`auto: false` compacts only when the window is blocked.

    [compaction.auto, compaction.blocked]
    """
    cid = await harness.conversation(policy(1100, 100, compaction={"auto": False}))
    await fill(harness, cid, 955)
    stored = (await harness.stored(cid)).state.tokens
    assert stored < 980
    build = await harness.build(cid)
    assert build["pressure"] == "compact"
    assert build["compaction"] is None
    await fill(harness, cid, 980)
    forced = await harness.build(cid)
    assert forced["compaction"].compacted
    check(forced, exact=True)


async def test_a_user_message_too_large_overflows_uncut(harness: Harness) -> None:
    """Where user text may not be shortened, what cannot fit is refused. [budget.overflow]"""
    cid = await harness.conversation(policy(400, 100, messages={"offload_oversized": False}))
    await harness.append(cid, user("word " * 600))
    with pytest.raises(ContextOverflow):
        await harness.build(cid)
    await harness.append(cid, says("hm"), user("short again"))
    build = await harness.build(cid)
    check(build, exact=True)
    assert "short again" in build.contents


# --- failure --------------------------------------------------------------------------------


# --- state ----------------------------------------------------------------------------------


async def test_a_smaller_requested_window_changes_only_its_own_stream(harness: Harness) -> None:
    """A request's smaller window stores no compaction, and its view is reused.

    [compaction.policy-window-only]
    """
    harness = Harness(harness.database, ScriptedGateway(DOWN), model=SUMMARISER)
    cid = await harness.conversation(policy(50_000, 100))
    await harness.talk(cid, 30)
    small = RequestSettings(context_window=900)
    first = await harness.build(cid, small)
    check(first, exact=True)
    assert first["summary_used"]
    assert first["compaction"] is None
    state = (await harness.stored(cid)).state
    assert (state.hidden_span, state.view_version) == (None, 0)
    await harness.append(cid, user("and now?"))
    second = await harness.build(cid, small)
    check(second, exact=True)
    assert second["epoch"] == first["epoch"]
    assert second["degraded"] == first["degraded"]
    assert is_extension(second, first)
    whole = await harness.build(cid)
    assert not whole["summary_used"]
    assert len(whole.messages) == 61
    third = await harness.build(cid, small)
    check(third, exact=True)
    assert third.messages == second.messages
    cold = await harness.build(cid, small, harness.cold())
    assert cold.text == third.text
    assert harness.gateway.calls == []


# --- at once --------------------------------------------------------------------------------


async def test_two_processes_compact_at_once(harness: Harness) -> None:
    """Two processes that would compact: one does, neither build waits.

    [compaction.build-does-not-wait]
    """
    one = Harness(harness.database, ScriptedGateway(), model=SUMMARISER)
    two = Harness(harness.database, ScriptedGateway(), model=SUMMARISER)
    cid = await one.conversation(policy(1100, 100))
    await fill(one, cid, 955)
    builds = await asyncio.gather(one.build(cid), two.build(cid))
    for build in builds:
        check(build, exact=True)
        assert build["summary_used"] or "compaction_pending" in build["degraded"]
    assert any(build["compaction"] for build in builds)
    assert len(one.gateway.calls) + len(two.gateway.calls) == 1
    assert (await one.build(cid)).text == (await two.build(cid)).text
    assert (await one.stored(cid)).state.view_version == 1


async def test_a_late_cold_build_leaves_no_gap_in_the_cached_payload(harness: Harness) -> None:
    """A build that read earlier and finishes later costs later builds no message."""
    cid = await harness.conversation(policy(50_000))
    await harness.append(cid, user("one"))
    await harness.build(cid)
    service = harness.cold()
    late_may_go, late_has_read = asyncio.Event(), asyncio.Event()

    async def wait_for_others() -> None:
        late_has_read.set()
        await late_may_go.wait()

    after_read(wait_for_others)
    late = asyncio.create_task(harness.build(cid, None, service))
    await late_has_read.wait()
    await harness.append(cid, says("two"), user("three"))
    await harness.build(cid, None, service)
    await harness.append(cid, says("four"))

    async def let_the_late_one_finish() -> None:
        late_may_go.set()
        await late

    after_read(let_the_late_one_finish)
    build = await harness.build(cid, None, service)
    assert [item["content"] for item in build.messages] == ["one", "two", "three", "four"]
    again = await harness.build(cid, None, service)
    assert again.text == build.text
