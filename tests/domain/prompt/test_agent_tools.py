"""The tools an LLM calls: definitions, calls, arguments and results in every format.

[agent-tools.definitions]
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.blobs.preview import COMPACT_CONTEXT, GREP, READ_BYTES, READ_LINES, RECALL, TOOL_SEARCH
from app.common.errors import ValidationError
from app.common.texts import is_sendable
from app.context.agent_tool_calls import Call, parse_call, result_message
from app.formats import PROVIDERS
from app.formats.message import FormatName, Role
from app.prompt.agent_tools import (
    AGENT_TOOLS,
    MAX_BYTES,
    MAX_LINES,
    definitions_in,
    parse_arguments,
)
from tests.judge import refusals

CHAT, RESPONSES, ANTHROPIC, GEMINI, INTERACTIONS = FormatName
REF = "blob_9f86d081884c7d659a2feaa0"
ARGUMENTS = {"ref_id": REF, "offset": 2}
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def native(format: FormatName, name: str = READ_LINES, arguments: Any = ARGUMENTS) -> Any:
    """Return a call as a provider gives it."""
    text = json.dumps(arguments)
    return {
        CHAT: {"id": "c1", "type": "function", "function": {"name": name, "arguments": text}},
        RESPONSES: {"type": "function_call", "call_id": "c1", "name": name, "arguments": text},
        ANTHROPIC: {"type": "tool_use", "id": "c1", "name": name, "input": arguments},
        GEMINI: {"functionCall": {"id": "c1", "name": name, "args": arguments}},
        INTERACTIONS: {"type": "function_call", "id": "c1", "name": name, "arguments": arguments},
    }[format]


def exchange(format: FormatName, raw: Any, answer: Any) -> list[str]:
    """Return the errors of the SDK's types and the provider's rules for a call and its answer."""
    user = {"role": "user", "content": "Read it."}
    called: dict[str, Any] = {"role": "assistant", "content": [raw]}
    asked = {"role": "user", "parts": [{"text": "Read it."}]}
    if format is CHAT:
        called = {"role": "assistant", "content": None, "tool_calls": [raw]}
    thought = {"type": "thought", "signature": "c2ln"}
    said = {"type": "user_input", "content": [{"type": "text", "text": "Read it."}]}
    payload: dict[str, Any] = {
        INTERACTIONS: {"input": [said, thought, raw, answer]},
        CHAT: {"messages": [user, called, answer]},
        RESPONSES: {"input": [user, raw, answer]},
        ANTHROPIC: {"messages": [user, called, answer]},
        GEMINI: {"contents": [asked, {"role": "model", "parts": [raw]}, answer]},
    }[format]
    tools = {"tools": definitions_in(format)}
    return refusals(format, payload | ({"config": tools} if format is GEMINI else tools))


# --- definitions ------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FormatName)
@pytest.mark.parametrize("is_error", [False, True])
def test_definitions_and_results_are_of_the_sdks_types(format: FormatName, is_error: bool) -> None:
    """Definitions, a call and its answer make a payload that the SDK's types accept."""
    raw = native(format)
    call = parse_call(raw, format, "")
    answer = result_message(call, format, "text\n[End of output.]", is_error=is_error)
    assert exchange(format, raw, answer) == []


def test_no_description_mentions_another_tool() -> None:
    """A payload may have any single tool, so no description mentions another one."""
    for tool in AGENT_TOOLS.values():
        text = json.dumps(tool.parameters) + tool.description
        assert not [name for name in AGENT_TOOLS if name in text]


# --- calls ------------------------------------------------------------------------------------


SEARCH_ITEM = {
    "type": "tool_search_call",
    "id": "tsc_1",
    "call_id": "c1",
    "execution": "client",
    "status": "completed",
    "arguments": {"query": "weather"},
}


@pytest.mark.parametrize("arguments", [{"query": "weather"}, '{"query": "weather"}'])
def test_a_tool_search_call_of_openai_is_parsed(arguments: Any) -> None:
    """An item for the client gives the same request as a call of the function."""
    call = parse_call({**SEARCH_ITEM, "arguments": arguments}, RESPONSES, "")
    assert call == Call("c1", TOOL_SEARCH, {"query": "weather"}, is_search_item=True)


@given(st.sampled_from(FormatName), ANY_JSON, st.sampled_from(["", "/function", "/functionCall"]))
def test_any_call_is_parsed_or_refused(format: FormatName, value: Any, inside: str) -> None:
    """Any value is a call or a ValidationError with a pointer."""
    base: Any = native(format)
    key = inside[1:]
    raw = {**base, key: value} if key else value
    try:
        parse_call(raw, format, "/tool_call")
    except ValidationError as refused:
        assert all(problem.pointer.startswith("/tool_call") for problem in refused.problems)


