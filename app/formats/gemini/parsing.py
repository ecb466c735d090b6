"""Reads Gemini contents as neutral messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.common.errors import ValidationError
from app.formats import base64_media, json_fields, tool_calls
from app.formats.blocks import BlockProvider
from app.formats.gemini.fields import RESULT_KEY, field_in, is_own_file, key_in, response_text
from app.formats.json_fields import Fields
from app.formats.message import File, Image, Message, Opaque, Part, Reasoning, Role, Text, ToolCall

_MEDIA_FIELDS = ("data", "mimeType", "mime_type", "fileUri", "file_uri")
_RESPONSE_FIELDS = (
    "id",
    "name",
    "response",
    "parts",
    "scheduling",
    "willContinue",
    "will_continue",
)


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
            return (Message(Role.ASSISTANT, self._parse_model(parts)),)
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
        for message in map(self._parse_response, blocks):
            call_id = tool_calls.own_id(message.tool_call_id or "", answered)
            answered.add(call_id)
            messages.append(replace(message, tool_call_id=call_id))
        return messages

    def _parse_model(self, parts: Sequence[Fields]) -> tuple[Part, ...]:
        parsed: list[Part] = []
        for part in parts:
            key = key_in(part.raw, "functionCall")
            if part.get(key) is None:
                parsed.append(self._parse_part(part, Role.ASSISTANT))
                continue
            parsed.append(self._parse_call(part, part.object(key)))
        return tool_calls.with_own_ids(parsed)

    def _parse_call(self, part: Fields, call: Fields) -> ToolCall:
        _has_signature(part)
        name = call.filled_text("name")
        args = call.object("args").json() if call.get("args") is not None else {}
        call_id = call.optional_text("id") or name
        return ToolCall(
            call_id, name, json_fields.compact(args), block=part.json(), format=self.name
        )

    def _parse_response(self, part: Fields) -> Message:
        key = key_in(part.raw, "functionResponse")
        answer = part.object(key)
        name = answer.filled_text("name")
        call_id = answer.optional_text("id") or name
        response: Mapping[str, Any] = {}
        if answer.get(RESULT_KEY) is not None:
            response = answer.object(RESULT_KEY).raw
        fields = {field: value for field, value in answer.raw.items() if field in _RESPONSE_FIELDS}
        block = json_fields.json_at({**part.raw, key: fields}, part.at)
        parts: list[Part] = [Text(response_text(response), block, self.name)]
        if answer.get("parts") is not None:
            parts += [self._parse_part(item, Role.TOOL) for item in answer.objects("parts")]
        is_error = isinstance(response.get("error"), str) and len(response) == 1
        return Message(Role.TOOL, tuple(parts), call_id, name, is_error)

    def _parse_part(self, part: Fields, role: Role) -> Part:
        is_signed = _has_signature(part)
        for name in ("functionResponse", "functionCall"):
            if part.get(key := key_in(part.raw, name)) is not None:
                raise part.error(key, "is not allowed here")
        if part.get("text") is not None:
            return self._parse_text(part, role, is_signed=is_signed)
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

    def _parse_text(self, part: Fields, role: Role, *, is_signed: bool) -> Text | Reasoning:
        text, block = part.text("text"), part.json()
        is_thought = part.get("thought") is True or (is_signed and not text.strip())
        if is_thought and role is Role.ASSISTANT:
            return Reasoning(text, block, self.name) if is_signed else Reasoning(text)
        return Text(text, block, self.name) if _has_more_fields(part, "text") else Text(text)

    def _parse_uri(self, media: Fields) -> Image | File:
        uri = media.filled_text(key_in(media.raw, "fileUri"))
        media_type = media.optional_text(key_in(media.raw, "mimeType"))
        name = media.optional_text(key_in(media.raw, "displayName"))
        if not base64_media.is_web_url(uri) or is_own_file(uri):
            return File(media_type, file_id=uri, name=name, format=self.name)
        if (media_type or "").lower().startswith("image/"):
            return Image(media_type, url=uri)
        return File(media_type, url=uri, name=name)
