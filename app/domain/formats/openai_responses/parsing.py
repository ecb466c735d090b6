"""Reads OpenAI Responses items as neutral messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.domain.common.errors import ValidationError
from app.domain.common.messages import (
    FormatName,
    Message,
    Opaque,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
)
from app.domain.formats import inline_media, json_fields, labels, openai_shared, tool_calls
from app.domain.formats.openai_responses.items import (
    BUILT_IN_CALLS,
    FUNCTION,
    OUTPUT_FIELDS,
    OUTPUT_TYPES,
    REFUSED_TYPES,
    RESULT_KEY,
    built_in_arguments,
    is_hosted,
    is_item_group,
    is_model_made,
    item_type,
)

_FORMAT = FormatName.OPENAI_RESPONSES
_LOG_FIELDS = (
    "timestamp",
    "seq",
    "turn",
    "token_count",
    "format",
    "created_at",
    "conversation_id",
    "agent_id",
    "output_ref",
    "content_truncated",
    "content_collected",
    "visibility",
    "pinned",
    "restored_at",
    "restored_from",
    "given",
)
"""Fields that the service adds to an item when the log is read: clients may send them back."""


def parse(raw: Mapping[str, Any], pointer: str) -> tuple[Message, ...]:
    """Read one item, or several that `group_items` joined.

    Raises `ValidationError` at the field below `pointer` that is wrong.
    """
    raw = json_fields.object_at(raw, pointer)
    if is_item_group(raw):
        return (Message(Role.ASSISTANT, _parse_output(raw["output"], f"{pointer}/output")),)
    kind = item_type(raw)
    if kind == "message" and raw.get("role") == "user":
        return (Message(Role.USER, _parse_content(raw, "content", pointer)),)
    if kind == "mcp_approval_response":
        return (Message(Role.USER, (_opaque(raw, pointer),)),)
    if kind in OUTPUT_FIELDS and not is_hosted(raw):
        return (_parse_result(raw, pointer),)
    return (Message(Role.ASSISTANT, (_parse_item(raw, pointer),)),)


def split(raw: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the item itself: it is one neutral message."""
    return (dict(raw),)


