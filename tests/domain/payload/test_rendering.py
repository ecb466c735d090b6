"""The payload: the provider's own request, its cache marks and its promised prefix.

[payload.sdk-call]
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.context.rendering import WITHOUT_BREAKPOINTS, Payload, RenderRequest, render_payload
from app.conversations.view import View
from app.formats.message import GOOGLE_FORMATS, FormatName
from app.models.model_info import O200K, ModelInfo
from app.models.tokens import count_system
from app.payload.items import (
    MAX_BREAKPOINTS,
    BreakpointPosition,
    MisplacedBreakpoint,
    PayloadItems,
    StablePoint,
)
from app.prompt.resolved_settings import (
    NO_PAYLOAD_TOOLS,
    STUB_TOOL,
    PayloadTools,
    ResolvedSettings,
    fixed_tokens,
    message_tokens,
)
from app.prompt.sections import (
    NO_DYNAMIC_TEXTS,
    DynamicTexts,
    PromptSection,
    SectionKind,
    dynamic_texts,
    merge_sections,
    static_sections,
    system_text,
)
from tests.domain.histories import ANTHROPIC, CHAT, QUICK, RawLog, third
from tests.domain.payload.builders import LIMITS, TOOLS, Case, cases, faults, folded, resolved_of
from tests.domain.prompt.generated import sections
from tests.judge.epochs import ITEMS

EXACT = ModelInfo("gpt", 10**6, None, None, O200K, True, None, None, None, None, None, {})
MARKING = replace(EXACT, cache_breakpoint=True, mid_conversation_system=True)
TAILS = st.sampled_from(
    [NO_DYNAMIC_TEXTS, DynamicTexts(("[note]", "more")), DynamicTexts(("[note]",), as_system=True)]
)


RESOLVED = st.builds(
    resolved_of,
    st.lists(sections(), max_size=5),
    st.sampled_from(((), TOOLS[:1], TOOLS)),
    st.sampled_from((None, EXACT, MARKING)),
)


def payload_tools_of(
    case: Case, resolved: ResolvedSettings, has_calls: bool = True
) -> PayloadTools:
    """Return the tools that a payload has besides the caller's: a stub where it needs one."""
    needs_stub = case.format is ANTHROPIC and not resolved.tools and has_calls
    return PayloadTools((STUB_TOOL.name,)) if needs_stub else NO_PAYLOAD_TOOLS


def rendered(
    case: Case,
    resolved: ResolvedSettings,
    items: PayloadItems | None = None,
    tools: PayloadTools | None = None,
    caller_point: StablePoint | None = None,
) -> tuple[Payload, dict[str, Any]]:
    """Return the payload of a case, and its body as a provider reads it."""
    items = items or folded(case).items()
    tools = tools or payload_tools_of(case, resolved, items.has_calls)
    request = RenderRequest(case.format, tools, "conversation", caller_point=caller_point)
    payload = render_payload(request, resolved, items)
    return payload, json.loads(orjson.dumps(payload.body))


BREAKPOINT_FIELDS = ("cache_control", "prompt_cache_breakpoint")


