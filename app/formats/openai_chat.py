"""OpenAI Chat Completions, and what OpenAI's two formats share.

1. One wire message is one neutral message. System text is refused. Audio is sent back by its id,
   to other formats as a label with the transcript.
2. Reasoning has no place in the format itself: providers and gateways add fields of their own
   (`reasoning`). It is replayed as it came, to a model of the family that made it.
3. A tool message carries text only. Its media follow in a user message.
4. A label stands in the place of content that the format cannot carry.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from app.common import json_text
from app.common.errors import ValidationError
from app.common.texts import is_sendable
from app.formats import json_fields, media, reasoning
from app.formats.base import AgentCall, Original, Provider, System, SystemPrompt
from app.formats.json_fields import Fields, Raw, Wire, object_in, text_in
from app.formats.message import (
    OPENAI_FORMATS,
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
from app.formats.tools import ToolDefinition, tool_name, wire_fields, with_own_ids

MAX_TOOLS: Final = 128
"""The most tools in a request of OpenAI."""
_ROLES = {"user": Role.USER, "tool": Role.TOOL, "system": Role.SYSTEM, "developer": Role.SYSTEM}


class OpenAIProvider(Provider):
    """A format whose messages are items, with text as a string or as parts."""

    assembler = "chat"
    breakpoint = ("prompt_cache_breakpoint", {"mode": "explicit"})
    max_tools = MAX_TOOLS
    details: ClassVar[tuple[str, ...]]
    """The values of an image's `detail`."""
    has_file_urls: ClassVar[bool] = False

    def _parse_content(self, holder: Fields, key: str, role: Role) -> tuple[Part, ...]:
        """Read a content: a string, a list of parts, of others than the user also nothing."""
        is_assistant = role is Role.ASSISTANT
        match holder.get(key):
            case None if role is not Role.USER:
                return ()
            case str(text):
                return (Text(text),)
            case list():
                return tuple(
                    (None if is_assistant else media.read_mcp(part))
                    or (self._parse_audio(part) if part.get("type") == "input_audio" else None)
                    or self._parse_part(part, is_assistant=is_assistant)
                    for part in holder.objects(key)
                )
            case value:
                detail = f"must be a string or a list of parts, not {json_fields.json_type(value)}"
                raise holder.error(key, detail)

    @abstractmethod
    def _parse_part(self, part: Fields, *, is_assistant: bool) -> Part: ...

    def _parse_file(self, file: Fields) -> File:
        name = file.optional_text("filename")
        if file_data := file.optional_text("file_data"):
            if media.is_web_url(file_data):
                return File(url=file_data.strip(), name=name, format=self.name)
            media_type, data = media.split_data_url(file_data) or (None, file_data)
            return File(media_type=media_type, data=data, name=name)
        if self.has_file_urls and (url := file.optional_text("file_url")):
            return File(url=url, name=name)
        if file_id := file.optional_text("file_id"):
            return File(file_id=file_id, name=name, format=self.name)
        fields = "file_data, file_url or file_id" if self.has_file_urls else "file_data or file_id"
        raise ValidationError.at(file.at, f"must have {fields}")

    def _parse_audio(self, part: Fields) -> Opaque | Text:
        """Read an `input_audio` part; a label stands for data that nobody can read."""
        opaque = self._opaque(part, *json_fields.CACHE_MARKS)
        audio = object_in(opaque.block, "input_audio")
        if not (data := text_in(audio, "data")):
            return opaque
        if (strict := media.strict_base64(data)) is None:
            return Text("[audio: unreadable data]")
        return replace(opaque, block={**opaque.block, "input_audio": {**audio, "data": strict}})

    def _adapt_image(self, image: Image) -> Image | Text:
        """Return an image with a media type and a detail of the format, or the label of one."""
        detail = image.detail if image.detail in self.details else None
        if image.data is None and not image.url:
            return media.label_for(image)
        media_type = image.media_type
        if image.data is not None:
            media_type = media.media_type_of(image) or "image/png"
        if (media_type, detail) == (image.media_type, image.detail):
            return image
        return replace(image, media_type=media_type, detail=detail)

    def _adapt_file(self, file: File) -> File | Text:
        """Return a document with a name and a media type, as text, or its label."""
        if file.data is not None:
            media_type = media.media_type_of(file) or "application/octet-stream"
            if media_type.startswith(("audio/", "video/")):
                return media.label_for(file)
            if file.name and media_type == file.media_type:
                return file
            return replace(file, name=file.name or "document", media_type=media_type)
        return media.document_text(file) or self._adapt_file_source(file)

    @abstractmethod
    def _adapt_file_source(self, file: File) -> File | Text:
        """Return a file by its id or URL as the format takes it, or its label."""

    @staticmethod
    def is_uploaded(file: File) -> bool:
        """Whether a file has an id of OpenAI's, which is valid in both formats."""
        return file.file_id is not None and file.format in OPENAI_FORMATS

    def result(
        self, call_id: str | None, name: str | None, text: str, *, is_error: bool = False
    ) -> Wire:
        """Return the wire message that answers a call; there is no flag for errors."""
        return super().result(call_id, name, f"Error: {text}" if is_error else text)

    def body(self, items: Any, max_output: int, system: Any, tools: Raw, cache_key: Raw) -> Wire:
        """Return items, limit and tools."""
        return {self.items_key: items, self.max_output_key: max_output, **tools, **cache_key}


