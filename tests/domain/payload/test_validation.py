"""Validation of payloads of all kinds: valid ones and any JSON. [validation.any-json]"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.common.errors import ValidationError
from app.domain.common.messages import FormatName
from app.domain.payload.validation import capacity_of, validate
from app.domain.payload.validation.rules import MAX_VIOLATIONS, NO_CONTEXT, RULES, Context
from app.domain.payload.validation.shapes import BREAKPOINT_FIELDS, read
from tests.domain.payload import validation_payloads as payloads
from tests.domain.payload.validation_payloads import context_of, payload_of
from tests.judge import anthropic, errors, refusals

CHAT, RESPONSES = FormatName.OPENAI_CHAT, FormatName.OPENAI_RESPONSES
ANTHROPIC, GEMINI = FormatName.ANTHROPIC, FormatName.GEMINI
ITEMS = {CHAT: "messages", RESPONSES: "input", ANTHROPIC: "messages", GEMINI: "contents"}
FORMATS = st.sampled_from(FormatName)


def contexts_of(format: FormatName) -> list[Context]:
    """Return contexts in which a format's payload is valid: from nothing known to everything."""
    known = context_of(format)
    previous = payload_of(format)
    return [
        NO_CONTEXT,
        known,
        replace(known, previous=previous),
        replace(known, previous=previous, previous_stable=2),
    ]


@pytest.mark.parametrize("format", FormatName)
def test_valid_payloads(format: FormatName) -> None:
    """What breaks no rule is told nothing, whatever is known beside it.

    [validation.known-facts-only]
    """
    for context in contexts_of(format):
        assert validate(payload_of(format), format, context) == []


# --- any JSON -------------------------------------------------------------------------------

WORDS = st.sampled_from(
    """type role content parts text tool_calls tool_call_id id call_id tool_use_id name function
    arguments input output function_call function_response thinking signature cache_control
    thinking_blocks tools system instructions compaction context_management edits trigger config
    user assistant tool system developer model tool_use tool_result thinking reasoning message
    function_call_output server_tool_use web_search_tool_result tool_search_call compaction_trigger
    c1 a1 r1 g1 ephemeral namespace tool_reference defer_loading image""".split()  # noqa: SIM905
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS | st.text()
ANY = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(), inner, max_size=5)
    ),
    max_leaves=12,
)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[FormatName, dict[str, Any]]:
    """Draw a payload with anything at all in the place of some of its values."""
    format = draw(FORMATS)
    payload = payload_of(format)
    for _ in range(draw(st.integers(1, 3))):
        holder: Any = payload
        while True:
            steps = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            if not steps:
                break
            step = draw(st.sampled_from(steps))
            if isinstance(holder[step], dict | list) and draw(st.integers(0, 4)):
                holder = holder[step]
                continue
            holder[step] = draw(ANY)
            break
    return format, payload


@given(damaged(), st.sampled_from(range(4)))
@settings(max_examples=30, deadline=None)
def test_damaged_payloads_are_read(made: tuple[FormatName, dict[str, Any]], place: int) -> None:
    """Whatever stands in a payload, it is judged; only one without items is refused."""
    format, payload = made
    context = contexts_of(format)[place]
    taken = list if ITEMS[format] == "messages" else list | str
    if not isinstance(payload.get(ITEMS[format]), taken):
        with pytest.raises(ValidationError):
            validate(payload, format, context)
        return
    for violation in validate(payload, format, context):
        assert violation.severity == RULES[violation.rule]
    if context.previous is not None:
        validate(payload_of(format), format, replace(context, previous=payload))


@given(FORMATS, st.lists(ANY, max_size=5), st.dictionaries(WORDS, ANY, max_size=5))
@settings(max_examples=25, deadline=None)
def test_any_json_is_read(format: FormatName, items: list[Any], rest: dict[str, Any]) -> None:
    """No JSON makes it raise."""
    payload = {**rest, ITEMS[format]: items}
    validate(payload, format)
    validate(payload, format, replace(context_of(format), previous=payload, previous_stable=None))


@pytest.mark.parametrize("format", FormatName)
@pytest.mark.parametrize("items", [None, 5, {}, True])
def test_payloads_without_items(format: FormatName, items: Any) -> None:
    """What has no list of items is no payload: 422, with the place [validation.any-json]."""
    for payload in ({ITEMS[format]: items}, {}):
        with pytest.raises(ValidationError) as raised:
            validate(payload, format)
        assert raised.value.problems[0].pointer == f"/{ITEMS[format]}"
    with pytest.raises(ValidationError):
        validate(payload_of(format), format, Context(previous={}))
    with pytest.raises(ValidationError):
        validate([], format)  # type: ignore[arg-type]  # what a caller's JSON may be


