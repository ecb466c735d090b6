"""What the formats send: every message, of the SDK's types, in a form that is read back alike.

[formats.round-trip, payload.sdk-call, payload.valid]
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from anthropic.types import ContentBlock, ContentBlockParam, MessageParam, ToolParam
from google.genai.interactions import FunctionParam
from google.genai.types import Content
from google.genai.types import Tool as GeminiTool
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam
from openai.types.responses import FunctionToolParam, ResponseInputItemParam, ResponseOutputItem
from pydantic import TypeAdapter

from app.common.texts import is_sendable, sendable_json
from app.formats import PROVIDERS, ToolDefinition, media, parse_tool
from app.formats.media import clean
from app.formats.message import (
    EMPTY_MESSAGE,
    EMPTY_RESULT,
    NO_RESULT,
    FormatName,
    Image,
    Message,
    Opaque,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
)
from app.formats.openai_responses import OUTPUTS
from app.formats.reasoning import STAND_IN_SIGNATURE
from tests.domain.compaction import strategies_messages as generated
from tests.judge import check_type, errors, judge

CHAT, RESPONSES, ANTHROPIC, GEMINI, INTERACTIONS = FormatName
TYPES: dict[FormatName, Any] = {CHAT: ChatCompletionMessageParam, ANTHROPIC: MessageParam}
UNPAIRED = (
    *("call-unanswered", "search-unanswered", "orphan-result", "item-id-reused"),
    "first-not-user",
)


def read(format: FormatName, raw: Mapping[str, Any]) -> Message:
    """Return a raw that makes one message as payloads have it."""
    (message,) = PROVIDERS[format].parse(raw, "")
    return clean(message)


def sent(format: FormatName, message: Message, **options: Any) -> list[dict[str, Any]]:
    """Return the pieces of a message in a payload."""
    provider = PROVIDERS[format]
    return provider.render(provider.for_payload(clean(message), **options))


def said(*parts: Part) -> Message:
    """Return an assistant message."""
    return Message(Role.ASSISTANT, parts)


def items(*made: Any) -> dict[str, Any]:
    """Return items of OpenAI's model as one message."""
    return {"role": "assistant", "output": list(made)}


def calls_of(message: Message) -> list[Any]:
    """Return the calls of a message by what they mean."""
    return [
        (call.id, call.name, call.arguments if call.custom else json.loads(call.arguments))
        for call in message.calls
    ]


def images_of(*messages: Message) -> list[Any]:
    """Return what the wire holds of each image: its type and data, or its URL."""
    parts = [part for message in messages for part in message.parts if isinstance(part, Image)]
    return [(p.media_type, p.data) if p.data is not None else p.url for p in parts]


@pytest.mark.parametrize("format", FormatName)
@given(message=generated.messages(), replays=st.booleans())
def test_round_trip(format: FormatName, message: Message, replays: bool) -> None:
    """What is rendered is of the SDK's type, and read again it is what is shown of a message."""
    provider = PROVIDERS[format]
    shown = provider.for_payload(clean(message), replays=replays)
    pieces = provider.render(shown)
    if not pieces or not shown.parts:  # reasoning alone
        return
    assert sendable_json(pieces) is pieces
    wire = provider.wire(shown)
    if format is GEMINI:
        Content.model_validate(wire)
    if format in (RESPONSES, INTERACTIONS):
        found = errors(judge(format, {"input": pieces}))
        assert [error for error in found if error.rule not in UNPAIRED] == []
    for value in [wire] if format is ANTHROPIC else pieces:
        assert format not in TYPES or check_type(value, TYPES[format]) == []
    back, *rest = provider.parse(wire, "")
    if format is CHAT and len(pieces) > 1:
        rest = list(provider.parse(pieces[1], ""))
    assert (back.role, back.tool_call_id) == (shown.role, shown.tool_call_id)
    has_apart = bool(provider.apart(shown))
    assert back.text == (shown.text or (media.MEDIA_FOLLOWS if has_apart else ""))
    assert bool(rest) == has_apart
    assert calls_of(back) == calls_of(shown)
    assert images_of(back, *rest) == images_of(shown)
    if format is not CHAT:
        kinds = [type(part) for part in back.parts if isinstance(part, Reasoning | Opaque)]
        assert kinds == [type(p) for p in shown.parts if isinstance(p, Reasoning | Opaque)]
    assert provider.adapt(shown) is shown
    assert provider.for_payload(shown, replays=True) == shown