def system_messages(messages: Iterable[Wire]) -> System:
    """Return a system prompt that consists of items."""
    items = tuple(map(json_text.dump_payload, messages))
    return System(items, None, b",".join(items))


class OpenAIChat(OpenAIProvider):
    """OpenAI Chat Completions, and the many providers that speak it."""

    name = FormatName.OPENAI_CHAT
    part_types = ("text", "image_url", "file", "input_audio", "refusal")
    id_keys = ("id", "tool_call_id")
    max_output_key = "max_completion_tokens"
    system_breakpoints = 1  # its system prompt is one message
    names_family = True
    apart_types = (Image, File, Opaque)
    sends_apart_message = True
    ends_with_reasoning = True
    said_types: ClassVar[tuple[str, ...]] = ("refusal",)
    """Types of parts that only the assistant has."""
    details = ("auto", "low", "high")

    def parse(self, raw: Raw, pointer: str) -> tuple[Message, ...]:
        """Read one wire message as one neutral message."""
        message = Fields(raw, pointer)
        name = message.get("role")
        if name == "assistant":
            return (self._parse_assistant(message),)
        role = _ROLES.get(name) if isinstance(name, str) else None
        if role is None:
            json_fields.refuse_role(name, pointer, "user, assistant, system, developer, tool")
        call_id = message.filled_text("tool_call_id") if role is Role.TOOL else None
        if role is not Role.SYSTEM and message.get("tool_calls"):
            raise message.error("tool_calls", "only assistant messages call tools")
        participant = message.optional_text("name")
        return (Message(role, self._parse_content(message, "content", role), call_id, participant),)

    def results(self, raw: Raw) -> list[tuple[str, Any]]:
        """List the message itself where it is a tool's result."""
        return [("", raw)] if raw.get("role") == "tool" else []

    def calls(self, raw: Raw) -> list[Wire]:
        """List the calls of an assistant message."""
        return raw.get("tool_calls") or []

    def _parse_assistant(self, message: Fields) -> Message:
        if any(object_in(message.raw, "function_call").values()):
            raise message.error("function_call", "function_call is deprecated: send tool_calls")
        parts: list[Part] = []
        for key in ("reasoning_content", "reasoning"):
            message.optional_text(key)
        if of_reasoning := reasoning.fields_of(message.raw):
            json_fields.json_at(of_reasoning, message.at)
            parts.append(Reasoning(reasoning.text_of(of_reasoning), of_reasoning, self.name))
        parts += self._parse_content(message, "content", Role.ASSISTANT)
        fields: Wire = {}
        if refusal := message.optional_text("refusal"):
            fields["refusal"] = refusal
            parts.append(Opaque({"type": "refusal", "refusal": refusal}, self.name))
        if audio := object_in(message.raw, "audio"):
            shown = {"type": "audio", "transcript": text_in(audio, "transcript")}
            parts.append(Opaque(shown, self.name))
            fields |= {"audio": {"id": audio["id"]}} if text_in(audio, "id") else {}
        images = message.get("images")  # gateways add them; malformed ones are ignored
        for item in images if isinstance(images, list) else ():
            if url := text_in(object_in(item, "image_url"), "url"):
                media_type, data = media.split_data_url(url) or (None, None)
                parts.append(Image(media_type, data, url if data is None else None))
        if message.get("tool_calls") is not None:
            parts.extend(with_own_ids(map(self._parse_call, message.objects("tool_calls"))))
        name, beside = message.optional_text("name"), (fields, self.name) if fields else ()
        return Message(Role.ASSISTANT, tuple(parts), None, name, False, *beside)

    def _parse_part(self, part: Fields, *, is_assistant: bool) -> Part:
        match part.filled_text("type"):
            case "text":
                return Text(part.text("text"))
            case "image_url":
                source, at = part.get("image_url"), f"{part.at}/image_url"
                image = Fields({"url": source} if isinstance(source, str) else source, at)
                url, detail = image.filled_text("url"), image.optional_text("detail")
                found = media.image_from_url(url, f"{at}/url", detail)
                return replace(found, **part.beside(self.name, "image_url"))
            case "file":
                file = self._parse_file(part.object("file"))
                return replace(file, **part.beside(self.name, "file"))
            case "thinking" | "redacted_thinking" if is_assistant:  # Mistral's parts
                return Reasoning(text_in(part.raw, "thinking"))
            case "refusal":
                part.text("refusal")
        return self._opaque(part, "prompt_cache_breakpoint")

    def _parse_call(self, call: Fields) -> ToolCall:
        call_id, kind = call.filled_text("id"), call.raw.get("type", "function")
        if kind == "custom":
            custom = call.object("custom")
            arguments, name = custom.text("input"), custom.text("name")
            return ToolCall(call_id, name, arguments, custom=True)
        if kind != "function":
            raise call.error("type", 'must be "function" or "custom"')
        function = call.object("function")
        arguments, name = function.optional_text("arguments") or "{}", function.text("name")
        block = json_fields.json_at(reasoning.call_fields_of(call.raw), call.at)
        format = self.name if block else None
        return ToolCall(call_id, name, arguments, block=block or None, format=format)

    def _sent_name(self, message: Message) -> str | None:
        name = message.name or ""
        return message.name if message.role is Role.TOOL or tool_name(name) == name else None

    def _arranged(self, parts: list[Part], message: Message) -> list[Part]:
        """Leave out parts that are sent as fields; assistant content is one string.

        Unless a refusal makes it a list of parts.
        """
        if len(parts) == 1 and type(parts[0]) is Text:
            return parts
        is_assistant, fields = message.role is Role.ASSISTANT, self.beside(message)
        kept: list[Part] = []
        for part in parts:
            if not isinstance(part, Opaque):
                kept.append(part)
            elif (kind := part.block.get("type")) not in fields:
                has_place = (kind in self.said_types) == is_assistant
                kept.append(part if has_place else media.label_for(part))
        texts = [part for part in kept if isinstance(part, Text)]
        if not is_assistant or len(texts) < 2 or any(isinstance(part, Opaque) for part in kept):
            return kept
        first = kept.index(texts[0])
        rest = [part for part in kept[first:] if not isinstance(part, Text)]
        return [*kept[:first], media.join_texts(texts), *rest]

    def _adapt_file_source(self, file: File) -> File | Text:
        is_own_url = file.url is not None and file.format is self.name
        if is_own_url or self.is_uploaded(file):  # routers take a URL as `file_data`
            return file
        return media.label_for(replace(file, name=None) if file.url else file)

    def sent_parts(self, message: Message, accepts: Sequence[str], *, replays: bool) -> list[Part]:
        """Leave out reasoning, or what a model of its family does not require of it."""
        is_own = bool(accepts) and reasoning.family_of(message, self.name) in accepts
        parts: list[Part] = []
        for part in message.parts:
            is_sent = replays and is_own and part.format is self.name
            if isinstance(part, ToolCall) and part.block is not None and not is_sent:
                stand_in = reasoning.stand_in_fields(part.block) if is_own else None
                parts.append(replace(part, block=stand_in))
            elif is_sent or not isinstance(part, Reasoning):
                parts.append(part)
        return parts

    def render(self, message: Message, call: Raw | None = None) -> list[Wire]:
        """Render a message as one `ChatCompletionMessageParam` dict, and one for a result's media.

        [openai-chat.sizes, openai-chat.calls-answered-next]
        """
        name = {"name": message.name} if message.name is not None else {}
        if message.role is Role.TOOL:
            texts = [part for part in message.parts if isinstance(part, Text)]
            content = self._content(texts) if texts else media.MEDIA_FOLLOWS
            result = {"role": "tool", "tool_call_id": message.tool_call_id, "content": content}
            if not (apart := self.apart(message)):
                return [result]
            shown = self._content([Text(media.media_label(message)), *apart])
            return [result, {"role": "user", "content": shown}]
        said = [part for part in message.parts if not isinstance(part, Reasoning | ToolCall)]
        rendered: Wire = {"role": message.role.value, "content": None}
        if said or message.role is not Role.ASSISTANT:
            rendered["content"] = self._content(said)
        for part in message.parts:
            rendered |= part.block or {} if isinstance(part, Reasoning) else {}
        if calls := [self._wire_call(call) for call in message.calls]:
            rendered["tool_calls"] = calls
        return [rendered | self.beside(message) | name]

    def is_faithful(self, raw: Raw, message: Message) -> bool:
        """Return whether `raw` equals the rendering of its parsed `message`: it is sent as stored.

        Messages of plain text are not rendered for this.
        """
        content = raw.get("content")
        if len(raw) == 2 and isinstance(content, str):
            return is_sendable(content) and bool(content) and not content.isspace()
        return [dict(raw)] == self.render(self.for_payload(media.clean(message)))

    def _function(self, tool: ToolDefinition) -> Wire:
        function = wire_fields(tool, "parameters", strict=tool.strict)
        return {"type": "function", "function": function}

    def _content(self, parts: Sequence[Part]) -> str | list[Wire]:
        if len(parts) == 1 and isinstance(parts[0], Text):
            return parts[0].text
        return list(map(self._wire_part, parts))

    def _wire_text(self, text: str) -> Wire:
        return {"type": "text", "text": text}

    def _wire_media(self, part: Image | File) -> Wire:
        url = media.url_of(part)
        if isinstance(part, Image):
            shown = {"url": url} | ({"detail": part.detail} if part.detail else {})
            return {"type": "image_url", "image_url": shown} | self.beside(part)
        file = {"file_id": part.file_id} if url is None else {"file_data": url}
        named = {"filename": part.name} if part.name else {}
        return {"type": "file", "file": file | named} | self.beside(part)

    def _wire_call(self, call: ToolCall) -> Wire:
        if call.custom:
            custom = {"name": call.name, "input": call.arguments}
            return {"id": call.id, "type": "custom", "custom": custom}
        added = dict(call.block or {})
        function = {"name": call.name, "arguments": call.arguments} | added.pop("function", {})
        return {"id": call.id, "type": "function", "function": function, **added}

    def _extra_fields(self, part: Original, block: Raw) -> Wire:
        return {} if isinstance(part, ToolCall) else dict(block)  # which are reasoning

    def signature_of(self, part: Text | ToolCall) -> Raw:
        """Return the fields of a call that carry its signature."""
        return part.block or {} if isinstance(part, ToolCall) else {}

    def system(self, prompt: SystemPrompt, marked: Collection[int]) -> System:
        """Return a message for all static text, with a part where it has a breakpoint."""
        contents: list[Any] = prompt.texts
        if marked:
            contents[0] = [self.marked({"type": "text", "text": contents[0]})]
        return system_messages({"role": "system", "content": content} for content in contents)

    def read_call(self, call: Fields) -> AgentCall:
        """Read an element of `tool_calls`."""
        call.expect_type("function", default="function")
        return AgentCall(call.filled_text("id"), call.object("function"), "arguments")
