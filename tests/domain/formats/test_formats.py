"""The wire formats: what is refused, what survives, and what providers accept.

[formats.malformed-refused, payload.valid]
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from anthropic.types import ContentBlock, ContentBlockParam, MessageParam, ToolParam
from google.genai.types import Tool as GeminiTool
from hypothesis import example, given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam
from openai.types.responses import FunctionToolParam
from pydantic import TypeAdapter

from app.common.errors import ValidationError
from app.common.texts import is_sendable, sendable, sendable_json
from app.formats import PROVIDERS, ToolDefinition, labels, parse_tool
from app.formats.message import (
    EMPTY_MESSAGE,
    EMPTY_RESULT,
    File,
    FormatName,
    Image,
    Message,
    Opaque,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    clean,
)
from app.formats.registry import anthropic, gemini, openai_chat, openai_responses
from app.formats.tool_calls import is_json, is_name, sendable_id, tool_name, wrapped_arguments
from tests.domain.compaction import strategies_messages as generated
from tests.judge import check_type

AUDIO = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
PNG = generated.png(30, 20)
DATA_URL = f"data:image/png;base64,{PNG}"
FUNCTION_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
THINKING = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}


def assert_sendable(value: Any, sdk_type: Any) -> None:
    """Check a rendered item against the SDK's type, and that it can be sent as JSON."""
    assert check_type(value, sdk_type) == []
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text.encode()
    assert sendable_json(value) is value


def parse_one(module: Any, raw: Mapping[str, Any]) -> Message:
    """Parse a raw that makes one neutral message."""
    (message,) = module.parse(raw, "/m")
    assert isinstance(message, Message)
    return message


def wire_content(raw: Mapping[str, Any]) -> list[Any]:
    """Give the raw's content as a list."""
    content = raw["content"]
    return content if isinstance(content, list) else [content]


CHAT, RESPONSES, ANTHROPIC, GEMINI = FormatName
DATA_IMAGE, WEB_IMAGE = Image("image/png", PNG), Image(url="https://x.test/a")
WEB = {"type": "url", "url": "https://x.test/a"}
REDACTED = {"type": "redacted_thinking", "data": "eA=="}
SERVER_USE = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
FILE_IMAGE = {"type": "image", "source": {"type": "file", "file_id": "file_1"}}
PARTS: list[tuple[FormatName, str, dict[str, Any], Part]] = [
    (CHAT, "user", {"type": "text", "text": "a", "cache_control": {}}, Text("a")),
    (CHAT, "user", AUDIO, Opaque(AUDIO, CHAT)),
    (CHAT, "user", {"type": "image_url", "image_url": {"url": DATA_URL}}, DATA_IMAGE),
    (CHAT, "user", {"type": "image_url", "image_url": {"url": WEB["url"]}}, WEB_IMAGE),
    (
        CHAT,
        "user",
        {
            "type": "file",
            "file": {"file_data": "data:application/pdf;base64,JVBE", "filename": "a"},
        },
        File("application/pdf", "JVBE", name="a"),
    ),
    (
        CHAT,
        "user",
        {"type": "file", "file": {"file_id": "file-1"}},
        File(file_id="file-1", format=CHAT),
    ),
    (
        ANTHROPIC,
        "user",
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        DATA_IMAGE,
    ),
    (ANTHROPIC, "user", {"type": "image", "source": WEB}, WEB_IMAGE),
    (ANTHROPIC, "user", {"type": "image", "source": {"type": "url", "url": DATA_URL}}, DATA_IMAGE),
    (ANTHROPIC, "user", FILE_IMAGE, Opaque(FILE_IMAGE, ANTHROPIC)),
    (
        ANTHROPIC,
        "user",
        {"type": "document", "title": "t"}
        | {"source": {"type": "base64", "media_type": "application/pdf", "data": "JV"}},
        File("application/pdf", "JV", name="t"),
    ),
    (ANTHROPIC, "user", {"type": "document", "source": WEB}, File(url=WEB["url"])),
    (
        ANTHROPIC,
        "user",
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "x"},
        },
        File("text/plain", text="x"),
    ),
    (
        ANTHROPIC,
        "user",
        {"type": "document", "source": {"type": "file", "file_id": "file_1"}},
        File(file_id="file_1", format=ANTHROPIC),
    ),
    (ANTHROPIC, "assistant", THINKING, Reasoning("hm", THINKING, ANTHROPIC)),
    (ANTHROPIC, "assistant", REDACTED, Reasoning("", REDACTED, ANTHROPIC)),
    (ANTHROPIC, "assistant", {"type": "text", "text": "ok", "citations": None}, Text("ok")),
    (
        ANTHROPIC,
        "assistant",
        {"type": "tool_use", "id": "c1", "name": "f", "input": {"é": [1, None]}},
        ToolCall("c1", "f", '{"é":[1,null]}'),
    ),
    (ANTHROPIC, "assistant", SERVER_USE, Opaque(SERVER_USE, ANTHROPIC)),
]


