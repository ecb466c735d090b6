"""Renders neutral messages and tools for Anthropic Messages.

`adapt` returns a message as the format can carry it; `render` writes it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, assert_never

from app.common.sendable import sendable
from app.formats import adapting, base64_media, inline_media, labels, tool_calls
from app.formats.hosted_tools import hosted_definition
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
from app.formats.tools import ToolDefinition, wire_fields

_FORMAT = FormatName.ANTHROPIC
_IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_PDF = "application/pdf"
_THINKING = ("thinking", "redacted_thinking")


def adapt(message: Message, ids: Mapping[str, str] = tool_calls.NO_IDS) -> Message:
    """Adapt a clean message, as `Format.adapt`; `render` decides about its reasoning.

    Thinking at the end, which the provider refuses, is left out [anthropic.latest-thinking]. Texts
    that another provider's model wrote after its calls stand before them.
    """
    message = adapting.without_system(message)
    parts = adapting.adapt_parts(
        message,
        _FORMAT,
        lambda call: _adapt_call(call, ids),
        _adapt_image,
        _adapt_file,
    )
    while isinstance(parts[-1], Reasoning) and not all(isinstance(p, Reasoning) for p in parts):
        parts.pop()
    first_call = next((i for i, part in enumerate(parts) if isinstance(part, ToolCall)), len(parts))
    rest = parts[first_call:]
    if not any(isinstance(part, Opaque) for part in rest):
        parts[first_call:] = sorted(rest, key=lambda part: not isinstance(part, Text))
    return adapting.adapted_message(message, parts, ids, adapting.result_name(message))


def is_sent(part: Part) -> bool:
    """Return whether a part may be sent: of reasoning only blocks that Anthropic made."""
    if not isinstance(part, Reasoning):
        return True
    return part.format is _FORMAT and part.block is not None


def _adapt_call(call: ToolCall, ids: Mapping[str, str]) -> ToolCall:
    sent, name = tool_calls.sent_id(call.id, ids), tool_calls.tool_name(call.name)
    arguments = tool_calls.object_arguments(call.arguments)
    if (sent, name) == (call.id, call.name) and arguments is call.arguments and not call.custom:
        return call
    return replace(call, id=sent, name=name, arguments=arguments, custom=False)


def _adapt_image(image: Image) -> Image | Text:
    if image.data is None:
        return image if base64_media.is_web_url(image.url) else labels.label_for(image)
    declared = inline_media.media_type_of(image)
    media_type = "image/jpeg" if declared == "image/jpg" else declared
    if media_type not in _IMAGE_TYPES:
        return labels.label_for(image)
    return image if media_type == image.media_type else replace(image, media_type=media_type)


def _adapt_file(file: File) -> File | Text:
    if file.data is not None:
        return _adapt_file_data(file, file.data)
    has_text = file.text is not None and bool(file.text.strip())
    is_uploaded = file.file_id is not None and file.format is _FORMAT
    is_sendable = has_text or is_uploaded or base64_media.is_web_url(file.url)
    return file if is_sendable else labels.label_for(file)


def _adapt_file_data(file: File, data: str) -> File | Text:
    media_type = inline_media.media_type_of(file)
    if media_type == _PDF:
        return file if file.media_type == _PDF else replace(file, media_type=_PDF)
    text = _decoded(data) if (media_type or "").startswith("text/") else ""
    if not text.strip():
        return labels.label_for(file)
    return replace(file, media_type="text/plain", data=None, text=sendable(text))


def _decoded(data: str) -> str:
    try:
        return base64.b64decode(data, validate=True).decode()
    except ValueError:
        return ""


def render(
    message: Message,
    ids: Mapping[str, str] = tool_calls.NO_IDS,
    *,
    keep_reasoning: bool = False,
) -> tuple[Literal["user", "assistant"], list[dict[str, Any]]]:
    """Render a clean message as a wire role and its blocks.

    With `keep_reasoning`, thinking blocks that Anthropic made are replayed verbatim
    [anthropic.latest-thinking].
    """
    message = adapt(message, ids)
    parts = (part for part in message.parts if keep_reasoning or not isinstance(part, Reasoning))
    blocks = [_wire_block(part) for part in parts if is_sent(part)]
    while blocks and blocks[-1]["type"] in _THINKING:
        blocks.pop()
    match message.role:
        case Role.USER | Role.SYSTEM:
            return "user", blocks
        case Role.ASSISTANT:
            return "assistant", blocks
        case Role.TOOL:
            return "user", [_wire_result(message, blocks)]
        case _:
            assert_never(message.role)


def tools_to_wire(tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """Render tool definitions as `ToolUnionParam` dicts, in their order."""
    return [
        hosted_definition(tool.hosted)
        if tool.hosted is not None
        else wire_fields(tool, "input_schema", strict=tool.strict)
        for tool in tools
    ]


def _wire_block(part: Part) -> dict[str, Any]:
    match part:
        case Text():
            if part.block is not None and part.format is _FORMAT:
                return dict(part.block)
            return {"type": "text", "text": part.text}
        case Image():
            return {"type": "image", "source": _source(part)} | adapting.beside(part, _FORMAT)
        case File():
            title = {"title": part.name} if part.name else {}
            document = {"type": "document", "source": _document_source(part)} | title
            return document | adapting.beside(part, _FORMAT)
        case ToolCall():
            arguments = tool_calls.arguments_object(part.arguments) or {}
            use = {"type": "tool_use", "id": part.id, "name": part.name, "input": arguments}
            return use | adapting.beside(part, _FORMAT)
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
    is_text = len(blocks) == 1 and blocks[0].keys() == {"type", "text"}
    content = blocks[0]["text"] if is_text else blocks
    result = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": content}
    result |= {"is_error": True} if message.is_error else {}
    return result | adapting.beside(message, _FORMAT)
