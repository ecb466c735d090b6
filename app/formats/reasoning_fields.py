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
    fields |= {key: raw[key] for key in _LIST_FIELDS if _is_list_of_objects(raw.get(key))}
    if google_signature(raw):
        fields["extra_content"] = raw["extra_content"]
    if litellm := _litellm_fields(raw, fields):
        fields[_LITELLM] = litellm
    return fields if _is_storable(fields) else {}


def _litellm_fields(raw: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields in which LiteLLM keeps reasoning, without those that the message has."""
    source = object_in(raw, _LITELLM)
    fields = {key: source[key] for key in _LIST_FIELDS if _is_list_of_objects(source.get(key))}
    fields |= {key: source[key] for key in _TEXT_FIELDS if text_in(source, key)}
    fields = {key: item for key, item in fields.items() if key not in own}
    signatures = source.get("thought_signatures")
    if isinstance(signatures, list) and any(item and _is_text(item) for item in signatures):
        fields["thought_signatures"] = signatures
    if signature := text_in(source, "thought_signature"):
        fields["thought_signature"] = signature
    return fields


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
            if text := "\n".join(filter(None, map(_detail_text, source.get(key, ())))):
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
    function = object_in(call.block, "function")
    return (
        google_signature(call.block)
        or _litellm_signature(call.block)
        or _litellm_signature(function)
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


def signatures_in(fields: Mapping[str, Any]) -> list[Any]:
    """Return the thought signatures that LiteLLM keeps for a message."""
    litellm = object_in(fields, _LITELLM)
    return [*litellm.get("thought_signatures", ()), litellm.get("thought_signature")]


def google_signature(raw: Mapping[str, Any]) -> str:
    """Return the thought signature in Google's own field of a message or a call."""
    return text_in(object_in(object_in(raw, "extra_content"), "google"), "thought_signature")


def _litellm_signature(raw: Mapping[str, Any]) -> str:
    return text_in(object_in(raw, _LITELLM), "thought_signature")


def _detail_text(detail: Mapping[str, Any]) -> str:
    texts = (text_in(detail, key) for key in ("thinking", "text", "summary"))
    return next(filter(None, texts), "")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_list_of_objects(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, Mapping) for v in value)


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
