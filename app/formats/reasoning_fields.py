"""Fields of OpenAI Chat messages that carry reasoning.

1. The Chat format has no reasoning. Providers and gateways add fields of their own to a message and
   to its calls. `fields_of` and `call_fields_of` keep them unchanged.
2. The log does not store which model made a message, so the fields identify its family
   (`family_of`): signed thinking is Anthropic's, a thought signature is Gemini's, each of the
   `reasoning_details` names its format, and plain text fits every family that writes plain text.
3. All reasoning of a message is replayed unchanged, or none of it.
4. A malformed field is ignored. It stays in the stored message.
5. Reasoning that Anthropic or Gemini made is converted for them to the form that they made it in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from app.common.errors import ValidationError
from app.formats import base64_media, json_fields
from app.formats.gemini.parsing import STAND_IN_SIGNATURE
from app.formats.json_fields import Fields, object_in, text_in
from app.formats.message import FormatName, Message, Part, Reasoning, Role, Text, ToolCall
from app.formats.reasoning_families import ANTHROPIC, GEMINI, MISTRAL, OPENAI, PLAIN, SEALED, XAI

BLANK_REASONING: Final = " "
"""The shortest reasoning that DeepSeek and Moonshot accept in a message of a tool loop."""
PART_TYPES: Final = ("thinking", "redacted_thinking")
"""Types of content parts that are reasoning."""

FORMAT: Final = FormatName.OPENAI_CHAT
_LITELLM: Final = "provider_specific_fields"
_TEXT_FIELDS: Final = ("reasoning_content", "reasoning")
_LIST_FIELDS: Final = ("reasoning_details", "thinking_blocks")
_CARRIERS: Final = frozenset({*_TEXT_FIELDS, *_LIST_FIELDS, "extra_content", _LITELLM})
"""Fields of a message or a call without which it has no reasoning; most have none of them."""
_ID_SEPARATOR: Final = "__thought__"
"""Separates a call's id from its thought signature where LiteLLM joins them."""
_DETAIL_FORMATS: Final = (
    ("anthropic", ANTHROPIC),
    ("google", GEMINI),
    ("openai", OPENAI),
    ("azure", OPENAI),
    ("xai", XAI),
)


