"""Reads OpenAI Chat messages as neutral messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from app.formats import base64_media, inline_media, json_fields, mcp_parts, tool_calls
from app.formats.json_fields import Fields
from app.formats.message import Image, Message, Opaque, Part, Reasoning, Role, Text, ToolCall
from app.formats.openai import OpenAIProvider
from app.formats.openai_chat import reasoning_fields

_FIELDS = reasoning_fields.FORMAT
_ROLES = {
    "user": Role.USER,
    "tool": Role.TOOL,
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
}


class ChatParsing(OpenAIProvider):
    """Reads messages."""

    def parse(self, raw: Mapping[str, Any], pointer: str) -> tuple[Message, ...]:
        """Read one wire message as one neutral message."""
        message = Fields(raw, pointer)
        name = message.get("role")
        if name == "assistant":
            return (self._parse_assistant(message),)
        role = _ROLES.get(name) if isinstance(name, str) else None
        if role is None:
            json_fields.refuse_role(name, pointer, "user, assistant, system, developer, tool")
        call_id = message.filled_text("tool_call_id") if role is Role.TOOL else None
        if role is Role.USER and message.get("content") is None:
            raise message.error("content", "user content must not be null")
        if role is not Role.SYSTEM and message.get("tool_calls"):
            raise message.error("tool_calls", "only assistant messages call tools")
        participant = message.optional_text("name")
        return (Message(role, self._parse_content(message, role), call_id, participant),)

    def results(self, raw: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
        """List the message itself where it is a tool's result."""
        return [("", raw)] if raw.get("role") == "tool" else []

    def _parse_assistant(self, message: Fields) -> Message:
        if any(json_fields.object_in(message.raw, "function_call").values()):
            raise message.error("function_call", "function_call is deprecated: send tool_calls")
        parts = [*_parse_reasoning(message), *self._parse_content(message, Role.ASSISTANT)]
        fields: dict[str, Any] = {}
        if refusal := message.optional_text("refusal"):
            fields["refusal"] = refusal
            parts.append(Opaque({"type": "refusal", "refusal": refusal}, self.name))
        if audio := json_fields.object_in(message.raw, "audio"):
            transcript = json_fields.text_in(audio, "transcript")
            parts.append(Opaque({"type": "audio", "transcript": transcript}, self.name))
            fields |= {"audio": {"id": audio["id"]}} if json_fields.text_in(audio, "id") else {}
        parts.extend(_parse_generated_images(message.raw))
        if message.get("tool_calls") is not None:
            calls = map(self._parse_call, message.objects("tool_calls"))
            parts.extend(tool_calls.with_own_ids(calls))
        name, beside = (
            message.optional_text("name"),
            (fields, self.name) if fields else (None, None),
        )
        return Message(Role.ASSISTANT, tuple(parts), None, name, False, *beside)

    def _parse_content(self, message: Fields, role: Role) -> tuple[Part, ...]:
        if message.get("content") is None:
            return ()
        is_assistant = role is Role.ASSISTANT
        return self._parse_parts(
            message, "content", partial(self._parse_part, is_assistant=is_assistant)
        )

    def _parse_part(self, part: Fields, *, is_assistant: bool) -> Part:
        read = reasoning_fields.part_of(part) if is_assistant else mcp_parts.read(part)
        if read is not None:
            return read
        match part.filled_text("type"):
            case "text":
                return Text(part.text("text"))
            case "image_url":
                source, at = part.get("image_url"), f"{part.at}/image_url"
                image = Fields({"url": source} if isinstance(source, str) else source, at)
                url, detail = image.filled_text("url"), image.optional_text("detail")
                found = inline_media.image_from_url(url, f"{at}/url", detail)
                return replace(found, **part.beside(self.name, "image_url"))
            case "file":
                file = self._parse_file(part.object("file"))
                return replace(file, **part.beside(self.name, "file"))
            case "input_audio":
                return self._parse_audio(part)
            case "refusal":
                part.text("refusal")
        return Opaque(part.json("prompt_cache_breakpoint"), self.name)

    def _parse_call(self, call: Fields) -> ToolCall:
        call_id = call.filled_text("id")
        match call.raw.get("type", "function"):
            case "function":
                function = call.object("function")
                arguments, name = function.optional_text("arguments") or "{}", function.text("name")
                block = reasoning_fields.call_fields_of(call.raw) or None
                format = _FIELDS if block else None
                return ToolCall(call_id, name, arguments, block=block, format=format)
            case "custom":
                custom = call.object("custom")
                arguments, name = custom.text("input"), custom.text("name")
                return ToolCall(call_id, name, arguments, custom=True)
            case _:
                raise call.error("type", 'must be "function" or "custom"')


def _parse_reasoning(message: Fields) -> list[Part]:
    for key in ("reasoning_content", "reasoning"):
        message.optional_text(key)
    fields = reasoning_fields.fields_of(message.raw)
    return [Reasoning(reasoning_fields.text_of(fields), fields, _FIELDS)] if fields else []


def _parse_generated_images(raw: Mapping[str, Any]) -> Iterable[Part]:
    """Read images in the fields that gateways add; malformed ones are ignored."""
    images = raw.get("images")
    for item in images if isinstance(images, list) else ():
        image = item.get("image_url") if isinstance(item, Mapping) else None
        url = image.get("url") if isinstance(image, Mapping) else image
        if isinstance(url, str) and url:
            media_type, data = base64_media.split_data_url(url) or (None, None)
            yield Image(url=url) if data is None else Image(media_type=media_type, data=data)
