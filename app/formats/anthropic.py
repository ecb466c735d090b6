"""Anthropic Messages.

1. A wire user message with k tool results is k tool messages and one user message with the rest.
   The results must come first. `split` cuts the raw message in the same way and loses nothing.
2. `render` returns blocks, since one wire message may hold several neutral ones.
3. Thinking is replayed verbatim, at its place among the blocks, or is left out.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from app.common import json_text
from app.common.texts import sendable
from app.formats import json_fields, media
from app.formats.base import AgentCall, BlockProvider, Compaction, System, SystemPrompt
from app.formats.json_fields import Fields, Raw, Wire, text_in, without_nulls
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
from app.formats.tools import (
    Ids,
    ToolChange,
    ToolDefinition,
    Tools,
    arguments_object,
    wire_fields,
    with_own_ids,
)

_THRESHOLD_BETA = "compact-2026-01-12"
_REQUESTED_BETA = "compact-2026-09-04"
_TOOL_CHANGES = ("tool_addition", "tool_removal")
_TOOL_CHANGES_BETA = "inline-tools-2026-09-15"
_CLAUDE_API = re.compile(r"(?:anthropic/)?claude-[^@/]*")
"""The models of Anthropic's own API, by which alone a message may define a tool."""
MIN_THRESHOLD = 50_000
"""The smallest threshold that Anthropic takes, in tokens of the input."""


