"""Reads Gemini contents as neutral messages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.common.errors import ValidationError
from app.formats import base64_media, json_fields, labels, tool_calls
from app.formats.json_fields import Fields
from app.formats.message import (
    File,
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
from app.formats.shared import BlockProvider

STAND_IN_SIGNATURE = "skip_thought_signature_validator"
"""Marks a call that was not made by the model to which it is sent."""
RESULT_KEY = "response"
"""The field of a result that holds its content."""
_TEXT_KEYS = ("output", "result", "error")
_SNAKE = {
    "functionCall": "function_call",
    "functionResponse": "function_response",
    "inlineData": "inline_data",
    "fileData": "file_data",
    "mimeType": "mime_type",
    "fileUri": "file_uri",
    "displayName": "display_name",
    "thoughtSignature": "thought_signature",
}
_OWN_FILES = "https://generativelanguage.googleapis.com/"
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")
_MEDIA_FIELDS = ("data", "mimeType", "mime_type", "fileUri", "file_uri")
_RESPONSE_FIELDS = (
    *("id", "name", "response", "parts", "scheduling"),
    *("willContinue", "will_continue"),
)


class GeminiParsing(BlockProvider):
    """Reads contents."""

    def parse(self, raw: Mapping[str, Any], pointer: str) -> tuple[Message, ...]:
        """Read one content as one or more neutral messages."""
        content = Fields(raw, pointer)
        role = content.get("role")
        if role not in ("user", "model", "function"):
            json_fields.refuse_role(role, pointer, "user, model, function")
        parts = list(content.objects("parts"))
        if role == "model":
            parsed = (self._parse_part(part, Role.ASSISTANT) for part in parts)
            return (Message(Role.ASSISTANT, tool_calls.with_own_ids(parsed)),)
        return self._parse_user(parts)

    def is_result(self, block: Mapping[str, Any]) -> bool:
        """Whether a part is a function response."""
        return field_in(block, "functionResponse") is not None

    def results(self, raw: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
        """List the function responses of a content, each with its JSON pointer."""
        parts = raw.get("parts")
        responses = []
        for index, part in enumerate(parts if isinstance(parts, list) else []):
            key = key_in(part, "functionResponse") if isinstance(part, Mapping) else ""
            if key and isinstance(part.get(key), Mapping):
                responses.append((f"/parts/{index}/{key}", part[key]))
        return responses

    def _parse_results(self, blocks: Sequence[Fields]) -> list[Message]:
        """Read responses, each with an id of its own (rule 3)."""
        messages: list[Message] = []
        answered: set[str] = set()
        for message in super()._parse_results(blocks):
            call_id = tool_calls.own_id(message.tool_call_id or "", answered)
            answered.add(call_id)
            messages.append(replace(message, tool_call_id=call_id))
        return messages

    def _parse_result(self, result: Fields) -> Message:
        key = key_in(result.raw, "functionResponse")
        answer = result.object(key)
        name = answer.filled_text("name")
        call_id = answer.optional_text("id") or name
        response: Mapping[str, Any] = {}
        if answer.get(RESULT_KEY) is not None:
            response = answer.object(RESULT_KEY).raw
        fields = {field: value for field, value in answer.raw.items() if field in _RESPONSE_FIELDS}
        block = json_fields.json_at({**result.raw, key: fields}, result.at)
        parts: list[Part] = [Text(response_text(response), block, self.name)]
        if answer.get("parts") is not None:
            parts += [self._parse_part(item, Role.TOOL) for item in answer.objects("parts")]
        is_error = isinstance(response.get("error"), str) and len(response) == 1
        return Message(Role.TOOL, tuple(parts), call_id, name, is_error)

    def _parse_part(self, part: Fields, role: Role) -> Part:
        is_signed = _has_signature(part)
        for name in ("functionResponse", "functionCall"):
            if part.get(key := key_in(part.raw, name)) is not None:
                if name == "functionResponse" or role is not Role.ASSISTANT:
                    raise part.error(key, "is not allowed here")
                call = part.object(key)
                called = call.filled_text("name")
                args = call.object("args").json() if call.get("args") is not None else {}
                call_id, text = call.optional_text("id") or called, json_fields.compact(args)
                return ToolCall(call_id, called, text, block=part.json(), format=self.name)
        if part.get("text") is not None:
            text, block = part.text("text"), part.json()
            is_thought = part.get("thought") is True or (is_signed and not text.strip())
            if is_thought and role is Role.ASSISTANT:
                return Reasoning(text, block, self.name) if is_signed else Reasoning(text)
            return Text(text, block, self.name) if _has_more_fields(part, "text") else Text(text)
        for name, read in (("inlineData", _parse_inline), ("fileData", self._parse_uri)):
            if part.get(key := key_in(part.raw, name)) is not None:
                if is_signed:
                    return self._opaque(part)
                return self._with_fields(read(part.object(key)), part, key)
        if not _has_more_fields(part):
            raise ValidationError.at(part.at, "a part must have content")
        return self._opaque(part)

    def _with_fields(self, media: Image | File, part: Fields, key: str) -> Image | File:
        """Keep the other fields of a part with media, and those of the object that holds them."""
        names = ("displayName", "display_name") if isinstance(media, File) else ()
        blob = part.object(key).beside(self.name, *_MEDIA_FIELDS, *names).get("block", {})
        own = part.beside(self.name, key).get("block", {}) | ({key: blob} if blob else {})
        return replace(media, block=own, format=self.name) if own else media

    def _opaque(self, part: Fields) -> Opaque:
        return Opaque(part.json(), self.name)

    def _parse_uri(self, media: Fields) -> Image | File:
        uri = media.filled_text(key_in(media.raw, "fileUri"))
        media_type = media.optional_text(key_in(media.raw, "mimeType"))
        name = media.optional_text(key_in(media.raw, "displayName"))
        if not base64_media.is_web_url(uri) or is_own_file(uri):
            return File(media_type, file_id=uri, name=name, format=self.name)
        if (media_type or "").lower().startswith("image/"):
            return Image(media_type, url=uri)
        return File(media_type, url=uri, name=name)


def key_in(raw: Mapping[str, Any], name: str) -> str:
    """Return a field's name as it is spelled in `raw`, in camelCase where it is absent."""
    snake = _SNAKE.get(name, name)
    return snake if name not in raw and snake in raw else name


