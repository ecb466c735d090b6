"""Fields of a part's original block that are sent beside its text, and so are counted.

Citations, annotations and log probabilities are such fields. Types, ids, states and empty fields
are not counted. Signatures are counted as reasoning, in `app.models.tokens`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from app.formats import openai_responses
from app.formats.message import File, FormatName, Image, Message, Text, ToolCall

_SIGNATURES: Final = ("thoughtSignature", "thought_signature")
_TEXT_BLOCK: Final = ("type", "text", "cache_control")
_GEMINI_PART: Final = (*_SIGNATURES, "text", "thought")
_GEMINI_CALLS: Final = ("functionCall", "function_call")
_GEMINI_RESPONSES: Final = ("functionResponse", "function_response")
_GEMINI_FIELDS: Final = ("id", "name", "args", "response", "parts")
_ITEM: Final = ("type", "id", "role", "status", "phase", "execution", "encrypted_content")
_CONTENT_FIELDS: Final = {"output_text": ("type", "text"), "refusal": ("type", "refusal")}


Original = Message | Text | Image | File | ToolCall
"""What may have fields that are sent to the format it came in alone."""


def extra_fields(part: Original, format: FormatName) -> dict[str, Any]:
    """Return the fields that `format` sends beside a part's text; empty for most parts."""
    block = part.block
    if block is None or part.format is not format:
        return {}
    match format:
        case FormatName.ANTHROPIC:
            return _without(block, _TEXT_BLOCK)
        case FormatName.GEMINI:
            return _gemini_fields(block)
        case FormatName.OPENAI_RESPONSES:
            return _item_fields(part, block)
        case _:
            is_reasoning = isinstance(part, Text | ToolCall)
            return {} if is_reasoning else dict(block)


def _without(block: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    excluded = frozenset(names)
    return {key: value for key, value in block.items() if value and key not in excluded}


def _gemini_fields(block: Mapping[str, Any]) -> dict[str, Any]:
    fields = _without(block, (*_GEMINI_PART, *_GEMINI_CALLS, *_GEMINI_RESPONSES))
    for key in (*_GEMINI_CALLS, *_GEMINI_RESPONSES):
        if isinstance(block.get(key), Mapping):
            fields |= _without(block[key], _GEMINI_FIELDS)
    return fields


def _item_fields(part: Original, block: Mapping[str, Any]) -> dict[str, Any]:
    match part:
        case ToolCall():
            return _without(block, (*_ITEM, *openai_responses.call_fields(block)))
        case Text():
            fields = _without(block, (*_ITEM, "content"))
            content = block.get("content")
            items = content if isinstance(content, list) else []
            rest = [_without(item, _CONTENT_FIELDS.get(item["type"], ())) for item in items]
            return fields | ({"content": rest} if any(rest) else {})
        case _:
            return _without(block, _ITEM)