@pytest.mark.parametrize(("format", "role", "part", "read"), PARTS)
def test_a_part_is_read(format: FormatName, role: str, part: dict[str, Any], read: Part) -> None:
    """Every known part is read, unknown fields are tolerated [log.identical-strings]."""
    raw = {"role": role, "content": [part], "x_unknown": 1}
    assert PROVIDERS[format].parse(raw, "/m") == (Message(Role(role), (read,)),)
    assert PROVIDERS[format].split(raw) == (raw,)


def test_messages_are_read() -> None:
    """A message has its role, its calls, or the results in it."""
    custom = {"id": "c2", "type": "custom", "custom": {"name": "g", "input": "free"}}
    raw = {"role": "assistant", "content": "t", "reasoning_content": "hm"}
    reasoning = Reasoning("hm", {"reasoning_content": "hm"}, CHAT)
    calls = (ToolCall("c1", "f", "{}"), ToolCall("c2", "g", "free", custom=True))
    message = parse_one(openai_chat, {**raw, "tool_calls": [FUNCTION_CALL, custom]})
    assert message == Message(Role.ASSISTANT, (reasoning, Text("t"), *calls))
    refused = {"role": "assistant", "refusal": "No.", "tool_calls": None, "function_call": None}
    refusal = Opaque({"type": "refusal", "refusal": "No."}, CHAT)
    expected = Message(Role.ASSISTANT, (refusal,), block={"refusal": "No."}, format=CHAT)
    assert parse_one(openai_chat, refused) == expected
    named = parse_one(openai_chat, {"role": "user", "content": "", "name": "ann"})
    assert named == Message(Role.USER, (Text(""),), name="ann")
    result = {"role": "tool", "tool_call_id": "c1", "content": None, "name": "f"}
    assert parse_one(openai_chat, result) == Message(Role.TOOL, (), "c1", "f")
    results = [{**RESULT, "is_error": True}, {**RESULT, "content": None, "tool_use_id": "c2"}]
    text = {"type": "text", "text": "go on"}
    assert anthropic.parse({"role": "user", "content": [*results, text]}, "/m") == (
        Message(Role.TOOL, (Text("x"),), "c1", is_error=True),
        Message(Role.TOOL, (), "c2"),
        Message(Role.USER, (Text("go on"),)),
    )


RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "x"}
USE = {"type": "tool_use", "id": "c1", "name": "f", "input": {}}
ITEM_CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "ok"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
REFUSALS: list[tuple[FormatName, dict[str, Any], str]] = [
    (CHAT, {}, "/role"),
    (CHAT, {"role": "oracle", "content": "x"}, "/role"),
    (CHAT, {"role": "function", "name": "f", "content": "x"}, "/role"),
    (CHAT, {"role": "user"}, "/content"),
    (CHAT, {"role": "user", "content": "x", "name": 1}, "/name"),
    (CHAT, {"role": "user", "content": "x", "tool_calls": [CALL]}, "/tool_calls"),
    (CHAT, {"role": "tool", "content": "x"}, "/tool_call_id"),
    (CHAT, {"role": "assistant", "function_call": {"name": "f"}}, "/function_call"),
    (CHAT, {"role": "assistant", "tool_calls": {}}, "/tool_calls"),
    (ANTHROPIC, {"role": "tool", "content": "x"}, "/role"),
    (ANTHROPIC, {"role": "user"}, "/content"),
    (ANTHROPIC, {"role": "assistant", "content": {}}, "/content"),
    (GEMINI, {}, "/role"),
    (GEMINI, {"role": "system", "parts": []}, "/role"),
    (GEMINI, {"role": "user"}, "/parts"),
    (RESPONSES, {}, "/type"),
    (RESPONSES, {"type": 3}, "/type"),
    (RESPONSES, {"role": "tool", "content": "x"}, "/role"),
    (RESPONSES, {"type": "additional_tools", "role": "developer", "tools": []}, "/role"),
    (RESPONSES, {"type": "item_reference", "id": "msg_1"}, "/type"),
    (RESPONSES, {"type": "compaction_trigger"}, "/type"),
    (RESPONSES, {"role": "user"}, "/content"),
    (RESPONSES, {"type": "reasoning"}, "/summary"),
    (RESPONSES, {"type": "compaction"}, "/encrypted_content"),
    (RESPONSES, {**ITEM_CALL, "call_id": None}, "/call_id"),
    (RESPONSES, {**ITEM_CALL, "arguments": {}}, "/arguments"),
    (RESPONSES, {**OUTPUT, "call_id": ""}, "/call_id"),
    (RESPONSES, {**OUTPUT, "output": 5}, "/output"),
    (RESPONSES, {"type": "tool_search_output", "call_id": "c", "tools": {}}, "/tools"),
    (RESPONSES, {"role": "assistant", "output": [OUTPUT]}, "/output/0/type"),
    (RESPONSES, {"role": "assistant", "output": [{"role": "user"}]}, "/output/0/role"),
    (RESPONSES, {"role": "assistant", "output": ["x"]}, "/output/0"),
]
BAD_PARTS: list[tuple[FormatName, str, Any, str]] = [
    (CHAT, "user", "x", ""),
    (CHAT, "user", {"text": "x"}, "/type"),
    (CHAT, "user", {"type": "text"}, "/text"),
    (CHAT, "user", {"type": "image_url"}, "/image_url"),
    (CHAT, "user", {"type": "image_url", "image_url": {"url": ""}}, "/image_url/url"),
    (CHAT, "user", {"type": "image_url", "image_url": "data:a/b;base64,"}, "/image_url/url"),
    (CHAT, "user", {"type": "file", "file": {}}, "/file"),
    (ANTHROPIC, "user", 3, ""),
    (ANTHROPIC, "user", {"type": "text", "text": None}, "/text"),
    (ANTHROPIC, "user", USE, "/type"),
    (ANTHROPIC, "user", THINKING, "/type"),
    (ANTHROPIC, "assistant", RESULT, "/type"),
    (ANTHROPIC, "assistant", {**USE, "input": "{}"}, "/input"),
    (ANTHROPIC, "assistant", {**USE, "id": 7}, "/id"),
    (ANTHROPIC, "user", {"type": "tool_result"}, "/tool_use_id"),
    (ANTHROPIC, "user", {**RESULT, "is_error": "no"}, "/is_error"),
    (ANTHROPIC, "user", {**RESULT, "content": [RESULT]}, "/content/0/type"),
    (ANTHROPIC, "user", {"type": "image"}, "/source"),
    (ANTHROPIC, "user", {"type": "image", "source": {"type": "url"}}, "/source/url"),
    (ANTHROPIC, "assistant", {"type": "thinking"}, "/thinking"),
    (RESPONSES, "user", {"type": "input_text"}, "/text"),
    (RESPONSES, "user", {"type": "input_image"}, "/image_url"),
    (RESPONSES, "user", {"type": "input_file"}, ""),
    (RESPONSES, "assistant", {"type": "input_text", "text": "x"}, "/type"),
    (GEMINI, "model", "hi", ""),
    (GEMINI, "model", {}, ""),
    (GEMINI, "model", {"text": 5}, "/text"),
    (GEMINI, "model", {"functionResponse": {"name": "f"}}, "/functionResponse"),
    (GEMINI, "user", {"function_call": {"name": "g"}}, "/function_call"),
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


@pytest.mark.parametrize("format", [CHAT, RESPONSES, ANTHROPIC])
def test_a_system_message_has_a_label_where_a_format_has_none(format: FormatName) -> None:
    """It is the system's in OpenAI's formats, and labelled text of the user in the others."""
    (message,) = PROVIDERS[format].parse({"role": "system", "content": "be kind"}, "/m")
    assert message == Message(Role.SYSTEM, (Text("be kind"),))
    assert openai_chat.render(message) == {"role": "system", "content": "be kind"}
    assert openai_responses.render(message)[0]["role"] == "developer"
    for role, blocks in (anthropic.render(message), gemini.render(message)):
        assert role == "user"
        assert [block["text"] for block in blocks] == ["[System]", "be kind"]


KEY_NAMES = """
role content type text tool_calls id function name arguments tool_call_id image_url url file source
tool_use_id input data thinking media_type custom refusal reasoning is_error parameters parts
functionCall function_response response inlineData mimeType thoughtSignature call_id output summary
tools execution
"""
WORD_NAMES = """
user assistant tool text image_url file image document base64 tool_use tool_result thinking
redacted_thinking function custom url model message reasoning output_text input_text input_image
function_call function_call_output custom_tool_call tool_search_output computer_call_output
shell_call_output c2ln
"""
KEYS, WORDS = (st.sampled_from(names.split()) for names in (KEY_NAMES, WORD_NAMES))
NEAR_WIRE = st.recursive(
    WORDS | generated.json_values(2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=14,
)
ROLES = st.sampled_from(["user", "assistant", "tool", "model", "function"])


@pytest.mark.parametrize("format_name", FormatName)
@given(raw=st.dictionaries(KEYS, NEAR_WIRE, max_size=6), role=ROLES)
def test_any_json_is_read_or_refused(
    format_name: FormatName, raw: dict[str, Any], role: str
) -> None:
    """Whatever comes in, the answer is messages or a ValidationError, never a crash."""
    module = PROVIDERS[format_name]
    for candidate in (raw, {**raw, "role": role}):
        try:
            messages = module.parse(candidate, "/m")
        except ValidationError as refusal:
            assert all(problem.pointer.startswith("/m") for problem in refusal.problems)
            continue
        assert len(module.split(candidate)) == len(messages)
        assert len(module.results(candidate)) == sum(m.role is Role.TOOL for m in messages)
        for message in messages:
            openai_chat.render(clean(message))
            openai_responses.render(clean(message))
            anthropic.render(clean(message))
            gemini.render(clean(message))


@given(raw=NEAR_WIRE)
def test_any_tool_is_read_or_refused(raw: Any) -> None:
    """Whatever is given as a tool is a definition or a ValidationError. [tools.any-format]"""
    try:
        parse_tool(raw, "/tools/0")
    except ValidationError as refusal:
        assert all(problem.pointer.startswith("/tools/0") for problem in refusal.problems)


def nested(depth: int) -> Any:
    """Build lists in lists."""
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [200, 900])
def test_deep_json_is_refused(depth: int) -> None:
    """Values nested too deeply are refused instead of exhausting the stack. [api.limits]"""
    block = {"type": "tool_use", "id": "c1", "name": "f", "input": {"x": nested(depth)}}
    with pytest.raises(ValidationError, match="deeper"):
        anthropic.parse({"role": "assistant", "content": [block]}, "/m")


def arguments_value(text: str) -> Any:
    """Give what arguments mean on the wire: their JSON value, made sendable."""
    if not is_json(text):
        return json.loads(wrapped_arguments(text))
    return sendable_json(json.loads(text))


def call_values(message: Message) -> list[tuple[str, str, Any]]:
    """Give each call as id, name and the value of its arguments."""
    return [
        (
            sendable_id(call.id),
            tool_name(call.name),
            call.arguments if call.custom else arguments_value(call.arguments),
        )
        for call in message.calls
    ]


def image_values(parts: Iterable[Part]) -> list[tuple[str | None, str | None]]:
    """Give what the wire holds of each image: its type and data, or its URL."""
    return [
        (part.media_type, part.data) if part.data is not None else (None, part.url)
        for part in parts
        if isinstance(part, Image)
    ]


@given(message=generated.messages())
def test_openai_chat_round_trip(message: Message) -> None:
    """What is rendered is of the SDK's type, and read again it keeps what was said.

    [formats.round-trip, payload.sdk-call]
    """
    ready = clean(message)
    rendered = openai_chat.render(ready)
    assert_sendable(rendered, ChatCompletionMessageParam)
    assert rendered.get("tool_calls") != []
    assert rendered["content"] or rendered.get("tool_calls")
    back, adapted = parse_one(openai_chat, rendered), openai_chat.adapt(ready)
    media = openai_chat.render_media(ready)
    if media is None:
        assert back.text == adapted.text
        kept = back.parts
    else:
        assert_sendable(media, ChatCompletionMessageParam)
        assert media["content"][0]["text"].startswith("[media from tool call ")
        assert back.text == (adapted.text or labels.MEDIA_FOLLOWS)
        kept = parse_one(openai_chat, media).parts
    assert call_values(back) == call_values(ready)
    assert back.tool_call_id == adapted.tool_call_id
    assert image_values(kept) == image_values(adapted.parts)
    assert openai_chat.adapt(adapted) is adapted


@given(message=generated.messages())
def test_anthropic_round_trip(message: Message) -> None:
    """What is rendered is of the SDK's type, and read again it keeps what was said.

    [formats.round-trip, payload.sdk-call]
    """
    adapted = anthropic.adapt(clean(message))
    role, blocks = anthropic.render(adapted)
    for blocks_ in (anthropic.render(adapted, keep_reasoning=True)[1], blocks):
        assert blocks_
        assert_sendable({"role": role, "content": blocks_}, MessageParam)
        assert all(block["text"].strip() for block in blocks_ if block["type"] == "text")
    back = parse_one(anthropic, {"role": role, "content": blocks})
    assert (back.text, back.role) == (adapted.text, adapted.role)
    assert (back.tool_call_id, back.is_error) == (adapted.tool_call_id, adapted.is_error)
    assert [(call.id, call.name, json.loads(call.arguments)) for call in back.calls] == [
        (call.id, call.name, json.loads(call.arguments)) for call in adapted.calls
    ]
    assert image_values(back.parts) == image_values(adapted.parts)
    assert anthropic.adapt(adapted) is adapted


@given(image=generated.images(), said=st.text(min_size=1).filter(str.strip))
def test_images_cross_formats(image: Image, said: str) -> None:
    """An image by data or web URL reaches the other format unchanged. [formats.round-trip]"""
    message = clean(Message(Role.USER, (Text(said), image)))
    role, blocks = anthropic.render(parse_one(openai_chat, openai_chat.render(message)))
    back = parse_one(anthropic, {"role": role, "content": blocks})
    assert back == message


@given(message=generated.tool_messages(generated.SHOWN_IDS))
def test_openai_chat_tool_content_is_text(message: Message) -> None:
    """A tool message carries text alone; its media follow in a user message. [openai-chat.sizes]"""
    rendered = openai_chat.render(clean(message))
    for part in wire_content(rendered):
        assert isinstance(part, str) or part["type"] == "text"
    has_media = bool(openai_chat.apart(openai_chat.adapt(clean(message))))
    assert (openai_chat.render_media(clean(message)) is not None) == has_media


def blocks_with_results() -> st.SearchStrategy[list[dict[str, Any]]]:
    """Draw content with results first and other blocks after them."""
    results = st.lists(generated.tool_messages().map(clean), max_size=3)
    others = st.lists(generated.user_messages().map(clean), max_size=2)
    return st.builds(
        lambda tools, users: [b for m in [*tools, *users] for b in anthropic.render(m)[1]],
        results,
        others,
    )


@given(blocks=blocks_with_results(), extra=generated.json_objects())
def test_anthropic_split_restores_the_original(
    blocks: list[dict[str, Any]], extra: dict[str, Any]
) -> None:
    """The pieces' contents concatenate to the original, and each makes its message."""
    raw = {**extra, "role": "user", "content": blocks}
    pieces = anthropic.split(raw)
    assert [block for piece in pieces for block in piece["content"]] == blocks
    assert {**pieces[0], "content": blocks} == raw
    assert all(piece.keys() == {"role", "content"} for piece in pieces[1:])
    messages = anthropic.parse(raw, "/m")
    assert tuple(parse_one(anthropic, piece) for piece in pieces) == messages


@given(message=generated.messages())
@example(message=Message(Role.ASSISTANT, (Text("a"), ToolCall("c1", "f", "{}"))))
def test_faithful_raw_equals_its_rendering(message: Message) -> None:
    """A raw called faithful is the payload item itself; a rendered one is faithful."""
    rendered = openai_chat.render(clean(message))
    assert openai_chat.is_faithful(rendered, parse_one(openai_chat, rendered))


@given(raw=st.dictionaries(KEYS, NEAR_WIRE, max_size=5), role=ROLES, content=generated.texts())
def test_faithful_is_never_claimed_wrongly(raw: dict[str, Any], role: str, content: str) -> None:
    """Where the stored JSON differs from the rendering it is not called faithful."""
    for candidate in ({**raw, "role": role}, {**raw, "role": role, "content": content}):
        try:
            message = parse_one(openai_chat, candidate)
        except ValidationError:
            continue
        same = candidate == openai_chat.render(clean(message))
        assert openai_chat.is_faithful(candidate, message) is same


def test_openai_chat_assistant_text_is_one_string() -> None:
    """Several assistant texts are joined; several user texts stay parts."""
    said = (Text("a"), ToolCall("c1", "f", "{}"), Text("b"))
    assert openai_chat.render(Message(Role.ASSISTANT, said))["content"] == "a\nb"
    assert openai_chat.render(Message(Role.USER, (Text("a"), Text("b"))))["content"] == [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]


def test_files_in_openai_chat() -> None:
    """Data stays a file, text becomes text, and a URL is named [payload.valid]."""
    files = (
        File("application/pdf", "JVBE"),
        File(text="body", name="n.txt"),
        File(url="https://x.test/a.pdf"),
        File(file_id="file_1", format=FormatName.ANTHROPIC),
    )
    content = openai_chat.render(Message(Role.USER, files))["content"]
    data = {"file_data": "data:application/pdf;base64,JVBE", "filename": "document"}
    assert content == [
        {"type": "file", "file": data},
        {"type": "text", "text": "[file: n.txt]\nbody"},
        {"type": "text", "text": "[file: https://x.test/a.pdf]"},
        {"type": "text", "text": "[file: file_1]"},
    ]


def test_a_citation_is_sent_to_its_own_format_only() -> None:
    """A text that says more comes back verbatim; to other formats it is its text."""
    cited = {"type": "char_location", "cited_text": "a", "document_index": 0, "document_title": "b"}
    block = {"type": "text", "text": "said", "citations": [cited]}
    raw = {"role": "assistant", "content": [{**block, "cache_control": {"type": "ephemeral"}}]}
    message = clean(parse_one(anthropic, raw))
    assert anthropic.render(message)[1] == [block]
    assert openai_chat.render(message)["content"] == "said"
    (item,) = openai_responses.render(message)
    assert item["content"] == [{"type": "output_text", "text": "said", "annotations": []}]
    assert gemini.render(message) == ("model", [{"text": "said"}])


ANSWERED = [
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"q": None}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
    {
        "type": "text",
        "text": "said",
        "citations": [
            {"type": "web_search_result_location", "url": "https://a.test", "title": None}
            | {"cited_text": "a", "encrypted_index": "b"},
            {"type": "page_location", "cited_text": "a", "document_index": 0}
            | {"document_title": None, "start_page_number": 1, "end_page_number": 2},
        ],
    },
]


