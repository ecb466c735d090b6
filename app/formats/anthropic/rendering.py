"""Renders neutral messages and tools for Anthropic Messages.

`adapt` returns a message as the format can carry it; `render` writes it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from app.common.sendable import sendable
from app.formats import base64_media, inline_media, labels, tool_calls
from app.formats.anthropic.parsing import AnthropicParsing
from app.formats.base64_media import PDF
from app.formats.message import File, Image, Message, Opaque, Part, Reasoning, Role, Text, ToolCall
from app.formats.tools import ToolDefinition, wire_fields

_THINKING = ("thinking", "redacted_thinking")


def _decoded(data: str) -> str:
    try:
        return base64.b64decode(data, validate=True).decode()
    except ValueError:
        return ""


def _source(part: Image | File) -> dict[str, Any]:
    if part.data is None:
        return {"type": "url", "url": part.url}
    return {"type": "base64", "media_type": part.media_type, "data": part.data}


class AnthropicRendering(AnthropicParsing):
    """Renders messages."""

    image_types = ("image/jpeg", "image/png", "image/gif", "image/webp")

    def is_sent(self, part: Part) -> bool:
        """Return whether a part may be sent: of reasoning only blocks that Anthropic made."""
        if not isinstance(part, Reasoning):
            return True
        return part.format is self.name and part.block is not None

    def _arranged(self, parts: list[Part], message: Message) -> list[Part]:
        """Leave out thinking at the end, which the provider refuses [anthropic.latest-thinking].

        Texts that another provider's model wrote after its calls stand before them.
        """
        while isinstance(parts[-1], Reasoning) and not all(isinstance(p, Reasoning) for p in parts):
            parts.pop()
        calls = (index for index, part in enumerate(parts) if isinstance(part, ToolCall))
        first_call = next(calls, len(parts))
        rest = parts[first_call:]
        if not any(isinstance(part, Opaque) for part in rest):
            parts[first_call:] = sorted(rest, key=lambda part: not isinstance(part, Text))
        return parts

    def _adapt_image(self, image: Image) -> Image | Text:
        if image.data is None:
            return image if base64_media.is_web_url(image.url) else labels.label_for(image)
        return super()._adapt_image(image)

    def _adapt_file(self, file: File) -> File | Text:
        if file.data is not None:
            return self._adapt_file_data(file, file.data)
        has_text = file.text is not None and bool(file.text.strip())
        is_uploaded = file.file_id is not None and file.format is self.name
        is_sendable = has_text or is_uploaded or base64_media.is_web_url(file.url)
        return file if is_sendable else labels.label_for(file)

    def _adapt_file_data(self, file: File, data: str) -> File | Text:
        media_type = inline_media.media_type_of(file)
        if media_type == PDF:
            return file if file.media_type == PDF else replace(file, media_type=PDF)
        text = _decoded(data) if (media_type or "").startswith("text/") else ""
        if not text.strip():
            return labels.label_for(file)
        return replace(file, media_type="text/plain", data=None, text=sendable(text))

    def render(
        self,
        message: Message,
        ids: Mapping[str, str] = tool_calls.NO_IDS,
        *,
        keep_reasoning: bool = False,
    ) -> tuple[Literal["user", "assistant"], list[dict[str, Any]]]:
        """Render a clean message as a wire role and its blocks.

        With `keep_reasoning`, thinking blocks that Anthropic made are replayed verbatim
        [anthropic.latest-thinking].
        """
        message = self.adapt(message, ids)
        parts = (
            part for part in message.parts if keep_reasoning or not isinstance(part, Reasoning)
        )
        blocks = [self._wire_block(part) for part in parts if self.is_sent(part)]
        while blocks and blocks[-1]["type"] in _THINKING:
            blocks.pop()
        if message.role is Role.TOOL:
            return "user", [self._wire_result(message, blocks)]
        return "assistant" if message.role is Role.ASSISTANT else "user", blocks

    def _function(self, tool: ToolDefinition) -> dict[str, Any]:
        return wire_fields(tool, "input_schema", strict=tool.strict)

    def _wire_block(self, part: Part) -> dict[str, Any]:
        match part:
            case Text():
                if part.block is not None and part.format is self.name:
                    return dict(part.block)
                return {"type": "text", "text": part.text}
            case Image():
                return {"type": "image", "source": _source(part)} | self.beside(part)
            case File():
                title = {"title": part.name} if part.name else {}
                document = {"type": "document", "source": self._document_source(part)} | title
                return document | self.beside(part)
            case ToolCall():
                arguments = tool_calls.arguments_object(part.arguments) or {}
                use = {"type": "tool_use", "id": part.id, "name": part.name, "input": arguments}
                return use | self.beside(part)
            case Reasoning() | Opaque():
                return dict(part.block or {})

    def _document_source(self, file: File) -> dict[str, Any]:
        if file.data is None and file.text is not None:
            return {"type": "text", "media_type": "text/plain", "data": file.text}
        if file.data is None and file.file_id is not None and file.format is self.name:
            return {"type": "file", "file_id": file.file_id}
        return _source(file)

    def _wire_result(self, message: Message, blocks: list[dict[str, Any]]) -> dict[str, Any]:
        is_text = len(blocks) == 1 and blocks[0].keys() == {"type", "text"}
        content = blocks[0]["text"] if is_text else blocks
        result = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": content}
        result |= {"is_error": True} if message.is_error else {}
        return result | self.beside(message)