def test_texts_alone() -> None:
    """Two providers take a text instead of items."""
    assert validate({"input": "Go."}, RESPONSES) == []
    assert validate({"contents": "Go."}, GEMINI) == []
    assert [found.rule for found in validate({"input": " "}, RESPONSES)] == ["N6"]
    assert [found.rule for found in validate({"contents": ""}, GEMINI)] == ["N6"]


def test_continued_responses() -> None:
    """With a response or a conversation to go on from, calls may be there."""
    for state in ({"previous_response_id": "resp_1"}, {"conversation": "conv_1"}):
        assert validate({"input": [payloads.output("r1")], **state}, RESPONSES) == []
    calling = payloads.function_call("r1")
    flagged = {"input": [{"role": "user", "content": "Go."}, calling | {"async": True}]}
    assert validate(flagged, RESPONSES) == []


def test_many_violations() -> None:
    """A list of violations has an end."""
    payload = {"messages": [0] * 100_000}
    assert len(validate(payload, CHAT)) == MAX_VIOLATIONS


# --- histories ------------------------------------------------------------------------------

Turn = Callable[[int, int], list[dict[str, Any]]]


def chat_turn(number: int, calls: int) -> list[dict[str, Any]]:
    """Return a complete turn of OpenAI Chat."""
    ids = [f"t{number}_{place}" for place in range(calls)]
    group = {"role": "assistant", "tool_calls": [payloads.chat_call(call_id) for call_id in ids]}
    results = [{"role": "tool", "tool_call_id": call_id, "content": "x"} for call_id in ids]
    answer = {"role": "assistant", "content": "So."}
    return [answer, {"role": "user", "content": "Go."}, *([group] if calls else []), *results]


def responses_turn(number: int, calls: int) -> list[dict[str, Any]]:
    """Return a complete turn of OpenAI Responses."""
    ids = [f"t{number}_{place}" for place in range(calls)]
    answer = {"role": "assistant", "content": [{"type": "output_text", "text": "So."}]}
    made, outputs = map(payloads.function_call, ids), map(payloads.output, ids)
    return [answer, {"role": "user", "content": "Go."}, *made, *outputs]


def anthropic_turn(number: int, calls: int) -> list[dict[str, Any]]:
    """Return a complete turn of Anthropic."""
    ids = [f"t{number}_{place}" for place in range(calls)]
    made, results = [*map(payloads.tool_use, ids)], [*map(payloads.tool_result, ids)]
    group = {"role": "assistant", "content": made}
    answered = [group, {"role": "user", "content": results}] if calls else []
    return [{"role": "assistant", "content": "So."}, {"role": "user", "content": "Go."}, *answered]


def gemini_turn(number: int, calls: int) -> list[dict[str, Any]]:
    """Return a complete turn of Gemini."""
    made = [payloads.gemini_call(signature="c2ln", id=f"t{number}_{n}") for n in range(calls)]
    results = [payloads.gemini_response(id=f"t{number}_{n}") for n in range(calls)]
    said = [
        {"role": "model", "parts": [{"text": "So."}]},
        {"role": "user", "parts": [{"text": "Go."}]},
    ]
    group = [{"role": "model", "parts": made}, {"role": "user", "parts": results}]
    return [*said, *(group if calls else [])]


TURNS: Mapping[FormatName, Turn] = {
    CHAT: chat_turn,
    RESPONSES: responses_turn,
    ANTHROPIC: anthropic_turn,
    GEMINI: gemini_turn,
}


@given(FORMATS, st.lists(st.integers(0, 3), min_size=1, max_size=4))
@settings(max_examples=20, deadline=None)
def test_turns_are_appended(format: FormatName, turns: list[int]) -> None:
    """A valid payload stays valid when complete turns are appended [validation.any-json]."""
    payload = payload_of(format)
    if format is ANTHROPIC:  # the marks of a build stand at its end
        payload["messages"].append({"role": "assistant", "content": [payloads.text("So.")]})
        payload["messages"].append(
            {"role": "user", "content": [payloads.text("Go.", cache_control=payloads.MARK)]}
        )
    for number, calls in enumerate(turns):
        payload[ITEMS[format]] += TURNS[format](number, calls)
    context = replace(context_of(format), previous=payload_of(format))
    assert validate(payload, format, context) == []