@pytest.mark.parametrize("dumping", [{}, {"exclude_none": True}, {"exclude_unset": True}])
def test_null_fields_are_sent_where_anthropic_requires_them_alone(
    dumping: Mapping[str, Any],
) -> None:
    """An answer goes back valid, whichever way the SDK dumped it; a call's input is untouched."""
    objects = TypeAdapter(list[ContentBlock]).validate_python(ANSWERED)
    dumped = [block.model_dump(**dumping) for block in objects]
    message = clean(parse_one(anthropic, {"role": "assistant", "content": dumped}))
    _, blocks = anthropic.render(message)
    for block in blocks:
        assert not check_type(block, ContentBlockParam)
    assert blocks[2] == ANSWERED[2]
    assert "exclude_none" in dumping or blocks[0] == ANSWERED[0]


def test_no_block_of_a_caller_keeps_a_cache_breakpoint() -> None:
    """Each payload places the few that it may have, also where a block holds others."""
    marked = {"cache_control": {"type": "ephemeral"}}
    text = {"type": "text", "text": "found"}
    found = {"type": "search_result", "source": "a", "title": "b"}
    source = {"type": "content"}
    content = [
        {**found, "content": [{**text, **marked}], **marked},
        {"type": "document", "source": {**source, "content": [{**text, **marked}]}},
    ]
    message = clean(parse_one(anthropic, {"role": "user", "content": content}))
    assert anthropic.render(message)[1] == [
        {**found, "content": [text]},
        {"type": "document", "source": {**source, "content": [text]}},
    ]


