"""Reads Anthropic messages as neutral messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.formats import base64_media, inline_media, json_fields, mcp_parts, tool_calls
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

RESULT_KEY = "content"
"""The field of a result that holds its content."""
_FORMAT = FormatName.ANTHROPIC
_TITLES = {
    "char_location": ("document_title",),
    "page_location": ("document_title",),
    "content_block_location": ("document_title",),
    "web_search_result_location": ("title",),
    "search_result_location": ("title",),
}
"""The title of each type of citation, which is required and may be null."""


def parse(raw: Mapping[str, Any], pointer: str) -> tuple[Message, ...]:
    """Read one wire message as one or more neutral ones.

    Results come first, as they are sent [anthropic.results-first]. Raises `ValidationError` at the
    field below `pointer` that is wrong.
    """
    message = Fields(raw, pointer)
    match message.get("role"):
        case "user":
            return _parse_user(_blocks(message))
        case "assistant":
            return (Message(Role.ASSISTANT, _parse_assistant(_blocks(message))),)
        case "system":
            parts = (_parse_content(block, at, Role.SYSTEM) for block, at in _blocks(message))
            return (Message(Role.SYSTEM, tuple(parts)),)
        case role:
            json_fields.refuse_role(role, pointer, "user, assistant, system")


def split(raw: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the wire message to store for each neutral message that `parse` returns.

    Each block is in one of them. The first keeps the unknown fields of the message.
    """
    content = raw.get("content")
    blocks = content if raw.get("role") == "user" and isinstance(content, list) else []
    rest = [block for block in blocks if not _is_result(block)]
    block_groups = [[block] for block in blocks if _is_result(block)]
    if not block_groups or (len(block_groups) == 1 and not rest):
        return (dict(raw),)
    block_groups += [rest] if rest else []
    others = ({"role": "user", "content": group} for group in block_groups[1:])
    return (dict(raw) | {"content": block_groups[0]}, *others)


