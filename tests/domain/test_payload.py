"""The payload: the provider's own request, its cache marks and its promised prefix (G2, K1)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.assemblers import assembler_for
from app.domain.budget import Limits
from app.domain.errors import ValidationError
from app.domain.formats import ToolDefinition, parse_tool
from app.domain.frames import STUB_TOOL, Frame, check_tools, fixed_usage, tools_from
from app.domain.limits import ModelInfo
from app.domain.messages import FormatName
from app.domain.payload import Payload, render_payload
from app.domain.policy import Policy
from app.domain.prompt import MOST_MARKS
from app.domain.sections import PromptSection, SectionKind, merge_sections, system_text
from app.domain.tokens import count_payload_messages, count_system, estimate_tool_defs_tokens
from app.domain.views import Span, View
from tests.domain.histories import ANTHROPIC, CHAT, QUICK, RawLog, provider_validate, third
from tests.domain.test_prompt import RICH_LOG, RICH_VIEW, Case, cases, folded
from tests.domain.test_sections import sections

LIMITS = Limits(10**6, 500, 0.8, 0.7, 0.95, 0.98)
EXACT = ModelInfo("gpt", 10**6, None, None, "o200k", True, None, None, None, None, None, {})
TOOLS = (
    ToolDefinition("read_file", "Reads.", {"type": "object", "properties": {}}),
    ToolDefinition("shell", "", {"type": "object", "properties": {"c": {"type": "string"}}}),
)


def frame_of(
    given_: Sequence[PromptSection], tools: tuple[ToolDefinition, ...], info: ModelInfo | None
) -> Frame:
    """Return a frame with these sections and tools."""
    merged = merge_sections([given_])
    return Frame(
        policy=Policy(),
        model="some-model",
        info=info,
        limits=LIMITS,
        policy_limits=LIMITS,
        problem=None,
        sections=merged,
        tools=tools,
        raw_fixed=fixed_usage(merged, tools, third),
        factor=1.0,
        count=third,
        sections_hash="s",
        tools_hash="t",
        policy_hash="p",
        texts={},
    )


FRAMES = st.builds(
    frame_of,
    st.lists(sections(), max_size=5),
    st.sampled_from(((), TOOLS[:1], TOOLS)),
    st.sampled_from((None, EXACT)),
)


def extra_of(stub: bool) -> tuple[str, ...]:
    """Return the tools that a payload has besides the caller's, where it needs a stub."""
    return (STUB_TOOL.name,) if stub else ()


def rendered(case: Case, frame: Frame) -> tuple[Payload, dict[str, Any]]:
    """Return the payload of a case, and its body as a provider reads it."""
    items = folded(case).items()
    stub = case.format is ANTHROPIC and not frame.tools and items.has_calls
    payload = render_payload(case.format, frame, items, extra_of(stub), "conversation")
    return payload, json.loads(orjson.dumps(payload.body))


def unmarked(value: Any) -> Any:
    """Return a payload's value without its cache marks."""
    match value:
        case dict():
            return {key: unmarked(v) for key, v in value.items() if key != "cache_control"}
        case list():
            return [unmarked(item) for item in value]
        case _:
            return value


def count_marks(value: Any) -> int:
    """Count the cache marks anywhere in a payload."""
    match value:
        case dict():
            return ("cache_control" in value) + sum(map(count_marks, value.values()))
        case list():
            return sum(map(count_marks, value))
        case _:
            return 0


@given(cases(), FRAMES)
@settings(max_examples=80, deadline=None)
def test_payloads_are_valid_requests(case: Case, frame: Frame) -> None:
    """Messages, system and tools together satisfy the provider's types and rules (K1)."""
    _, body = rendered(case, frame)
    validate = provider_validate()
    if case.format is CHAT:
        found = validate.validate_openai_chat(body["messages"], body.get("tools"))
        assert body["max_completion_tokens"] == LIMITS.max_output_tokens
        assert ("prompt_cache_key" in body) == (frame.info is not None)
    else:
        found = validate.validate_anthropic(body)
        assert body["max_tokens"] == LIMITS.max_output_tokens
        if any(block["type"] == "tool_use" for m in body["messages"] for block in m["content"]):
            assert body["tools"]
    assert validate.errors(found) == []
    assert body["model"] == "some-model"
    assert body.get("tools") != []


@given(cases(), FRAMES)
@QUICK
def test_cache_marks_are_at_most_four(case: Case, frame: Frame) -> None:
    """Anthropic gets at most four marks, one left for messages; OpenAI none (A7, G2)."""
    payload, body = rendered(case, frame)
    marks = count_marks(body)
    if case.format is CHAT:
        assert marks == 0
        return
    assert marks <= MOST_MARKS
    assert count_marks(body.get("system")) <= 1
    assert marks == len(payload.breakpoints)
    if payload.stable_items and payload.stable_items > 1:
        assert count_marks(body["messages"]) >= 1 or marks == 0
    for point in payload.breakpoints:
        place = body["system"] if point.after == "section" else body["messages"]
        block = place[point.index]
        block = block if point.after == "section" else block["content"][-1]
        assert block["cache_control"] == {"type": "ephemeral"}


