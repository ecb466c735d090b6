"""Labels: what a format cannot carry is told, in every pair of formats. [formats.labels]"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings

from app.common import json_text
from app.conversations.messages.draft import make_drafts
from app.conversations.messages.row import LogRow
from app.conversations.view import View
from app.formats import PROVIDERS
from app.formats.labels import MAX_DETAIL, block_label
from app.formats.message import EMPTY_MESSAGE, FormatName, Message, Reasoning, Role, Text, clean
from app.formats.registry import openai_chat
from app.payload.assemblers import assembler_of
from tests.domain.compaction import strategies_messages as generated
from tests.domain.histories import third

CHAT, RESPONSES = FormatName.OPENAI_CHAT, FormatName.OPENAI_RESPONSES
ANTHROPIC, GEMINI = FormatName.ANTHROPIC, FormatName.GEMINI
DATA = "aGVsbG8="


def chat(*parts: dict[str, Any], role: str = "user", **fields: Any) -> dict[str, Any]:
    """Return a Chat message."""
    return {"role": role, "content": list(parts) or None, **fields}


def claude(*blocks: dict[str, Any], role: str = "assistant") -> dict[str, Any]:
    """Return an Anthropic message."""
    return {"role": role, "content": list(blocks)}


def google(*parts: dict[str, Any], role: str = "model") -> dict[str, Any]:
    """Return a Gemini content."""
    return {"role": role, "parts": list(parts)}


def said(*content: dict[str, Any]) -> dict[str, Any]:
    """Return a Responses message of the assistant."""
    return {"type": "message", "role": "assistant", "id": "msg_1", "content": list(content)}


SOURCE = {"type": "web_search_result", "title": "Fjords", "url": "https://x.test", "page_age": None}
PARTS: list[tuple[FormatName, dict[str, Any], str, str, tuple[FormatName, ...]]] = [
    (
        CHAT,
        chat({"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}}),
        "[audio: wav]",
        "input_audio",
        (CHAT,),
    ),
    (
        CHAT,
        chat({"type": "video_url", "video_url": {"url": "https://x.test/v.mp4"}}),
        "[video: https://x.test/v.mp4]",
        "video_url",
        (CHAT,),
    ),
    (CHAT, chat(role="assistant", refusal="I can't."), "[refusal: I can't.]", "refusal", (CHAT,)),
    (
        CHAT,
        chat({"type": "refusal", "refusal": "Not that."}, role="assistant"),
        "[refusal: Not that.]",
        "refusal",
        (CHAT,),
    ),
    (
        CHAT,
        chat(role="assistant", audio={"id": "audio_1", "transcript": "Hello there"}),
        "[audio: Hello there]",
        "audio",
        (CHAT,),
    ),
    (
        CHAT,
        chat(
            role="assistant",
            images=[{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}}],
        ),
        "[image: image/png]",
        "image",
        (GEMINI,),
    ),
    (
        CHAT,
        chat({"type": "file", "file": {"file_id": "file-1"}}),
        "[file: file-1]",
        "file",
        (CHAT, RESPONSES),
    ),
    (
        ANTHROPIC,
        claude(
            {
                "type": "server_tool_use",
                "id": "s",
                "name": "web_search",
                "input": {"query": "fjords"},
            }
        ),
        '[web_search call: "fjords"]',
        "server_tool_use",
        (ANTHROPIC,),
    ),
    (
        ANTHROPIC,
        claude({"type": "web_search_tool_result", "tool_use_id": "s", "content": [SOURCE]}),
        "[web_search result: Fjords https://x.test]",
        "web_search_tool_result",
        (ANTHROPIC,),
    ),
    (
        ANTHROPIC,
        claude({"type": "mcp_tool_use", "id": "m", "name": "find", "input": {"a": 1}}),
        '[find call: "{"a": 1}"]',
        "mcp_tool_use",
        (ANTHROPIC,),
    ),
    (
        ANTHROPIC,
        claude(
            {
                "type": "search_result",
                "title": "Guide",
                "source": "x",
                "content": [{"type": "text", "text": "Go north."}],
            },
            role="user",
        ),
        "[search_result: Guide]\nGo north.",
        "search_result",
        (ANTHROPIC,),
    ),
    (
        ANTHROPIC,
        claude({"type": "container_upload", "file_id": "file_9"}, role="user"),
        "[container_upload: file_9]",
        "container_upload",
        (ANTHROPIC,),
    ),
    (
        ANTHROPIC,
        claude({"type": "image", "source": {"type": "file", "file_id": "file_7"}}, role="user"),
        "[image: file_7]",
        "image",
        (ANTHROPIC,),
    ),
    (
        RESPONSES,
        {
            "type": "web_search_call",
            "id": "ws_1",
            "status": "completed",
            "action": {"type": "search", "query": "fjords"},
        },
        '[web_search call: "fjords"]',
        "web_search_call",
        (RESPONSES,),
    ),
    (
        RESPONSES,
        {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["a", "b"]},
        '[file_search call: "a, b"]',
        "file_search_call",
        (RESPONSES,),
    ),
    (
        RESPONSES,
        {"type": "code_interpreter_call", "id": "ci_1", "code": "print(1)", "container_id": "c"},
        '[code_interpreter call: "print(1)"]',
        "code_interpreter_call",
        (RESPONSES,),
    ),
    (
        RESPONSES,
        {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": DATA},
        "[image_generation call]",
        "image_generation_call",
        (RESPONSES,),
    ),
    (
        RESPONSES,
        said({"type": "refusal", "refusal": "No."}),
        "[refusal: No.]",
        "refusal",
        (RESPONSES,),
    ),
    (
        RESPONSES,
        said({"type": "output_audio", "data": DATA, "transcript": "Hi"}),
        "[audio: Hi]",
        "output_audio",
        (RESPONSES,),
    ),
    (
        RESPONSES,
        {"role": "user", "content": [{"type": "input_image", "file_id": "file-3"}]},
        "[image: file-3]",
        "input_image",
        (RESPONSES,),
    ),
    (
        GEMINI,
        google({"executableCode": {"language": "PYTHON", "code": "print(1)"}}),
        '[executable_code call: "print(1)"]',
        "executable_code",
        (GEMINI,),
    ),
    (
        GEMINI,
        google({"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}}),
        "[code_execution result: 1]",
        "code_execution_result",
        (GEMINI,),
    ),
    (
        GEMINI,
        google(
            {
                "inlineData": {"mimeType": "video/mp4", "data": DATA},
                "videoMetadata": {"startOffset": "1s"},
            },
            role="user",
        ),
        "[file: video/mp4]",
        "file",
        (GEMINI,),
    ),
    (CHAT, chat({"type": "hologram", "beam": 3}), "[hologram]", "hologram", (CHAT,)),
    (ANTHROPIC, claude({"type": "hologram", "beam": 3}), "[hologram]", "hologram", (ANTHROPIC,)),
    (RESPONSES, {"type": "hologram", "id": "h"}, "[hologram]", "hologram", (RESPONSES,)),
    (GEMINI, google({"hologram": {"beam": 3}}), "[part]", "part", (GEMINI,)),
]


def row_of(raw: dict[str, Any], format: FormatName, seq: int = 1) -> LogRow:
    """Return a message as a build of any format may read it: Chat has an item of its own."""
    (made,) = make_drafts(raw, format, third, "")
    return LogRow(
        id=f"m{seq}",
        seq=seq,
        role=made.role,
        tokens=made.tokens,
        reasoning_tokens=made.reasoning_tokens,
        call_ids=made.call_ids,
        has_media=made.has_media,
        format=format,
        text=made.body,
    )


@pytest.mark.parametrize("target", FormatName)
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize(
    ("format", "raw", "label", "kind", "carried"), PARTS, ids=[case[2] for case in PARTS]
)
def test_every_part_is_sent_or_has_a_label(
    target: FormatName,
    beside: bool,
    format: FormatName,
    raw: dict[str, Any],
    label: str,
    kind: str,
    carried: tuple[FormatName, ...],
) -> None:
    """What stood there is said, alone or next to text, and the payload names its type."""
    if beside and format is not RESPONSES:
        text = {"text": "Beside."} if format is GEMINI else {"type": "text", "text": "Beside."}
        key = "parts" if format is GEMINI else "content"
        raw = {**raw, key: [text, *(raw[key] or [])]}
    row = row_of(raw, format)
    assembler = assembler_of(target)(View(), third)
    assembler.add(row)
    items = assembler.items()
    wire = b"".join(items.wire_items).decode()
    assert EMPTY_MESSAGE not in wire
    escaped = json.dumps(label, ensure_ascii=False)[1:-1]
    assert (escaped in wire) == (target not in carried)
    assert items.not_carried == (() if target in carried else (kind,))
    if target not in carried:
        assert row.has_media or target is not CHAT
    again = assembler_of(target)(View(), third)
    again.add(row)
    assert again.items() == items


@given(message=generated.messages())
@settings(max_examples=50, deadline=None)
def test_no_content_reads_as_empty(message: Message) -> None:
    """A message that held anything but blank text and reasoning is never called empty."""
    holds = [
        part
        for part in message.parts
        if not isinstance(part, Reasoning)
        and not (isinstance(part, Text) and not part.text.strip())
    ]
    for target in FormatName:
        shown = PROVIDERS[target].adapt(clean(message))
        said = [part.text for part in shown.parts if isinstance(part, Text)]
        if holds:
            assert EMPTY_MESSAGE not in said or EMPTY_MESSAGE in message.text
        assert shown.parts


def test_a_chat_build_reads_the_stored_message_where_it_has_labels() -> None:
    """The stored Chat item has the same text, but only the body names the content of the label."""
    raw = claude({"type": "server_tool_use", "id": "s", "name": "web_fetch", "input": {"url": "u"}})
    (made,) = make_drafts(raw, ANTHROPIC, third, "")
    assert made.has_media
    assert json_text.loads(made.fragment or b"")["content"] == '[web_fetch call: "u"]'
    assert openai_chat.render(Message(Role.ASSISTANT, (Text("x"),)))["content"] == "x"


def test_labels_are_short() -> None:
    """A long argument is cut, in one line, always in the same way."""
    block = {"type": "server_tool_use", "name": "x" * 500, "input": {"code": "a\n" * 5000}}
    label = block_label(block)
    assert len(label) < 2 * MAX_DETAIL
    assert "\n" not in label
    assert label == block_label(block)