def test_thinking_is_replayed_whole_or_not_at_all() -> None:
    """Signed blocks go back verbatim on request, never at the end; plain reasoning never does."""
    signed = Reasoning("hm", THINKING, FormatName.ANTHROPIC)
    message = Message(Role.ASSISTANT, (signed, Reasoning("plain"), Text("ok")))
    assert anthropic.render(message, keep_reasoning=True)[1] == [
        THINKING,
        {"type": "text", "text": "ok"},
    ]
    assert anthropic.render(message)[1] == [{"type": "text", "text": "ok"}]
    assert openai_chat.render(message) == {"role": "assistant", "content": "ok"}
    late = replace(message, parts=(Text("ok"), signed))
    assert anthropic.render(anthropic.adapt(late), keep_reasoning=True)[1] == [
        {"type": "text", "text": "ok"},
    ]
    assert anthropic.render(replace(message, parts=(signed,)), keep_reasoning=True)[1] == []
    call = ToolCall("c1", "f", "{}")
    mixed = replace(message, parts=(signed, call, Text("ok")))
    kinds = [block["type"] for block in anthropic.render(mixed, keep_reasoning=True)[1]]
    assert kinds == ["thinking", "text", "tool_use"]
    spoiled = Reasoning("\ud800", {**THINKING, "thinking": "\ud800"}, FormatName.ANTHROPIC)
    assert clean(Message(Role.ASSISTANT, (spoiled, Text("ok")))).parts[0] == Reasoning("\ufffd")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ("[1]", {"arguments": "[1]"}),
        ("oops", {"arguments": "oops"}),
        ('{"a": NaN}', {"arguments": '{"a": NaN}'}),
        ('{"a": "\\u0000\\ud800"}', {"a": "\ufffd\ufffd"}),
    ],
)
def test_anthropic_input_is_an_object(text: str, value: Any) -> None:
    """Those that are no object are wrapped in one, never sent as text. [anthropic.input-object]"""
    _, (block,) = anthropic.render(Message(Role.ASSISTANT, (ToolCall("c1", "f", text),)))
    assert block["input"] == value