@given(message=generated.messages())
def test_clean_is_idempotent_and_sendable(message: Message) -> None:
    """What may stand in a payload is never empty, and cleaning it again changes nothing."""
    ready = clean(message)
    assert clean(ready) is ready
    assert any(not isinstance(part, Reasoning) for part in ready.parts)
    assert all(is_sendable(part.text) for part in ready.parts if isinstance(part, Text))
    assert [call.id for call in ready.calls] == [call.id for call in message.calls]
    assert clean(Message(Role.USER, (Text(" \n"),))).text == EMPTY_MESSAGE
    assert clean(Message(Role.TOOL, (), "c1")).text == EMPTY_RESULT


STOOD_IN = {"thoughtSignature": STAND_IN_SIGNATURE}
SYSTEM = Message(Role.SYSTEM, (Text("be kind"),))


THINKING = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "eA=="}
TEXT = {"type": "output_text", "text": "let me see", "annotations": []}
SAID = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"} | {
    "content": [TEXT]
}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"}
SEARCH = {"type": "tool_search_call", "id": "tsc_1", "call_id": "c3", "execution": "client"} | {
    "arguments": {"query": "x"},
    "status": "completed",
}
HOSTED = SEARCH | {"id": "tsc_2", "call_id": None, "execution": "server"}
FOUND = {"type": "tool_search_output", "id": "tso_2", "call_id": None, "execution": "server"} | {
    "tools": [],
    "status": "completed",
}
WEB = {"type": "web_search_call", "id": "ws_1", "status": "completed"} | {
    "action": {"type": "search", "query": "x"}
}
COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "eA=="}
TURN: list[dict[str, Any]] = [REASONING, HOSTED, FOUND, WEB, SAID, CALL, SEARCH]


def test_thinking_is_replayed_whole_or_not_at_all() -> None:
    """Signed blocks go back verbatim on request, never at the end; plain reasoning never does."""
    signed, text = Reasoning("hm", THINKING, ANTHROPIC), {"type": "text", "text": "ok"}
    message = said(signed, Reasoning("plain"), Text("ok"))
    assert sent(ANTHROPIC, message, replays=True) == [THINKING, text]
    assert sent(ANTHROPIC, message) == sent(ANTHROPIC, said(Text("ok"), signed), replays=True)
    assert sent(CHAT, message) == [{"role": "assistant", "content": "ok"}]
    assert sent(ANTHROPIC, said(signed), replays=True) == []
    mixed = sent(ANTHROPIC, said(signed, ToolCall("c1", "f", "{}"), Text("ok")), replays=True)
    assert [block["type"] for block in mixed] == ["thinking", "text", "tool_use"]
    spoiled = Reasoning("\ud800", {**THINKING, "thinking": "\ud800"}, ANTHROPIC)
    assert clean(said(spoiled, Text("ok"))).parts[0] == Reasoning("\ufffd")


def test_items_of_the_model_go_back_verbatim() -> None:
    """Ids, status and order are kept while their prefix is unchanged.

    Without reasoning, items lose the ids that demand it. Ids of others are not sent.
    [openai-responses.reasoning-followed, openai-responses.compaction-items,
     openai-responses.items-kept, openai-responses.tool-search]
    """
    for made in (TURN, [COMPACTION], [COMPACTION, SAID], [REASONING, REASONING, CALL]):
        assert sent(RESPONSES, read(RESPONSES, items(*made)), replays=True) == made
    bare = [{key: value for key, value in item.items() if key != "id"} for item in TURN]
    label = sent(RESPONSES, said(Text("[web_search_call: x]")))
    shown = sent(RESPONSES, read(RESPONSES, items(SAID, *TURN)))
    assert shown == [SAID, *bare[1:3], *label, *bare[4:]]
    assert sent(RESPONSES, read(RESPONSES, items(SAID, REASONING)), replays=True) == [SAID]
    foreign = read(RESPONSES, items({**SAID, "id": "m1"}, {**CALL, "id": "call-7"}))
    assert not any("id" in item for item in sent(RESPONSES, foreign, replays=True))