def fields_of(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an assistant message that carry its reasoning, unchanged."""
    if _CARRIERS.isdisjoint(raw):
        return {}
    fields: dict[str, Any] = {key: raw[key] for key in _TEXT_FIELDS if _is_text(raw.get(key))}
    fields |= _lists_in(raw)
    if google_signature(raw):
        fields["extra_content"] = raw["extra_content"]
    source = object_in(raw, _LITELLM)
    held = _lists_in(source) | {key: source[key] for key in _TEXT_FIELDS if text_in(source, key)}
    litellm = {key: item for key, item in held.items() if key not in fields}
    signatures = source.get("thought_signatures")
    if isinstance(signatures, list) and any(item and _is_text(item) for item in signatures):
        litellm["thought_signatures"] = signatures
    if signature := text_in(source, "thought_signature"):
        litellm["thought_signature"] = signature
    fields |= {_LITELLM: litellm} if litellm else {}
    return fields if _is_storable(fields) else {}


def call_fields_of(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a tool call that carry its thought signature, unchanged.

    LiteLLM also joins the signature to the call's id, which may be replaced. Where the signature is
    nowhere else, it is put into the field that LiteLLM reads first.
    """
    function = object_in(raw, "function")
    has_separator = _ID_SEPARATOR in text_in(raw, "id")
    if _CARRIERS.isdisjoint(raw) and _LITELLM not in function and not has_separator:
        return {}
    fields: dict[str, Any] = {}
    if google_signature(raw):
        fields["extra_content"] = raw["extra_content"]
    if _litellm_signature(raw):
        fields[_LITELLM] = raw[_LITELLM]
    if _litellm_signature(function):
        fields["function"] = {_LITELLM: function[_LITELLM]}
    if not fields and (signature := text_in(raw, "id").partition(_ID_SEPARATOR)[2]):
        fields[_LITELLM] = {"thought_signature": signature}
    return fields if _is_storable(fields) else {}


def text_of(fields: Mapping[str, Any]) -> str:
    """Return the text of the reasoning in a message's fields."""
    for source in (fields, object_in(fields, _LITELLM)):
        for key in _TEXT_FIELDS:
            if text := text_in(source, key):
                return text
        for key in _LIST_FIELDS:
            texts = (
                text_in(item, "thinking") or text_in(item, "text") or text_in(item, "summary")
                for item in source.get(key, ())
            )
            if text := "\n".join(filter(None, texts)):
                return text
    return ""


def part_of(part: Fields) -> Reasoning | None:
    """Read a content part of an assistant that is reasoning; None for any other part."""
    if part.get("type") not in PART_TYPES:
        return None
    block = part.json("cache_control")
    thinking = part.get("thinking")
    items = thinking if isinstance(thinking, list) else [{"text": thinking}]
    texts = (text_in(item, "text") for item in items)
    return Reasoning("\n".join(filter(None, texts)), block, FORMAT)


def family_of(message: Message) -> str:
    """Return the family that made the reasoning of a message, empty where it has none."""
    if any(signature_of(call) for call in message.calls):
        return GEMINI
    families = [_family(part) for part in message.parts if isinstance(part, Reasoning)]
    order = (GEMINI, ANTHROPIC, OPENAI, XAI, SEALED, MISTRAL, PLAIN)
    return next((family for family in order if family in families), "")


def is_replayed(message: Message, accepts: Collection[str]) -> bool:
    """Return whether a model that accepts reasoning of these families gets that of a message."""
    return bool(accepts) and family_of(message) in accepts


def signature_of(call: ToolCall) -> str:
    """Return the thought signature of a call that came in the Chat format, empty without one."""
    if call.block is None or call.format is not FORMAT:
        return ""
    held = object_in(call.block, "function")
    return (
        google_signature(call.block) or _litellm_signature(call.block) or _litellm_signature(held)
    )


def _family(part: Reasoning) -> str:
    if part.format is FormatName.ANTHROPIC and part.block is not None:
        return ANTHROPIC
    if part.format is not FORMAT or part.block is None:
        return ""
    fields = part.block
    if fields.get("type") in PART_TYPES:
        return MISTRAL if isinstance(fields.get("thinking"), list) else family_of_block(fields)
    litellm = object_in(fields, _LITELLM)
    if google_signature(fields) or {"thought_signatures", "thought_signature"} & litellm.keys():
        return GEMINI
    families = [family_of_block(block) for block in blocks_in(fields, "thinking_blocks")]
    families += [family_of_detail(detail) for detail in blocks_in(fields, "reasoning_details")]
    return next((family for family in families if family != PLAIN), PLAIN)


def family_of_block(block: Mapping[str, Any]) -> str:
    """Return the family that made a thinking block: Anthropic signs its own."""
    is_signed = block.get("type") == "redacted_thinking" or text_in(block, "signature")
    return ANTHROPIC if is_signed else PLAIN


def family_of_detail(detail: Mapping[str, Any]) -> str:
    """Return the family that made an item of `reasoning_details`."""
    name = text_in(detail, "format").lower()
    for prefix, family in _DETAIL_FORMATS:
        if name.startswith(prefix):
            return family
    if text_in(detail, "signature"):
        return ANTHROPIC
    return SEALED if text_in(detail, "data") else PLAIN


def message_fields(message: Message) -> dict[str, Any]:
    """Return the fields that carry a message's reasoning in the Chat format."""
    fields: dict[str, Any] = {}
    blocks: list[Mapping[str, Any]] = []
    for part in message.parts:
        if not isinstance(part, Reasoning) or part.block is None:
            continue
        if part.format is FormatName.ANTHROPIC:
            blocks.append(part.block)
        elif part.format is FORMAT and part.block.get("type") not in PART_TYPES:
            fields |= part.block
    return fields | ({"thinking_blocks": blocks} if blocks else {})


def content_part(part: Reasoning) -> Mapping[str, Any] | None:
    """Return the content part that reasoning came as, None where it came as a field."""
    if part.format is not FORMAT or part.block is None:
        return None
    return part.block if part.block.get("type") in PART_TYPES else None


def call_stand_in_fields(call: ToolCall) -> dict[str, Any]:
    """Return the fields that a call needs where its signature is left out: the stand-in
    [gemini.thought-signatures].

    LiteLLM adds a stand-in itself.
    """
    if call.block is None or call.format is not FORMAT or not google_signature(call.block):
        return {}
    return {"extra_content": {"google": {"thought_signature": STAND_IN_SIGNATURE}}}


def blocks_in(fields: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Return a list of reasoning blocks from a message's fields or from LiteLLM's."""
    blocks: list[Mapping[str, Any]] = fields.get(key) or object_in(fields, _LITELLM).get(key, [])
    return blocks


def google_signature(raw: Mapping[str, Any]) -> str:
    """Return the thought signature in Google's own field of a message or a call."""
    return text_in(object_in(object_in(raw, "extra_content"), "google"), "thought_signature")


def _litellm_signature(raw: Mapping[str, Any]) -> str:
    return text_in(object_in(raw, _LITELLM), "thought_signature")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _lists_in(raw: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: raw[key] for key in _LIST_FIELDS if raw.get(key)}
    return {
        key: value
        for key, value in found.items()
        if isinstance(value, list) and all(isinstance(item, Mapping) for item in value)
    }


def _is_storable(fields: Mapping[str, Any]) -> bool:
    try:
        json_fields.json_at(fields, "")
    except ValidationError:
        return False
    return True


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
        if isinstance(part, Reasoning) and part.format is FORMAT:
            parts.extend(_anthropic_parts(part) if to_anthropic else ())
        elif isinstance(part, ToolCall) and part.format is FORMAT:
            parts.append(replace(part, block=None, format=None))
        else:
            parts.append(part)
    if replayed and format is FormatName.GEMINI and family_of(message) == GEMINI:
        parts = list(_signed(parts, message))
    return replace(message, parts=tuple(parts))


def _anthropic_parts(part: Reasoning) -> Iterator[Reasoning]:
    fields = part.block or {}
    is_block = fields.get("type") in PART_TYPES
    thinking = [fields] if is_block else blocks_in(fields, "thinking_blocks")
    blocks = [block for block in thinking if family_of_block(block) == ANTHROPIC]
    details = () if blocks else blocks_in(fields, "reasoning_details")
    for detail in details:
        if family_of_detail(detail) == ANTHROPIC:
            text, signature = text_in(detail, "text"), text_in(detail, "signature")
            if signature:
                blocks.append({"type": "thinking", "thinking": text, "signature": signature})
            elif data := text_in(detail, "data"):
                blocks.append({"type": "redacted_thinking", "data": data})
    for block in blocks:
        yield Reasoning(text_in(block, "thinking"), block, FormatName.ANTHROPIC)


def _signed(parts: list[Part], message: Message) -> Iterator[Part]:
    """Yield the parts with Gemini's signatures, on the calls and on the last text."""
    of_calls = {call.id: text for call in message.calls if (text := signature_of(call))}
    ids = [call.id for call in message.calls]
    fields = message_fields(message)
    litellm = object_in(fields, _LITELLM)
    of_message = [*litellm.get("thought_signatures", ()), litellm.get("thought_signature")]
    of_text = google_signature(fields) or next((t for t in of_message if t and _is_text(t)), "")
    for detail in blocks_in(fields, "reasoning_details"):
        if family_of_detail(detail) == GEMINI and (data := text_in(detail, "data")):
            if ids:
                detail_id = text_in(detail, "id")
                of_calls.setdefault(detail_id if detail_id in ids else ids[0], data)
            else:
                of_text = of_text or data
    if of_text in of_calls.values() or not base64_media.is_base64(of_text):
        of_text = ""
    last_text = max((i for i, part in enumerate(parts) if isinstance(part, Text)), default=-1)
    for index, part in enumerate(parts):
        block: dict[str, Any] = {}
        if isinstance(part, ToolCall) and base64_media.is_base64(of_calls.get(part.id, "=")):
            call = {"id": part.id, "name": part.name, "args": {}}
            block = {"functionCall": call, "thoughtSignature": of_calls[part.id]}
        elif isinstance(part, Text) and index == last_text and of_text:
            block = {"text": part.text, "thoughtSignature": of_text}
        is_signed = block and isinstance(part, ToolCall | Text)
        yield replace(part, block=block, format=FormatName.GEMINI) if is_signed else part
