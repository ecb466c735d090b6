"""Converts reasoning that came in the Chat format for Anthropic and Gemini, as they made it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from app.formats import base64_media
from app.formats.json_fields import text_in
from app.formats.message import FormatName, Message, Part, Reasoning, Role, Text, ToolCall
from app.formats.openai_chat.reasoning_fields import (
    PART_TYPES,
    blocks_in,
    family_of,
    family_of_block,
    family_of_detail,
    google_signature,
    is_replayed,
    message_fields,
    signature_of,
    signatures_in,
)
from app.formats.reasoning_families import ANTHROPIC, GEMINI

_CHAT = FormatName.OPENAI_CHAT


def convert_reasoning(message: Message, format: FormatName, accepts: Collection[str]) -> Message:
    """Return a message with its reasoning in the form of another format.

    Reasoning that the format cannot carry or that another family made is left out.
    """
    if message.role is not Role.ASSISTANT:
        return message
    parts: list[Part] = []
    replayed = is_replayed(message, accepts)
    to_anthropic = replayed and format is FormatName.ANTHROPIC and ANTHROPIC in accepts
    for part in message.parts:
        if isinstance(part, Reasoning) and part.format is _CHAT:
            parts.extend(_anthropic_parts(part) if to_anthropic else ())
        elif isinstance(part, ToolCall) and part.format is _CHAT:
            parts.append(replace(part, block=None, format=None))
        else:
            parts.append(part)
    if replayed and format is FormatName.GEMINI and family_of(message) == GEMINI:
        parts = _signed(parts, message)
    return replace(message, parts=tuple(parts))


def _anthropic_parts(part: Reasoning) -> Iterator[Reasoning]:
    fields = part.block or {}
    thinking = (
        [fields] if fields.get("type") in PART_TYPES else blocks_in(fields, "thinking_blocks")
    )
    blocks = [block for block in thinking if family_of_block(block) == ANTHROPIC]
    if not blocks:
        details = blocks_in(fields, "reasoning_details")
        blocks = [block for detail in details for block in _anthropic_blocks(detail)]
    for block in blocks:
        yield Reasoning(text_in(block, "thinking"), block, FormatName.ANTHROPIC)


def _anthropic_blocks(detail: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if family_of_detail(detail) != ANTHROPIC:
        return
    if signature := text_in(detail, "signature"):
        yield {"type": "thinking", "thinking": text_in(detail, "text"), "signature": signature}
    elif data := text_in(detail, "data"):
        yield {"type": "redacted_thinking", "data": data}


def _signed(parts: list[Part], message: Message) -> list[Part]:
    """Return the parts with Gemini's signatures, on the calls and on the last text."""
    of_calls, of_text = _gemini_signatures(message)
    signed: list[Part] = []
    last_text = max((i for i, p in enumerate(parts) if isinstance(p, Text)), default=-1)
    for index, part in enumerate(parts):
        if isinstance(part, ToolCall) and base64_media.is_base64(of_calls.get(part.id, "=")):
            call = {"id": part.id, "name": part.name, "args": {}}
            block = {"functionCall": call, "thoughtSignature": of_calls[part.id]}
            signed.append(replace(part, block=block, format=FormatName.GEMINI))
        elif isinstance(part, Text) and index == last_text and of_text:
            block = {"text": part.text, "thoughtSignature": of_text}
            signed.append(replace(part, block=block, format=FormatName.GEMINI))
        else:
            signed.append(part)
    return signed


def _gemini_signatures(message: Message) -> tuple[dict[str, str], str]:
    """Return the signatures of calls by call id, and that of the text."""
    of_calls = {call.id: text for call in message.calls if (text := signature_of(call))}
    fields = message_fields(message)
    of_message = (item for item in signatures_in(fields) if isinstance(item, str))
    of_text = google_signature(fields) or next(filter(None, of_message), "")
    for detail in blocks_in(fields, "reasoning_details"):
        if family_of_detail(detail) != GEMINI or not (data := text_in(detail, "data")):
            continue
        ids = [call.id for call in message.calls]
        detail_id = text_in(detail, "id")
        if ids:
            of_calls.setdefault(detail_id if detail_id in ids else ids[0], data)
        else:
            of_text = of_text or data
    is_separate = of_text not in of_calls.values() and base64_media.is_base64(of_text)
    return of_calls, of_text if is_separate else ""
