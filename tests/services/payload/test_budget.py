"""What a payload may take: tools, messages and counts of every build stay inside the window.

[tools.provider-limit, budget.user-text-kept, budget.one-number, budget.total, budget.within-window,
tokens.what-counts]
"""

from __future__ import annotations

import json
from contextlib import suppress
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.common.errors import ContextError, ContextOverflow, ServiceUnavailable
from app.context.build import MIN_EXTRA_CHANGE
from app.context.schemas import Known
from app.conversations.schemas import ConversationPatch
from app.formats.message import FormatName
from app.policy.policy import StrategyName
from app.prompt.resolved_settings import RequestSettings
from tests.domain.histories import IMAGE_DATA, raw_logs
from tests.domain.payload.builders import IMAGE, LEAST, faults
from tests.judge.epochs import ITEMS
from tests.payload_tokens import payload_tokens
from tests.services.fakes import (
    CHAT,
    CLAUDE,
    MODEL,
    TENANT,
    Harness,
    asks,
    failing,
    result,
    says,
    user,
)
from tests.services.payload.builders import MODELS, RESPONSES, built

WINDOW, OUTPUT = 8_000, 500
POLICY = {"budget": {"context_window": WINDOW, "max_output_tokens": OUTPUT}}


def tools(count: int, words: int = 150) -> list[dict[str, Any]]:
    """Return so many definitions that may be deferred, of about so many words."""
    text = "Mind the gap. " * (words // 3)
    tool = {"description": text, "category": "mcp"}
    return [tool | {"name": f"tool_{number}"} for number in range(count)]


def names(answer: dict[str, Any]) -> list[str]:
    """Return the names of the tools that a payload defines without deferring them."""
    payload = answer["payload"]
    if answer["format"] == FormatName.GEMINI:
        listed = [
            item for tool in payload["config"]["tools"] for item in tool["functionDeclarations"]
        ]
    else:
        listed = payload["tools"]
    return [
        item.get("name") or item.get("function", {}).get("name") or item["type"]
        for item in listed
        if not item.get("defer_loading")
    ]


@pytest.mark.parametrize("format", FormatName)
async def test_tools_beyond_the_window_are_deferred(harness: Harness, format: FormatName) -> None:
    """The payload is valid and fits, and the next payloads extend it."""
    cid = await harness.conversation(POLICY, tools=tools(60))
    await harness.append(cid, user("Hello"))
    ask = RequestSettings(format, MODELS[format])
    first = await built(harness, cid, ask)
    assert faults(format, first["payload"]) == []
    assert first["tokens_used"] <= WINDOW - OUTPUT
    assert first["deferred_tools"] > 0 and "tool_search" in names(first)
    await harness.append(cid, says("Hi"), user("Go on " * 100))
    for service in (None, harness.cold()):
        later = await built(harness, cid, ask, service=service)
        assert (later["epoch"], names(later)) == (first["epoch"], names(first))


async def test_too_many_tools_for_the_provider(harness: Harness) -> None:
    """More small tools than OpenAI takes are deferred, and a failed read defers them as well."""
    cid = await harness.conversation({"budget": {"context_window": 100_000}}, tools=tools(200, 3))
    await harness.append(cid, user("Hello"))
    for format in (CHAT, RESPONSES):
        answer = await built(harness, cid, RequestSettings(format, MODELS[format]))
        assert faults(format, answer["payload"]) == []
        assert (answer["degraded"], answer["deferred_tools"]) == ([], 200 - 121)
    with failing("last_used", ServiceUnavailable("gone")):
        answer = await built(harness, cid, RequestSettings(CHAT, "gpt-4.1"))
    assert answer["degraded"] == ["tool_uses_unread"]


@pytest.mark.parametrize(("agent_tools", "category"), [("none", "mcp"), ("auto", "builtin")])
async def test_tools_that_stay_and_do_not_fit_are_refused(
    harness: Harness, agent_tools: str, category: str
) -> None:
    """Nothing is deferred that the model could not find, and no `builtin` tool is."""
    given = [tool | {"category": category} for tool in tools(60)]
    cid = await harness.conversation(POLICY | {"agent_tools": agent_tools}, tools=given)
    await harness.append(cid, user("Hello"))
    with pytest.raises(ContextOverflow):
        await built(harness, cid)


STEPS, PROVIDERS = 40, list(MODELS)
SMALL = {"context_window": 4_000, "max_output_tokens": 500}


def loop_policy(strategy: str, mode: str) -> dict[str, Any]:
    """Return a policy for loops in a small window; `full_history` has a window for all of it."""
    is_whole = strategy == StrategyName.FULL_HISTORY
    budget = {"context_window": 200_000} if is_whole else SMALL
    compaction = {"mode": mode}
    return {"strategy": strategy, "budget": budget, "compaction": compaction}


@pytest.mark.parametrize("strategy", StrategyName)
@pytest.mark.parametrize("words", [40, 4_000], ids=["short", "long"])
async def test_the_newest_user_message_is_in_every_payload(
    harness: Harness, strategy: StrategyName, words: int
) -> None:
    """In every format, whatever is compacted: whole, or as head and tail where it is long."""
    random = Random(f"{strategy} {words}")
    mode = random.choice(("inline", "background"))
    cid = await harness.conversation(loop_policy(strategy, mode))
    await harness.talk(cid, 2)
    await harness.append(cid, user(f"BEGINNING {'of the task ' * (words // 3)} ENDING"))
    for step in range(STEPS):
        ids = [f"call_{step}_{number}" for number in range(random.choice((1, 1, 3)))]
        said = [says("I look further.")] if random.random() < 0.2 else []
        size = random.choice((5, 50, 50, 400))
        results = [result(call_id, f"found {step} " * size) for call_id in ids]
        await harness.append(cid, *said, asks(*ids), *results)
        if mode == "background" and strategy not in ("full_history", "sliding_window"):
            await harness.work(cid)
        format = PROVIDERS[step % len(PROVIDERS)]
        answer = await built(harness, cid, RequestSettings(format, MODELS[format]))
        text = json.dumps(answer["payload"])
        assert "BEGINNING of the task" in text and "of the task  ENDING" in text, step
        assert faults(format, answer["payload"]) == []


ANTHROPIC = FormatName.ANTHROPIC


async def used_by_all(harness: Harness, cid: str) -> list[int]:
    """Return what the budget and an append say, in the process of the build and in another."""
    numbers = []
    for service in (harness.context, harness.cold()):
        status = await service.budget(TENANT, cid)
        assert status is not None
        numbers.append(status.budget.tokens_used)
    return numbers


@pytest.mark.parametrize("format", [CHAT, RESPONSES, ANTHROPIC])
async def test_all_say_what_the_next_build_says(harness: Harness, format: FormatName) -> None:
    """Reasoning, search results and reductions of one build count everywhere as in the payload."""
    budget = {"context_window": 7_000, "max_output_tokens": 1_000}
    policy: dict[str, Any] = {"budget": budget, "compaction": {"auto": False}}
    cid = await harness.conversation(policy | {"agent_tools": "none"})
    model = CLAUDE if format is ANTHROPIC else MODEL
    await harness.conversations.change(TENANT, cid, ConversationPatch(model=model))
    for turn in range(12):
        await harness.append(cid, user(f"{turn} " + "why " * 300))
        if format is RESPONSES:
            sealed = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA" * 400}
            said = {"role": "assistant", "content": "because " * 200}
            await harness.append(cid, sealed, said, format=RESPONSES)
        else:
            await harness.append(cid, {"role": "assistant", "content": "because " * 200})
        build = await harness.build(cid, RequestSettings(format))
        for used in await used_by_all(harness, cid):
            assert abs(used - build["tokens_used"]) < MIN_EXTRA_CHANGE, turn
        grown = await harness.append(cid, user("more " * 50))
        assert grown.budget is not None
        added = grown.budget.tokens_used - build["tokens_used"]
        assert abs(added - 54) < MIN_EXTRA_CHANGE


SECTIONS = [{"name": "base", "content": 'Say "so".\n\n\n\tNever 日本語. ' * 20}]
DESCRIBED = {"description": "Reads\n\na\tfile.", "parameters": {"type": "object", "x": "\n \t" * 9}}
TOOLS = [{"name": "read_file", **DESCRIBED}]
POLICIES = st.fixed_dictionaries(
    {
        "strategy": st.sampled_from(["sandwich", "sliding_window", "tree_summary"]),
        "tool_output": st.fixed_dictionaries(
            {"context_budget_tokens": st.sampled_from([100, 2_000]), "clear_at_least": st.just(0)}
        ),
        "budget": st.fixed_dictionaries(
            {
                "context_window": st.sampled_from([1_500, 4_000, 60_000]),
                "max_output_tokens": st.just(200),
            }
        ),
    }
)


def judge(answer: dict[str, Any], payload: dict[str, Any]) -> None:
    """Fail where a payload has more tokens than reported, or than its window."""
    sent = payload_tokens(payload)
    sent += IMAGE * orjson.dumps(payload).count(IMAGE_DATA.encode())
    assert answer["tokens_used"] >= LEAST * sent, f"{answer['tokens_used']} said, {sent} sent"
    assert sent <= answer["budget"]["effective_window"]


@settings(
    max_examples=7,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(log=raw_logs(8), own=POLICIES, compacts=st.integers(0, 12))
async def test_no_payload_has_more_tokens_than_its_build_reports(
    harness: Harness, log: Any, own: dict[str, Any], compacts: int
) -> None:
    """It holds for warm, cold, delta and compacted builds in every format [budget.total]."""
    cid = await harness.conversation(own, SECTIONS, TOOLS)
    held: dict[FormatName, dict[str, Any]] = {}
    for number, (given_as, raw) in enumerate(log.messages):
        await harness.append(cid, raw, format=given_as)
        if number == compacts:
            with suppress(ContextError):  # there may be nothing to compact
                await harness.compact(cid)
        for format in FormatName:
            with suppress(ContextOverflow):
                held[format] = await judged(harness, cid, format, held.get(format))


async def judged(
    harness: Harness, cid: str, format: FormatName, before: dict[str, Any] | None
) -> dict[str, Any]:
    """Build warm, cold and as a delta on the build before; return the warm one."""
    ask = RequestSettings(format, MODELS[format])
    answer = await built(harness, cid, ask)
    judge(answer, answer["payload"])
    cold = await built(harness, cid, ask, service=harness.cold())
    assert cold["tokens_used"] == answer["tokens_used"]
    judge(cold, cold["payload"])
    if before is not None:
        known = Known(build_id=before["build_id"])
        delta = await built(harness, cid, ask, known)
        key = ITEMS[format]
        shown = before["payload"][key][: delta["base_items"]] + delta["payload"][key]
        whole = delta["payload"]
        if delta["delta"]:
            whole = before["payload"] | {key: shown + delta["tail"]}
        judge(delta, whole)
    return answer
