"""Gemini Interactions steps, for requests that the provider does not store.

1. The model made every step but `user_input` and `function_result`. A `model_output` is one text,
   whose block is the step. Steps of tools that Google runs are opaque.
2. The id of a step is that of a call. So a step of the model is stored in an envelope, which has
   the id of the message.
3. Thoughts are replayed verbatim or left out, and so are steps of Google's tools that are signed: a
   label replaces those. Unsigned thoughts are refused, and always left out.
4. The signature of a call is in a thought before it. Where there is none, a thought with the
   documented stand-in precedes the first call of a message, in every turn and for every model.
5. A result that came as an object is sent as that object, in other formats as its JSON.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, Final

from app.common import json_text
from app.common.texts import sendable
from app.formats import json_fields, media
from app.formats.base import AgentCall, Original, System, SystemPrompt, without
from app.formats.gemini import GoogleProvider
from app.formats.items import LOG_FIELDS, ItemProvider, is_item_group
from app.formats.json_fields import OBJECT, Fields, Raw, Wire, without_nulls
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
from app.formats.reasoning import STAND_IN_SIGNATURE
from app.formats.tools import ToolDefinition, arguments_object, wire_fields

_USER, _OUTPUT, _THOUGHT = "user_input", "model_output", "thought"
_CALL, _RESULT = "function_call", "function_result"
_STAND_IN: Final[Raw] = {"type": _THOUGHT, "signature": STAND_IN_SIGNATURE}
_MEDIA: Final = ("image", "document", "audio", "video")
_MEDIA_FIELDS: Final = ("data", "uri", "mime_type", "mimeType")
_CSV: Final = "text/csv"


class Interactions(ItemProvider, GoogleProvider):
    """Gemini Interactions."""

    name = FormatName.INTERACTIONS
    part_types = (_USER, _OUTPUT, _THOUGHT, _RESULT, "text", "image", "document")
    assembler = "interactions"
    id_keys = ("id", "call_id")
    result_key = "result"
    items_key = "input"
    takes_system = False
    sends_objects = True
    image_types = (*GoogleProvider.image_types, "image/gif", "image/bmp", "image/tiff")
    file_types = ("audio/", "video/", _CSV, "application/vnd.", "application/msword")
    not_counted = ("type", "text")

    # --- reading ---------------------------------------------------------------------------------

    def is_output(self, raw: Raw) -> bool:
        """Whether a step is the result of a function."""
        return raw.get("type") == _RESULT

    def is_call(self, raw: Raw) -> bool:
        """Whether a step calls a function."""
        return raw.get("type") == _CALL

    def is_made_by_model(self, raw: Raw) -> bool:
        """Whether the model made a step, or a tool that Google runs (rule 1)."""
        return raw.get("type") not in (None, "", _USER, _RESULT)

    def parse(self, raw: Raw, pointer: str) -> tuple[Message, ...]:
        """Read one step, or several that `group_items` joined."""
        step = Fields(raw, pointer)
        if is_item_group(step.raw):
            return (self._parse_group(step),)
        if self.is_output(step.raw):
            return (self._parse_result(step),)
        if step.get("type") != _USER:
            return (self._said([self._parse_item(step)]),)
        content = step.objects("content") if step.get("content") is not None else ()
        beside = step.beside(self.name, "id", "content", *LOG_FIELDS)
        return (Message(Role.USER, tuple(map(self._parse_content, content)), **beside),)

    def split(self, raw: Raw) -> tuple[Wire, ...]:
        """Return the message to store, a step of the model in an envelope (rule 2)."""
        is_bare = not is_item_group(raw) and self.is_made_by_model(raw)
        return ({"role": "assistant", "output": [dict(raw)]} if is_bare else dict(raw),)

    def own_fields(self, raw: Raw) -> Raw:
        """Return the fields of a message without the id of a step of the model (rule 2)."""
        is_own = is_item_group(raw) or not self.is_made_by_model(raw)
        return {**super().own_fields(raw), "id": raw.get("id") if is_own else None}

    def _said(self, parts: Iterable[Part]) -> Message:
        return super()._said(part for part in parts if getattr(part, "block", None) != _STAND_IN)

    def _parse_item(self, step: Fields) -> Part:
        """Read a step that the model made."""
        kind = step.filled_text("type")
        if kind == _USER or "role" in step.raw:
            raise step.error("type", "a step of the model is required, which has no role")
        block = without_nulls(step.json(*LOG_FIELDS))
        if kind == _OUTPUT:
            return self._parse_output(step, block)
        if kind == _THOUGHT:
            summary = step.objects("summary") if step.get("summary") is not None else ()
            texts = [part.text("text") for part in summary if part.get("type") == "text"]
            is_signed = bool(step.optional_text("signature"))
            return Reasoning("\n".join(texts), *((block, self.name) if is_signed else ()))
        if kind != _CALL:
            return Opaque(block, self.name)
        arguments = step.object("arguments").json() if step.get("arguments") is not None else {}
        beside = step.beside(self.name, "id", "name", "arguments", *LOG_FIELDS)
        named = step.filled_text("id"), step.filled_text("name")
        return ToolCall(*named, json_fields.compact(arguments), **beside)

    def _parse_output(self, step: Fields, block: Wire) -> Text | Opaque:
        texts: list[str] = []
        parts = list(step.objects("content")) if step.get("content") is not None else []
        for part in parts:
            is_text = part.filled_text("type") == "text"
            texts.append(part.text("text") if is_text else media.block_label(part.raw))
        if parts and not any(part.get("type") == "text" for part in parts):
            return Opaque(block, self.name)
        return Text("".join(texts), block, self.name)

    def _parse_result(self, step: Fields) -> Message:
        call_id, result = step.filled_text("call_id"), step.get("result")
        parts: tuple[Part, ...]
        match result:
            case None | str():
                parts = (Text(result or ""),)
            case list():
                parts = tuple(map(self._parse_content, step.objects("result")))
            case Mapping():
                held = step.object("result").json()
                own = (held, self.name) if held.get("type") != "text" else ()
                parts = (Text(json_fields.compact(held), *own),)
            case _:
                detail = f"must be text, content or an object, not {json_fields.json_type(result)}"
                raise step.error("result", detail)
        known = ("id", "call_id", "name", "result", "is_error", *LOG_FIELDS)
        is_error, beside = step.optional_boolean("is_error"), step.beside(self.name, *known)
        return Message(
            Role.TOOL, parts, call_id, step.optional_text("name"), is_error is True, **beside
        )

    def _parse_content(self, part: Fields) -> Part:
        """Read content of the user or of a result, also in the form of MCP."""
        kind = part.filled_text("type")
        if kind == "text":
            text, block = part.text("text"), part.json(*json_fields.CACHE_MARKS)
            return Text(text, block, self.name) if without(block, *self.not_counted) else Text(text)
        if kind not in _MEDIA:
            return media.read_mcp(part) or self._opaque(part)
        media_type = part.optional_text("mime_type") or part.optional_text("mimeType")
        name = part.optional_text("name") if kind == "video" else None
        found: Image | File
        if part.get("data") is not None:
            data = part.filled_text("data")
            is_image = kind == "image"
            found = Image(media_type, data) if is_image else File(media_type, data, name=name)
        else:
            uri = part.filled_text("uri")
            found = self.media_at(uri, media_type, name, is_image=kind == "image")
        known = (*_MEDIA_FIELDS, *(("name",) if name else ()))
        own = part.beside(self.name, *known).get("block", {})
        if media_type is None and isinstance(found, File):
            own = {"type": kind} | own
        return replace(found, block=own, format=self.name) if own else found

    def read_call(self, call: Fields) -> AgentCall:
        """Read a `function_call` step."""
        call.expect_type(_CALL)
        return AgentCall(call.filled_text("id"), call, "arguments")

    def is_object(self, content: Any) -> bool:
        """Whether a result is an object, and no text or content."""
        return isinstance(content, OBJECT) and bool(content)

    # --- adapting and rendering ------------------------------------------------------------------

    def _adapt_file(self, file: File) -> File | Image | Text:
        """Return a document as the format has it: no text, and a name for videos alone."""
        media_type = media.media_type_of(file) or ""
        if file.data is not None and media_type.startswith("text/") and media_type != _CSV:
            text = sendable(base64.b64decode(file.data).decode("utf-8", "replace"))
            return media.document_text(replace(file, data=None, text=text)) or media.label_for(file)
        is_own = file.data is not None and not media_type and file.format is self.name
        adapted = file if is_own else super()._adapt_file(file)
        has_name = isinstance(adapted, File) and adapted.name and _kind(adapted) != "video"
        return replace(adapted, name=None) if isinstance(adapted, File) and has_name else adapted

    def sent_parts(self, message: Message, accepts: Sequence[str], *, replays: bool) -> list[Part]:
        """Leave out what is signed, unless it is replayed (rule 3)."""
        return [
            media.label_for(part)
            if isinstance(part, Opaque) and part.block.get("signature") and not replays
            else part
            for part in super().sent_parts(message, accepts, replays=replays)
        ]

    def render(self, message: Message, call: Raw | None = None) -> list[Wire]:
        """Render a message as steps."""
        if message.role is Role.TOOL:
            return [self._wire_result(message)]
        if message.role is not Role.ASSISTANT:
            content = list(map(self._wire_part, message.parts))
            return [{"type": _USER, "content": content} | self.beside(message)]
        steps = list(map(self._step, message.parts))
        before = list(takewhile(lambda part: not isinstance(part, ToolCall), message.parts))
        if message.calls and not any(isinstance(part, Reasoning) for part in before):
            steps.insert(len(before), dict(_STAND_IN))
        return steps

    def _step(self, part: Part) -> Wire:
        wire = self._wire_part(part)
        is_content = isinstance(part, Text) and wire["type"] == "text"
        return {"type": _OUTPUT, "content": [wire]} if is_content else wire

    def _wire_text(self, text: str) -> Wire:
        return {"type": "text", "text": text}

    def _wire_call(self, call: ToolCall) -> Wire:
        arguments = arguments_object(call.arguments) or {}
        named = {"type": _CALL, "id": call.id, "name": call.name, "arguments": arguments}
        return named | self.beside(call)

    def _wire_media(self, part: Image | File) -> Wire:
        held = {"data": part.data} if part.data is not None else {"uri": self.uri_of(part)}
        typed = {"mime_type": part.media_type} if part.media_type else {}
        named = {"name": part.name} if isinstance(part, File) and part.name else {}
        shown: Wire = {"type": _kind(part), **held, **typed, **named}
        return shown | without(self.beside(part), "type")

    def _wire_result(self, message: Message) -> Wire:
        first = message.parts[0]
        result: Any = list(map(self._wire_part, message.parts))
        if len(result) == 1 and isinstance(first, Text):
            is_own = first.block is not None and first.format is self.name
            result = result if is_own else first.text
            if is_own and result[0].get("type") != "text":  # (rule 5)
                (result,) = result
        named = {"name": message.name} if message.name else {}
        failed = {"is_error": True} if message.is_error else {}
        step = {"type": _RESULT, "call_id": message.tool_call_id, **named, "result": result}
        return step | failed | self.beside(message)

    def _function(self, tool: ToolDefinition) -> Wire:
        fields = wire_fields(tool, "parameters")
        return {"type": "function", **fields, "name": self._function_name(tool.name)}

    def system(self, prompt: SystemPrompt, marked: Collection[int]) -> System:
        """Return an instruction, which is one text."""
        text = "\n\n".join(prompt.texts) or None
        return System((), text, json_text.dump_payload(text))

    def body(self, items: Any, max_output: int, system: Any, tools: Raw, cache_key: Raw) -> Wire:
        """Return steps, limit, tools and instruction of a request that is not stored."""
        instruction = {"system_instruction": system} if system is not None else {}
        limit = {"generation_config": {"max_output_tokens": max_output}}
        return {self.items_key: items, **limit, **tools, **instruction, "store": False}

    def _extra_fields(self, part: Original, block: Raw) -> Wire:
        """Return the fields of a step, and those of its content."""
        if isinstance(part, Text) and block.get("type") not in ("text", _OUTPUT):
            return {}  # an object, which costs its text
        fields = super()._extra_fields(part, block)
        content = fields.pop("content", None) if isinstance(part, Text) else None
        rest = [without(item, *self.not_counted) for item in content or ()]
        return fields | ({"content": rest} if any(rest) else {})


def _kind(part: Image | File) -> str:
    """Return the type of content that media are."""
    if isinstance(part, Image):
        return "image"
    major = (part.media_type or "").partition("/")[0]
    if not major and part.format is FormatName.INTERACTIONS:
        return str((part.block or {}).get("type", "document"))
    return major if major in ("audio", "video") else "document"
