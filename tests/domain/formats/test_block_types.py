"""Parts of another format are told from unknown ones. [log.any-format, neutral.opaque-family]"""

from __future__ import annotations

from typing import Any

import pytest

from app.common.errors import ValidationError
from app.conversations.messages.draft import make_drafts
from app.formats.message import FormatName

CHAT, RESPONSES = FormatName.OPENAI_CHAT, FormatName.OPENAI_RESPONSES
ANTHROPIC, GEMINI = FormatName.ANTHROPIC, FormatName.GEMINI

CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}
INPUT_TEXT = {"type": "input_text", "text": "hi"}
TEXT = {"type": "text", "text": "hi"}
WEB_IMAGE = {"type": "image_url", "image_url": {"url": "https://a"}}
FOREIGN: list[tuple[FormatName, dict[str, Any], str]] = [
    (CHAT, {"role": "user", "content": [INPUT_TEXT]}, "/content/0/type"),
    (CHAT, {"role": "user", "content": [TEXT, RESULT]}, "/content/1/type"),
    (CHAT, {"role": "assistant", "content": [CALL]}, "/content/0/type"),
    (ANTHROPIC, {"role": "user", "content": [WEB_IMAGE]}, "/content/0/type"),
    (
        ANTHROPIC,
        {"role": "user", "content": [{**RESULT, "content": [INPUT_TEXT]}]},
        "/content/0/content/0/type",
    ),
    (RESPONSES, {"role": "user", "content": [TEXT]}, "/content/0/type"),
    (RESPONSES, RESULT, "/type"),
    (GEMINI, {"role": "user", "parts": [WEB_IMAGE]}, "/parts/0/type"),
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


@pytest.mark.parametrize(
    ("format", "raw"),
    [
        (CHAT, {"role": "user", "content": [{"type": "vid", "x": 1}]}),
        (CHAT, {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}),
        (ANTHROPIC, {"role": "user", "content": [{"type": "vid", "x": 1}]}),
        (RESPONSES, {"role": "user", "content": [{"type": "vid", "x": 1}]}),
        (RESPONSES, {"type": "some_new_item", "x": 1}),
        (GEMINI, {"role": "user", "parts": [{"vid": {"x": 1}}]}),
    ],
)
def test_parts_of_unknown_types_are_accepted(format: FormatName, raw: dict[str, Any]) -> None:
    """A part type that this service does not list is replayed to its provider unchanged."""
    (made,) = make_drafts(raw, format, len, "/messages/0")
    assert made.body