def results(raw: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """List the tool results of a message, each with its JSON pointer."""
    content = raw.get("content")
    blocks = content if isinstance(content, list) else []
    return [(f"/content/{i}", block) for i, block in enumerate(blocks) if _is_result(block)]


def _is_result(block: object) -> bool:
    return isinstance(block, Mapping) and block.get("type") == "tool_result"


def _blocks(holder: Fields) -> list[tuple[Any, str]]:
    """Return the blocks of a content with their JSON pointers."""
    content = holder.get("content")
    if isinstance(content, str):
        return [({"type": "text", "text": content}, f"{holder.at}/content/0")]
    if not isinstance(content, list):
        kind = json_fields.json_type(content)
        raise holder.error("content", f"must be a string or a list of blocks, not {kind}")
    return holder.items("content")


def _parse_user(blocks: list[tuple[Any, str]]) -> tuple[Message, ...]:
    messages = [_parse_result(Fields(block, at)) for block, at in blocks if _is_result(block)]
    rest = [(block, at) for block, at in blocks if not _is_result(block)]
    if rest or not messages:
        parts = (_parse_content(block, at, Role.USER) for block, at in rest)
        messages.append(Message(Role.USER, tuple(parts)))
    return tuple(messages)


def _parse_assistant(blocks: list[tuple[Any, str]]) -> tuple[Part, ...]:
    return tool_calls.with_own_ids(
        _parse_content(block, at, Role.ASSISTANT) for block, at in blocks
    )


def _parse_result(result: Fields) -> Message:
    call_id = result.filled_text("tool_use_id")
    is_error = bool(result.optional_boolean("is_error"))
    blocks = _blocks(result) if result.get("content") is not None else []
    parts = tuple(_parse_content(block, at, Role.TOOL) for block, at in blocks)
    beside = result.beside(_FORMAT, "tool_use_id", "content", "is_error", "output_ref")
    return Message(Role.TOOL, parts, call_id, is_error=is_error, **beside)


def _parse_content(value: object, pointer: str, role: Role) -> Part:
    block = Fields(value, pointer)
    if role is not Role.ASSISTANT and (of_mcp := mcp_parts.read(block)) is not None:
        return of_mcp
    match block.filled_text("type"), role:
        case "text", _:
            return _parse_text(block)
        case "image", _:
            return _parse_image(block)
        case "document", _:
            return _parse_document(block)
        case "tool_use", Role.ASSISTANT:
            call_id, name = block.filled_text("id"), block.text("name")
            given = block.object("input").json() if block.get("input") is not None else {}
            beside = block.beside(_FORMAT, "id", "name", "input")
            return ToolCall(call_id, name, json_fields.compact(given), **beside)
        case (("thinking" | "redacted_thinking"), Role.ASSISTANT):
            return _parse_thinking(block)
        case "compaction", Role.ASSISTANT:
            return _parse_compaction(block)
        case ("tool_use" | "tool_result" | "thinking" | "redacted_thinking") as kind, _:
            raise block.error("type", f"a {kind} block is not allowed here")
    return _opaque(block)


def _parse_text(block: Fields) -> Text:
    text = block.text("text")
    if any(item for key, item in block.raw.items() if key not in ("type", "text", "cache_control")):
        original = _opaque(block).block
        if isinstance(citations := original.get("citations"), list):
            cited = (citation for citation in citations if isinstance(citation, Mapping))
            original = {**original, "citations": list(map(_citation, cited))}
        return Text(text, original, _FORMAT)
    return Text(text)


def _citation(citation: Mapping[str, Any]) -> dict[str, Any]:
    required = _TITLES.get(json_fields.text_in(citation, "type"), ())
    return json_fields.without_nulls(citation, required)


def _opaque(block: Fields) -> Opaque:
    """Keep a block but for cache breakpoints, which each payload places itself, and nulls."""
    return Opaque(_without_breakpoints(json_fields.without_nulls(block.json())), _FORMAT)


def _without_breakpoints(value: Any) -> Any:
    """Leave out the cache breakpoints of a block and of the blocks in it."""
    if isinstance(value, list):
        return [_without_breakpoints(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    return {
        key: _without_breakpoints(item) if key in ("content", "source") else item
        for key, item in value.items()
        if key != "cache_control"
    }


def _parse_thinking(block: Fields) -> Reasoning:
    original = block.json()
    if block.raw["type"] == "redacted_thinking":
        block.text("data")
        return Reasoning("", original, _FORMAT)
    text = block.text("thinking")
    is_signed = bool(block.optional_text("signature"))
    return Reasoning(text, original, _FORMAT) if is_signed else Reasoning(text)


def _parse_compaction(block: Fields) -> Reasoning:
    """Read a compaction block; a failed one has null instead of its summary."""
    for key in ("content", "encrypted_content", "signature"):
        block.optional_text(key)
    return Reasoning("", block.json("cache_control"), _FORMAT)


def _parse_image(block: Fields) -> Image | Opaque:
    source = block.object("source")
    match source.filled_text("type"):
        case "base64":
            media_type = source.optional_text("media_type")
            image = Image(media_type=media_type, data=source.filled_text("data"))
        case "url":
            image = inline_media.image_from_url(source.filled_text("url"), f"{source.at}/url")
        case _:
            return _opaque(block)
    return replace(image, **block.beside(_FORMAT, "source"))


def _parse_document(block: Fields) -> File | Opaque:
    source = block.object("source")
    name, media_type = block.optional_text("title"), source.optional_text("media_type")
    match source.filled_text("type"):
        case "base64":
            file = File(media_type=media_type, data=source.filled_text("data"), name=name)
        case "text":
            file = File(media_type=media_type, text=source.text("data"), name=name)
        case "url":
            url = source.filled_text("url")
            inline = base64_media.split_data_url(url)
            file = File(*inline, name=name) if inline else File(url=url, name=name)
        case "file":
            file = File(file_id=source.filled_text("file_id"), name=name, format=_FORMAT)
        case _:
            return _opaque(block)
    return replace(file, **block.beside(_FORMAT, "source", "title"))
