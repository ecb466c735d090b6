"""OpenAI Responses: items in, items out, verbatim where the model made them.

[formats.round-trip, reasoning.family-only]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseInputItemParam, ResponseOutputItem
from pydantic import TypeAdapter

from app.common.texts import sendable_json
from app.formats import PROVIDERS
from app.formats.message import (
    EMPTY_RESULT,
    NO_RESULT,
    OPENAI_FORMATS,
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
from app.formats.openai_responses.parsing import OUTPUT_TYPES
from app.formats.registry import openai_responses
from tests.domain.compaction import strategies_messages as generated
from tests.domain.histories import RESPONSES
from tests.judge import check_type, errors, judge

REASONING: dict[str, Any] = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "hm"}],
    "encrypted_content": "eA==",
}
SAID: dict[str, Any] = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "phase": "commentary",
    "content": [{"type": "output_text", "text": "let me see", "annotations": []}],
}
CALL: dict[str, Any] = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "c1",
    "name": "f",
    "arguments": "{}",
    "status": "completed",
    "namespace": "crm",
}
CUSTOM: dict[str, Any] = {
    "type": "custom_tool_call",
    "id": "ctc_1",
    "call_id": "c2",
    "name": "g",
    "input": "free",
}
SEARCH: dict[str, Any] = {
    "type": "tool_search_call",
    "id": "tsc_1",
    "call_id": "c3",
    "execution": "client",
    "arguments": {"query": "x"},
}
AT_PROVIDER = {"call_id": None, "execution": "server"}
HOSTED = {"type": "tool_search_call", "id": "tsc_2", **AT_PROVIDER, "arguments": {"paths": ["crm"]}}
FOUND: dict[str, Any] = {"type": "tool_search_output", "id": "tso_2", **AT_PROVIDER, "tools": []}
ACTION = {"type": "search", "query": "x"}
WEB = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": ACTION}
COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "eA=="}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "ok"}
TOOL = {"type": "function", "name": "z", "parameters": {"type": "object"}, "strict": False}
FOUND_HERE = {"type": "tool_search_output", "call_id": "c3", "execution": "client", "tools": [TOOL]}
TURN: list[dict[str, Any]] = [REASONING, HOSTED, FOUND, WEB, SAID, CALL, CUSTOM, SEARCH]


def parse_one(raw: Mapping[str, Any]) -> Message:
    """Parse a raw that makes one neutral message."""
    (message,) = openai_responses.parse(raw, "/m")
    return message


def assistant(*parts: Part) -> Message:
    """Return an assistant message."""
    return Message(Role.ASSISTANT, parts)


SMELL = {"type": "input_smell", "smell": "rose"}
FILE_IMAGE = {"type": "input_image", "file_id": "file-1", "detail": "high"}
PARTS: list[tuple[dict[str, Any], Part]] = [
    ({"type": "input_text", "text": "a", "prompt_cache_breakpoint": {}}, Text("a")),
    (
        {"type": "input_image", "image_url": "https://x.test/a", "detail": "auto"},
        Image(url="https://x.test/a"),
    ),
    (
        {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"},
        Image("image/png", "AA", detail="low"),
    ),
    (FILE_IMAGE, Opaque(FILE_IMAGE, RESPONSES)),
    (
        {"type": "input_file", "file_data": "data:application/pdf;base64,JV"},
        File("application/pdf", "JV"),
    ),
    ({"type": "input_file", "file_url": "https://x.test/a"}, File(url="https://x.test/a")),
    (
        {"type": "input_file", "file_id": "file-2", "filename": "a.pdf"},
        File(file_id="file-2", name="a.pdf", format=RESPONSES),
    ),
    ({**SMELL, "prompt_cache_breakpoint": {}}, Opaque(SMELL, RESPONSES)),
]
APPROVAL = {"type": "mcp_approval_response", "approval_request_id": "a", "approve": True}
SENT_STATUS = {"type": "function_call_output", "name": "f", "status": "completed"}
SEARCHED = Text('[{"type":"function","name":"z","parameters":{"type":"object"},"strict":false}]')
SEARCH_BLOCK = {"type": "tool_search_output", "execution": "client"}
READS = [
    *(({"role": "user", "content": [raw]}, Message(Role.USER, (part,))) for raw, part in PARTS),
    (APPROVAL, Message(Role.USER, (Opaque(APPROVAL, RESPONSES),))),
    (
        {"role": "assistant", "content": "hi", "seq": 3, "timestamp": "2026-01-01"},
        assistant(Text("hi", {"role": "assistant", "content": "hi"}, RESPONSES)),
    ),
    (
        {"role": "assistant", "output": TURN},
        assistant(
            Reasoning("hm", REASONING, RESPONSES),
            Opaque(HOSTED, RESPONSES),
            Opaque(FOUND, RESPONSES),
            Opaque(WEB, RESPONSES),
            Text("let me see", SAID, RESPONSES),
            ToolCall("c1", "f", "{}", block=CALL, format=RESPONSES),
            ToolCall("c2", "g", "free", True, CUSTOM, RESPONSES),
            ToolCall("c3", "tool_search", '{"query":"x"}', block=SEARCH, format=RESPONSES),
        ),
    ),
    (COMPACTION, assistant(Reasoning("", COMPACTION, RESPONSES))),
    (OUTPUT, Message(Role.TOOL, (Text("ok"),), "c1")),
    ({**OUTPUT, "output": None}, Message(Role.TOOL, (), "c1")),
    (
        {**OUTPUT, "id": "m-7", "name": "f", "status": "completed", "output_ref": {"id": "b"}},
        Message(Role.TOOL, (Text("ok"),), "c1", "f", block=SENT_STATUS, format=RESPONSES),
    ),
    (
        FOUND_HERE,
        Message(Role.TOOL, (SEARCHED,), "c3", block=SEARCH_BLOCK, format=RESPONSES),
    ),
]


@pytest.mark.parametrize(("raw", "message"), READS)
def test_items_are_read(raw: dict[str, Any], message: Message) -> None:
    """Every known item is read with its original beside it; unknown ones are kept."""
    assert openai_responses.parse(raw, "/m") == (message,)
    assert openai_responses.split(raw) == (raw,)


def test_consecutive_items_of_the_model_are_one_message() -> None:
    """Neighbouring items of the model are gathered; what was gathered stays a message."""
    user = {"role": "user", "content": "hi"}
    whole = {"role": "assistant", "output": [SAID]}
    batch = [user, REASONING, CALL, OUTPUT, SAID, user, HOSTED, FOUND, whole, SAID, "x", COMPACTION]
    gathered = openai_responses.group_items(batch)
    assert gathered == [
        (0, user),
        (1, {"role": "assistant", "output": [REASONING, CALL]}),
        (3, OUTPUT),
        (4, SAID),
        (5, user),
        (6, {"role": "assistant", "output": [HOSTED, FOUND]}),
        (8, whole),
        (9, SAID),
        (10, "x"),
        (11, COMPACTION),
    ]
    assert gathered[3][1] is SAID
    assert PROVIDERS[FormatName.ANTHROPIC].group_items(batch) == list(enumerate(batch))


def test_items_of_the_model_go_back_verbatim() -> None:
    """Ids, phase, status and order are kept while their prefix is unchanged.

    [openai-responses.reasoning-followed, openai-responses.compaction-items,
     openai-responses.items-kept, openai-responses.tool-search]
    """
    for items in (TURN, [COMPACTION], [COMPACTION, SAID], [REASONING, REASONING, CALL]):
        message = clean(parse_one({"role": "assistant", "output": items}))
        assert openai_responses.render(message, keep_reasoning=True) == items


MADE_WITH_NULLS: list[dict[str, Any]] = [
    {"type": "code_interpreter_call", "id": "ci_1", "container_id": "c", "status": "completed"}
    | {"code": None, "outputs": None},
    {"type": "image_generation_call", "id": "ig_1", "status": "failed", "result": None},
    {**HOSTED, "status": "completed"},
    {**FOUND, "status": "completed"},
    WEB,
    SAID,
    SEARCH | {"status": "completed"},
    CALL,
]


@pytest.mark.parametrize("dumping", [{}, {"exclude_none": True}, {"exclude_unset": True}])
def test_null_fields_are_sent_where_the_provider_requires_them_alone(
    dumping: Mapping[str, Any],
) -> None:
    """An answer goes back as the model made it, whichever way the SDK dumped it."""
    made = [REASONING, *MADE_WITH_NULLS]
    objects = TypeAdapter(list[ResponseOutputItem]).validate_python(made)
    dumped = [item.model_dump(**dumping) for item in objects]
    message = clean(parse_one({"role": "assistant", "output": dumped}))
    items = openai_responses.render(message, keep_reasoning=True)
    assert items == made
    for item in items:
        assert not check_type(item, ResponseInputItemParam)


def test_without_reasoning_items_lose_the_ids_that_demand_it() -> None:
    """Reasoning goes whole, and what would ask for it goes along or loses its id."""
    message = clean(parse_one({"role": "assistant", "output": [SAID, *TURN]}))
    bare = [{key: value for key, value in item.items() if key != "id"} for item in TURN]
    label = openai_responses.render(assistant(Text('[web_search call: "x"]')))
    assert openai_responses.render(message) == [SAID, *bare[1:3], *label, *bare[4:]]
    action = {"type": "exec", "command": ["ls"], "env": {}}
    local = {"type": "local_shell_call", "id": "ls_1", "call_id": "c9", "action": action}
    message = clean(parse_one({"role": "assistant", "output": [REASONING, local]}))
    (call,) = openai_responses.render(message)
    assert (call["type"], call["name"], call["call_id"]) == ("function_call", "local_shell", "c9")


@pytest.mark.parametrize("keep_reasoning", [False, True])
def test_reasoning_without_its_product_is_left_out(keep_reasoning: bool) -> None:
    """A reasoning item is followed by what it produced, or it does not go."""
    message = clean(parse_one({"role": "assistant", "output": [SAID, REASONING]}))
    assert openai_responses.render(message, keep_reasoning=keep_reasoning) == [SAID]
    alone = openai_responses.render(clean(parse_one(REASONING)), keep_reasoning=keep_reasoning)
    assert alone == []


def test_ids_that_the_provider_did_not_make_are_not_sent() -> None:
    """The provider takes ids of its own making alone, where they are optional."""
    made = {"role": "assistant", "output": [{**SAID, "id": "m1"}, {**CALL, "id": "call-7"}]}
    items = openai_responses.render(clean(parse_one(made)), keep_reasoning=True)
    assert ["id" in item for item in items] == [False, False]
    (output,) = openai_responses.render(clean(parse_one({**OUTPUT, "id": "m-7"})))
    assert output == OUTPUT


SCREENSHOT = {"type": "computer_screenshot"}
PARTS_OUTPUT = [
    {"type": "input_text", "text": "a"},
    {"type": "input_image", "image_url": "https://x.test/a", "detail": "auto"},
]
SHELL_OUTPUT = {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 1}}
OUTPUTS: list[tuple[str, Any]] = [
    ("custom_tool_call_output", PARTS_OUTPUT),
    ("computer_call_output", {**SCREENSHOT, "image_url": "https://x.test/a"}),
    ("computer_call_output", {**SCREENSHOT, "file_id": "file-1"}),
    ("shell_call_output", [SHELL_OUTPUT]),
]
NATIVE: list[dict[str, Any]] = [
    FOUND_HERE,
    *({"type": kind, "call_id": "c3", "output": output} for kind, output in OUTPUTS),
    {"type": "local_shell_call_output", "id": "c3", "output": "{}"},
    {"type": "apply_patch_call_output", "call_id": "c3", "status": "failed", "output": "no"},
]
NATIVE_CALLS = {output: call for call, output in OUTPUT_TYPES.items()}


@pytest.mark.parametrize("output", NATIVE)
def test_outputs_have_the_type_of_their_call(output: dict[str, Any]) -> None:
    """Native outputs go back as they came; others are put into the type that is asked."""
    message = clean(parse_one(output))
    answers = NATIVE_CALLS[output["type"]]
    if output["type"] != "computer_call_output":
        assert openai_responses.render(message) == [output]
    assert openai_responses.render(message, call_type=answers) == [output]
    (plain,) = openai_responses.render(message, call_type="function_call")
    assert plain["type"] == "function_call_output" and plain["output"]
    synthetic = Message(Role.TOOL, (Text(NO_RESULT),), "c3")
    for made in openai_responses.render(synthetic, call_type=answers), [plain]:
        found = check_type(made[0], ResponseInputItemParam)
        assert found == []
        assert (made[0].get("call_id") or made[0]["id"]) == "c3"
    assert message.tool_call_id == "c3"


def test_other_formats_see_the_meaning() -> None:
    """What other providers made becomes items of ours, with media where they can stand."""
    image = Image("image/png", "AA")
    said = Message(Role.USER, (Text("a"), image, File("application/pdf", "JV"), File(text="t")))
    (item,) = openai_responses.render(said)
    assert item["role"] == "user" and [part["type"] for part in item["content"]] == [
        "input_text",
        "input_image",
        "input_file",
        "input_text",
    ]
    assert item["content"][1]["image_url"] == "data:image/png;base64,AA"
    result = Message(Role.TOOL, (Text("a"), image), "c1")
    (item,) = openai_responses.render(result, {"c1": "c1_2"})
    assert item["call_id"] == "c1_2"
    assert [part["type"] for part in item["output"]] == ["input_text", "input_image"]
    foreign = Reasoning("hm", {"type": "thinking"}, FormatName.ANTHROPIC)
    calls = assistant(foreign, Text("x"), ToolCall("c1", "a b", "oops"))
    assert openai_responses.render(calls, keep_reasoning=True) == [
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "x", "annotations": []}],
        },
        {
            "type": "function_call",
            "call_id": "c1",
            "name": "a_b",
            "arguments": '{"arguments":"oops"}',
        },
    ]
    assert openai_responses.render(clean(Message(Role.TOOL, (), "c1")))[0]["output"] == EMPTY_RESULT
    assert openai_responses.render(clean(assistant(foreign))) == []


def sayings(message: Message) -> list[Any]:
    """Return what the parts of a message say, apart from what the wire has no place for."""
    found: list[Any] = []
    for part in message.parts:
        match part:
            case Text():
                found.append(part.text)
            case Image():
                found.append((part.data, part.data is not None and part.media_type, part.detail))
            case File():
                data = (part.data, part.data is not None and (part.media_type, part.name))
                # An id that nobody knows whose it is stands back behind a URL.
                by_id = part.file_id and (part.format in OPENAI_FORMATS or not part.url)
                found.append((*data, part.data is None and ((by_id and part.file_id) or part.url)))
            case ToolCall():
                found.append((part.id, part.name, part.arguments, part.custom))
            case Reasoning() | Opaque():
                found.append(part.block)
    return found


@given(message=generated.messages(), keep_reasoning=st.booleans())
def test_round_trip(message: Message, keep_reasoning: bool) -> None:
    """What is rendered is of the SDK's types, and read again it is what is shown of a message.

    [payload.sdk-call]
    """
    said = openai_responses.for_payload(clean(message), keep_reasoning=keep_reasoning)
    items = openai_responses.render(said, keep_reasoning=keep_reasoning)
    assert items == openai_responses.render(clean(message), keep_reasoning=keep_reasoning)
    assert items and sendable_json(items) is items
    missing = {"call-unanswered", "search-unanswered", "orphan-result", "item-id-reused"}
    found = errors(judge("openai_responses", {"input": items}))
    assert [error for error in found if error.rule not in missing] == []
    ((_, raw),) = openai_responses.group_items(items)
    back = parse_one(raw)
    assert (back.role, back.tool_call_id) == (said.role, said.tool_call_id)
    assert sayings(back) == sayings(said)
    assert openai_responses.for_payload(said, keep_reasoning=True) == said


def test_arguments_sent_as_an_object_read_so() -> None:
    """What escapes hide in them is counted as it is sent, and kept as it was."""
    item = {
        "type": "tool_search_call",
        "call_id": "c1",
        "execution": "client",
        "arguments": {"query": "\x00"},
    }
    (message,) = openai_responses.parse({"role": "assistant", "output": [item]}, "")
    (call,) = message.calls
    assert call.arguments == '{"query":"\\u0000"}'
    (shown,) = openai_responses.for_payload(clean(message)).calls
    assert shown.arguments == '{"query":"\ufffd"}'