def test_parts_of_gemini_go_back_as_they_came() -> None:
    """Signatures stay at their parts, and calls have no new ids."""
    call = {"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "c2ln"}
    known = {"functionCall": {"id": "q", "name": "g", "args": {}}}
    code = {"executableCode": {"language": "PYTHON", "code": "1"}}
    signed = {"text": "so", "thoughtSignature": "c2ln"}
    parts = [signed, {"text": "", "thoughtSignature": "c2ln"}, code, call, known, call]
    raw = {"role": "model", "parts": [{"text": "hm", "thought": True}, *parts]}
    assert sent(GEMINI, read(GEMINI, raw), replays=True) == parts
    unsigned = {"functionCall": call["functionCall"]}
    shown = [{"text": "so"}, code, {**unsigned, **STOOD_IN}, known, unsigned]
    assert sent(GEMINI, read(GEMINI, raw)) == shown
    snake = {"function_call": known["functionCall"], "thought_signature": "c2ln"}
    again = read(GEMINI, {"role": "model", "parts": [snake]})
    assert sent(GEMINI, again, replays=True) == [{**known, "thoughtSignature": "c2ln"}]


STEPS: list[dict[str, Any]] = [
    {"type": "thought", "signature": "c2ln", "summary": [{"type": "text", "text": "hm"}]},
    {"type": "model_output", "content": [{"type": "text", "text": "I "}]}
    | {"error": {"code": 8, "message": "full"}},
    {"type": "tool_search_call", "id": "s1", "arguments": {"function_names": ["f"]}},
    {"type": "tool_search_result", "call_id": "s1", "result": [{"type": "function", "name": "f"}]},
    {"type": "retrieval_call", "id": "r1", "arguments": {"queries": ["q"]}, "signature": "c2ln"},
    {"type": "retrieval_result", "call_id": "r1", "signature": "c2ln"},
    {"type": "mcp_server_tool_call", "id": "m1", "name": "find", "server_name": "wiki"}
    | {"arguments": {}},
    {"type": "mcp_server_tool_result", "call_id": "m1", "result": {"rows": [1]}},
    {"type": "function_call", "id": "c1", "name": "f", "arguments": {"a": None}},
    {"type": "thought", "signature": "ZW5k"},
]


def test_steps_go_back_as_they_came() -> None:
    """Signed ones only as long as reasoning is replayed. A call never stands without a thought.

    [gemini-interactions.thoughts-verbatim, gemini-interactions.signed-calls,
     gemini-interactions.server-tools]
    """
    turn = read(INTERACTIONS, items(*STEPS, {"type": "thought", "signature": ""}))
    assert sent(INTERACTIONS, turn, replays=True) == STEPS
    stand_in = {"type": "thought", "signature": STAND_IN_SIGNATURE}
    labels = sent(INTERACTIONS, said(Text("[retrieval_call: q]"), Text("[retrieval_result]")))
    shown = [*STEPS[1:4], *labels, *STEPS[6:8], stand_in, STEPS[8]]
    assert sent(INTERACTIONS, turn) == shown
    assert sent(INTERACTIONS, read(INTERACTIONS, items(*shown))) == shown
    result = {"type": "function_result", "call_id": "c1", "name": "f"}
    video = {"type": "video", "uri": "https://youtu.be/x", "name": "talk"}
    cited = {"type": "text", "text": "a", "annotations": [{"type": "url_citation", "url": "u"}]}
    for content in ("done", {"rows": [1], "none": None}, [cited, video], [TOOL]):
        made = {**result, "result": content, "is_error": True}
        assert sent(INTERACTIONS, read(INTERACTIONS, made)) == [made]


def test_a_step_has_no_id_of_its_own() -> None:
    """The id of a call is none of a message, so that a later call may have it again."""
    provider, call = PROVIDERS[INTERACTIONS], STEPS[8]
    assert provider.own_fields(call)["id"] is None
    assert provider.split(call) == (items(call),)
    assert provider.own_fields(items(call))["id"] is None
    assert provider.own_fields({**items(call), "id": "m1"})["id"] == "m1"
    assert provider.call_id_fields(items(call)) == [(call, "id")]


ANSWERED = [
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"q": None}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
    {
        "type": "text",
        "text": "said",
        "citations": [
            {"type": "web_search_result_location", "url": "https://a.test", "title": None}
            | {"cited_text": "a", "encrypted_index": "b"}
        ],
    },
]
MADE_WITH_NULLS: list[dict[str, Any]] = [
    {"type": "code_interpreter_call", "id": "ci_1", "container_id": "c", "status": "completed"}
    | {"code": None, "outputs": None},
    {"type": "image_generation_call", "id": "ig_1", "status": "failed", "result": None},
    *TURN,
]


