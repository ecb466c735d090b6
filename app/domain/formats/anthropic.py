"""Anthropic Messages, in and out (A5, K1, provider rules HA).

1. A wire user message with k tool results is k tool messages and one user message with the
   rest; the results must stand first (A3). `split` cuts the raw the same way, losing nothing.
2. `adapt` says what this format can say: ids, names, inputs and media it accepts.
   It returns the same object when there is nothing to change, and then the stored count holds.
3. `render` gives the wire role and blocks, since a wire message may hold several neutral ones.
4. Thinking goes back verbatim, where it stood among its blocks, or not at all (A9, N12).
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, assert_never

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
    sendable,
    sendable_json,
)
from app.domain.formats import json_fields, labels

if TYPE_CHECKING:
    from app.domain.formats import ToolDefinition

sendable_id = json_fields.sendable_id
tool_name = json_fields.tool_name

RESULT_KEY = "content"
"""Where a result holds its content."""
_FORMAT = FormatName.ANTHROPIC
_IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_PDF = "application/pdf"


def parse(raw: Mapping[str, Any], pointer: str) -> tuple[Message, ...]:
    """Read one wire message as one or more neutral ones (A1, A5).

    Raises `ValidationError` at the field below `pointer` that is wrong, also for a tool
    result that stands after other blocks (provider rule A3).
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
    """Give the raw to store for each neutral message that `parse` makes of it (A1, A5).

    The pieces' `content` lists, concatenated, are the original's; the first piece keeps
    the unknown fields of the message.
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
    """List the objects of a raw that hold a tool's result, with their places in it."""
    content = raw.get("content")
    blocks = content if isinstance(content, list) else []
    return [(f"/content/{i}", block) for i, block in enumerate(blocks) if _is_result(block)]


def adapt(message: Message, ids: Mapping[str, str] = json_fields.NO_IDS) -> Message:
    """Return a clean message as this format can say it, the same object when it can as is.

    `ids` maps call ids to the ids to send; others become `json_fields.sendable_id`. Parts only
    another format understands are described in text (N12). Reasoning stays in
    the neutral message, since it is counted apart; `render` decides about it.
    """
    parts = [new for part in message.parts for new in _adapt_part(part, message.role, ids)]
    return json_fields.adapted(message, parts, ids, json_fields.result_name(message))


def render(
    message: Message,
    ids: Mapping[str, str] = json_fields.NO_IDS,
    *,
    keep_reasoning: bool = False,
) -> tuple[Literal["user", "assistant"], list[dict[str, Any]]]:
    """Render a clean message as a wire role and its blocks (K1, HA).

    With `keep_reasoning`, thinking blocks Anthropic made are replayed verbatim (A9).
    """
    message = adapt(message, ids)
    shown = (part for part in message.parts if keep_reasoning or not isinstance(part, Reasoning))
    blocks = [_wire_block(part) for part in shown if is_sent(part)]
    match message.role:
        case Role.USER:
            return "user", blocks
        case Role.ASSISTANT:
            return "assistant", blocks
        case Role.TOOL:
            return "user", [_wire_result(message, blocks)]
        case _:
            assert_never(message.role)


def is_sent(part: Part) -> bool:
    """Tell whether a part may go to Anthropic at all: of reasoning only what it made (N12)."""
    if not isinstance(part, Reasoning):
        return True
    return part.format is _FORMAT and part.block is not None


