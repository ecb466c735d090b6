"""Reads OpenAI Chat messages as neutral messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from app.formats import (
    base64_media,
    inline_media,
    json_fields,
    mcp_parts,
    openai_shared,
    tool_calls,
)
from app.formats.json_fields import Fields
from app.formats.message import (
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
from app.formats.openai_chat import reasoning_fields

RESULT_KEY = "content"
"""The field of a result that holds its content."""
_FORMAT = FormatName.OPENAI_CHAT


def parse(raw: Mapping[str, Any], pointer: str) -> tuple[Message, ...]:
    """Read one wire message; unknown fields are accepted, malformed ones refused.

    Raises `ValidationError` at the field below `pointer` that is wrong.
    """
    message = Fields(raw, pointer)
    match message.get("role"):
        case "user":
            return (_parse_user(message),)
        case "assistant":
            return (_parse_assistant(message),)
        case "tool":
            return (_parse_tool(message),)
        case "system" | "developer":
            name = message.optional_text("name")
            return (Message(Role.SYSTEM, _parse_content(message), name=name),)
        case role:
            json_fields.refuse_role(role, pointer, "user, assistant, system, developer, tool")


def split(raw: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the wire message itself: it is one neutral message."""
    return (dict(raw),)


def results(raw: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """List the message itself where it is a tool's result."""
    return [("", raw)] if raw.get("role") == "tool" else []


def _parse_user(message: Fields) -> Message:
    if message.get("content") is None:
        raise message.error("content", "user content must not be null")
    _refuse_calls(message)
    name = message.optional_text("name")
    return Message(Role.USER, _parse_content(message), name=name)


def _parse_assistant(message: Fields) -> Message:
    if any(json_fields.object_in(message.raw, "function_call").values()):
        raise message.error("function_call", "function_call is deprecated: send tool_calls")
    parts = [*_parse_reasoning(message), *_parse_content(message, Role.ASSISTANT)]
    fields: dict[str, Any] = {}
    if refusal := message.optional_text("refusal"):
        fields["refusal"] = refusal
        parts.append(Opaque({"type": "refusal", "refusal": refusal}, _FORMAT))
    if audio := json_fields.object_in(message.raw, "audio"):
        transcript = json_fields.text_in(audio, "transcript")
        parts.append(Opaque({"type": "audio", "transcript": transcript}, _FORMAT))
        fields |= {"audio": {"id": audio["id"]}} if json_fields.text_in(audio, "id") else {}
    parts.extend(_parse_generated_images(message.raw))
    if message.get("tool_calls") is not None:
        calls = (_parse_call(Fields(item, at)) for item, at in message.items("tool_calls"))
        parts.extend(tool_calls.with_own_ids(calls))
    name, beside = message.optional_text("name"), (fields, _FORMAT) if fields else (None, None)
    return Message(Role.ASSISTANT, tuple(parts), None, name, False, *beside)


def _parse_tool(message: Fields) -> Message:
    call_id = message.filled_text("tool_call_id")
    _refuse_calls(message)
    name = message.optional_text("name")
    return Message(Role.TOOL, _parse_content(message), call_id, name)


def _refuse_calls(message: Fields) -> None:
    if message.get("tool_calls"):
        raise message.error("tool_calls", "only assistant messages call tools")


def _parse_reasoning(message: Fields) -> list[Part]:
    for key in ("reasoning_content", "reasoning"):
        message.optional_text(key)
    fields = reasoning_fields.fields_of(message.raw)
    return [Reasoning(reasoning_fields.text_of(fields), fields, _FORMAT)] if fields else []


def _parse_generated_images(raw: Mapping[str, Any]) -> Iterable[Part]:
    """Read images in the fields that gateways add; malformed ones are ignored."""
    images = raw.get("images")
    for item in images if isinstance(images, list) else ():
        image = item.get("image_url") if isinstance(item, Mapping) else None
        url = image.get("url") if isinstance(image, Mapping) else image
        if isinstance(url, str) and url:
            media_type, data = base64_media.split_data_url(url) or (None, None)
            yield Image(url=url) if data is None else Image(media_type=media_type, data=data)


def _parse_content(message: Fields, role: Role | None = None) -> tuple[Part, ...]:
    content, at = message.get("content"), f"{message.at}/content"
    if content is None:
        return ()
    return openai_shared.parts_at(content, at, lambda item, at: _parse_part(item, at, role))


def _parse_part(value: object, pointer: str, role: Role | None) -> Part:
    part = Fields(value, pointer)
    thought = reasoning_fields.part_of(part) if role is Role.ASSISTANT else None
    if thought is not None:
        return thought
    if role is not Role.ASSISTANT and (of_mcp := mcp_parts.read(part)) is not None:
        return of_mcp
    match part.filled_text("type"):
        case "text":
            return Text(part.text("text"))
        case "image_url":
            source = part.get("image_url")
            image = Fields(
                {"url": source} if isinstance(source, str) else source, f"{pointer}/image_url"
            )
            url, detail = image.filled_text("url"), image.optional_text("detail")
            found = inline_media.image_from_url(url, f"{image.at}/url", detail)
            return replace(found, **part.beside(_FORMAT, "image_url"))
        case "file":
            file = openai_shared.file_at(part.object("file"), _FORMAT)
            return replace(file, **part.beside(_FORMAT, "file"))
        case "input_audio":
            return openai_shared.audio_at(part, _FORMAT)
        case "refusal":
            part.text("refusal")
    return Opaque(part.json("prompt_cache_breakpoint"), _FORMAT)


def _parse_call(call: Fields) -> ToolCall:
    call_id = call.filled_text("id")
    match call.raw.get("type", "function"):
        case "function":
            function = call.object("function")
            arguments, name = function.optional_text("arguments") or "{}", function.text("name")
            block = reasoning_fields.call_fields_of(call.raw) or None
            format = _FORMAT if block else None
            return ToolCall(call_id, name, arguments, block=block, format=format)
        case "custom":
            custom = call.object("custom")
            arguments, name = custom.text("input"), custom.text("name")
            return ToolCall(call_id, name, arguments, custom=True)
        case _:
            raise call.error("type", 'must be "function" or "custom"')
