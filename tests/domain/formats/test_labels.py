"""Labels: what a format cannot carry is told, in every pair of formats. [formats.labels]"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings

from app.conversations.view import View
from app.formats import PROVIDERS
from app.formats.media import clean
from app.formats.message import EMPTY_MESSAGE, GOOGLE_FORMATS, FormatName, Message, Reasoning, Text
from app.payload.format_assemblers import assembler_of
from tests.domain.compaction import strategies_messages as generated
from tests.domain.histories import RawLog, rows_of, third

CHAT, RESPONSES = FormatName.OPENAI_CHAT, FormatName.OPENAI_RESPONSES
ANTHROPIC, GEMINI = FormatName.ANTHROPIC, FormatName.GEMINI
INTERACTIONS = FormatName.INTERACTIONS
DATA = "aGVsbG8="


def message(format: FormatName, role: str, *parts: Any, **fields: Any) -> dict[str, Any]:
    """Return a message with parts."""
    fields |= {"type": "message"} if format is RESPONSES else {}
    return {"role": role, "parts" if format is GEMINI else "content": list(parts) or None, **fields}


SOURCE = {"type": "web_search_result", "title": "Fjords", "url": "https://x.test", "page_age": None}
SEARCH = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "fjords"}}
GUIDE = {"type": "search_result", "title": "Guide", "source": "x"}
GUIDE_TEXT = {"content": [{"type": "text", "text": "Go north."}]}
PNG = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}}
VIDEO = {"inlineData": {"mimeType": "video/mp4", "data": DATA}}
HOLOGRAM = {"type": "hologram", "beam": 3}
USER_PARTS: list[tuple[FormatName, dict[str, Any], str]] = [
    (
        CHAT,
        {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}},
        "[input_audio: wav]",
    ),
    (
        CHAT,
        {"type": "video_url", "video_url": {"url": "https://x.test/v"}},
        "[video_url: https://x.test/v]",
    ),
    (CHAT, HOLOGRAM, "[hologram]"),
    (ANTHROPIC, {**GUIDE, **GUIDE_TEXT}, "[search_result: Guide; Go north.]"),
    (ANTHROPIC, {"type": "container_upload", "file_id": "file_9"}, "[container_upload: file_9]"),
    (ANTHROPIC, {"type": "image", "source": {"type": "file", "file_id": "f"}}, "[image: f]"),
    (RESPONSES, {"type": "input_image", "file_id": "file-3"}, "[input_image: file-3]"),
]
MODEL_PARTS: list[tuple[FormatName, dict[str, Any], str]] = [
    (CHAT, {"type": "refusal", "refusal": "Not that."}, "[refusal: Not that.]"),
    (ANTHROPIC, SEARCH, "[server_tool_use: web_search; fjords]"),
    (
        ANTHROPIC,
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": [SOURCE]},
        "[web_search_tool_result: Fjords; https://x.test]",
    ),
    (
        ANTHROPIC,
        {"type": "mcp_tool_use", "id": "m", "name": "find", "input": {"a": 1}},
        "[mcp_tool_use: find]",
    ),
    (ANTHROPIC, HOLOGRAM, "[hologram]"),
    (RESPONSES, {"type": "refusal", "refusal": "No."}, "[refusal: No.]"),
    (RESPONSES, {"type": "output_audio", "data": DATA, "transcript": "Hi"}, "[message: Hi]"),
    (GEMINI, {"executableCode": {"code": "print(1)"}}, "[executable_code: print(1)]"),
    (GEMINI, {"codeExecutionResult": {"output": "1"}}, "[code_execution_result: 1]"),
    (GEMINI, {"hologram": {"beam": 3}}, "[part]"),
]
ITEMS: list[tuple[dict[str, Any], str]] = [
    ({"type": "web_search_call", "action": {"query": "fjords"}}, "[web_search_call: fjords]"),
    ({"type": "file_search_call", "queries": ["a", "b"]}, "[file_search_call: a; b]"),
    ({"type": "code_interpreter_call", "code": "print(1)"}, "[code_interpreter_call: print(1)]"),
    ({"type": "image_generation_call", "result": DATA}, "[image_generation_call]"),
    ({"type": "hologram"}, "[hologram]"),
]
STEPS: list[tuple[dict[str, Any], str]] = [
    (
        {"type": "retrieval_call", "id": "r", "arguments": {"queries": ["fjords"]}},
        "[retrieval_call: fjords]",
    ),
    (
        {"type": "model_output", "content": [{"type": "image", "uri": "https://x.test/a"}]},
        "[model_output]",
    ),
    ({"type": "hologram"}, "[hologram]"),
]
CASES: list[tuple[FormatName, dict[str, Any], str, tuple[FormatName, ...]]] = [
    *((f, message(f, "user", part), said, (f,)) for f, part, said in USER_PARTS),
    *(
        (f, message(f, "model" if f is GEMINI else "assistant", part), said, (f,))
        for f, part, said in MODEL_PARTS
    ),
    *((RESPONSES, {"id": "i_1", **item}, said, (RESPONSES,)) for item, said in ITEMS),
    (
        GEMINI,
        message(GEMINI, "user", {**VIDEO, "videoMetadata": {"startOffset": "1s"}}),
        "[file: video/mp4]",
        GOOGLE_FORMATS,
    ),
    *((INTERACTIONS, step, said, (INTERACTIONS,)) for step, said in STEPS),
    (CHAT, message(CHAT, "assistant", refusal="No."), "[refusal: No.]", (CHAT,)),
    (
        CHAT,
        message(CHAT, "assistant", audio={"id": "audio_1", "transcript": "Hello there"}),
        "[audio: Hello there]",
        (CHAT,),
    ),
    (CHAT, message(CHAT, "assistant", images=[PNG]), "[image: image/png]", (GEMINI,)),
    (
        CHAT,
        message(CHAT, "user", {"type": "file", "file": {"file_id": "file-1"}}),
        "[file: file-1]",
        (CHAT, RESPONSES),
    ),
]


@pytest.mark.parametrize("target", FormatName)
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize(
    ("format", "raw", "label", "carried"), CASES, ids=[case[2] for case in CASES]
)
def test_every_part_is_sent_or_has_a_label(
    target: FormatName,
    beside: bool,
    format: FormatName,
    raw: dict[str, Any],
    label: str,
    carried: tuple[FormatName, ...],
) -> None:
    """What stood there is said, alone or next to text."""
    if beside and format not in (RESPONSES, INTERACTIONS):
        text = {"text": "Beside."} if format is GEMINI else {"type": "text", "text": "Beside."}
        key = "parts" if format is GEMINI else "content"
        raw = {**raw, key: [text, *(raw[key] or [])]}
    (row,) = rows_of(RawLog([(format, raw)]), target)
    assembler = assembler_of(target)(View(), third)
    assembler.add(row)
    items = assembler.items()
    wire = b"".join(items.wire_items).decode()
    assert EMPTY_MESSAGE not in wire
    escaped = json.dumps(label, ensure_ascii=False)[1:-1]
    assert (escaped in wire) == (target not in carried)
    again = assembler_of(target)(View(), third)
    again.add(row)
    assert again.items() == items


@given(given_message=generated.messages())
@settings(max_examples=50, deadline=None)
def test_no_content_reads_as_empty(given_message: Message) -> None:
    """A message that held anything but blank text and reasoning is never called empty."""
    holds = [
        part
        for part in given_message.parts
        if not isinstance(part, Reasoning)
        and not (isinstance(part, Text) and not part.text.strip())
    ]
    for target in FormatName:
        shown = PROVIDERS[target].adapt(clean(given_message))
        said = [part.text for part in shown.parts if isinstance(part, Text)]
        if holds:
            assert EMPTY_MESSAGE not in said or EMPTY_MESSAGE in given_message.text
        assert shown.parts
