"""The rules of payloads: each is broken in one place, and nothing else is reported.

[validation.endpoint]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from app.domain.common.messages import FormatName
from app.domain.payload.validation import validate
from app.domain.payload.validation.rules import NOT_JUDGED, RULES, Context
from tests.domain.payload import validation_payloads as payloads
from tests.domain.payload.validation_payloads import context_of, payload_of

CHAT, RESPONSES = FormatName.OPENAI_CHAT, FormatName.OPENAI_RESPONSES
ANTHROPIC, GEMINI = FormatName.ANTHROPIC, FormatName.GEMINI

COUNTS = {"N": 13, "A": 21, "B": 5, "C": 9, "G": 4, "X": 3}
IDS = {f"{kind}{number}" for kind, count in COUNTS.items() for number in range(1, count + 1)}
WARNINGS = {"N8", "N9", "N10", "N11", "A8", "A20", "A21", "B5", "C6", "C8", "C9", "G4", "X2", "X3"}

Break = Callable[[Any], Any]


@dataclass(frozen=True)
class Case:
    """One way to break a rule; `known` replaces facts of the format's context.

    `before` makes the build before of the valid payload.
    """

    rule: str
    format: FormatName
    what: str
    breaks: Break
    known: dict[str, Any]
    before: Break | None = None


def case(
    rule: str,
    format: FormatName,
    what: str,
    breaks: Break,
    before: Break | None = None,
    **known: Any,
) -> Case:
    """Return a case."""
    return Case(rule, format, what, breaks, known, before)


def same(payload: Any) -> None:
    """Change nothing."""


def at(*path: Any) -> Callable[[Any], Any]:
    """Return a reader of the value at a path, from the items when it begins with a number."""

    def value(payload: Any) -> Any:
        found = payload
        if isinstance(path[0], int):
            name = next(name for name in ("messages", "input", "contents") if name in payload)
            found = payload[name]
        for step in path:
            found = found[step]
        return found

    return value


def put(*path: Any, **fields: Any) -> Break:
    """Return a mutation that sets fields of the object at a path."""
    return lambda payload: at(*path)(payload).update(fields)


def top(**fields: Any) -> Break:
    """Return a mutation that sets fields of the payload."""
    return lambda payload: payload.update(fields)


def drop(*path: Any) -> Break:
    """Return a mutation that removes what stands at a path."""

    def mutate(payload: Any) -> None:
        if len(path) == 1:
            name = next(name for name in ("messages", "input", "contents") if name in payload)
            del payload[name][path[0]]
        else:
            del at(*path[:-1])(payload)[path[-1]]

    return mutate


def insert(place: int, *items: Any) -> Break:
    """Return a mutation that puts items before a place."""

    def mutate(payload: Any) -> None:
        name = next(name for name in ("messages", "input", "contents") if name in payload)
        payload[name][place:place] = items

    return mutate


def both(*changes: Break) -> Break:
    """Return a mutation that makes several changes for one effect."""

    def mutate(payload: Any) -> None:
        for change in changes:
            change(payload)

    return mutate


def move(start: int, end: int) -> Break:
    """Return a mutation that moves an item."""

    def mutate(payload: Any) -> None:
        name = next(name for name in ("messages", "input", "contents") if name in payload)
        payload[name].insert(end, payload[name].pop(start))

    return mutate


def append(*path: Any) -> Break:
    """Return a mutation that adds things to the list at a path, which ends at its name."""
    depth = max(place for place, step in enumerate(path) if isinstance(step, str | int)) + 1
    return lambda payload: at(*path[:depth])(payload).extend(path[depth:])


def prepend(place: int, block: Any) -> Break:
    """Return a mutation that puts a block first in a message's content."""
    return lambda payload: at(place, "content")(payload).insert(0, block)


def move_block(place: int, start: int, end: int) -> Break:
    """Return a mutation that moves a block inside a message."""

    def mutate(payload: Any) -> None:
        blocks = at(place, "content")(payload)
        blocks.insert(end, blocks.pop(start))

    return mutate


def split_results(payload: Any) -> None:
    """Put the results of one message into two."""
    blocks = at(3, "content")(payload)
    at(3)(payload)["content"] = blocks[:1]
    insert(4, {"role": "user", "content": blocks[1:]})(payload)


