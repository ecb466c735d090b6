"""Reads Anthropic messages as neutral messages."""

from __future__ import annotations

from collections.abc import Mapping
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

RESULT_KEY = "content"
"""The field of a result that holds its content."""
_FORMAT = FormatName.ANTHROPIC


def parse(raw: Mapping[str, Any], pointer: str) -> tuple[Message, ...]:
    """Read one wire message as one or more neutral ones.

    Raises `ValidationError` at the field below `pointer` that is wrong, also for a tool result
    after other blocks [anthropic.results-first].
    """
    raw = json_fields.object_at(raw, pointer)
    match raw.get("role"):
        case "user":
            return _parse_user(_blocks(raw, pointer), f"{pointer}/content")
        case "assistant":
            blocks = _blocks(raw, pointer)
            return (Message(Role.ASSISTANT, _parse_assistant(blocks, f"{pointer}/content")),)
        case role:
            json_fields.refuse_role(role, pointer, "user, assistant")


def split(raw: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the wire message to store for each neutral message that `parse` returns.

    Their `content` lists, concatenated, are that of the original. The first keeps the unknown
    fields of the message.
    """
    content = raw.get("content")
    blocks = content if raw.get("role") == "user" and isinstance(content, list) else []
    results = sum(map(_is_result, blocks))
    pieces = [[block] for block in blocks[:results]] + [blocks[results:]]
    pieces = [piece for piece in pieces if piece]
    if results == 0 or len(pieces) == 1:
        return (dict(raw),)
    others = ({"role": "user", "content": piece} for piece in pieces[1:])
    return (dict(raw) | {"content": pieces[0]}, *others)


def results(raw: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """List the tool results of a message, each with its JSON pointer."""
    content = raw.get("content")
    blocks = content if isinstance(content, list) else []
    return [(f"/content/{i}", block) for i, block in enumerate(blocks) if _is_result(block)]


def _is_result(block: object) -> bool:
    return isinstance(block, Mapping) and block.get("type") == "tool_result"


def _blocks(raw: Mapping[str, Any], pointer: str) -> list[Any]:
    match raw.get("content"):
        case str(text):
            return [{"type": "text", "text": text}]
        case list(blocks):
            return blocks
        case other:
            detail = f"must be a string or a list of blocks, not {json_fields.json_type(other)}"
            raise ValidationError.at(f"{pointer}/content", detail)


def _parse_user(blocks: list[Any], pointer: str) -> tuple[Message, ...]:
    results = sum(map(_is_result, blocks))
    for index, block in enumerate(blocks[:results]):
        if not _is_result(block):
            detail = "tool_result blocks must come before all other blocks of their message"
            raise ValidationError.at(f"{pointer}/{index}", detail)
    tools = [_parse_result(block, f"{pointer}/{i}") for i, block in enumerate(blocks[:results])]
    if results and len(blocks) == results:
        return tuple(tools)
    rest = enumerate(blocks[results:], results)
    parts = tuple(_parse_content(block, f"{pointer}/{i}", Role.USER) for i, block in rest)
    return (*tools, Message(Role.USER, parts))


def _parse_assistant(blocks: list[Any], pointer: str) -> tuple[Part, ...]:
    parts: list[Part] = []
    seen: set[str] = set()
    for index, block in enumerate(blocks):
        part = _parse_content(block, f"{pointer}/{index}", Role.ASSISTANT)
        if isinstance(part, ToolCall):
            tool_calls.add_call_id(part.id, seen, f"{pointer}/{index}/id")
        parts.append(part)
    return tuple(parts)


def _parse_result(raw: Mapping[str, Any], pointer: str) -> Message:
    call_id = json_fields.filled_text_at(raw, "tool_use_id", pointer)
    is_error = json_fields.optional_boolean_at(raw, "is_error", pointer)
    blocks = _blocks(raw, pointer) if raw.get("content") is not None else []
    at = f"{pointer}/content"
    parts = (_parse_content(block, f"{at}/{i}", Role.TOOL) for i, block in enumerate(blocks))
    return Message(Role.TOOL, tuple(parts), call_id, is_error=bool(is_error))


def _parse_content(value: object, pointer: str, role: Role) -> Part:
    raw = json_fields.object_at(value, pointer)
    match json_fields.filled_text_at(raw, "type", pointer), role:
        case "text", _:
            return _parse_text(raw, pointer)
        case "image", _:
            return _parse_image(raw, pointer)
        case "document", _:
            return _parse_document(raw, pointer)
        case "tool_use", Role.ASSISTANT:
            return _parse_call(raw, pointer)
        case (("thinking" | "redacted_thinking"), Role.ASSISTANT):
            return _parse_thinking(raw, pointer)
        case ("tool_use" | "tool_result" | "thinking" | "redacted_thinking") as kind, _:
            detail = f"a {kind} block is not allowed here"
            raise ValidationError.at(f"{pointer}/type", detail)
    return _opaque(raw, pointer)


def _parse_text(raw: Mapping[str, Any], pointer: str) -> Text:
    text = json_fields.text_at(raw, "text", pointer)
    if any(raw[key] for key in raw if key not in ("type", "text", "cache_control")):
        return Text(text, _opaque(raw, pointer).block, _FORMAT)
    return Text(text)


def _opaque(raw: Mapping[str, Any], pointer: str) -> Opaque:
    """Keep a block as it is, but for cache breakpoints, which each payload places itself."""
    block = {key: item for key, item in raw.items() if key != "cache_control"}
    return Opaque(json_fields.json_at(block, pointer), _FORMAT)


def _parse_call(raw: Mapping[str, Any], pointer: str) -> ToolCall:
    call_id = json_fields.filled_text_at(raw, "id", pointer)
    name = json_fields.text_at(raw, "name", pointer)
    at = f"{pointer}/input"
    arguments = json_fields.json_at(json_fields.object_at(raw.get("input"), at), at)
    return ToolCall(call_id, name, json_fields.compact(arguments))


def _parse_thinking(raw: Mapping[str, Any], pointer: str) -> Reasoning:
    block = json_fields.json_at(dict(raw), pointer)
    if raw["type"] == "redacted_thinking":
        json_fields.text_at(raw, "data", pointer)
        return Reasoning("", block, _FORMAT)
    text = json_fields.text_at(raw, "thinking", pointer)
    signed = bool(json_fields.optional_text_at(raw, "signature", pointer))
    return Reasoning(text, block, _FORMAT) if signed else Reasoning(text)


def _parse_image(raw: Mapping[str, Any], pointer: str) -> Image | Opaque:
    at = f"{pointer}/source"
    source = json_fields.object_at(raw.get("source"), at)
    match json_fields.filled_text_at(source, "type", at):
        case "base64":
            media_type = json_fields.optional_text_at(source, "media_type", at)
            return Image(media_type=media_type, data=json_fields.filled_text_at(source, "data", at))
        case "url":
            return inline_media.image_from_url(
                json_fields.filled_text_at(source, "url", at), f"{at}/url"
            )
        case _:
            return _opaque(raw, pointer)


def _parse_document(raw: Mapping[str, Any], pointer: str) -> File | Opaque:
    at = f"{pointer}/source"
    source = json_fields.object_at(raw.get("source"), at)
    name = json_fields.optional_text_at(raw, "title", pointer)
    media_type = json_fields.optional_text_at(source, "media_type", at)
    match json_fields.filled_text_at(source, "type", at):
        case "base64":
            data = json_fields.filled_text_at(source, "data", at)
            return File(media_type=media_type, data=data, name=name)
        case "text":
            text = json_fields.text_at(source, "data", at)
            return File(media_type=media_type, text=text, name=name)
        case "url":
            return _file_from_url(json_fields.filled_text_at(source, "url", at), name)
        case "file":
            file_id = json_fields.filled_text_at(source, "file_id", at)
            return File(file_id=file_id, name=name, format=_FORMAT)
        case _:
            return _opaque(raw, pointer)


def _file_from_url(url: str, name: str | None) -> File:
    inline = inline_media.split_data_url(url)
    return File(url=url, name=name) if inline is None else File(inline[0], inline[1], name=name)