@given(first=generated.ANY_IDS, second=generated.ANY_IDS)
def test_sendable_ids(first: str, second: str) -> None:
    """Ids are short, of the common charset, and stay as different as they were."""
    sent = sendable_id(first)
    assert sendable_id(sent) == sent
    assert len(sent) <= 40
    assert is_name(sent)
    assert (sendable_id(second) == sent) == (second == first)


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("read_file", "read_file"),
        ("a b.c", "a_b_c"),
        ("", "tool"),
        ("x" * 70, "x" * 64),
        ("é", "_"),
    ],
)
def test_tool_names(name: str, sent: str) -> None:
    """A called name is made one that providers take. [anthropic.sizes, openai-chat.sizes]"""
    assert tool_name(name) == sent


@given(message=generated.messages())
def test_clean_is_idempotent_and_sendable(message: Message) -> None:
    """What may stand in a payload is never empty, and cleaning it again changes nothing."""
    ready = clean(message)
    assert clean(ready) is ready
    assert any(not isinstance(part, Reasoning) for part in ready.parts)
    assert all(is_sendable(part.text) for part in ready.parts if isinstance(part, Text))
    assert [call.id for call in ready.calls] == [call.id for call in message.calls]


def test_clean_fills_empty_messages() -> None:
    """Blank content gets the placeholder of its role. [neutral.no-empty-content]"""
    assert clean(Message(Role.USER, (Text(" \n"),))).text == EMPTY_MESSAGE
    assert clean(Message(Role.TOOL, (), "c1")).text == EMPTY_RESULT


