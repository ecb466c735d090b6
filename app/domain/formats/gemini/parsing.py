"""Reads Gemini contents as neutral messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.domain.common.errors import ValidationError
from app.domain.common.messages import (
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
from app.domain.formats import inline_media, json_fields, tool_calls
from app.domain.formats.gemini.fields import derived_id, field_in, is_own_file, is_response, key_in
from app.domain.formats.gemini.function_responses import RESULT_KEY, response_text

_FORMAT = FormatName.GEMINI
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
    """Read one content as one or more neutral messages .

    Raises `ValidationError` at the field below `pointer` that is wrong.
    """
    raw = json_fields.object_at(raw, pointer)
    role = raw.get("role")
    if role not in ("user", "model", "function"):
        json_fields.refuse_role(role, pointer, "user, model, function")
    at = f"{pointer}/parts"
    parts = [
        (json_fields.object_at(part, f"{at}/{index}"), f"{at}/{index}")
        for index, part in enumerate(json_fields.list_at(raw.get("parts"), at))
    ]
    if role == "model":
        return (Message(Role.ASSISTANT, _parse_model(parts)),)
    return _parse_user(parts)


def split(raw: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the wire content to store for each neutral message that `parse` returns.

    Each part is in one of them. The first keeps the unknown fields of the content.
    """
    parts = raw["parts"] if raw.get("role") != "model" else []
    pieces = [[part] for part in parts if is_response(part)]
    rest = [part for part in parts if not is_response(part)]
    if not pieces or (len(pieces) == 1 and not rest):
        return (dict(raw),)
    pieces += [rest] if rest else []
    others = ({"role": "user", "parts": piece} for piece in pieces[1:])
    return (dict(raw) | {"parts": pieces[0]}, *others)


