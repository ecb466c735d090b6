"""Tombstones keep what pairs calls and results, and nothing that was said. [log.redaction]"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.conversations.messages.draft import make_drafts
from app.conversations.messages.row import LogRow
from app.conversations.messages.tombstones import REDACTED, tombstone_of
from app.formats import PROVIDERS
from app.formats.message import FormatName, Role

SECRET = "zyxsecret"
IDS = st.lists(st.text("abcdef0123456789", min_size=1, max_size=8), unique=True, max_size=3)


def calling(format: FormatName, ids: list[str]) -> dict[str, Any]:
    """Return an assistant message of a format with these calls."""
    match format:
        case FormatName.OPENAI_CHAT:
            arguments = json.dumps({"a": SECRET})
            function = {"name": "f", "arguments": arguments}
            calls = [{"id": each, "type": "function", "function": function} for each in ids]
            return {"role": "assistant", "content": SECRET, "tool_calls": calls}
        case FormatName.OPENAI_RESPONSES:
            called = {"type": "custom_tool_call", "name": "f", "input": SECRET}
            items = [{**called, "call_id": each} for each in ids]
            content = [{"type": "output_text", "text": SECRET, "annotations": []}]
            said = {"type": "message", "role": "assistant", "content": content}
            return {"role": "assistant", "output": [said, *items]}
        case FormatName.ANTHROPIC:
            uses = [
                {"type": "tool_use", "id": each, "name": "f", "input": {"a": SECRET}}
                for each in ids
            ]
            return {"role": "assistant", "content": [{"type": "text", "text": SECRET}, *uses]}
        case FormatName.GEMINI:
            parts = [{"functionCall": {"id": each, "name": "f", "args": {}}} for each in ids]
            unnamed = {"functionCall": {"name": "g", "args": {"a": SECRET}}}
            return {"role": "model", "parts": [{"text": SECRET}, *parts, unnamed, unnamed]}


RESULTS: dict[FormatName, dict[str, Any]] = {
    FormatName.OPENAI_CHAT: {"role": "tool", "tool_call_id": "c", "content": SECRET},
    FormatName.OPENAI_RESPONSES: {
        "type": "custom_tool_call_output",
        "call_id": "c",
        "output": [{"type": "input_text", "text": SECRET}],
    },
    FormatName.ANTHROPIC: {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "c", "content": SECRET, "is_error": True}
        ],
    },
    FormatName.GEMINI: {
        "role": "user",
        "parts": [{"functionResponse": {"id": "c", "name": "f", "response": {"it": SECRET}}}],
    },
}


def row_of(raw: dict[str, Any], format: FormatName) -> LogRow:
    """Return the row in which a message is stored."""
    (draft,) = make_drafts(raw, format, len, "")
    return LogRow(
        id="m",
        seq=1,
        role=draft.role,
        tokens=draft.tokens * 100,
        reasoning_tokens=draft.reasoning_tokens,
        call_ids=draft.call_ids,
        has_media=draft.has_media,
        format=format,
        text=draft.body,
    )


def check(raw: dict[str, Any], format: FormatName) -> None:
    """Check that a tombstone parses to the same role and ids, twice, without the secret."""
    row = row_of(raw, format)
    before = row.message()
    tombstone = tombstone_of(row)
    assert SECRET not in f"{tombstone.body}{tombstone.fragment}{tombstone.output}"
    (after,) = PROVIDERS[format].parse(json.loads(tombstone.body), "")
    assert (after.role, after.tool_call_id, after.text) == (
        before.role,
        before.tool_call_id,
        REDACTED,
    )
    assert [(call.id, call.name) for call in after.calls] == [
        (call.id, call.name) for call in before.calls
    ]
    assert (tombstone.output is not None) == (before.role is Role.TOOL)
    row.text = tombstone.body.encode()
    assert tombstone_of(row) == tombstone


@given(st.sampled_from(FormatName), IDS)
def test_calls_keep_their_ids_and_names(format: FormatName, ids: list[str]) -> None:
    """The calls of a tombstone are those of its message, in order."""
    check(calling(format, ids), format)


@pytest.mark.parametrize("format", FormatName)
def test_results_keep_their_call(format: FormatName) -> None:
    """The tombstone of a result answers the same call."""
    check(RESULTS[format], format)