def user(said: str) -> dict[str, Any]:
    """Return a user message, as three formats have it."""
    return {"role": "user", "content": said}


OTHER_MODEL = top(model="another-model")
MARKED = payloads.text("x", cache_control=payloads.MARK)
LONG = [payloads.text(f"line {number}") for number in range(25)]
THRESHOLD = {"type": "compaction", "content": "They planned."}
EDIT = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 50_000}}
ASKED = {"compaction": {"type": "summarize"}}
CLEARING = [{"type": "clear_tool_uses_20250919"}, {"type": "clear_thinking_20251015"}]
DROPPING = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
BINDING = ("compact-2026-09-04", "thinking-binding-controls-2026-08-01")


def a(rule: str, what: str, breaks: Break, before: Break | None = None, **known: Any) -> Case:
    """Return a case of Anthropic."""
    return case(rule, ANTHROPIC, what, breaks, before, **known)


def b(rule: str, what: str, breaks: Break, before: Break | None = None, **known: Any) -> Case:
    """Return a case of OpenAI Chat."""
    return case(rule, CHAT, what, breaks, before, **known)


def c(rule: str, what: str, breaks: Break, before: Break | None = None, **known: Any) -> Case:
    """Return a case of OpenAI Responses."""
    return case(rule, RESPONSES, what, breaks, before, **known)


def g(rule: str, what: str, breaks: Break, before: Break | None = None, **known: Any) -> Case:
    """Return a case of Gemini."""
    return case(rule, GEMINI, what, breaks, before, **known)


def edits(*items: Any) -> Break:
    """Return a mutation that sets Anthropic's context edits, without a compaction block."""
    return both(drop(0), top(context_management={"edits": list(items)}))


NEUTRAL = [
    case(
        "N1",
        CHAT,
        "a result names no call",
        both(drop(4, "tool_call_id"), drop(2, "tool_calls", 0)),
    ),
    case("N1", RESPONSES, "an output names no call", insert(8, payloads.output(""))),
    case("N1", ANTHROPIC, "a result names no call", append(6, "content", payloads.tool_result(""))),
    case(
        "N2",
        CHAT,
        "a second result",
        insert(5, {"role": "tool", "tool_call_id": "c1", "content": "x"}),
    ),
    case("N2", RESPONSES, "a second output", insert(8, payloads.output("r1"))),
    case("N2", RESPONSES, "the user speaks before the output", insert(15, user("Wait."))),
    case(
        "N3", CHAT, "an id again", both(put(5, "tool_calls", 0, id="c1"), put(6, tool_call_id="c1"))
    ),
    case("N3", RESPONSES, "an id again", both(put(8, call_id="r1"), drop(9))),
    case(
        "N3",
        ANTHROPIC,
        "an odd id",
        both(put(5, "content", 3, id="a 3"), put(6, "content", 0, tool_use_id="a 3")),
    ),
    case(
        "N3",
        GEMINI,
        "an id again",
        both(
            put(1, "parts", 1, "function_call", id="g1"),
            put(2, "parts", 1, "function_response", id="g1"),
        ),
    ),
    case(
        "N4",
        CHAT,
        "a part of a group",
        both(drop(4), drop(2, "tool_calls", 0)),
        OTHER_MODEL,
    ),
    case("N4", RESPONSES, "a part of a group", both(drop(7), drop(4), drop(1)), OTHER_MODEL),
    case("N5", CHAT, "the assistant first", drop(1)),
    case("N5", CHAT, "no message", top(messages=[])),
    case("N5", CHAT, "an unknown role", put(8, role="human")),
    case("N5", RESPONSES, "the assistant first", both(drop(1), drop(1))),
    case("N6", CHAT, "an empty message", put(8, content=" ")),
    case("N6", CHAT, "an empty part", put(1, "content", 0, text="")),
    case("N6", CHAT, "no message", insert(8, 5)),
    case("N6", RESPONSES, "an empty message", put(17, content="")),
    case("N6", RESPONSES, "an empty output", put(9, output=[])),
    case("N6", ANTHROPIC, "an empty message", put(1, content=[])),
    case("N6", GEMINI, "no parts", put(3, parts=[])),
    case("N6", GEMINI, "an empty part", put(0, "parts", 0, text="")),
    *(case("N7", format, "too long", same, tokens=180_001) for format in FormatName),
    case("N9", CHAT, "another result", put(6, content="did"), same),
    case("N9", CHAT, "other tools", drop("tools", 0), same),
    case("N9", CHAT, "too short", both(drop(8), drop(7)), same),
    case("N9", RESPONSES, "another answer", put(9, output="2"), same),
    case("N9", ANTHROPIC, "another message", put(1, content="Stop."), same),
    case("N9", GEMINI, "another message", put(3, parts=[{"text": "Not yet."}]), same),
    case("N9", GEMINI, "another prompt", put("config", system_instruction="Be long."), same),
    case("N11", CHAT, "no size", put(4, content="[tool output trimmed; ref=x]")),
    case("N11", CHAT, "no tool", put(4, content="[tool output trimmed; ref=x; 5,000 bytes]")),
    case("N11", RESPONSES, "no size", put(7, output="[tool output trimmed; ref=x]")),
    case(
        "N11",
        GEMINI,
        "no ref",
        put(6, "parts", 0, "function_response", response={"output": payloads.STORED[:60]}),
    ),
    case("N12", CHAT, "a foreign part", put(8, content=[payloads.thinking(9)])),
    case("N12", RESPONSES, "a foreign item", insert(17, payloads.thinking(1))),
    case("N12", ANTHROPIC, "a foreign block", put(3, "content", 2, type="reasoning")),
    case("N12", GEMINI, "a foreign part", put(4, parts=[payloads.thinking(1)])),
]