@given(cases(), FRAMES)
@QUICK
def test_prefixes_of_an_epoch_stay_byte_identical(case: Case, frame: Frame) -> None:
    """Each payload's stable items, system and tools open the next payload, marks apart (G3, N9)."""
    first = folded(case, case.shown[: max(1, len(case.shown) // 2)]).items()
    last = folded(case).items()
    bodies = []
    for items in (first, last):
        payload = render_payload(case.format, frame, items, extra_of(bool(TOOLS)), "conversation")
        body = unmarked(json.loads(orjson.dumps(payload.body)))
        bodies.append((payload, body))
    (early, before), (late, after) = bodies
    if case.view.summary_texts() and len(case.shown) // 2 < case.head:
        return
    stable = early.stable_items
    assert after["messages"][:stable] == before["messages"][:stable]
    assert after.get("system") == before.get("system")
    assert after.get("tools") == before.get("tools")
    if first.stable == last.stable:
        assert early.prefix_hash == late.prefix_hash


@given(cases(), FRAMES)
@QUICK
def test_the_same_inputs_give_the_same_bytes(case: Case, frame: Frame) -> None:
    """A payload is a function of log, view and frame (N8)."""
    one, two = rendered(case, frame), rendered(case, frame)
    assert orjson.dumps(one[0].body) == orjson.dumps(two[0].body)
    assert one[0].prefix_hash == two[0].prefix_hash


@given(cases(), FRAMES)
@QUICK
def test_the_budget_counts_what_is_returned(case: Case, frame: Frame) -> None:
    """System, tools and messages counted from scratch give the usage reported (C1)."""
    items = folded(case).items()
    stub = case.format is ANTHROPIC and not frame.tools and items.has_calls
    payload = render_payload(case.format, frame, items, extra_of(stub), "conversation")
    body = unmarked(json.loads(orjson.dumps(payload.body)))
    messages, system = body["messages"], body.get("system", [])
    if case.format is CHAT and frame.sections:
        head, *messages = messages
        system = [{"text": head["content"]}]
    counted = count_payload_messages(case.format, messages, third)
    if system:
        counted += count_system("\n\n".join(block["text"] for block in system), third)
    definitions = [parse_tool(raw, "") for raw in body.get("tools", [])]
    counted += estimate_tool_defs_tokens(definitions, third)
    extra = estimate_tool_defs_tokens((STUB_TOOL,), third) if stub else 0
    assert frame.usage(items.tokens, items.summary_tokens, extra).total == counted


@pytest.mark.parametrize("stub_tools", [False, True])
@pytest.mark.parametrize("format", [CHAT, ANTHROPIC])
def test_a_payload_with_all_that_a_compaction_leaves(format: FormatName, stub_tools: bool) -> None:
    """Retain, several summaries, kept and cleared results make a valid, counted request (K1)."""
    case = Case(RawLog([(CHAT, raw) for raw in RICH_LOG]), format, RICH_VIEW, len(RICH_LOG))
    frame = frame_of([PromptSection("base", "Be brief.")], () if stub_tools else TOOLS, EXACT)
    items = folded(case).items()
    payload = render_payload(format, frame, items, extra_of(stub_tools), "conversation")
    body = json.loads(orjson.dumps(payload.body))
    validate = provider_validate()
    if format is CHAT:
        found = validate.validate_openai_chat(body["messages"], body["tools"])
        counted = count_payload_messages(format, body["messages"][1:], third)
    else:
        found = validate.validate_anthropic(body)
        counted = count_payload_messages(format, unmarked(body["messages"]), third)
    assert validate.errors(found) == []
    assert items.tokens + items.summary_tokens == counted
    said = json.dumps(body["messages"])
    for seq in range(1, len(RICH_LOG) + 1):
        shown = RICH_VIEW.shows(seq) and RICH_LOG[seq - 1]["role"] == "user"
        assert (f'"said {seq}"' in said) == shown
    assert [said.count(word) for word in ("first", "second", "word for word", "left out")] == [
        1
    ] * 4


@given(st.lists(sections(), max_size=6))
def test_every_section_belongs_to_one_component(given_: list[PromptSection]) -> None:
    """Skills count as skill prompts, all else as the system prompt, and nothing twice (C1)."""
    merged = merge_sections([given_])
    usage = fixed_usage(merged, (), third)
    whole = count_system(system_text(merged), third) if merged else 0
    assert usage.system_prompt + usage.skill_prompts == whole
    assert (usage.skill_prompts > 0) == any(s.kind is SectionKind.SKILL for s in merged)


def test_a_changed_prefix_changes_its_hash() -> None:
    """Sections and tools are part of the promised prefix (G3)."""
    frame = frame_of([PromptSection("a", "one")], TOOLS, None)
    case_items = folded_empty()
    hashes = {
        render_payload(format, changed, case_items, (), "c").prefix_hash
        for format in (CHAT, ANTHROPIC)
        for changed in (
            frame,
            replace(frame, tools=TOOLS[:1]),
            replace(frame, sections=(PromptSection("a", "two"),)),
        )
    }
    assert len(hashes) == 6


def folded_empty() -> Any:
    """Return the items of an empty view."""
    return assembler_for(CHAT, View(spans=(Span(1, 2),)), third).items()


def test_tools_merge_by_name_and_keep_their_place() -> None:
    """A later layer's tool replaces an earlier one of its name, in its place (decision 21)."""
    first = [{"name": "a", "description": "old"}, {"name": "b"}]
    merged = tools_from([first, [{"name": "a", "description": "new"}, {"name": "c"}]])
    assert [(tool.name, tool.description) for tool in merged] == [
        ("a", "new"),
        ("b", ""),
        ("c", ""),
    ]


def test_openai_takes_at_most_128_tools() -> None:
    """More tools than the format takes are refused at their place (B4)."""
    many = tuple(replace(TOOLS[0], name=f"t{n}") for n in range(129))
    check_tools(many[:128], CHAT)
    check_tools(many, FormatName.ANTHROPIC)
    with pytest.raises(ValidationError) as refused:
        check_tools(many, CHAT)
    assert refused.value.problems[0].pointer == "/tools"