def field_in(raw: Mapping[str, Any], name: str) -> Any:
    """Return a field in either spelling, None where it is absent."""
    return raw.get(key_in(raw, name))


def signature_in(part: Mapping[str, Any]) -> str:
    """Return the thought signature of a wire part, empty without one."""
    signature = field_in(part, "thoughtSignature")
    return signature if isinstance(signature, str) else ""


def unsigned(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a wire part without its thought signature."""
    signatures = ("thoughtSignature", "thought_signature")
    return {key: item for key, item in part.items() if key not in signatures}


def original_call(call: ToolCall) -> Mapping[str, Any] | None:
    """Return the function call as Gemini made it, None for a call of another provider."""
    if call.block is None or call.format is not FormatName.GEMINI:
        return None
    original: Mapping[str, Any] = field_in(call.block, "functionCall")
    return original


def function_name(name: str) -> str:
    """Return the name of a function as Gemini accepts it [gemini.names]."""
    if _NAME.fullmatch(name):
        return name
    valid = tool_calls.tool_name(name)
    return valid if _NAME.fullmatch(valid) else f"_{valid}"


def is_own_file(uri: str) -> bool:
    """Return whether a URI names a file that was uploaded to Gemini."""
    return uri.startswith(_OWN_FILES)


def response_text(response: Mapping[str, Any]) -> str:
    """Return a response as text: its only text, else the whole as JSON."""
    if not response:
        return ""
    key = text_key(response)
    return response[key] if key is not None else json_fields.compact(response)


def text_key(response: Mapping[str, Any]) -> str | None:
    """Return the field that holds the only text of a response, None where there is none."""
    (key, *others) = response or ("",)
    is_text = not others and key in _TEXT_KEYS and isinstance(response.get(key), str)
    return key if is_text else None


def original_part(message: Message) -> Mapping[str, Any] | None:
    """Return the part that a result came as, None where its text has been replaced since."""
    if message.role is not Role.TOOL:
        return None
    own = (p.block for p in message.parts if isinstance(p, Text) and p.format is FormatName.GEMINI)
    return next((block for block in own if block is not None), None)


def response_of(message: Message) -> Mapping[str, Any]:
    """Return the response object of an adapted tool message (rule 4)."""
    original = original_part(message)
    if original is not None:
        response: Mapping[str, Any] = field_in(original, "functionResponse").get(RESULT_KEY) or {}
        return response
    return {"error" if message.is_error else "output": message.text or labels.MEDIA_FOLLOWS}


def response_name(message: Message) -> str:
    """Return the name in an adapted tool message's response, where no call decides about it."""
    return function_name(message.name or "tool")


def tool_media(message: Message) -> tuple[Part, ...]:
    """List the media of an adapted tool message that are sent as parts of their own (rule 4)."""
    if message.role is not Role.TOOL or original_part(message) is not None:
        return ()
    return tuple(part for part in message.parts if isinstance(part, Image | File))


def _has_more_fields(part: Fields, *names: str) -> bool:
    return any(value for key, value in part.raw.items() if key not in names)


def _has_signature(part: Fields) -> bool:
    """Check a part's signature, which must be base64; return whether there is one."""
    key = key_in(part.raw, "thoughtSignature")
    signature = part.optional_text(key)
    if signature and not base64_media.is_base64(signature):
        raise part.error(key, "must be base64")
    return bool(signature)


def _parse_inline(media: Fields) -> Image | File:
    data = media.filled_text("data")
    media_type = media.filled_text(key_in(media.raw, "mimeType"))
    if media_type.lower().startswith("image/"):
        return Image(media_type, data)
    return File(media_type, data, name=media.optional_text(key_in(media.raw, "displayName")))