ANTHROPIC_CASES = [
    a("A1", "no message", top(messages=[])),
    a("A1", "the assistant first", both(drop(0), drop(0))),
    a("A1", "the assistant last", drop(8)),
    a("A1", "system text first", both(drop(0), insert(0, {"role": "system", "content": "x"}))),
    a("A1", "an unknown role", insert(8, {"role": "tool", "content": "x"})),
    a("A2", "a call without a result", drop(3, "content", 0)),
    a(
        "A2",
        "no results at all",
        insert(8, {"role": "assistant", "content": [payloads.tool_use("a9")]}),
    ),
    a("A2", "a system message between", insert(3, {"role": "system", "content": "x"})),
    a("A3", "text before a result", prepend(3, payloads.text("x"))),
    a("A3", "two messages of results", split_results),
    a("A4", "a result of no call", prepend(8, payloads.tool_result("a1"))),
    a("A4", "a second result", append(6, "content", payloads.tool_result("a3"))),
    a(
        "A4",
        "an id again",
        both(put(5, "content", 3, id="a1"), put(6, "content", 0, tool_use_id="a1")),
    ),
    a(
        "A5",
        "a result of a server's call",
        append(6, "content", payloads.tool_result("srvtoolu_1")),
    ),
    a("A5", "a server's result alone", drop(5, "content", 1)),
    a(
        "A5",
        "a server's call alone, then text",
        both(drop(5, "content", 2), append(6, "content", payloads.text("x"))),
    ),
    a(
        "A6",
        "no tools",
        both(drop("tools", slice(None)), lambda p: at(3, "content", 1, "content")(p).pop()),
    ),
    a("A6", "a reference to nothing", drop("tools", 2)),
    a("A6", "all deferred", both(drop("tools", 0), put("tools", 0, defer_loading=True))),
    a(
        "A7",
        "five marks",
        both(
            put("tools", 0, cache_control=payloads.HOUR),
            put("tools", 1, cache_control=payloads.HOUR),
        ),
    ),
    a(
        "A7",
        "an automatic one too many",
        both(put("tools", 0, cache_control=payloads.HOUR), top(cache_control=payloads.MARK)),
    ),
    a("A7", "on thinking", both(put(2, "content", 0, cache_control=payloads.MARK))),
    a("A7", "on a deferred tool", put("tools", 2, cache_control=payloads.HOUR)),
    a("A7", "an hour after minutes", put(8, "content", 0, cache_control=payloads.HOUR)),
    a("A8", "too short a prefix", same, tokens=1000),
    a(
        "A8",
        "too far from the last",
        both(drop(8, "content", 0, "cache_control"), append(8, "content", *LONG, MARKED)),
        same,
        previous_stable=8,
    ),
    a("A9", "behind its call", move_block(5, 0, 4)),
    a("A9", "unsigned", drop(2, "content", 0, "signature")),
    a("A9", "said by the user", prepend(8, payloads.thinking(2))),
    a("A10", "another prefix", put(1, content="Stop."), OTHER_MODEL),
    a("A10", "other tools", drop("tools", 0), OTHER_MODEL),
    a(
        "A10",
        "dropping without its beta",
        both(top(thinking=DROPPING), put(1, content="Stop.")),
        OTHER_MODEL,
    ),
    a("A12", "not the first", both(insert(0, user("Hi.")))),
    a("A12", "two of them", append(0, "content", payloads.SIGNED)),
    a("A12", "without its beta", same, betas=()),
    a("A12", "with edits", top(context_management={"edits": []})),
    a(
        "A12",
        "with what remains of a budget",
        top(output_config={"task_budget": {"type": "tokens", "total": 9, "remaining": 5}}),
    ),
    a("A13", "without its edit", put(0, content=[THRESHOLD])),
    a(
        "A13",
        "too low a trigger",
        edits(EDIT | {"trigger": {"type": "input_tokens", "value": 49_999}}),
        betas=("compact-2026-01-12",),
    ),
    a("A13", "without its beta", edits(EDIT)),
    a("A14", "stop sequences", top(**ASKED, stop_sequences=["x"])),
    a("A14", "a format", top(**ASKED, output_config={"format": {"type": "json_schema"}})),
    a("A14", "a forced call", top(**ASKED, tool_choice={"type": "any"})),
    a("A14", "an open call", both(top(**ASKED), drop(8), drop(7), drop(6))),
    a("A15", "thinking cleared second", edits(*CLEARING)),
    a("A16", "after the assistant", move(4, 7)),
    a("A16", "before the user", insert(5, user("x"))),
    a("A16", "two in a row", insert(5, {"role": "system", "content": "x"})),
    a(
        "A16",
        "the model takes none",
        same,
        model=replace(payloads.MODEL, mid_conversation_system=False),
    ),
    a("A17", "a string", put(5, "content", 3, input="{}")),
    a(
        "A18",
        "white space at the end",
        insert(9, {"role": "assistant", "content": "So "}),
        prefill=True,
    ),
    a("A18", "an empty text", put(2, "content", 1, text=" ")),
    a("A18", "an empty text in a result", put(3, "content", 1, "content", 0, text="")),
    a("A18", "an empty system text", put("system", 0, text="", cache_control=None)),
    a("A19", "an odd name", put("tools", 0, name="a b")),
    a("A19", "an odd name called", put(5, "content", 3, name="a" * 65)),
    a(
        "A19",
        "too many images",
        lambda p: at(8, "content")(p).extend(
            {"type": "image", "source": {"type": "url", "url": "x"}} for _ in range(101)
        ),
    ),
    a("A19", "too many bytes", append(8, "content", payloads.text("x" * 32_000_000))),
    a("A20", "another system prompt", put("system", 0, text="Be long."), same),
    a("A20", "tools in another order", lambda p: p["tools"].reverse(), same),
    a(
        "A21",
        "not restated",
        both(drop(4), top(thinking=DROPPING)),
        OTHER_MODEL,
        previous_stable=6,
        betas=BINDING,
    ),
]