def without_breakpoints(value: Any) -> Any:
    """Return a payload without cache marks, which not all SDK types have."""
    if isinstance(value, dict):
        return {
            key: without_breakpoints(item)
            for key, item in value.items()
            if key not in BREAKPOINT_FIELDS
        }
    return [without_breakpoints(item) for item in value] if isinstance(value, list) else value


def their_errors(format: FormatName, payload: dict[str, Any]) -> list[str]:
    """Return what the independent judge says against a payload."""
    if format is CHAT:
        return refusals(format, {**payload, "messages": without_breakpoints(payload["messages"])})
    if format is ANTHROPIC:
        return [str(error) for error in errors(anthropic.judge(payload, merge_roles=True))]
    return refusals(format, payload)


def plain(format: FormatName, turns: list[int]) -> dict[str, Any]:
    """Return a payload of turns alone."""
    items = [item for number, calls in enumerate(turns) for item in TURNS[format](number, calls)]
    payload = payload_of(format) | {ITEMS[format]: items[1:]}
    return payload if format is not ANTHROPIC else payload | {"system": "Be brief."}


@given(FORMATS, st.lists(st.integers(0, 3), min_size=1, max_size=4), st.data())
@settings(max_examples=30, deadline=None)
def test_an_independent_checker_agrees(
    format: FormatName, turns: list[int], data: st.DataObject
) -> None:
    """Histories with items lost, doubled or moved are wrong for both checkers, or for none."""
    payload = plain(format, turns)
    items = payload[ITEMS[format]]
    damage = data.draw(st.sampled_from(("none", "drop", "double", "swap")))
    place = data.draw(st.integers(0, len(items) - 1))
    if damage == "drop" and len(items) > 1:
        del items[place]
    elif damage == "double":
        items.insert(place, items[place])
    elif damage == "swap":
        items[place - 1], items[place] = items[place], items[place - 1]
    ours = {found.rule for found in validate(payload, format) if found.severity == "error"}
    theirs = their_errors(format, payload)
    assert not theirs or ours, theirs
    assert theirs or ours <= OWN_RULES, ours


OWN_RULES = {"N2", "N3", "N5", "A1", "G3"}
"""What the other checker warns of only, or leaves to the model's abilities."""


@pytest.mark.parametrize("format", FormatName)
def test_ten_thousand_messages(format: FormatName) -> None:
    """Long histories take time in proportion, well under a second for 10 000 messages."""
    payload = plain(format, [number % 4 for number in range(3000)])
    context = replace(context_of(format), previous=payload)
    assert len(payload[ITEMS[format]]) > 9_000
    started = time.process_time()
    assert validate(payload, format, context) == []
    assert time.process_time() - started < 1.5


def test_gemini_in_both_spellings() -> None:
    """The REST spelling and fields at the top are read alike [gemini.responses-follow]."""
    payload = payload_of(GEMINI)
    config = payload.pop("config")
    spelled = {
        "model": payload["model"],
        "contents": camel(payload["contents"]),
        "systemInstruction": {"parts": [{"text": config["system_instruction"]}]},
        "tools": config["tools"],
    }
    assert validate(spelled, GEMINI) == []
    del spelled["contents"][5]["parts"][1]["thoughtSignature"]
    spelled["contents"][2]["parts"].pop()
    violations = validate(spelled, GEMINI)
    found = {violation.rule: violation.pointer for violation in violations}
    assert found == {"G1": "/contents/1", "G2": "/contents/5/parts/1"}


def camel(value: Any) -> Any:
    """Return a value with its keys in camelCase."""
    if isinstance(value, dict):
        return {_camel(key): camel(item) for key, item in value.items()}
    return [camel(item) for item in value] if isinstance(value, list) else value


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(map(str.title, rest))


def test_the_capacity_is_the_window_without_output_and_margin() -> None:
    """The window less the payload's own output limit, with the margin of the counter."""
    for format in FormatName:
        shape = read(payload_of(format), format)
        assert shape.max_output_tokens == 1000
        assert capacity_of(shape, None, None) is None
        assert capacity_of(shape, None, payloads.MODEL) == int(199_000 / 1.05)
        exact = replace(payloads.MODEL, exact=True)
        assert capacity_of(shape, 10_000, exact) == 9_000
        assert capacity_of(shape, 500, exact) == 0
        assert capacity_of(read({ITEMS[format]: []}, format), None, exact) == 200_000