def results(raw: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """List the item itself where it is a tool's result."""
    return [("", raw)] if item_type(raw) in OUTPUT_FIELDS and not is_hosted(raw) else []


def _parse_output(items: list[Any], pointer: str) -> tuple[Part, ...]:
    parts: list[Part] = []
    seen: set[str] = set()
    for index, item in enumerate(items):
        at = f"{pointer}/{index}"
        raw = json_fields.object_at(item, at)
        if is_item_group(raw) or (not is_model_made(raw) and item_type(raw) in OUTPUT_FIELDS):
            raise ValidationError.at(
                f"{at}/type", "only items that the model made are allowed here"
            )
        part = _parse_item(raw, at)
        if isinstance(part, ToolCall):
            tool_calls.add_call_id(part.id, seen, f"{at}/call_id")
        parts.append(part)
    return tuple(parts)


def _parse_item(raw: Mapping[str, Any], pointer: str) -> Part:
    """Read an item that the model made."""
    kind = item_type(raw)
    if kind == "additional_tools" or (kind == "message" and raw.get("role") != "assistant"):
        json_fields.refuse_role(raw.get("role"), pointer, "user, assistant")
    if not kind:
        raise ValidationError.at(f"{pointer}/type", "must name the type of the item")
    if kind in REFUSED_TYPES:
        raise ValidationError.at(f"{pointer}/type", REFUSED_TYPES[kind])
    match kind:
        case "message":
            return _parse_message(raw, pointer)
        case "reasoning":
            return _parse_reasoning(raw, pointer)
        case "compaction":
            json_fields.text_at(raw, "encrypted_content", pointer)
            return Reasoning("", _original(raw, pointer), _FORMAT)
    if kind in OUTPUT_TYPES and not is_hosted(raw):
        return _parse_call(raw, kind, pointer)
    return _opaque(raw, pointer)


def _original(raw: Mapping[str, Any], pointer: str) -> Any:
    excluded = _LOG_FIELDS if item_type(raw) == "message" else (*_LOG_FIELDS, "role")
    return json_fields.json_at(
        {key: item for key, item in raw.items() if key not in excluded}, pointer
    )


def _opaque(raw: Mapping[str, Any], pointer: str) -> Opaque:
    """Keep an item as it is, but for cache breakpoints, which each payload places itself."""
    block = {key: item for key, item in raw.items() if key != "prompt_cache_breakpoint"}
    return Opaque(_original(block, pointer), _FORMAT)


def _parse_message(raw: Mapping[str, Any], pointer: str) -> Text | Opaque:
    block = _original(raw, pointer)
    content = raw.get("content")
    if isinstance(content, str):
        return Text(content, block, _FORMAT)
    at = f"{pointer}/content"
    texts: list[str] = []
    labelled: list[str] = []
    items = json_fields.list_at(content, at)
    for index, item in enumerate(items):
        part = json_fields.object_at(item, f"{at}/{index}")
        match json_fields.filled_text_at(part, "type", f"{at}/{index}"):
            case "output_text":
                texts.append(json_fields.text_at(part, "text", f"{at}/{index}"))
            case "refusal":
                json_fields.text_at(part, "refusal", f"{at}/{index}")
                labelled.append("refusal")
                texts.append(labels.block_label(part))
            case "input_text" | "input_image" | "input_file":
                detail = "content of the assistant is output_text or refusal"
                raise ValidationError.at(f"{at}/{index}/type", detail)
            case _:
                labelled.append(labels.kind_of(part))
                texts.append(labels.block_label(part))
    if items and len(labelled) == len(items) and "refusal" not in labelled:
        return Opaque(block, _FORMAT)
    return Text("\n".join(texts), block, _FORMAT, tuple(labelled))


def _parse_reasoning(raw: Mapping[str, Any], pointer: str) -> Reasoning:
    texts: list[str] = []
    for key in ("summary", "content"):
        if key != "summary" and raw.get(key) is None:
            continue
        at = f"{pointer}/{key}"
        of_key = [
            json_fields.text_at(
                json_fields.object_at(item, f"{at}/{index}"), "text", f"{at}/{index}"
            )
            for index, item in enumerate(json_fields.list_at(raw.get(key), at))
        ]
        texts = texts or of_key
    return Reasoning("\n".join(texts), _original(raw, pointer), _FORMAT)


def _parse_call(raw: Mapping[str, Any], kind: str, pointer: str) -> ToolCall:
    call_id = json_fields.filled_text_at(raw, "call_id", pointer)
    block = _original(raw, pointer)
    if kind in BUILT_IN_CALLS:
        name, _ = BUILT_IN_CALLS[kind]
        arguments = built_in_arguments(block, kind)
        return ToolCall(call_id, name, arguments, block=block, format=_FORMAT)
    is_custom = kind != FUNCTION
    name = json_fields.text_at(raw, "name", pointer)
    text = json_fields.text_at(raw, "input" if is_custom else "arguments", pointer)
    return ToolCall(call_id, name, text, is_custom, block, _FORMAT)


def _parse_result(raw: Mapping[str, Any], pointer: str) -> Message:
    kind = raw["type"]
    key = "id" if kind == "local_shell_call_output" and "call_id" not in raw else "call_id"
    call_id = json_fields.filled_text_at(raw, key, pointer)
    fields = {key: raw[key] for key in OUTPUT_FIELDS[kind] if raw.get(key) is not None}
    envelope = json_fields.json_at({"type": kind, **fields}, pointer)
    name = None
    parts: Sequence[Part]
    match kind:
        case "tool_search_output":
            parts = (_parse_list(raw, "tools", pointer),)
        case "shell_call_output":
            parts = (_parse_list(raw, "output", pointer),)
        case "computer_call_output":
            parts = (_parse_screenshot(raw, pointer),)
        case _:
            name = json_fields.optional_text_at(raw, "name", pointer)
            parts = _parse_content(raw, "output", pointer)
    if len(envelope) > 1 or kind != OUTPUT_TYPES[FUNCTION]:
        parts = _with_envelope(parts, envelope)
    return Message(Role.TOOL, tuple(parts), call_id, name)


def _with_envelope(parts: Sequence[Part], envelope: Mapping[str, Any]) -> list[Part]:
    """Put the fields beside the content on the first text."""
    first = next((index for index, part in enumerate(parts) if isinstance(part, Text)), -1)
    return [
        Text(part.text, envelope, _FORMAT) if index == first and isinstance(part, Text) else part
        for index, part in enumerate(parts)
    ]


def _parse_list(raw: Mapping[str, Any], key: str, pointer: str) -> Text:
    items = json_fields.list_at(raw.get(key), f"{pointer}/{key}")
    return Text(json_fields.compact(json_fields.json_at(items, pointer)))


def _parse_screenshot(raw: Mapping[str, Any], pointer: str) -> Part:
    at = f"{pointer}/output"
    output = json_fields.object_at(raw.get("output"), at)
    if url := json_fields.optional_text_at(output, "image_url", at):
        return inline_media.image_from_url(url, f"{at}/image_url")
    file_id = json_fields.filled_text_at(output, "file_id", at)
    return Opaque({"type": "input_image", "file_id": file_id, "detail": "auto"}, _FORMAT)


def _parse_content(raw: Mapping[str, Any], key: str, pointer: str) -> tuple[Part, ...]:
    if raw.get(key) is None and key == RESULT_KEY:
        return ()
    return openai_shared.parts_at(raw.get(key), f"{pointer}/{key}", _parse_part)


def _parse_part(value: object, pointer: str) -> Part:
    raw = json_fields.object_at(value, pointer)
    match json_fields.filled_text_at(raw, "type", pointer):
        case "input_text":
            return Text(json_fields.text_at(raw, "text", pointer))
        case "input_image" if raw.get("file_id") is None:
            url = json_fields.filled_text_at(raw, "image_url", pointer)
            detail = json_fields.optional_text_at(raw, "detail", pointer)
            explicit = detail if detail != "auto" else None
            return inline_media.image_from_url(url, f"{pointer}/image_url", explicit)
        case "input_file":
            return openai_shared.file_at(raw, pointer, _FORMAT)
    return _opaque(raw, pointer)