def results(raw: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """List the function responses of a content, each with its JSON pointer."""
    parts = raw.get("parts")
    responses = []
    for index, part in enumerate(parts if isinstance(parts, list) else []):
        key = key_in(part, "functionResponse") if isinstance(part, Mapping) else ""
        if key and isinstance(part.get(key), Mapping):
            responses.append((f"/parts/{index}/{key}", part[key]))
    return responses


def _parse_user(parts: Sequence[tuple[Mapping[str, Any], str]]) -> tuple[Message, ...]:
    counts: dict[str, int] = {}
    messages = [_parse_response(part, at, counts) for part, at in parts if is_response(part)]
    rest = [(part, at) for part, at in parts if not is_response(part)]
    if rest or not messages:
        content = tuple(_parse_part(part, at, Role.USER) for part, at in rest)
        messages.append(Message(Role.USER, content))
    return tuple(messages)


def _parse_model(parts: Sequence[tuple[Mapping[str, Any], str]]) -> tuple[Part, ...]:
    parsed: list[Part] = []
    counts: dict[str, int] = {}
    seen: set[str] = set()
    for raw, at in parts:
        if field_in(raw, "functionCall") is None:
            parsed.append(_parse_part(raw, at, Role.ASSISTANT))
            continue
        call = _parse_call(raw, at, counts)
        tool_calls.add_call_id(call.id, seen, f"{at}/{key_in(raw, 'functionCall')}/id")
        parsed.append(call)
    return tuple(parsed)


def _parse_call(raw: Mapping[str, Any], pointer: str, counts: dict[str, int]) -> ToolCall:
    _has_signature(raw, pointer)
    at = f"{pointer}/{key_in(raw, 'functionCall')}"
    call = json_fields.object_at(field_in(raw, "functionCall"), at)
    name = json_fields.filled_text_at(call, "name", at)
    args = json_fields.object_at(call["args"], f"{at}/args") if call.get("args") is not None else {}
    arguments = json_fields.compact(json_fields.json_at(args, f"{at}/args"))
    call_id = json_fields.optional_text_at(call, "id", at)
    if not call_id:
        call_id = derived_id(name, counts)
    block = json_fields.json_at(dict(raw), pointer)
    return ToolCall(call_id, name, arguments, block=block, format=_FORMAT)


def _parse_response(raw: Mapping[str, Any], pointer: str, counts: dict[str, int]) -> Message:
    key = key_in(raw, "functionResponse")
    at = f"{pointer}/{key}"
    answer = json_fields.object_at(raw[key], at)
    name = json_fields.filled_text_at(answer, "name", at)
    call_id = json_fields.optional_text_at(answer, "id", at)
    if not call_id:
        call_id = derived_id(name, counts)
    response: Mapping[str, Any] = {}
    if answer.get(RESULT_KEY) is not None:
        response = json_fields.object_at(answer[RESULT_KEY], f"{at}/{RESULT_KEY}")
    known = {field: value for field, value in answer.items() if field in _RESPONSE_FIELDS}
    block = json_fields.json_at({**raw, key: known}, pointer)
    parts: list[Part] = [Text(response_text(response), block, _FORMAT)]
    if answer.get("parts") is not None:
        for index, item in enumerate(json_fields.list_at(answer["parts"], f"{at}/parts")):
            place = f"{at}/parts/{index}"
            parts.append(_parse_part(json_fields.object_at(item, place), place, Role.TOOL))
    is_error = isinstance(response.get("error"), str) and len(response) == 1
    return Message(Role.TOOL, tuple(parts), call_id, name, is_error)


def _parse_part(raw: Mapping[str, Any], pointer: str, role: Role) -> Part:
    signed = _has_signature(raw, pointer)
    if field_in(raw, "functionCall") is not None or is_response(raw):
        key = "functionResponse" if is_response(raw) else "functionCall"
        raise ValidationError.at(f"{pointer}/{key_in(raw, key)}", "is not allowed here")
    if raw.get("text") is not None:
        return _parse_text(raw, pointer, role, signed=signed)
    for name in ("inlineData", "fileData"):
        key = key_in(raw, name)
        if raw.get(key) is not None:
            at = f"{pointer}/{key}"
            media = json_fields.object_at(raw[key], at)
            read = _parse_inline if name == "inlineData" else _parse_uri
            part = read(media, at)
            return part if not _has_more_fields(raw, key) else _opaque(raw, pointer)
    if not _has_more_fields(raw):
        raise ValidationError.at(pointer, "a part must have content")
    return _opaque(raw, pointer)


def _has_more_fields(raw: Mapping[str, Any], *known: str) -> bool:
    return any(value for key, value in raw.items() if key not in known)


def _opaque(raw: Mapping[str, Any], pointer: str) -> Opaque:
    return Opaque(json_fields.json_at(dict(raw), pointer), _FORMAT)


def _has_signature(raw: Mapping[str, Any], pointer: str) -> bool:
    """Check a part's signature, which must be base64; return whether there is one."""
    signature = _optional_text(raw, "thoughtSignature", pointer)
    if signature and not inline_media.is_base64(signature):
        at = f"{pointer}/{key_in(raw, 'thoughtSignature')}"
        raise ValidationError.at(at, "must be base64")
    return bool(signature)


def _parse_text(
    raw: Mapping[str, Any], pointer: str, role: Role, *, signed: bool
) -> Text | Reasoning:
    text = json_fields.text_at(raw, "text", pointer)
    block = json_fields.json_at(dict(raw), pointer)
    is_thought = role is Role.ASSISTANT and raw.get("thought") is True
    if is_thought or (signed and not text.strip()):
        return Reasoning(text, block, _FORMAT) if signed else Reasoning(text)
    return Text(text, block, _FORMAT) if _has_more_fields(raw, "text") else Text(text)


def _parse_inline(media: Mapping[str, Any], pointer: str) -> Image | File:
    data = json_fields.filled_text_at(media, "data", pointer)
    if not inline_media.is_base64(data):
        raise ValidationError.at(f"{pointer}/data", "must be base64")
    media_type = json_fields.filled_text_at(media, key_in(media, "mimeType"), pointer)
    name = _optional_text(media, "displayName", pointer)
    if media_type.lower().startswith("image/"):
        return Image(media_type, data)
    return File(media_type, data, name=name)


def _parse_uri(media: Mapping[str, Any], pointer: str) -> Image | File:
    uri = json_fields.filled_text_at(media, key_in(media, "fileUri"), pointer)
    media_type = _optional_text(media, "mimeType", pointer)
    name = _optional_text(media, "displayName", pointer)
    if not inline_media.is_web_url(uri) or is_own_file(uri):
        return File(media_type, file_id=uri, name=name, format=_FORMAT)
    if (media_type or "").lower().startswith("image/"):
        return Image(media_type, url=uri)
    return File(media_type, url=uri, name=name)


def _optional_text(raw: Mapping[str, Any], name: str, pointer: str) -> str | None:
    return json_fields.optional_text_at(raw, key_in(raw, name), pointer)
