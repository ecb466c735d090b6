"""Anthropic Messages.

1. A wire user message with k tool results is k tool messages and one user message with the rest.
   The results must come first. `split` cuts the raw message in the same way and loses nothing.
2. `render` returns blocks, since one wire message may hold several neutral ones.
3. Thinking is replayed verbatim, at its place among the blocks, or is left out.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from app.common import json_text
from app.common.texts import sendable
from app.formats import json_fields, labels, media
from app.formats.base import AgentCall, Compaction, RequestFields, System, SystemPrompt
from app.formats.json_fields import Fields, text_in, without_nulls
from app.formats.media import PDF
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
from app.formats.reasoning import ANTHROPIC
from app.formats.shared import BlockProvider
from app.formats.tools import ToolDefinition, arguments_object, wire_fields, with_own_ids

_TITLES = {
    "char_location": ("document_title",),
    "page_location": ("document_title",),
    "content_block_location": ("document_title",),
    "web_search_result_location": ("title",),
    "search_result_location": ("title",),
}
"""The title of each type of citation, which is required and may be null."""
_THRESHOLD_BETA = "compact-2026-01-12"
_REQUESTED_BETA = "compact-2026-09-04"
MIN_THRESHOLD = 50_000
"""The smallest threshold that Anthropic takes, in tokens of the input."""


class Anthropic(BlockProvider):
    """Anthropic Messages."""

    name = FormatName.ANTHROPIC
    part_types = (
        *("text", "image", "document", "tool_use", "tool_result", "server_tool_use"),
        *("thinking", "redacted_thinking", "compaction"),
    )
    family = ANTHROPIC
    blocks_key = "content"
    max_output_key = "max_tokens"
    breakpoint = ("cache_control", {"type": "ephemeral"})
    caches_by_itself = False
    defers_tools = True
    needs_tools = True
    compacting_families = ((ANTHROPIC,),)
    image_types = ("image/jpeg", "image/png", "image/gif", "image/webp")
    linked_fields = ("toolset_name",)
    not_counted = ("type", "text", "cache_control")

    def parse(self, raw: Mapping[str, Any], pointer: str) -> tuple[Message, ...]:
        """Read one wire message as one or more neutral ones."""
        message = Fields(raw, pointer)
        match message.get("role"):
            case "user":
                return self._parse_user(_blocks(message))
            case "assistant" | "system" as name:
                role = Role(name)
                parts = (self._parse_part(block, role) for block in _blocks(message))
                return (Message(role, with_own_ids(parts)),)
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

    def _parse_result(self, result: Fields) -> Message:
        call_id = result.filled_text("tool_use_id")
        is_error = bool(result.optional_boolean("is_error"))
        blocks = _blocks(result) if result.get("content") is not None else ()
        parts = tuple(self._parse_part(block, Role.TOOL) for block in blocks)
        beside = result.beside(self.name, "tool_use_id", "content", "is_error", "output_ref")
        return Message(Role.TOOL, parts, call_id, is_error=is_error, **beside)

    def _parse_part(self, block: Fields, role: Role) -> Part:
        if role is not Role.ASSISTANT and (of_mcp := media.read_mcp(block)) is not None:
            return of_mcp
        match block.filled_text("type"), role:
            case "text", _:
                return self._parse_text(block)
            case "image" | "document" as kind, _:
                return self._parse_media(block, is_image=kind == "image")
            case "tool_use", Role.ASSISTANT:
                call_id, name = block.filled_text("id"), block.text("name")
                given = block.object("input").json() if block.get("input") is not None else {}
                beside = block.beside(self.name, "id", "name", "input")
                return ToolCall(call_id, name, json_fields.compact(given), **beside)
            case "redacted_thinking", Role.ASSISTANT:
                block.text("data")
                return Reasoning("", block.json(), self.name)
            case "thinking", Role.ASSISTANT:
                text, is_signed = block.text("thinking"), block.optional_text("signature")
                return Reasoning(text, block.json(), self.name) if is_signed else Reasoning(text)
            case "compaction", Role.ASSISTANT:  # a failed one has null instead of its summary
                for key in ("content", "encrypted_content", "signature"):
                    block.optional_text(key)
                return Reasoning("", block.json("cache_control"), self.name)
            case ("tool_use" | "tool_result" | "thinking" | "redacted_thinking") as kind, _:
                raise block.error("type", f"a {kind} block is not allowed here")
        return self._opaque(block)

    def _parse_text(self, block: Fields) -> Text:
        text = block.text("text")
        if not self._extra_fields(Text(text), block.raw):
            return Text(text)
        original = self._opaque(block).block
        if isinstance(citations := original.get("citations"), list):
            cited = [
                without_nulls(each, _TITLES.get(text_in(each, "type"), ()))
                for each in citations
                if isinstance(each, Mapping)
            ]
            original = {**original, "citations": cited}
        return Text(text, original, self.name)

    def _opaque(self, block: Fields, *excluded: str) -> Opaque:
        """Keep a block but for cache breakpoints, which each payload places itself, and nulls."""
        return Opaque(_without_breakpoints(without_nulls(block.json())), self.name)

    def _parse_media(self, block: Fields, *, is_image: bool) -> Image | File | Opaque:
        source, name = block.object("source"), None if is_image else block.optional_text("title")
        media_type = source.optional_text("media_type")
        found: Image | File
        match source.filled_text("type"):
            case "base64":
                data = source.filled_text("data")
                found = Image(media_type, data) if is_image else File(media_type, data, name=name)
            case "url" if is_image:
                found = media.image_from_url(source.filled_text("url"), f"{source.at}/url")
            case "url":
                url = source.filled_text("url")
                inline = media.split_data_url(url)
                found = File(*inline, name=name) if inline else File(url=url, name=name)
            case "text" if not is_image:
                found = File(media_type=media_type, text=source.text("data"), name=name)
            case "file" if not is_image:
                found = File(file_id=source.filled_text("file_id"), name=name, format=self.name)
            case _:
                return self._opaque(block)
        known = ("source",) if is_image else ("source", "title")
        return replace(found, **block.beside(self.name, *known))

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
            return image if media.is_web_url(image.url) else labels.label_for(image)
        return super()._adapt_image(image)

    def _adapt_file(self, file: File) -> File | Text:
        if file.data is not None:
            media_type = media.media_type_of(file) or ""
            if media_type == PDF:
                return file if file.media_type == PDF else replace(file, media_type=PDF)
            text = ""
            with suppress(ValueError):
                if media_type.startswith("text/"):
                    text = sendable(base64.b64decode(file.data, validate=True).decode())
            read = replace(file, media_type="text/plain", data=None, text=text)
            return read if text.strip() else labels.label_for(file)
        has_text = file.text is not None and bool(file.text.strip())
        is_uploaded = file.file_id is not None and file.format is self.name
        is_sendable = has_text or is_uploaded or media.is_web_url(file.url)
        return file if is_sendable else labels.label_for(file)

    def render(
        self, message: Message, call: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Render a message as its blocks, a result as one block."""
        blocks = [self._wire_block(part) for part in message.parts]
        if message.role is not Role.TOOL:
            return blocks
        is_text = len(blocks) == 1 and blocks[0].keys() == {"type", "text"}
        content = blocks[0]["text"] if is_text else blocks
        result = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": content}
        result |= {"is_error": True} if message.is_error else {}
        return [result | self.beside(message)]

    def rendered_calls(self, pieces: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """List the linked fields of the client's calls."""
        return [
            {key: block[key] for key in self.linked_fields if key in block}
            for block in pieces
            if block["type"] == "tool_use"
        ]

    def _wire_block(self, part: Part) -> dict[str, Any]:
        match part:
            case Text():
                if part.block is not None and part.format is self.name:
                    return dict(part.block)
                return {"type": "text", "text": part.text}
            case Image():
                return {"type": "image", "source": self._source(part)} | self.beside(part)
            case File():
                title = {"title": part.name} if part.name else {}
                document = {"type": "document", "source": self._source(part)} | title
                return document | self.beside(part)
            case ToolCall():
                arguments = arguments_object(part.arguments) or {}
                use = {"type": "tool_use", "id": part.id, "name": part.name, "input": arguments}
                return use | self.beside(part)
            case Reasoning() | Opaque():
                return dict(part.block or {})

    def _source(self, part: Image | File) -> dict[str, Any]:
        if part.data is not None:
            return {"type": "base64", "media_type": part.media_type, "data": part.data}
        if isinstance(part, File) and part.text is not None:
            return {"type": "text", "media_type": "text/plain", "data": part.text}
        if isinstance(part, File) and part.file_id is not None and part.format is self.name:
            return {"type": "file", "file_id": part.file_id}
        return {"type": "url", "url": part.url}

    def wire(self, message: Message) -> dict[str, Any]:
        """Return a whole wire message, one of the system as such."""
        wire = super().wire(message)
        return wire | {"role": "system"} if message.role is Role.SYSTEM else wire

    def _function(self, tool: ToolDefinition) -> dict[str, Any]:
        return wire_fields(tool, "input_schema", strict=tool.strict)

    def system(self, prompt: SystemPrompt, marked: Collection[int]) -> System:
        """Return a block per section, so that any of them can have a breakpoint."""
        if not prompt.as_blocks:
            joined = "\n\n".join(prompt.texts)
            return System((), joined or None, json_text.dump_payload(joined))
        texts = (*prompt.sections, *prompt.dynamic_texts)
        blocks = [{"type": "text", "text": text} for text in texts]
        value = [self.marked(block, is_marked=at in marked) for at, block in enumerate(blocks)]
        return System((), value or None, json_text.dump_payload(blocks))

    def body(self, fields: RequestFields) -> dict[str, Any]:
        """Return limit, system prompt, messages and tools."""
        system = {"system": fields.system} if fields.system is not None else {}
        limit = {self.max_output_key: fields.max_output}
        return {**limit, **system, self.items_key: fields.items, **fields.tools}

    def deferred_to_wire(
        self, tools: Sequence[ToolDefinition], deferred: Collection[str], search: str
    ) -> list[dict[str, Any]]:
        """Render all tools; the deferred ones say so, and at least one must not."""
        return [
            {**wire, "defer_loading": True} if tool.name in deferred else wire
            for tool, wire in zip(tools, self.tools_to_wire(tools), strict=True)
        ]

    def tool_references(self, tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
        """Return a block for each tool."""
        return [{"type": "tool_reference", "tool_name": tool.name} for tool in tools]

    def compaction(self, threshold: int, requested: bool | None, *, asks: bool) -> Compaction:
        """Return the edit that compacts at a threshold, which its blocks need as well.

        A requested block is taken only without one [anthropic.compaction-requested]
        [anthropic.compaction-threshold].
        """
        if requested:
            return Compaction(betas=(_REQUESTED_BETA,))
        is_edited = asks or requested is False
        return _edited(max(MIN_THRESHOLD, threshold)) if is_edited else Compaction()

    def call_id_fields(self, raw: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
        """List calls and results."""
        content = raw.get("content")
        blocks = content if isinstance(content, list) else []
        keys = {"tool_use": "id", "tool_result": "tool_use_id"}
        return [(block, keys[block["type"]]) for block in blocks if block.get("type") in keys]

    def read_call(self, call: Fields) -> AgentCall:
        """Read a `tool_use` block."""
        call.expect_type("tool_use")
        return AgentCall(call.filled_text("id"), call, "input")

    def _identity(self, call: ToolCall) -> Mapping[str, Any] | None:
        block = call.block or {}
        return {key: block[key] for key in ("caller", "toolset_name") if key in block}


def _blocks(holder: Fields) -> list[Fields]:
    """Return the blocks of a content."""
    content = holder.get("content")
    if isinstance(content, str):
        return [Fields({"type": "text", "text": content}, f"{holder.at}/content/0")]
    if not isinstance(content, list):
        kind = json_fields.json_type(content)
        raise holder.error("content", f"must be a string or a list of blocks, not {kind}")
    return list(holder.objects("content"))


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


def _edited(threshold: int, **fields: Any) -> Compaction:
    trigger = {"type": "input_tokens", "value": threshold}
    edit = {"type": "compact_20260112", "trigger": trigger, **fields}
    return Compaction({"context_management": {"edits": [edit]}}, (_THRESHOLD_BETA,))
