"""Renders neutral messages and tools for Anthropic Messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, assert_never

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
from app.domain.formats import tool_calls
from app.domain.formats.anthropic.adapting import adapt, is_sent
from app.domain.formats.tools import ToolDefinition, wire_fields

_FORMAT = FormatName.ANTHROPIC


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
    match message.role:
        case Role.USER:
            return "user", blocks
        case Role.ASSISTANT:
            return "assistant", blocks
        case Role.TOOL:
            return "user", [_wire_result(message, blocks)]
        case _:
            assert_never(message.role)


def tools_to_wire(tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """Render tool definitions as `ToolParam` dicts, in their order."""
    return [_tool(tool) for tool in tools]


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
            arguments = tool_calls.arguments_object(part.arguments) or {}
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


def _tool(tool: ToolDefinition) -> dict[str, Any]:
    strict = {} if tool.strict is None else {"strict": tool.strict}
    return wire_fields(tool, "input_schema") | strict
