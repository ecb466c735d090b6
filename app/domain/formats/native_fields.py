"""What a provider's original says beside the text of its part; it is sent, so it is counted.

Citations, annotations and log probabilities are such. Names of types, ids of items, states and
signatures are no such text; they are left out here, and so is what is empty. Signatures count as
reasoning, in `tokens`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from app.domain.common.messages import FormatName, Text, ToolCall
from app.domain.formats import openai_responses

_SIGNATURES: Final = ("thoughtSignature", "thought_signature")
_TEXT_BLOCK: Final = ("type", "text", "cache_control")
_GEMINI: Final = (*_SIGNATURES, "text", "thought")
_GEMINI_CALLS: Final = ("functionCall", "function_call")
_GEMINI_RESPONSES: Final = ("functionResponse", "function_response")
_GEMINI_FIELDS: Final = ("id", "name", "args", "response", "parts")
_ITEM: Final = ("type", "id", "role", "status", "phase", "execution", "encrypted_content")
_SAID: Final = {"output_text": ("type", "text"), "refusal": ("type", "refusal")}

Original = Text | ToolCall


def beside(part: Original, format: FormatName) -> dict[str, Any]:
    """Return what `format` sends of a part's original beside its text; empty for most parts."""
    block = part.block
    if block is None or part.format is not format:
        return {}
    match format:
        case FormatName.ANTHROPIC:
            return _without(block, _TEXT_BLOCK)
        case FormatName.GEMINI:
            return _beside_gemini(block)
        case FormatName.OPENAI_RESPONSES:
            return _beside_item(part, block)
        case _:
            return {}


def _without(block: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    left_out = frozenset(names)
    return {key: value for key, value in block.items() if value and key not in left_out}


def _beside_gemini(block: Mapping[str, Any]) -> dict[str, Any]:
    found = _without(block, (*_GEMINI, *_GEMINI_CALLS, *_GEMINI_RESPONSES))
    for key in (*_GEMINI_CALLS, *_GEMINI_RESPONSES):
        if isinstance(block.get(key), Mapping):
            found |= _without(block[key], _GEMINI_FIELDS)
    return found


def _beside_item(part: Original, block: Mapping[str, Any]) -> dict[str, Any]:
    match part:
        case ToolCall():
            return _without(block, (*_ITEM, *openai_responses.call_fields(block)))
        case Text():
            found = _without(block, (*_ITEM, "content"))
            content = block.get("content")
            items = content if isinstance(content, list) else []
            rest = [_without(item, _SAID.get(item["type"], ())) for item in items]
            return found | ({"content": rest} if any(rest) else {})