def without_breakpoints(value: Any) -> Any:
    """Return a payload's value without its cache marks."""
    if isinstance(value, list):
        return [without_breakpoints(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {key: item for key, item in value.items() if key not in BREAKPOINT_FIELDS}
    return {key: without_breakpoints(item) for key, item in kept.items()}


def count_marks(value: Any) -> int:
    """Count the cache marks anywhere in a payload."""
    return sum(json.dumps(value).count(f'"{field}":') for field in BREAKPOINT_FIELDS)


@given(cases(), RESOLVED, TAILS)
@settings(max_examples=30, deadline=None)
def test_payloads_are_valid_requests(
    case: Case, resolved: ResolvedSettings, tail: DynamicTexts
) -> None:
    """Messages, system, tools and tail together satisfy the provider's types and rules."""
    _, body = rendered(case, resolved, folded(case).items(tail))
    assert faults(case.format, body) == []
    assert body["model"] == "some-model"
    limits = {
        FormatName.OPENAI_CHAT: body.get("max_completion_tokens"),
        FormatName.OPENAI_RESPONSES: body.get("max_output_tokens"),
        FormatName.ANTHROPIC: body.get("max_tokens"),
        FormatName.GEMINI: body.get("config", {}).get("max_output_tokens"),
        FormatName.INTERACTIONS: body.get("generation_config", {}).get("max_output_tokens"),
    }
    assert limits[case.format] == LIMITS.max_output_tokens
    is_openai = case.format in (FormatName.OPENAI_CHAT, FormatName.OPENAI_RESPONSES)
    assert ("prompt_cache_key" in body) == (is_openai and resolved.info is not None)
    assert body.get("tools") != [] and body.get("config", {}).get("tools") != []


@given(cases(), RESOLVED, TAILS)
@QUICK
def test_cache_breakpoints_are_at_most_four(
    case: Case, resolved: ResolvedSettings, tail: DynamicTexts
) -> None:
    """At most four marks, some left for messages, none on the tail; none where useless."""
    items = folded(case).items(tail)
    payload, body = rendered(case, resolved, items)
    marks = count_marks(body)
    takes = case.format is ANTHROPIC or resolved.info is MARKING
    if case.format in GOOGLE_FORMATS or not takes:
        assert marks == 0
        return
    assert marks <= MAX_BREAKPOINTS
    assert count_marks(body.get("system")) <= 2
    listed = body[ITEMS[case.format]]
    last = listed[len(listed) - items.tail_items :]
    if case.format is ANTHROPIC:  # the tail joins the last item, of which other blocks are marked
        last = [block for item in last for block in item["content"][-len(tail.texts) :]]
    assert count_marks(last) == 0
    if case.format is not ANTHROPIC:
        return
    assert len({point.index for point in payload.breakpoints if point.after == "message"}) == sum(
        count_marks(item) > 0 for item in body["messages"]
    )
    if items.breakpoints:
        assert count_marks(body["messages"]) >= 1
    assert tail.texts == () or count_marks(listed[-1]["content"][-len(tail.texts) :]) == 0


@given(cases(), RESOLVED, TAILS)
@QUICK
def test_prefixes_of_an_epoch_stay_byte_identical(
    case: Case, resolved: ResolvedSettings, tail: DynamicTexts
) -> None:
    """Each payload's stable items, system and tools open the next payload, marks apart.

    [epochs.stable-items]
    """
    begun = [made for made in case.shown if made.seq <= case.state]
    first = folded(case, case.shown[: max(len(begun), len(case.shown) // 2)]).items(tail)
    last = folded(case).items()
    if case.view.summary_texts() and len(case.shown) // 2 < case.state:
        return
    tools = payload_tools_of(case, resolved)
    (early, before), (late, after) = (rendered(case, resolved, i, tools) for i in (first, last))
    before, after = without_breakpoints(before), without_breakpoints(after)
    stable, key = early.stable_items, ITEMS[case.format]
    assert after[key][:stable] == before[key][:stable]
    for name in ("system", "tools", "config", "system_instruction"):
        assert after.get(name) == before.get(name)
    if first.stable_items == last.stable_items:
        assert early.prefix_hash == late.prefix_hash


@given(st.lists(sections(), max_size=6))
def test_every_section_belongs_to_one_component(given_: list[PromptSection]) -> None:
    """Skills count as skill prompts, all else as the system prompt, and nothing twice.

    [sections.components]
    """
    merged = merge_sections([given_])
    static = static_sections(merged)
    usage = fixed_tokens(merged, 0, third)
    whole = count_system(system_text(static), third) if static else 0
    dynamic = message_tokens(dynamic_texts(merged), third)
    assert usage.system_prompt + usage.skill_prompts == whole + dynamic
    assert (usage.skill_prompts > 0) == any(s.kind is SectionKind.SKILL for s in merged)


def test_marks_that_cannot_be_laid_are_left_out() -> None:
    """Without marks the sections are sent as one text, and the payload says so.

    [breakpoints.failure]
    """
    case = Case(RawLog([(CHAT, {"role": "user", "content": "hi"})]), ANTHROPIC, View(), 1)
    resolved = resolved_of([PromptSection("a", "one"), PromptSection("b", "two")], TOOLS, None)
    items = replace(folded(case).items(), breakpoints=(BreakpointPosition(0, 3, 0),))
    request = RenderRequest(ANTHROPIC, NO_PAYLOAD_TOOLS, "c")
    with pytest.raises(MisplacedBreakpoint):
        render_payload(request, resolved, items)
    payload = render_payload(request, resolved, items, breakpoints=False)
    body = json.loads(orjson.dumps(payload.body))
    assert payload.degraded == (WITHOUT_BREAKPOINTS,)
    assert body["system"] == "one\n\ntwo"
    assert count_marks(body) == 0