CHAT_CASES = [
    b("B1", "no result", drop(4)),
    b(
        "B1",
        "no results at all",
        insert(8, {"role": "assistant", "tool_calls": [payloads.chat_call("c9")]}),
    ),
    b(
        "B2",
        "a result of no call",
        insert(8, {"role": "tool", "tool_call_id": "c1", "content": "x"}),
    ),
    b("B3", "neither content nor calls", put(7, content=None)),
    b("B3", "an empty list of calls", put(7, tool_calls=[])),
    b(
        "B3",
        "arguments that are an object",
        put(2, "tool_calls", 0, "function", arguments={"a": 1}),
    ),
    b("B3", "arguments that are not JSON", put(2, "tool_calls", 0, "function", arguments="{a")),
    b("B4", "a long id", both(put(5, "tool_calls", 0, id="x" * 41), put(6, tool_call_id="x" * 41))),
    b("B4", "an odd name called", put(5, "tool_calls", 0, "function", name="a b")),
    b("B4", "an odd name", put("tools", 0, "function", name="a b")),
    b("B4", "a name again", put("tools", 0, "function", name="tool_output_cache")),
    b("B4", "no tools", top(tools=[])),
    b(
        "B4",
        "too many tools",
        append("tools", *({"type": "function", "function": {"name": f"t{n}"}} for n in range(127))),
    ),
    b(
        "B4",
        "an image in a result",
        put(6, content=[{"type": "image_url", "image_url": {"url": "x"}}]),
    ),
    b("B5", "instructions edited", put(0, content="Be long."), same),
    b(
        "B5",
        "instructions put before",
        insert(1, {"role": "developer", "content": "Be kind."}),
        same,
    ),
    b("X1", "a mark on a message", put(7, cache_control=payloads.MARK)),
    b("X1", "a mark on a tool", put("tools", 0, cache_control=payloads.MARK)),
    b("X1", "a mark on a call", put(5, "tool_calls", 0, cache_control=payloads.MARK)),
    b("X1", "the user thinks", put(8, thinking_blocks=[])),
    b("X2", "LiteLLM may change it", top(modify_params=True)),
]
TRIGGER = {"type": "compaction_trigger"}
FLAT = {"role": "assistant", "content": "Done."}
PART = {"type": "input_text", "text": "x", "prompt_cache_breakpoint": payloads.BREAKPOINT}
EXPLICIT = {"prompt_cache_options": {"mode": "explicit"}}
RESPONSES_CASES = [
    c("C1", "no output", drop(7)),
    c("C1", "no call", drop(4)),
    c("C1", "an output of another type", put(9, type="function_call_output")),
    c("C1", "an output before its call", move(9, 8)),
    c("C1", "a result as a message", put(17, role="tool")),
    c("C2", "the user follows", insert(4, user("Wait."))),
    c("C2", "nothing follows", insert(18, payloads.REASONING)),
    c("C3", "left out after it", both(drop(9), drop(8)), OTHER_MODEL),
    c("C4", "not the last", insert(17, TRIGGER)),
    c("C4", "two of them", insert(18, TRIGGER, TRIGGER)),
    c("C5", "two states", top(previous_response_id="resp_1", conversation="conv_1")),
    c("C5", "not sent again", same, top(instructions="Be kind.")),
    c("C6", "an odd phase", put(16, phase="middle")),
    c("C6", "calls of a message", put(16, tool_calls=[payloads.chat_call("c1")])),
    c("C6", "the assistant's input", put(16, "content", 0, type="input_text")),
    c("C7", "no search", drop(10)),
    c("C7", "nothing found", drop(11)),
    c("C7", "no hosted search", drop(12)),
    c("C7", "nothing found by the provider", drop(13)),
    c("C7", "the namespace lost", drop(14, "namespace")),
    c("C8", "too many breakpoints", put(17, content=[PART, PART])),
    c("C8", "too many explicit ones", both(top(**EXPLICIT), put(17, content=[PART, PART, PART]))),
    c("C8", "on an item", put(8, prompt_cache_breakpoint=payloads.BREAKPOINT)),
    c("C8", "on a tool", put("tools", 0, prompt_cache_breakpoint=payloads.BREAKPOINT)),
    c("C8", "stable instructions", top(instructions="Be brief.")),
    c("C9", "a longer text", put(17, content="And now? Please."), same),
    c("C9", "another part", append(2, "content", {"type": "input_text", "text": "Please."}), same),
]
GEMINI_CASES = [
    g("G1", "no responses", drop(2)),
    g("G1", "one response too few", drop(2, "parts", 1)),
    g("G1", "another order", lambda p: at(2, "parts")(p).reverse()),
    g("G1", "another name", put(6, "parts", 0, "function_response", name="sql")),
    g("G1", "another id", put(2, "parts", 1, "function_response", id="g9")),
    g(
        "G1",
        "responses to nothing",
        insert(4, {"role": "user", "parts": [payloads.gemini_response()]}),
    ),
    g("G1", "the newest calls are open", drop(6)),
    g("G2", "no signature", drop(5, "parts", 1, "thought_signature")),
    g("G3", "the model first", drop(0)),
    g("G3", "the model last", insert(7, {"role": "model", "parts": [{"text": "Done."}]})),
    g("G3", "no content", top(contents=[])),
    g("G3", "system text", insert(4, {"role": "system", "parts": [{"text": "x"}]})),
    g("G3", "an unknown role", insert(4, {"role": "assistant", "parts": [{"text": "x"}]})),
    g(
        "G4",
        "another model",
        same,
        both(top(model="gemini-3-flash"), drop(1, "parts", 0, "thought_signature")),
    ),
]
CASES = [*NEUTRAL, *ANTHROPIC_CASES, *CHAT_CASES, *RESPONSES_CASES, *GEMINI_CASES]


