"""Reads Anthropic messages as neutral messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.formats import base64_media, inline_media, json_fields, mcp_parts, tool_calls
from app.formats.blocks import BlockProvider
from app.formats.json_fields import Fields
from app.formats.message import File, Image, Message, Opaque, Part, Reasoning, Role, Text, ToolCall

_TITLES = {
    "char_location": ("document_title",),
    "page_location": ("document_title",),
    "content_block_location": ("document_title",),
    "web_search_result_location": ("title",),
    "search_result_location": ("title",),
}
"""The title of each type of citation, which is required and may be null."""


def _blocks(holder: Fields) -> Iterator[Fields]:
    """Return the blocks of a content."""
    content = holder.get("content")
    if isinstance(content, str):
        return iter((Fields({"type": "text", "text": content}, f"{holder.at}/content/0"),))
    if not isinstance(content, list):
        kind = json_fields.json_type(content)
        raise holder.error("content", f"must be a string or a list of blocks, not {kind}")
    return holder.objects("content")


def _citation(citation: Mapping[str, Any]) -> dict[str, Any]:
    required = _TITLES.get(json_fields.text_in(citation, "type"), ())
    return json_fields.without_nulls(citation, required)


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


class AnthropicParsing(BlockProvider):
    """Reads messages."""

    def parse(self, raw: Mapping[str, Any], pointer: str) -> tuple[Message, ...]:
        """Read one wire message as one or more neutral ones."""
        message = Fields(raw, pointer)
        match message.get("role"):
            case "user":
                return self._parse_user(list(_blocks(message)))
            case "assistant" | "system" as name:
                role = Role(name)
                parts = (self._parse_part(block, role) for block in _blocks(message))
                return (Message(role, tool_calls.with_own_ids(parts)),)
            case role:
                json_fields.refuse_role(role, pointer, "user, assistant, system")

    def results(self, raw: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
        """List the tool results of a message, each with its JSON pointer."""
        content = raw.get("content")
        blocks = content if isinstance(content, list) else []
        return [(f"/content/{i}", block) for i, block in enumerate(blocks) if self.is_result(block)]

    def is_result(self, block: Mapping[str, Any]) -> bool:
        """Whether a block is a tool result."""
        return isinstance(block, Mapping) and block.get("type") == "tool_result"

    def _parse_results(self, blocks: Sequence[Fields]) -> list[Message]:
        return list(map(self._parse_result, blocks))

    def _parse_result(self, result: Fields) -> Message:
        call_id = result.filled_text("tool_use_id")
        is_error = bool(result.optional_boolean("is_error"))
        blocks = _blocks(result) if result.get("content") is not None else ()
        parts = tuple(self._parse_part(block, Role.TOOL) for block in blocks)
        beside = result.beside(self.name, "tool_use_id", "content", "is_error", "output_ref")
        return Message(Role.TOOL, parts, call_id, is_error=is_error, **beside)

    def _parse_part(self, block: Fields, role: Role) -> Part:
        if role is not Role.ASSISTANT and (of_mcp := mcp_parts.read(block)) is not None:
            return of_mcp
        match block.filled_text("type"), role:
            case "text", _:
                return self._parse_text(block)
            case "image", _:
                return self._parse_image(block)
            case "document", _:
                return self._parse_document(block)
            case "tool_use", Role.ASSISTANT:
                call_id, name = block.filled_text("id"), block.text("name")
                given = block.object("input").json() if block.get("input") is not None else {}
                beside = block.beside(self.name, "id", "name", "input")
                return ToolCall(call_id, name, json_fields.compact(given), **beside)
            case (("thinking" | "redacted_thinking"), Role.ASSISTANT):
                return self._parse_thinking(block)
            case "compaction", Role.ASSISTANT:
                return self._parse_compaction(block)
            case ("tool_use" | "tool_result" | "thinking" | "redacted_thinking") as kind, _:
                raise block.error("type", f"a {kind} block is not allowed here")
        return self._opaque(block)

    def _parse_text(self, block: Fields) -> Text:
        text = block.text("text")
        if any(
            item for key, item in block.raw.items() if key not in ("type", "text", "cache_control")
        ):
            original = self._opaque(block).block
            if isinstance(citations := original.get("citations"), list):
                cited = (citation for citation in citations if isinstance(citation, Mapping))
                original = {**original, "citations": list(map(_citation, cited))}
            return Text(text, original, self.name)
        return Text(text)

    def _opaque(self, block: Fields) -> Opaque:
        """Keep a block but for cache breakpoints, which each payload places itself, and nulls."""
        return Opaque(_without_breakpoints(json_fields.without_nulls(block.json())), self.name)

    def _parse_thinking(self, block: Fields) -> Reasoning:
        original = block.json()
        if block.raw["type"] == "redacted_thinking":
            block.text("data")
            return Reasoning("", original, self.name)
        text = block.text("thinking")
        is_signed = bool(block.optional_text("signature"))
        return Reasoning(text, original, self.name) if is_signed else Reasoning(text)

    def _parse_compaction(self, block: Fields) -> Reasoning:
        """Read a compaction block; a failed one has null instead of its summary."""
        for key in ("content", "encrypted_content", "signature"):
            block.optional_text(key)
        return Reasoning("", block.json("cache_control"), self.name)

    def _parse_image(self, block: Fields) -> Image | Opaque:
        source = block.object("source")
        match source.filled_text("type"):
            case "base64":
                media_type = source.optional_text("media_type")
                image = Image(media_type=media_type, data=source.filled_text("data"))
            case "url":
                image = inline_media.image_from_url(source.filled_text("url"), f"{source.at}/url")
            case _:
                return self._opaque(block)
        return replace(image, **block.beside(self.name, "source"))

    def _parse_document(self, block: Fields) -> File | Opaque:
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
                file = File(file_id=source.filled_text("file_id"), name=name, format=self.name)
            case _:
                return self._opaque(block)
        return replace(file, **block.beside(self.name, "source", "title"))