@pytest.mark.parametrize("dumping", [{}, {"exclude_none": True}, {"exclude_unset": True}])
def test_null_fields_are_sent_where_they_are_required_alone(dumping: Mapping[str, Any]) -> None:
    """An answer goes back valid, whichever way the SDK dumped it; a call's input is untouched."""
    blocks = TypeAdapter(list[ContentBlock]).validate_python(ANSWERED)
    dumped = [block.model_dump(**dumping) for block in blocks]
    found = sent(ANTHROPIC, read(ANTHROPIC, {"role": "assistant", "content": dumped}))
    assert found[2] == ANSWERED[2]
    assert "exclude_none" in dumping or found[0] == ANSWERED[0]
    made = TypeAdapter(list[ResponseOutputItem]).validate_python([REASONING, *MADE_WITH_NULLS])
    output = items(*(item.model_dump(**dumping) for item in made))
    again = sent(RESPONSES, read(RESPONSES, output), replays=True)
    assert again == [REASONING, *MADE_WITH_NULLS]
    assert not any(check_type(block, ContentBlockParam) for block in found)
    assert not any(check_type(item, ResponseInputItemParam) for item in again)


SCREENSHOT = {"type": "computer_screenshot"}
SHELL_OUTPUT = {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 1}}
TOOL = {"type": "function", "name": "z", "parameters": {"type": "object"}, "strict": False}
NATIVE: list[dict[str, Any]] = [
    {"type": "tool_search_output", "call_id": "c3", "execution": "client", "tools": [TOOL]},
    {"type": "custom_tool_call_output", "call_id": "c3", "output": "a"},
    {"type": "computer_call_output", "call_id": "c3"}
    | {"output": {**SCREENSHOT, "image_url": "https://x.test/a"}},
    {"type": "computer_call_output", "call_id": "c3"}
    | {"output": {**SCREENSHOT, "file_id": "file-1"}},
    {"type": "shell_call_output", "call_id": "c3", "output": [SHELL_OUTPUT]},
    {"type": "local_shell_call_output", "id": "c3", "output": "{}"},
    {"type": "apply_patch_call_output", "call_id": "c3", "status": "failed", "output": "no"},
]


@pytest.mark.parametrize("output", NATIVE)
def test_outputs_have_the_type_of_their_call(output: dict[str, Any]) -> None:
    """Native outputs go back as they came; others are put into the type of their call."""
    provider, message = PROVIDERS[RESPONSES], read(RESPONSES, output)
    call = {"type": next(k for k, of in OUTPUTS.items() if of == output["type"])}
    assert provider.render(message, call) == [output]
    (plain,) = provider.render(message, {"type": "function_call"})
    assert plain["type"] == "function_call_output" and plain["output"]
    synthetic = Message(Role.TOOL, (Text(NO_RESULT),), "c3")
    for made in provider.render(synthetic, call)[0], plain:
        assert check_type(made, ResponseInputItemParam) == []
        assert (made.get("call_id") or made["id"]) == "c3"


@pytest.mark.parametrize("strict", [None, True])
def test_tools_to_wire(strict: bool | None) -> None:
    """Rendered definitions are of the SDKs' types. [payload.sdk-call, tools.any-format]"""
    tools = [
        parse_tool({"name": "f", "strict": strict}, "/t"),
        ToolDefinition("g", "d\ud800", {"type": "object", "properties": {"a\0": {}}}, "mcp"),
    ]
    wire = {format: PROVIDERS[format].tools_to_wire(tools) for format in FormatName}
    for format, kind in (
        (CHAT, ChatCompletionFunctionToolParam),
        (RESPONSES, FunctionToolParam),
        (ANTHROPIC, ToolParam),
    ):
        assert not any(check_type(tool, kind) for tool in wire[format])
        assert sendable_json(wire[format]) is wire[format]
    assert wire[RESPONSES][0]["strict"] is bool(strict)
    GeminiTool.model_validate(*wire[GEMINI])
    assert not any(check_type(tool, FunctionParam) for tool in wire[INTERACTIONS])
    assert parse_tool(wire[ANTHROPIC][0], "/t") == tools[0]