class Anthropic(BlockProvider):
    """Anthropic Messages."""

    name = FormatName.ANTHROPIC
    part_types = (
        *("text", "image", "document", "tool_use", "tool_result", "server_tool_use"),
        *("thinking", "redacted_thinking", "compaction"),
    )
    assembler = "anthropic"
    family = ANTHROPIC
    blocks_key = "content"
    id_keys = ("id", "tool_use_id")
    max_output_key = "max_tokens"
    breakpoint = ("cache_control", {"type": "ephemeral"})
    caches_by_itself = False
    defers_tools = True
    needs_tools = True
    compacting_families = ((ANTHROPIC,),)
    image_types = ("image/jpeg", "image/png", "image/gif", "image/webp")
    called_fields = ("toolset_name",)
    linked_fields = called_fields
    not_counted = ("type", "text", "cache_control")

    def parse(self, raw: Raw, pointer: str) -> tuple[Message, ...]:
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

    def results(self, raw: Raw) -> list[tuple[str, Any]]:
        """List the tool results of a message, each with its JSON pointer."""
        blocks = enumerate(_listed(raw))
        return [(f"/content/{index}", block) for index, block in blocks if self.is_result(block)]

    def calls(self, raw: Raw) -> list[Wire]:
        """List the calls of the client in a message."""
        return [block for block in _listed(raw) if block.get("type") == "tool_use"]

    def is_result(self, block: Raw) -> bool:
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
            objects = (each for each in citations if isinstance(each, Mapping))
            cited = [without_nulls(each, _title_of(each)) for each in objects]
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

    def _adapt_part(self, part: Part, message: Message, ids: Ids) -> Part | None:
        """Label changes of tools: only messages of the system may have them."""
        if isinstance(part, Opaque) and part.block.get("type") in _TOOL_CHANGES:
            return media.label_for(part)
        return super()._adapt_part(part, message, ids)

    def _adapt_image(self, image: Image) -> Image | Text:
        if image.data is None:
            return image if media.is_web_url(image.url) else media.label_for(image)
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
            return read if text.strip() else media.label_for(file)
        has_text = file.text is not None and bool(file.text.strip())
        is_uploaded = file.file_id is not None and file.format is self.name
        is_sendable = has_text or is_uploaded or media.is_web_url(file.url)
        return file if is_sendable else media.label_for(file)

    def render(self, message: Message, call: Raw | None = None) -> list[Wire]:
        """Render a message as its blocks, a result as one block."""
        blocks = list(map(self._wire_part, message.parts))
        if message.role is not Role.TOOL:
            return blocks
        is_text = len(blocks) == 1 and blocks[0].keys() == {"type", "text"}
        content = blocks[0]["text"] if is_text else blocks
        result = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": content}
        result |= {"is_error": True} if message.is_error else {}
        return [result | self.beside(message)]

    def _wire_text(self, text: str) -> Wire:
        return {"type": "text", "text": text}

    def _wire_media(self, part: Image | File) -> Wire:
        source: Wire
        if part.data is not None:
            source = {"type": "base64", "media_type": part.media_type, "data": part.data}
        elif isinstance(part, File) and part.text is not None:
            source = {"type": "text", "media_type": "text/plain", "data": part.text}
        elif isinstance(part, File) and part.file_id is not None and part.format is self.name:
            source = {"type": "file", "file_id": part.file_id}
        else:
            source = {"type": "url", "url": part.url}
        if isinstance(part, Image):
            return {"type": "image", "source": source} | self.beside(part)
        title = {"title": part.name} if part.name else {}
        return {"type": "document", "source": source} | title | self.beside(part)

    def _wire_call(self, call: ToolCall) -> Wire:
        given = arguments_object(call.arguments) or {}
        use = {"type": "tool_use", "id": call.id, "name": call.name, "input": given}
        return use | self.beside(call)

    def wire(self, message: Message) -> Wire:
        """Return a whole wire message, one of the system as such."""
        wire = super().wire(message)
        return wire | {"role": "system"} if message.role is Role.SYSTEM else wire

    def _function(self, tool: ToolDefinition) -> Wire:
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

    def change(self, model: str, text: str, tools: ToolChange) -> list[Wire] | None:
        """Return the blocks of a system message; a new definition replaces one of its name."""
        is_claude = self.accepted_families(model)[:1] == (ANTHROPIC,)
        if not is_claude or (any(tools) and not _CLAUDE_API.fullmatch(model)):
            return None
        defined = self.tools_to_wire((*tools.redefined, *tools.added))
        return [
            *([self._wire_text(text)] if text else []),
            *(_tool_block("addition", "definition", definition=wire) for wire in defined),
            *(_tool_block("removal", "reference", name=name) for name in tools.removed),
        ]

    def betas_of(self, items: Sequence[Raw]) -> tuple[str, ...]:
        """Return the beta of changed tools."""
        changes = any(item.get("type") in _TOOL_CHANGES for item in items)
        return (_TOOL_CHANGES_BETA,) if changes else ()

    def body(self, items: Any, max_output: int, system: Any, tools: Raw, cache_key: Raw) -> Wire:
        """Return limit, system prompt, messages and tools."""
        prompt = {"system": system} if system is not None else {}
        return {self.max_output_key: max_output, **prompt, self.items_key: items, **tools}

    def deferred_to_wire(self, tools: Tools, deferred: Collection[str], search: str) -> list[Wire]:
        """Render all tools; the deferred ones say so, and at least one must not."""
        return [
            {**wire, "defer_loading": True} if tool.name in deferred else wire
            for tool, wire in zip(tools, self.tools_to_wire(tools), strict=True)
        ]

    def tool_references(self, tools: Tools) -> list[Wire]:
        """Return a block for each tool."""
        return [{"type": "tool_reference", "tool_name": tool.name} for tool in tools]

    def compaction(self, threshold: int, requested: bool | None, *, asks: bool) -> Compaction:
        """Return the edit that compacts at a threshold, which its blocks need as well.

        A requested block is taken only without one [anthropic.compaction-requested]
        [anthropic.compaction-threshold].
        """
        if requested:
            return Compaction(betas=(_REQUESTED_BETA,))
        if not asks and requested is None:
            return Compaction()
        trigger = {"type": "input_tokens", "value": max(MIN_THRESHOLD, threshold)}
        edit = {"type": "compact_20260112", "trigger": trigger}
        return Compaction({"context_management": {"edits": [edit]}}, (_THRESHOLD_BETA,))

    def read_call(self, call: Fields) -> AgentCall:
        """Read a `tool_use` block."""
        call.expect_type("tool_use")
        return AgentCall(call.filled_text("id"), call, "input")

    def _identity(self, call: ToolCall) -> Raw | None:
        block = call.block or {}
        return {key: block[key] for key in ("caller", "toolset_name") if key in block}


def _tool_block(change: str, kind: str, **tool: Any) -> Wire:
    """Return the block of a change of tools."""
    return {"type": f"tool_{change}", "tool": {"type": f"tool_{kind}", **tool}}


def _title_of(citation: Raw) -> tuple[str, ...]:
    """Return the title of a citation, which is required and may be null."""
    kind = text_in(citation, "type")
    title = "title" if "search_result" in kind else "document_title"
    return (title,) if kind.endswith("_location") else ()


def _listed(raw: Raw) -> list[Any]:
    """Return the blocks of a message, none where it has a text."""
    content = raw.get("content")
    return content if isinstance(content, list) else []


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
