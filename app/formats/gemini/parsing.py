"""Reads Gemini contents as neutral messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.common.errors import ValidationError
from app.formats import base64_media, json_fields, tool_calls
from app.formats.gemini.fields import RESULT_KEY, is_own_file, is_response, key_in, response_text
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

_FORMAT = FormatName.GEMINI
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


def parse(raw: Mapping[str, Any], pointer: str) -> tuple[Message, ...]:
    """Read one content as one or more neutral messages.

    Raises `ValidationError` at the field below `pointer` that is wrong.
    """
    content = Fields(raw, pointer)
    role = content.get("role")
    if role not in ("user", "model", "function"):
        json_fields.refuse_role(role, pointer, "user, model, function")
    parts = [Fields(part, at) for part, at in content.items("parts")]
    if role == "model":
        return (Message(Role.ASSISTANT, _parse_model(parts)),)
    return _parse_user(parts)


def split(raw: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the wire content to store for each neutral message that `parse` returns.

    Each part is in one of them. The first keeps the unknown fields of the content.
    """
    parts = raw["parts"] if raw.get("role") != "model" else []
    part_groups = [[part] for part in parts if is_response(part)]
    rest = [part for part in parts if not is_response(part)]
    if not part_groups or (len(part_groups) == 1 and not rest):
        return (dict(raw),)
    part_groups += [rest] if rest else []
    others = ({"role": "user", "parts": group} for group in part_groups[1:])
    return (dict(raw) | {"parts": part_groups[0]}, *others)


def results(raw: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """List the function responses of a content, each with its JSON pointer."""
    parts = raw.get("parts")
    responses = []
    for index, part in enumerate(parts if isinstance(parts, list) else []):
        key = key_in(part, "functionResponse") if isinstance(part, Mapping) else ""
        if key and isinstance(part.get(key), Mapping):
            responses.append((f"/parts/{index}/{key}", part[key]))
    return responses


def _parse_user(parts: Sequence[Fields]) -> tuple[Message, ...]:
    messages: list[Message] = []
    answered: set[str] = set()
    for part in parts:
        if is_response(part.raw):
            message = _parse_response(part)
            call_id = tool_calls.own_id(message.tool_call_id or "", answered)
            answered.add(call_id)
            messages.append(replace(message, tool_call_id=call_id))
    rest = [part for part in parts if not is_response(part.raw)]
    if rest or not messages:
        content = tuple(_parse_part(part, Role.USER) for part in rest)
        messages.append(Message(Role.USER, content))
    return tuple(messages)


def _parse_model(parts: Sequence[Fields]) -> tuple[Part, ...]:
    parsed: list[Part] = []
    for part in parts:
        key = key_in(part.raw, "functionCall")
        if part.get(key) is None:
            parsed.append(_parse_part(part, Role.ASSISTANT))
            continue
        parsed.append(_parse_call(part, part.object(key)))
    return tool_calls.with_own_ids(parsed)


def _parse_call(part: Fields, call: Fields) -> ToolCall:
    _has_signature(part)
    name = call.filled_text("name")
    args = call.object("args").json() if call.get("args") is not None else {}
    call_id = call.optional_text("id") or name
    return ToolCall(call_id, name, json_fields.compact(args), block=part.json(), format=_FORMAT)


def _parse_response(part: Fields) -> Message:
    key = key_in(part.raw, "functionResponse")
    answer = part.object(key)
    name = answer.filled_text("name")
    call_id = answer.optional_text("id") or name
    response: Mapping[str, Any] = {}
    if answer.get(RESULT_KEY) is not None:
        response = answer.object(RESULT_KEY).raw
    fields = {field: value for field, value in answer.raw.items() if field in _RESPONSE_FIELDS}
    block = json_fields.json_at({**part.raw, key: fields}, part.at)
    parts: list[Part] = [Text(response_text(response), block, _FORMAT)]
    if answer.get("parts") is not None:
        items = answer.items("parts")
        parts += [_parse_part(Fields(item, at), Role.TOOL) for item, at in items]
    is_error = isinstance(response.get("error"), str) and len(response) == 1
    return Message(Role.TOOL, tuple(parts), call_id, name, is_error)


def _parse_part(part: Fields, role: Role) -> Part:
    is_signed = _has_signature(part)
    for name in ("functionResponse", "functionCall"):
        if part.get(key := key_in(part.raw, name)) is not None:
            raise part.error(key, "is not allowed here")
    if part.get("text") is not None:
        return _parse_text(part, role, is_signed=is_signed)
    for name, read in (("inlineData", _parse_inline), ("fileData", _parse_uri)):
        if part.get(key := key_in(part.raw, name)) is not None:
            return _opaque(part) if is_signed else _with_fields(read(part.object(key)), part, key)
    if not _has_more_fields(part):
        raise ValidationError.at(part.at, "a part must have content")
    return _opaque(part)


def _with_fields(media: Image | File, part: Fields, key: str) -> Image | File:
    """Keep the other fields of a part with media, and those of the object that holds them."""
    names = ("displayName", "display_name") if isinstance(media, File) else ()
    blob = part.object(key).beside(_FORMAT, *_MEDIA_FIELDS, *names).get("block", {})
    own = part.beside(_FORMAT, key).get("block", {}) | ({key: blob} if blob else {})
    return replace(media, block=own, format=_FORMAT) if own else media


def _has_more_fields(part: Fields, *names: str) -> bool:
    return any(value for key, value in part.raw.items() if key not in names)


def _opaque(part: Fields) -> Opaque:
    return Opaque(part.json(), _FORMAT)


def _has_signature(part: Fields) -> bool:
    """Check a part's signature, which must be base64; return whether there is one."""
    key = key_in(part.raw, "thoughtSignature")
    signature = part.optional_text(key)
    if signature and not base64_media.is_base64(signature):
        raise part.error(key, "must be base64")
    return bool(signature)


def _parse_text(part: Fields, role: Role, *, is_signed: bool) -> Text | Reasoning:
    text, block = part.text("text"), part.json()
    is_thought = part.get("thought") is True or (is_signed and not text.strip())
    if is_thought and role is Role.ASSISTANT:
        return Reasoning(text, block, _FORMAT) if is_signed else Reasoning(text)
    return Text(text, block, _FORMAT) if _has_more_fields(part, "text") else Text(text)


def _parse_inline(media: Fields) -> Image | File:
    data = media.filled_text("data")
    media_type = media.filled_text(key_in(media.raw, "mimeType"))
    if media_type.lower().startswith("image/"):
        return Image(media_type, data)
    return File(media_type, data, name=media.optional_text(key_in(media.raw, "displayName")))


def _parse_uri(media: Fields) -> Image | File:
    uri = media.filled_text(key_in(media.raw, "fileUri"))
    media_type = media.optional_text(key_in(media.raw, "mimeType"))
    name = media.optional_text(key_in(media.raw, "displayName"))
    if not base64_media.is_web_url(uri) or is_own_file(uri):
        return File(media_type, file_id=uri, name=name, format=_FORMAT)
    if (media_type or "").lower().startswith("image/"):
        return Image(media_type, url=uri)
    return File(media_type, url=uri, name=name)