def context_for(broken: Case) -> Context:
    """Return the context in which a case breaks its rule."""
    context = replace(context_of(broken.format), **broken.known)
    if broken.before is None:
        return context
    previous = payload_of(broken.format)
    broken.before(previous)
    return replace(context, previous=previous)


def test_every_rule_is_broken() -> None:
    """Each id of the providers' rules has a case, or a reason why no payload can break it."""
    assert {broken.rule for broken in CASES} | NOT_JUDGED.keys() == IDS == RULES.keys()
    assert not {broken.rule for broken in CASES} & NOT_JUDGED.keys()
    assert {rule for rule, severity in RULES.items() if severity == "warning"} == WARNINGS


@pytest.mark.parametrize(
    "broken", CASES, ids=lambda broken: f"{broken.rule}-{broken.format}-{broken.what}"
)
def test_one_thing_wrong_is_one_violation(broken: Case) -> None:
    """Exactly the id broken.

    [validation.endpoint, neutral.results-refer-to-calls, neutral.calls-have-results,
     neutral.unique-call-ids, neutral.whole-turns, neutral.user-first, neutral.no-empty-content,
     neutral.within-limit, neutral.same-bytes, neutral.prefix-extends, neutral.summary-ranges,
     neutral.placeholders, neutral.opaque-family, neutral.untrusted-role, anthropic.first-and-last,
     anthropic.calls-answered-next, anthropic.results-first, anthropic.results-match,
     anthropic.server-tools, anthropic.tools-present, anthropic.breakpoint-limits,
     anthropic.breakpoint-reach, anthropic.latest-thinking, anthropic.thinking-unbroken,
     anthropic.thinking-never-returns, anthropic.compaction-requested,
     anthropic.compaction-threshold, anthropic.compaction-request, anthropic.clear-thinking-first,
     anthropic.system-messages, anthropic.input-object, anthropic.no-empty-text, anthropic.sizes,
     anthropic.stable-prefix, anthropic.restated-changes, openai-chat.calls-answered-next,
     openai-chat.results-match, openai-chat.assistant-content, openai-chat.sizes,
     openai-chat.system-first, openai-responses.calls-match-outputs,
     openai-responses.reasoning-followed, openai-responses.compaction-items,
     openai-responses.compaction-trigger, openai-responses.one-state, openai-responses.items-kept,
     openai-responses.tool-search, openai-responses.breakpoints, openai-responses.append-only,
     gemini.responses-follow, gemini.thought-signatures, gemini.roles, gemini.signatures-by-model,
     litellm.chat-dialect, litellm.no-modify-params]
    """
    payload, context = payload_of(broken.format), context_for(broken)
    broken.breaks(payload)
    violations = validate(payload, broken.format, context)
    assert [violation.rule for violation in violations] == [broken.rule], violations
    assert violations[0].severity == RULES[broken.rule]
    assert violations[0].message
    assert resolves(violations[0].pointer, payload)


def resolves(pointer: str, payload: Any) -> bool:
    """Whether a pointer leads to a value, or to where a missing field of one belongs."""
    found = payload
    steps = pointer.split("/")[1:]
    for place, step in enumerate(steps):
        if isinstance(found, list):
            found = found[int(step)]
        elif step in found:
            found = found[step]
        else:
            return place == len(steps) - 1
    return True