def tools_to_wire(tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """Render tool definitions as `ToolParam` dicts, in their order."""
    return [_wire_tool(tool) for tool in tools]


def _wire_tool(tool: ToolDefinition) -> dict[str, Any]:
    rendered: dict[str, Any] = {"name": tool.name}
    if tool.description:
        rendered["description"] = sendable(tool.description)
    rendered["input_schema"] = sendable_json(tool.parameters)
    if tool.strict is not None:
        rendered["strict"] = tool.strict
    return rendered


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
            if part.id in seen:
                detail = "two calls of one message must not share an id"
                raise ValidationError.at(f"{pointer}/{index}/id", detail)
            seen.add(part.id)
        parts.append(part)
    return tuple(parts)


def _parse_result(raw: Mapping[str, Any], pointer: str) -> Message:
    call_id = json_fields.filled_text_at(raw, "tool_use_id", pointer)
    is_error = raw.get("is_error")
    if not isinstance(is_error, bool | None):
        detail = f"must be a boolean, not {json_fields.json_type(is_error)}"
        raise ValidationError.at(f"{pointer}/is_error", detail)
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
            detail = f"a {kind} block cannot stand here"
            raise ValidationError.at(f"{pointer}/type", detail)
    return _opaque(raw, pointer)


def _parse_text(raw: Mapping[str, Any], pointer: str) -> Text:
    text = json_fields.text_at(raw, "text", pointer)
    if any(raw[key] for key in raw if key not in ("type", "text", "cache_control")):
        return Text(text, _opaque(raw, pointer).block, _FORMAT)
    return Text(text)


def _opaque(raw: Mapping[str, Any], pointer: str) -> Opaque:
    """Cache marks are the payload's to place (A7), not part of what was said."""
    kept = {key: item for key, item in raw.items() if key != "cache_control"}
    return Opaque(json_fields.json_at(kept, pointer), _FORMAT)


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
            return json_fields.image_from_url(
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
    inline = json_fields.split_data_url(url)
    return File(url=url, name=name) if inline is None else File(inline[0], inline[1], name=name)


def _adapt_part(part: Part, role: Role, ids: Mapping[str, str]) -> Iterable[Part]:
    match part:
        case ToolCall():
            return (_adapt_call(part, ids),) if role is Role.ASSISTANT else ()
        case Image():
            return (labels.label_for(part) if role is Role.ASSISTANT else _adapt_image(part),)
        case File():
            return (labels.label_for(part) if role is Role.ASSISTANT else _adapt_file(part),)
        case Opaque():
            return (part if part.format is _FORMAT else labels.label_for(part),)
        case _:
            return (part,)


def _adapt_call(call: ToolCall, ids: Mapping[str, str]) -> ToolCall:
    sent, name = json_fields.sent_id(call.id, ids), json_fields.tool_name(call.name)
    arguments = _adapt_arguments(call.arguments)
    if (sent, name) == (call.id, call.name) and arguments is call.arguments and not call.custom:
        return call
    return ToolCall(sent, name, arguments)


def _adapt_arguments(text: str) -> str:
    """The input is sent as an object (A17), so what JSON escapes hide must be sendable too."""
    arguments = json_fields.arguments_object(text)
    if arguments is None:
        return json_fields.wrapped_arguments(text)
    cleaned = sendable_json(arguments) if "\\u" in text else arguments
    return text if cleaned is arguments else json_fields.compact(cleaned)


def _adapt_image(image: Image) -> Image | Text:
    if image.data is None:
        is_web = (image.url or "").lower().startswith(("https://", "http://"))
        return image if is_web else labels.label_for(image)
    declared = json_fields.media_type_of(image)
    media_type = "image/jpeg" if declared == "image/jpg" else declared
    if media_type not in _IMAGE_TYPES:
        return labels.label_for(image)
    return image if media_type == image.media_type else replace(image, media_type=media_type)


def _adapt_file(file: File) -> File | Text:
    if file.data is not None:
        return _adapt_file_data(file, file.data)
    is_web = (file.url or "").lower().startswith(("https://", "http://"))
    has_text = file.text is not None and bool(file.text.strip())
    is_known = file.file_id is not None and file.format is _FORMAT
    return file if has_text or is_web or is_known else labels.label_for(file)


def _adapt_file_data(file: File, data: str) -> File | Text:
    media_type = json_fields.media_type_of(file)
    if media_type == _PDF:
        return file if file.media_type == _PDF else replace(file, media_type=_PDF)
    text = _decoded(data) if (media_type or "").startswith("text/") else ""
    if not text.strip():
        return labels.label_for(file)
    return File(media_type="text/plain", text=sendable(text), name=file.name)


def _decoded(data: str) -> str:
    try:
        return base64.b64decode(data, validate=True).decode()
    except ValueError:
        return ""


def _wire_block(part: Part) -> dict[str, Any]:
    match part:
        case Text():
            if part.block is not None and part.format is _FORMAT:
                return dict(part.block)
            return {"type": "text", "text": part.text}
        case Image():
            return {"type": "image", "source": _source(part)}
        case File():
            title = {"title": part.name} if part.name else {}
            return {"type": "document", "source": _document_source(part)} | title
        case ToolCall():
            arguments = json_fields.arguments_object(part.arguments) or {}
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": arguments}
        case Reasoning() | Opaque():
            return dict(part.block or {})
        case _:
            assert_never(part)


def _source(part: Image | File) -> dict[str, Any]:
    if part.data is None:
        return {"type": "url", "url": part.url}
    return {"type": "base64", "media_type": part.media_type, "data": part.data}


def _document_source(file: File) -> dict[str, Any]:
    if file.data is None and file.text is not None:
        return {"type": "text", "media_type": "text/plain", "data": file.text}
    if file.data is None and file.file_id is not None and file.format is _FORMAT:
        return {"type": "file", "file_id": file.file_id}
    return _source(file)


def _wire_result(message: Message, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    is_text = len(blocks) == 1 and blocks[0].get("type") == "text"
    content = blocks[0]["text"] if is_text else blocks
    result = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": content}
    return result | {"is_error": True} if message.is_error else result