@given(text=generated.texts(), repeat=st.sampled_from([1, 70_000]))
def test_sendable_replaces_only_unsendable_characters(text: str, repeat: int) -> None:
    """NUL and lone surrogates become U+FFFD one by one, in texts of any length."""
    text *= repeat
    expected = "".join("\ufffd" if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in text)
    assert sendable(text) == expected
    assert is_sendable(text) is (text == expected)


SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
TOOLS = [
    {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}},
    {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA},
    {"name": "f", "description": "d", "input_schema": SCHEMA},
    {"name": "f", "description": "d", "inputSchema": SCHEMA},
    {"type": "custom", "name": "f", "description": "d", "input_schema": SCHEMA},
    {"name": "f", "description": "d", "parameters": {"properties": SCHEMA["properties"]}},
    {
        "name": "f",
        "description": "d",
        "parameters": {"type": "OBJECT", "properties": {"q": {"type": "STRING"}}},
    },
]


@pytest.mark.parametrize("raw", TOOLS)
def test_tools_in_any_shape(raw: dict[str, Any]) -> None:
    """One definition in every provider's shape is read alike. [tools.any-format]"""
    assert parse_tool(raw, "/tools/0") == ToolDefinition("f", "d", SCHEMA)
    kept = parse_tool({**raw, "category": "mcp"}, "/tools/0")
    assert kept == ToolDefinition("f", "d", SCHEMA, "mcp")


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


@pytest.mark.parametrize("strict", [None, True])
def test_tools_to_wire(strict: bool | None) -> None:
    """Rendered definitions are of the SDKs' types. [payload.sdk-call, tools.any-format]"""
    tools = [
        parse_tool({"name": "f", "strict": strict}, "/t"),
        ToolDefinition("g", "d\ud800", {"type": "object", "properties": {"a\0": {}}}, "mcp"),
    ]
    for tool in openai_chat.tools_to_wire(tools):
        assert_sendable(tool, ChatCompletionFunctionToolParam)
    for tool in openai_responses.tools_to_wire(tools):
        assert_sendable(tool, FunctionToolParam)
        assert tool["strict"] is bool(strict) or tool["name"] == "g"
    for tool in anthropic.tools_to_wire(tools):
        assert_sendable(tool, ToolParam)
    (declared,) = gemini.tools_to_wire(tools)
    GeminiTool.model_validate(declared)
    back = [parse_tool(tool, "/t") for tool in anthropic.tools_to_wire(tools[:1])]
    assert back == tools[:1]
    (again, _) = declared["functionDeclarations"]
    assert parse_tool(again, "/t") == replace(tools[0], strict=None)
    assert gemini.tools_to_wire([]) == []
