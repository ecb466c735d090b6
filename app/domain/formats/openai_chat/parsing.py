"""Reads OpenAI Chat messages as neutral messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from app.domain.common.errors import ValidationError
from app.domain.common.messages import (
    FormatName,
    Image,
    Message,
    Opaque,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
)
from app.domain.formats import inline_media, json_fields, openai_shared, tool_calls
from app.domain.formats.openai_chat import reasoning_fields

RESULT_KEY = "content"
"""The field of a result that holds its content."""
_FORMAT = FormatName.OPENAI_CHAT


def parse(raw: Mapping[str, Any], pointer: str) -> tuple[Message, ...]:
    """Read one wire message; unknown fields are accepted, malformed ones refused.

    Raises `ValidationError` at the field below `pointer` that is wrong.
    """
    raw = json_fields.object_at(raw, pointer)
    match raw.get("role"):
        case "user":
            return (_parse_user(raw, pointer),)
        case "assistant":
            return (_parse_assistant(raw, pointer),)
        case "tool":
            return (_parse_tool(raw, pointer),)
        case role:
            json_fields.refuse_role(role, pointer, "user, assistant, tool")


def split(raw: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the wire message itself: it is one neutral message."""
    return (dict(raw),)


def results(raw: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """List the message itself where it is a tool's result."""
    return [("", raw)] if raw.get("role") == "tool" else []


def _parse_user(raw: Mapping[str, Any], pointer: str) -> Message:
    if raw.get("content") is None:
        raise ValidationError.at(f"{pointer}/content", "user content must not be null")
    _refuse_calls(raw, pointer)
    name = json_fields.optional_text_at(raw, "name", pointer)
    return Message(Role.USER, _parse_content(raw, pointer), name=name)


def _parse_assistant(raw: Mapping[str, Any], pointer: str) -> Message:
    if raw.get("function_call") is not None:
        detail = "function_call is deprecated: send tool_calls"
        raise ValidationError.at(f"{pointer}/function_call", detail)
    parts = [*_parse_reasoning(raw, pointer), *_parse_content(raw, pointer, Role.ASSISTANT)]
    refusal = json_fields.optional_text_at(raw, "refusal", pointer)
    if refusal:
        parts.append(Opaque({"type": "refusal", "refusal": refusal}, _FORMAT))
    parts.extend(_parse_generated_media(raw))
    parts.extend(_parse_calls(raw.get("tool_calls"), f"{pointer}/tool_calls"))
    name = json_fields.optional_text_at(raw, "name", pointer)
    return Message(Role.ASSISTANT, tuple(parts), name=name)


def _parse_tool(raw: Mapping[str, Any], pointer: str) -> Message:
    call_id = json_fields.filled_text_at(raw, "tool_call_id", pointer)
    _refuse_calls(raw, pointer)
    name = json_fields.optional_text_at(raw, "name", pointer)
    return Message(Role.TOOL, _parse_content(raw, pointer), call_id, name)


def _refuse_calls(raw: Mapping[str, Any], pointer: str) -> None:
    if raw.get("tool_calls"):
        raise ValidationError.at(f"{pointer}/tool_calls", "only assistant messages call tools")


def _parse_reasoning(raw: Mapping[str, Any], pointer: str) -> list[Reasoning]:
    for key in ("reasoning_content", "reasoning"):
        json_fields.optional_text_at(raw, key, pointer)
    fields = reasoning_fields.fields_of(raw)
    return [Reasoning(reasoning_fields.text_of(fields), fields, _FORMAT)] if fields else []


def _parse_generated_media(raw: Mapping[str, Any]) -> Iterable[Part]:
    """Read the audio of a message, and images in the fields that gateways add.

    The provider keeps audio for a short time only, so it is never replayed. Malformed fields are
    ignored.
    """
    if isinstance(raw.get("audio"), Mapping):
        yield Opaque({"type": "audio", "audio": dict(raw["audio"])}, _FORMAT)
    images = raw.get("images")
    for item in images if isinstance(images, list) else ():
        image = item.get("image_url") if isinstance(item, Mapping) else None
        url = image.get("url") if isinstance(image, Mapping) else image
        if isinstance(url, str) and url:
            media_type, data = inline_media.split_data_url(url) or (None, None)
            yield Image(url=url) if data is None else Image(media_type=media_type, data=data)


def _parse_content(
    raw: Mapping[str, Any], pointer: str, role: Role | None = None
) -> tuple[Part, ...]:
    content, at = raw.get("content"), f"{pointer}/content"
    if content is None:
        return ()
    return openai_shared.parts_at(content, at, lambda item, at: _parse_part(item, at, role))


def _parse_part(value: object, pointer: str, role: Role | None) -> Part:
    raw = json_fields.object_at(value, pointer)
    if role is Role.ASSISTANT and (thought := reasoning_fields.part_of(raw, pointer)) is not None:
        return thought
    match json_fields.filled_text_at(raw, "type", pointer):
        case "text":
            return Text(json_fields.text_at(raw, "text", pointer))
        case "image_url":
            return _parse_image(raw.get("image_url"), f"{pointer}/image_url")
        case "file":
            at = f"{pointer}/file"
            return openai_shared.file_at(json_fields.object_at(raw.get("file"), at), at, _FORMAT)
        case "refusal":
            json_fields.text_at(raw, "refusal", pointer)
    block = {key: item for key, item in raw.items() if key != "prompt_cache_breakpoint"}
    return Opaque(json_fields.json_at(block, pointer), _FORMAT)


def _parse_image(value: object, pointer: str) -> Image:
    raw = {"url": value} if isinstance(value, str) else json_fields.object_at(value, pointer)
    url = json_fields.filled_text_at(raw, "url", pointer)
    detail = json_fields.optional_text_at(raw, "detail", pointer)
    return inline_media.image_from_url(url, f"{pointer}/url", detail)


def _parse_calls(value: object, pointer: str) -> Iterable[ToolCall]:
    if value is None:
        return []
    items = json_fields.list_at(value, pointer)
    calls = [_parse_call(item, f"{pointer}/{index}") for index, item in enumerate(items)]
    seen: set[str] = set()
    for index, call in enumerate(calls):
        tool_calls.add_call_id(call.id, seen, f"{pointer}/{index}/id")
    return calls


def _parse_call(value: object, pointer: str) -> ToolCall:
    raw = json_fields.object_at(value, pointer)
    call_id = json_fields.filled_text_at(raw, "id", pointer)
    block = reasoning_fields.call_fields_of(raw) or None
    format = _FORMAT if block else None
    match raw.get("type", "function"):
        case "function":
            at = f"{pointer}/function"
            function = json_fields.object_at(raw.get("function"), at)
            arguments = json_fields.text_at(function, "arguments", at)
            name = json_fields.text_at(function, "name", at)
            return ToolCall(call_id, name, arguments, block=block, format=format)
        case "custom":
            at = f"{pointer}/custom"
            custom = json_fields.object_at(raw.get("custom"), at)
            text = json_fields.text_at(custom, "input", at)
            return ToolCall(call_id, json_fields.text_at(custom, "name", at), text, custom=True)
        case _:
            raise ValidationError.at(f"{pointer}/type", 'must be "function" or "custom"')