# --- arguments --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "ask"),
    [
        (READ_LINES, {"offset": None}, (REF, 0, 2000)),
        (READ_LINES, {"offset": "2000", "limit": " 10 "}, (REF, 2000, 10)),
        (READ_LINES, {"offset": 5.0, "limit": "7.0"}, (REF, 5, 7)),
        (READ_LINES, {"offset": 10**30, "limit": 5000}, (REF, 2**53 - 1, MAX_LINES)),
        (READ_BYTES, {"limit": 10**9}, (REF, 0, MAX_BYTES)),
        (GREP, {"pattern": "x", "ignore_case": "True"}, (REF, "x", True, 0, 0, 100)),
        (TOOL_SEARCH, {"ref_id": None, "query": "x", "limit": "999"}, ("x", 50)),
        (COMPACT_CONTEXT, {"ref_id": None}, ()),
        (RECALL, {"ref_id": None, "query": "the port"}, ("the port", 0)),
    ],
)
def test_arguments_are_parsed_leniently(name: str, arguments: dict[str, Any], ask: Any) -> None:
    """Defaults, numbers as text, null as left out, and limits clamped to their maximum."""
    assert tuple(parse_arguments(name, {"ref_id": REF, **arguments}).values()) == ask


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        (READ_BYTES, None, "the arguments must be one JSON object"),
        (READ_BYTES, {}, "ref_id is required"),
        (READ_BYTES, {"ref_id": ""}, "ref_id must be a string of 1 to 1,000 characters"),
        (READ_BYTES, {"ref_id": "\x00"}, "ref_id must be a string of 1 to 1,000 characters"),
        (READ_BYTES, {"ref_id": "\ud800"}, "ref_id must be a string of 1 to 1,000 characters"),
        (READ_BYTES, {"ref_id": [REF]}, "ref_id must be a string of 1 to 1,000 characters"),
        (READ_BYTES, {"ref_id": REF, "offset": 1.5}, "offset must be a whole number of at least 0"),
        (READ_BYTES, {"ref_id": REF, "offset": {}}, "offset must be a whole number of at least 0"),
        (READ_BYTES, {"ref_id": REF, "limit": "0"}, "limit must be a whole number of at least 1"),
        (READ_BYTES, {"ref_id": REF, "lines": 3}, 'there is no argument "lines"'),
        (GREP, {"ref_id": REF, "pattern": "x", "ignore_case": 7}, "must be true or false"),
    ],
)
def test_the_error_names_invalid_arguments(name: str, arguments: Any, told: str) -> None:
    """The model reads what is wrong and what is wanted. [agent-tools.model-errors]"""
    with pytest.raises(ValidationError) as refused:
        parse_arguments(name, arguments)
    said = refused.value.detail
    assert said.startswith(f"{name} was not run: ") and told in said


@pytest.mark.parametrize("text", ["{", "{'ref_id': 1}", "NaN", "x" * 70_000, '{"a":1e999}'])
def test_arguments_that_are_no_json_are_an_error_for_the_model(text: str) -> None:
    """Text that is no JSON, or is far too long, is an error for the model as well."""
    raw = {"id": "c1", "function": {"name": READ_BYTES, "arguments": text}}
    assert parse_call(raw, CHAT, "").arguments is None


@given(
    st.sampled_from(list(AGENT_TOOLS)),
    st.dictionaries(
        st.sampled_from(["ref_id", "offset", "limit", "pattern", "before", "ignore_case", "query"])
        | st.text(),
        ANY_JSON,
    ),
)
def test_any_arguments_are_a_request_or_a_short_error(name: str, arguments: Any) -> None:
    """A request is within its bounds, and the error for an invalid one is short."""
    try:
        ask = parse_arguments(name, arguments)
    except ValidationError as refused:
        assert len(refused.detail) < 2000
        assert is_sendable(refused.detail)
    else:
        assert 1 <= ask.get("limit", 1) <= MAX_BYTES
        assert 0 <= ask.get("offset", 0) < 2**53


# --- results ----------------------------------------------------------------------------------


@given(st.text(min_size=1), st.text(alphabet=st.characters(), min_size=1), st.booleans())
def test_a_result_can_be_appended_and_sent(call_id: str, text: str, is_error: bool) -> None:
    """The log's formats read their message back: same id as it came, text that can be sent."""
    call = Call(call_id, READ_BYTES, {})
    for name in FormatName:
        raw = result_message(call, FormatName(name), text, is_error=is_error)
        (message,) = PROVIDERS[name].parse(raw, "/m")
        assert message.role is Role.TOOL
        assert message.tool_call_id == call_id
        assert is_sendable(message.text)
        assert not is_sendable(text) or message.text.endswith(text)


# --- tools found ------------------------------------------------------------------------------
