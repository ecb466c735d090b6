"""Reading the wire formats: what a message becomes, and what is refused.

[formats.malformed-refused, log.any-format, neutral.opaque-family]
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.common.errors import ValidationError
from app.conversations.messages.draft import make_drafts
from app.formats import LOG_PROVIDER, PROVIDERS, parse_tool
from app.formats.media import clean
from app.formats.message import FormatName, Message, Role, Text
from tests.domain.compaction import strategies_messages as generated

CHAT, RESPONSES, ANTHROPIC, GEMINI, INTERACTIONS = FormatName
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "x"}
USE = {"type": "tool_use", "id": "c1", "name": "f", "input": {}}
ITEM_CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "ok"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
REFUSALS: list[tuple[FormatName, dict[str, Any], str]] = [
    (CHAT, {}, "/role"),
    (CHAT, {"role": "user"}, "/content"),
    (CHAT, {"role": "user", "content": "x", "name": 1}, "/name"),
    (CHAT, {"role": "user", "content": "x", "tool_calls": [CALL]}, "/tool_calls"),
    (CHAT, {"role": "tool", "content": "x"}, "/tool_call_id"),
    (CHAT, {"role": "assistant", "function_call": {"name": "f"}}, "/function_call"),
    (ANTHROPIC, {"role": "tool", "content": "x"}, "/role"),
    (ANTHROPIC, {"role": "user"}, "/content"),
    (GEMINI, {}, "/role"),
    (GEMINI, {"role": "user"}, "/parts"),
    (RESPONSES, {}, "/type"),
    (RESPONSES, {"role": "tool", "content": "x"}, "/role"),
    (RESPONSES, {"role": "user"}, "/content"),
    (RESPONSES, {"type": "reasoning"}, "/summary"),
    (RESPONSES, {"type": "compaction"}, "/encrypted_content"),
    (RESPONSES, {**ITEM_CALL, "call_id": None}, "/call_id"),
    (RESPONSES, {**ITEM_CALL, "arguments": {}}, "/arguments"),
    (RESPONSES, {**OUTPUT, "output": 5}, "/output"),
    (RESPONSES, {"type": "tool_search_output", "call_id": "c", "tools": {}}, "/tools"),
    (RESPONSES, {"role": "assistant", "output": ["x"]}, "/output/0"),
    (INTERACTIONS, {"role": "user", "content": "x"}, "/type"),
    (INTERACTIONS, {"type": "message", "role": "user", "content": []}, "/type"),
    (INTERACTIONS, {"type": "user_input", "content": "x"}, "/content"),
    (INTERACTIONS, {"type": "user_input", "content": [{"type": "image"}]}, "/content/0/uri"),
    (INTERACTIONS, {"type": "model_output", "content": [{"text": "x"}]}, "/content/0/type"),
    (INTERACTIONS, {"type": "thought", "summary": [{"type": "text"}]}, "/summary/0/text"),
    (INTERACTIONS, {"type": "function_call", "name": "f", "arguments": {}}, "/id"),
    (INTERACTIONS, {"type": "function_call", "arguments": "{}"}, "/arguments"),
    (INTERACTIONS, {"type": "function_result", "result": "x"}, "/call_id"),
    (INTERACTIONS, {"type": "function_result", "call_id": "c", "result": 5}, "/result"),
    (INTERACTIONS, {"role": "assistant", "output": [{"type": "user_input"}]}, "/output/0/type"),
]
BAD_PARTS: list[tuple[FormatName, str, Any, str]] = [
    (CHAT, "user", "x", ""),
    (CHAT, "user", {"text": "x"}, "/type"),
    (CHAT, "user", {"type": "text"}, "/text"),
    (CHAT, "user", {"type": "image_url"}, "/image_url"),
    (CHAT, "user", {"type": "image_url", "image_url": {"url": ""}}, "/image_url/url"),
    (CHAT, "user", {"type": "file", "file": {}}, "/file"),
    (ANTHROPIC, "user", 3, ""),
    (ANTHROPIC, "user", {"type": "text", "text": None}, "/text"),
    (ANTHROPIC, "user", USE, "/type"),
    (ANTHROPIC, "assistant", {**USE, "input": "{}"}, "/input"),
    (ANTHROPIC, "assistant", {**USE, "id": 7}, "/id"),
    (ANTHROPIC, "user", {"type": "tool_result"}, "/tool_use_id"),
    (ANTHROPIC, "user", {**RESULT, "is_error": "no"}, "/is_error"),
    (ANTHROPIC, "user", {"type": "image"}, "/source"),
    (ANTHROPIC, "user", {"type": "image", "source": {"type": "url"}}, "/source/url"),
    (ANTHROPIC, "assistant", {"type": "thinking"}, "/thinking"),
    (RESPONSES, "user", {"type": "input_text"}, "/text"),
    (RESPONSES, "user", {"type": "input_image"}, "/image_url"),
    (RESPONSES, "user", {"type": "input_file"}, ""),
    (RESPONSES, "assistant", {"type": "input_text", "text": "x"}, "/type"),
    (GEMINI, "model", "hi", ""),
    (GEMINI, "model", {"text": 5}, "/text"),
    (GEMINI, "model", {"functionResponse": {"name": "f"}}, "/functionResponse"),
    (GEMINI, "user", {"function_call": {"name": "g"}}, "/functionCall"),
    (GEMINI, "model", {"functionCall": {}}, "/functionCall/name"),
    (GEMINI, "model", {"functionCall": {"name": "f", "args": []}}, "/functionCall/args"),
    (GEMINI, "model", {"text": "a", "thoughtSignature": "!"}, "/thoughtSignature"),
    (GEMINI, "model", {"inlineData": {"data": "AAAA"}}, "/inlineData/mimeType"),
    (GEMINI, "model", {"fileData": {"mimeType": "a/b"}}, "/fileData/fileUri"),
    (
        GEMINI,
        "user",
        {"functionResponse": {"name": "f", "response": "ok"}},
        "/functionResponse/response",
    ),
    (
        GEMINI,
        "user",
        {"functionResponse": {"name": "f", "parts": [{}]}},
        "/functionResponse/parts/0",
    ),
]
BAD_CALLS = [
    ({**CALL, "function": None}, "/function"),
    ({"type": "function"}, "/id"),
    ({**CALL, "type": "x"}, "/type"),
    ({**CALL, "function": {"arguments": "{}"}}, "/function/name"),
    ({**CALL, "function": {"name": "f", "arguments": {}}}, "/function/arguments"),
]
REFUSALS += [
    (format, {"role": role, key: [part]}, f"/{key}/0{at}")
    for format, role, part, at in BAD_PARTS
    for key in ("parts" if format is GEMINI else "content",)
]
REFUSALS += [
    (CHAT, {"role": "assistant", "tool_calls": [call]}, f"/tool_calls/0{at}")
    for call, at in BAD_CALLS
]


@pytest.mark.parametrize(("format", "raw", "pointer"), REFUSALS)
def test_a_malformed_message_is_refused(
    format: FormatName, raw: dict[str, Any], pointer: str
) -> None:
    """It is refused at the place that is wrong [formats.malformed-refused]."""
    with pytest.raises(ValidationError) as refusal:
        PROVIDERS[format].parse(raw, "/m")
    assert [problem.pointer for problem in refusal.value.problems] == [f"/m{pointer}"]


KEY_NAMES = """
role content type text tool_calls id function name arguments tool_call_id image_url url file source
tool_use_id input data thinking media_type custom refusal reasoning is_error parameters parts
functionCall function_response response inlineData mimeType thoughtSignature call_id output summary
tools execution result signature uri
"""
WORD_NAMES = """
user assistant tool text image_url file image document base64 tool_use tool_result thinking
redacted_thinking function custom url model message reasoning output_text input_text input_image
function_call function_call_output custom_tool_call tool_search_output computer_call_output
shell_call_output user_input model_output thought function_result google_search_call c2ln
"""
KEYS, WORDS = (st.sampled_from(names.split()) for names in (KEY_NAMES, WORD_NAMES))
NEAR_WIRE = st.recursive(
    WORDS | generated.json_values(2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=14,
)
ROLES = st.sampled_from(["user", "assistant", "tool", "model", "function"])


@pytest.mark.parametrize("format", FormatName)
@given(raw=st.dictionaries(KEYS, NEAR_WIRE, max_size=6), role=ROLES)
def test_any_json_is_read_or_refused(format: FormatName, raw: dict[str, Any], role: str) -> None:
    """Whatever comes in, the answer is messages or a ValidationError, never a crash.

    Every format can send what was read, and only the rendering of the log is called faithful.
    """
    provider = PROVIDERS[format]
    for candidate in (raw, {**raw, "role": role}):
        try:
            messages = provider.parse(candidate, "/m")
        except ValidationError as refusal:
            assert all(problem.pointer.startswith("/m") for problem in refusal.problems)
            continue
        pieces = provider.split(candidate)
        assert len(pieces) == len(messages)
        assert len(provider.results(candidate)) == sum(m.role is Role.TOOL for m in messages)
        for message in map(clean, messages):
            rendered = [it.render(it.for_payload(message)) for it in PROVIDERS.values()]
            if format is CHAT:
                assert LOG_PROVIDER.is_faithful(candidate, message) is ([candidate] == rendered[0])


@given(raw=NEAR_WIRE)
def test_any_tool_is_read_or_refused(raw: Any) -> None:
    """Whatever is given as a tool is a definition or a ValidationError. [tools.any-format]"""
    try:
        parse_tool(raw, "/tools/0")
    except ValidationError as refusal:
        assert all(problem.pointer.startswith("/tools/0") for problem in refusal.problems)


MADE = ({"type": "reasoning", "summary": []}, {"role": "assistant", "content": "hi"}, ITEM_CALL)


def test_consecutive_items_of_the_model_are_one_message() -> None:
    """Neighbouring items of the model are gathered; what was gathered stays a message."""
    user = {"role": "user", "content": "hi"}
    whole = {"role": "assistant", "output": [MADE[1]]}
    batch = [user, *MADE, OUTPUT, MADE[1], user, whole, MADE[1], "x"]
    assert PROVIDERS[RESPONSES].group_items(batch) == [
        (0, user),
        (1, {"role": "assistant", "output": list(MADE)}),
        (4, OUTPUT),
        (5, MADE[1]),
        (6, user),
        (7, whole),
        (8, MADE[1]),
        (9, "x"),
    ]
    assert PROVIDERS[ANTHROPIC].group_items(batch) == list(enumerate(batch))


ANSWER = {"functionResponse": {"name": "f", "response": {"output": "ok"}}}
FAILED = {"function_response": {"id": "q", "name": "g", "response": {"error": "no"}}}
ROWS = {"functionResponse": {"name": "f", "response": {"rows": [1]}}}


def test_results_become_messages() -> None:
    """Each result is a message; the other parts of the content are one."""
    raw = {"role": "function", "parts": [{"text": "go"}, ANSWER, FAILED, ROWS]}
    *results, user = PROVIDERS[GEMINI].parse(raw, "/m")
    assert [(it.text, it.tool_call_id, it.name, it.is_error) for it in results] == [
        ("ok", "f", "f", False),
        ("no", "q", "g", True),
        ('{"rows":[1]}', "f#2", "f", False),
    ]
    assert user == Message(Role.USER, (Text("go"),))
    pieces = PROVIDERS[GEMINI].split({**raw, "x": 1})
    assert [piece["parts"] for piece in pieces] == [[ANSWER], [FAILED], [ROWS], [{"text": "go"}]]
    assert pieces[0]["x"] == 1
    results_ = [{**RESULT, "is_error": True}, {**RESULT, "content": None, "tool_use_id": "c2"}]
    content = {"role": "user", "content": [{"type": "text", "text": "on"}, *results_], "x": 1}
    assert PROVIDERS[ANTHROPIC].parse(content, "/m") == (
        Message(Role.TOOL, (Text("x"),), "c1", is_error=True),
        Message(Role.TOOL, (), "c2"),
        Message(Role.USER, (Text("on"),)),
    )
    assert [len(piece["content"]) for piece in PROVIDERS[ANTHROPIC].split(content)] == [1, 1, 1]


INPUT_TEXT = {"type": "input_text", "text": "hi"}
TEXT = {"type": "text", "text": "hi"}
WEB_IMAGE = {"type": "image_url", "image_url": {"url": "https://a"}}
FOREIGN: list[tuple[FormatName, dict[str, Any], str]] = [
    (CHAT, {"role": "user", "content": [INPUT_TEXT]}, "/content/0/type"),
    (CHAT, {"role": "user", "content": [TEXT, RESULT]}, "/content/1/type"),
    (CHAT, {"role": "assistant", "content": [USE]}, "/content/0/type"),
    (ANTHROPIC, {"role": "user", "content": [WEB_IMAGE]}, "/content/0/type"),
    (
        ANTHROPIC,
        {"role": "user", "content": [{**RESULT, "content": [INPUT_TEXT]}]},
        "/content/0/content/0/type",
    ),
    (RESPONSES, {"role": "user", "content": [TEXT]}, "/content/0/type"),
    (RESPONSES, RESULT, "/type"),
    (GEMINI, {"role": "user", "parts": [WEB_IMAGE]}, "/parts/0/type"),
    (INTERACTIONS, {"type": "user_input", "content": [INPUT_TEXT]}, "/content/0/type"),
]


@pytest.mark.parametrize(("format", "raw", "pointer"), FOREIGN)
def test_parts_of_another_format_are_refused(
    format: FormatName, raw: dict[str, Any], pointer: str
) -> None:
    """No payload could ever show them, so what they say would be lost in silence."""
    with pytest.raises(ValidationError) as refused:
        make_drafts(raw, format, len, "/messages/0")
    (problem,) = refused.value.problems
    assert problem.pointer == f"/messages/0{pointer}"
    assert f"not of {format}" in problem.detail


TOOL_REFUSALS = [
    ({"description": "d"}, "/t/name"),
    ({"name": "bad name"}, "/t/name"),
    ({"name": "x" * 65}, "/t/name"),
    ({"name": "f\n"}, "/t/name"),
    ({"type": "function", "function": {"name": "é"}}, "/t/function/name"),
    ({"type": "web_search_of_ours", "name": "web_search"}, "/t/type"),
    ({"name": "f", "description": 3}, "/t/description"),
    ({"name": "f", "parameters": []}, "/t/parameters"),
    ({"name": "f", "parameters": {"type": "string"}}, "/t/parameters/type"),
    ({"name": "f", "category": "Discovery"}, "/t/category"),
    ({"name": "f", "category": None}, "/t/category"),
    ({"name": "f", "strict": "yes"}, "/t/strict"),
]


@pytest.mark.parametrize(("raw", "pointer"), TOOL_REFUSALS)
def test_tools_refused(raw: dict[str, Any], pointer: str) -> None:
    """A malformed definition is refused at the place that is wrong [tools.deferral]."""
    with pytest.raises(ValidationError) as refusal:
        parse_tool(raw, "/t")
    assert [problem.pointer for problem in refusal.value.problems] == [pointer]
