"""Tombstones: what stands in the log in place of a redacted message.

1. A tombstone has the role, format and tool calls of its message, so that pairs and payloads stay
   valid: the ids and names of calls stay, their arguments and all other content are gone.
2. It keeps the stored token count, which running totals of later rows contain; so it counts at
   least as much as it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.blobs.stored_output import inline_output
from app.common import json_text
from app.conversations.messages.row import LogRow
from app.conversations.turns import MAX_PLACEHOLDER_TOKENS
from app.formats import FORMATS, openai_chat
from app.formats.gemini.fields import field_in
from app.formats.message import FormatName, Message, Role, Text, ToolCall, clean

REDACTED = "[redacted]"
"""The text of a tombstone."""
REDACTED_SUMMARY = "(the summary told of a message that was redacted)"
"""The summary of a receipt or a snapshot that used a redacted message."""


_PAIRING = ("caller", "toolset_name")
"""Fields of Anthropic's calls that belong to the pair of call and result."""


@dataclass(frozen=True, slots=True)
class Tombstone:
    """The columns of the log that replace a message; `output` is that of a large tool result."""

    body: str
    fragment: str | None
    output: str | None


def tombstone_of(row: LogRow) -> Tombstone:
    """Return the tombstone of a stored message."""
    raw = _content_of(row.message(), row.format)
    (message,) = FORMATS[row.format].parse(raw, "")
    if row.role is Role.TOOL:
        message = replace(message, tool_call_id=row.call_ids[0])
    fragment = None
    if row.format is not FormatName.OPENAI_CHAT or not openai_chat.is_faithful(raw, message):
        fragment = json_text.dump_payload(openai_chat.render(clean(message))).decode()
    # Clearing relies on the output of results that are larger than a placeholder.
    is_clearable = row.role is Role.TOOL and row.tokens > MAX_PLACEHOLDER_TOKENS
    output = inline_output(message).as_json() if is_clearable else None
    return Tombstone(json_text.dumps(raw), fragment, output)


def _content_of(message: Message, format: FormatName) -> dict[str, Any]:
    """Return a message of the format with the role and the calls of this one, and no content."""
    match format:
        case FormatName.OPENAI_CHAT:
            return _openai_chat(message)
        case FormatName.OPENAI_RESPONSES:
            return _openai_responses(message)
        case FormatName.ANTHROPIC:
            return _anthropic(message)
        case FormatName.GEMINI:
            return _gemini(message)


def _openai_chat(message: Message) -> dict[str, Any]:
    raw: dict[str, Any] = {"role": message.role, "content": REDACTED}
    if message.role is Role.TOOL:
        raw["tool_call_id"] = message.tool_call_id
    if message.calls:
        raw["tool_calls"] = [_chat_call(call) for call in message.calls]
    return raw


def _chat_call(call: ToolCall) -> dict[str, Any]:
    if call.custom:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": ""}}
    function = {"name": call.name, "arguments": "{}"}
    return {"id": call.id, "type": "function", "function": function}


def _openai_responses(message: Message) -> dict[str, Any]:
    if message.role in (Role.USER, Role.SYSTEM):
        return {"role": message.role, "content": REDACTED}
    if message.role is Role.TOOL:
        call_id = message.tool_call_id
        return {"type": "function_call_output", "call_id": call_id, "output": REDACTED}
    items: list[dict[str, Any]] = [{"type": "message", "role": "assistant", "content": REDACTED}]
    for call in message.calls:
        named = {"call_id": call.id, "name": call.name}
        if call.custom:
            items.append({"type": "custom_tool_call", **named, "input": ""})
        else:
            items.append({"type": "function_call", **named, "arguments": "{}"})
    return {"role": "assistant", "output": items}


def _anthropic(message: Message) -> dict[str, Any]:
    if message.role is Role.TOOL:
        result = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": REDACTED}
        return {"role": "user", "content": [result]}
    if not message.calls:
        return {"role": message.role, "content": REDACTED}
    calls = (
        {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        | {key: call.block[key] for key in _PAIRING if call.block and key in call.block}
        for call in message.calls
    )
    return {"role": "assistant", "content": [{"type": "text", "text": REDACTED}, *calls]}


def _gemini(message: Message) -> dict[str, Any]:
    """Return a content; ids that are made from names are left out, so that they stay the same."""
    if message.role is Role.TOOL:
        named = {"name": message.name, "response": {"output": REDACTED}}
        first = message.parts[0] if message.parts else None
        own_id = _own_id(first.block if isinstance(first, Text) else None, "functionResponse")
        return {"role": "user", "parts": [{"functionResponse": {**own_id, **named}}]}
    parts: list[dict[str, Any]] = [{"text": REDACTED}]
    for call in message.calls:
        own_id = _own_id(call.block, "functionCall")
        parts.append({"functionCall": {**own_id, "name": call.name, "args": {}}})
    return {"role": "user" if message.role is Role.USER else "model", "parts": parts}


def _own_id(block: Mapping[str, Any] | None, name: str) -> dict[str, str]:
    fields = field_in(block, name) if block is not None else None
    own_id = fields.get("id") if isinstance(fields, Mapping) else None
    return {"id": own_id} if isinstance(own_id, str) and own_id else {}
