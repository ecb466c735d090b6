"""Parts of another format are told from unknown ones. [log.any-format, neutral.opaque-family]"""

from __future__ import annotations

from typing import Any

import pytest

from app.common.errors import ValidationError
from app.conversations.messages.draft import make_drafts
from app.formats.block_types import owners_of
from app.formats.message import FormatName

CHAT, RESPONSES = FormatName.OPENAI_CHAT, FormatName.OPENAI_RESPONSES
ANTHROPIC, GEMINI = FormatName.ANTHROPIC, FormatName.GEMINI

CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}
FOREIGN: list[tuple[FormatName, dict[str, Any], str]] = [
    (
        CHAT,
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        "/messages/0/content/0/type",
    ),
    (
        CHAT,
        {"role": "user", "content": [{"type": "text", "text": "a"}, RESULT]},
        "/messages/0/content/1/type",
    ),
    (CHAT, {"role": "assistant", "content": [CALL]}, "/messages/0/content/0/type"),
    (
        ANTHROPIC,
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a"}}]},
        "/messages/0/content/0/type",
    ),
    (
        ANTHROPIC,
        {"role": "user", "content": [{**RESULT, "content": [{"type": "input_text", "text": "x"}]}]},
        "/messages/0/content/0/content/0/type",
    ),
    (
        RESPONSES,
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        "/messages/0/content/0/type",
    ),
    (RESPONSES, RESULT, "/messages/0/type"),
    (
        GEMINI,
        {"role": "user", "parts": [{"type": "image_url", "image_url": {}}]},
        "/messages/0/parts/0/type",
    ),
]


@pytest.mark.parametrize(("format", "raw", "pointer"), FOREIGN)
def test_parts_of_another_format_are_refused(
    format: FormatName, raw: dict[str, Any], pointer: str
) -> None:
    """No payload could ever show them, so what they say would be lost in silence."""
    with pytest.raises(ValidationError) as refused:
        make_drafts(raw, format, len, "/messages/0")
    (problem,) = refused.value.problems
    assert problem.pointer == pointer
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


@pytest.mark.parametrize("format", FormatName)
def test_a_part_type_belongs_to_its_formats(format: FormatName) -> None:
    """What a format has is not another's, and what nobody has is nobody's."""
    own = {CHAT: "image_url", RESPONSES: "input_image", ANTHROPIC: "tool_use"}
    for owner, kind in own.items():
        assert owners_of(kind, format) == (() if owner is format else (owner,))
    assert owners_of("vid", format) == owners_of(None, format) == owners_of({}, format) == ()


@pytest.mark.parametrize(
    ("format", "raw", "shape"),
    [
        (CHAT, {"role": "user", "parts": [{"text": "hi"}]}, GEMINI),
        (ANTHROPIC, {"role": "user", "parts": [{"text": "hi"}]}, GEMINI),
        (CHAT, {"type": "function_call", "call_id": "c", "name": "f"}, RESPONSES),
        (ANTHROPIC, {"type": "message", "role": "developer", "content": "hi"}, RESPONSES),
        (GEMINI, {"type": "reasoning", "summary": []}, RESPONSES),
    ],
)
def test_the_error_of_a_message_of_another_format_has_a_hint(
    format: FormatName, raw: dict[str, Any], shape: FormatName
) -> None:
    """Who forgot `format` is told that, beside what is wrong with the message as it is."""
    with pytest.raises(ValidationError) as refused:
        make_drafts(raw, format, len, "/messages/0")
    (problem,) = refused.value.problems
    assert problem.detail.endswith(
        f"; this has the shape of {shape}, not of {format}: is `format` right?"
    )
