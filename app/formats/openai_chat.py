"""OpenAI Chat Completions.

1. One wire message is one neutral message. System text is refused. Audio is sent back by its id,
   to other formats as a label with the transcript.
2. Reasoning has no place in the format itself: providers and gateways add fields of their own
   (`reasoning_fields`). It is replayed as it came, to a model of the family that made it.
3. A tool message carries text only. Its media follow in a user message (`render_media`).
4. A label stands in the place of content that the format cannot carry.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from app.common.texts import is_sendable
from app.formats import base64_media, json_fields, labels, media_parts, reasoning_fields, tool_calls
from app.formats.base import Original
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
    clean,
)
from app.formats.requests import AgentCall, RequestFields, System, SystemPrompt
from app.formats.shared import OpenAIProvider, system_messages
from app.formats.tools import ToolDefinition, wire_fields

_ROLES = {
    "user": Role.USER,
    "tool": Role.TOOL,
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
}


class OpenAIChat(OpenAIProvider):
    """OpenAI Chat Completions, and the many providers that speak it."""

    name = FormatName.OPENAI_CHAT
    part_types = ("text", "image_url", "file", "input_audio", "refusal")
    max_output_key = "max_completion_tokens"
    system_breakpoints = 1  # its system prompt is one message
    names_family = True
    sends_apart_message = True
    said_types: ClassVar[tuple[str, ...]] = ("refusal",)
    """Types of parts that only the assistant has."""
    details = ("auto", "low", "high")

    def parse(self, raw: Mapping[str, Any], pointer: str) -> tuple[Message, ...]:
        """Read one wire message as one neutral message."""
        message = Fields(raw, pointer)
        name = message.get("role")
        if name == "assistant":
            return (self._parse_assistant(message),)
        role = _ROLES.get(name) if isinstance(name, str) else None
        if role is None:
            json_fields.refuse_role(name, pointer, "user, assistant, system, developer, tool")
        call_id = message.filled_text("tool_call_id") if role is Role.TOOL else None
        if role is Role.USER and message.get("content") is None:
            raise message.error("content", "user content must not be null")
        if role is not Role.SYSTEM and message.get("tool_calls"):
            raise message.error("tool_calls", "only assistant messages call tools")
        participant = message.optional_text("name")
        return (Message(role, self._parse_content(message, role), call_id, participant),)

    def results(self, raw: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
        """List the message itself where it is a tool's result."""
        return [("", raw)] if raw.get("role") == "tool" else []

    def _parse_assistant(self, message: Fields) -> Message:
        if any(json_fields.object_in(message.raw, "function_call").values()):
            raise message.error("function_call", "function_call is deprecated: send tool_calls")
        parts: list[Part] = []
        for key in ("reasoning_content", "reasoning"):
            message.optional_text(key)
        if of_reasoning := reasoning_fields.fields_of(message.raw):
            text = reasoning_fields.text_of(of_reasoning)
            parts.append(Reasoning(text, of_reasoning, reasoning_fields.FORMAT))
        parts += self._parse_content(message, Role.ASSISTANT)
        fields: dict[str, Any] = {}
        if refusal := message.optional_text("refusal"):
            fields["refusal"] = refusal
            parts.append(Opaque({"type": "refusal", "refusal": refusal}, self.name))
        if audio := json_fields.object_in(message.raw, "audio"):
            transcript = json_fields.text_in(audio, "transcript")
            parts.append(Opaque({"type": "audio", "transcript": transcript}, self.name))
            fields |= {"audio": {"id": audio["id"]}} if json_fields.text_in(audio, "id") else {}
        images = message.get("images")  # gateways add them; malformed ones are ignored
        for item in images if isinstance(images, list) else ():
            image = item.get("image_url") if isinstance(item, Mapping) else None
            url = image if isinstance(image, str) else json_fields.text_in(image, "url")
            media_type, data = base64_media.split_data_url(url) or (None, None)
            parts += [Image(media_type, data, url if data is None else None)] if url else []
        if message.get("tool_calls") is not None:
            calls = map(self._parse_call, message.objects("tool_calls"))
            parts.extend(tool_calls.with_own_ids(calls))
        name, beside = message.optional_text("name"), (fields, self.name) if fields else ()
        return Message(Role.ASSISTANT, tuple(parts), None, name, False, *beside)

    def _parse_content(self, message: Fields, role: Role) -> tuple[Part, ...]:
        if message.get("content") is None:
            return ()
        parse_part = partial(self._parse_part, is_assistant=role is Role.ASSISTANT)
        return self._parse_parts(message, "content", parse_part)

    def _parse_part(self, part: Fields, *, is_assistant: bool) -> Part:
        read = reasoning_fields.part_of(part) if is_assistant else media_parts.read_mcp(part)
        if read is not None:
            return read
        match part.filled_text("type"):
            case "text":
                return Text(part.text("text"))
            case "image_url":
                source, at = part.get("image_url"), f"{part.at}/image_url"
                image = Fields({"url": source} if isinstance(source, str) else source, at)
                url, detail = image.filled_text("url"), image.optional_text("detail")
                found = media_parts.image_from_url(url, f"{at}/url", detail)
                return replace(found, **part.beside(self.name, "image_url"))
            case "file":
                file = self._parse_file(part.object("file"))
                return replace(file, **part.beside(self.name, "file"))
            case "input_audio":
                return self._parse_audio(part)
            case "refusal":
                part.text("refusal")
        return Opaque(part.json("prompt_cache_breakpoint"), self.name)

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
        block = reasoning_fields.call_fields_of(call.raw) or None
        format = reasoning_fields.FORMAT if block else None
        return ToolCall(call_id, name, arguments, block=block, format=format)

    def _sent_name(self, message: Message) -> str | None:
        if message.role is Role.TOOL:
            return message.name
        return tool_calls.participant_name(message.name or "")

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
                kept.append(part if has_place else labels.label_for(part))
        texts = [part for part in kept if isinstance(part, Text)]
        is_list = any(isinstance(part, Opaque) for part in kept)
        if not is_assistant or len(texts) < 2 or is_list:
            return kept
        first = kept.index(texts[0])
        rest = [part for part in kept[first:] if not isinstance(part, Text)]
        return [*kept[:first], labels.join_texts(texts), *rest]

    def _adapt_file_source(self, file: File) -> File | Text:
        is_own_url = file.url is not None and file.format is self.name
        if is_own_url or self.is_uploaded(file):  # routers take a URL as `file_data`
            return file
        return labels.label_for(replace(file, name=None) if file.url else file)

    def apart(self, message: Message) -> tuple[Part, ...]:
        """List the parts of a result that are sent in a user message after it."""
        if message.role is not Role.TOOL:
            return ()
        return tuple(part for part in message.parts if isinstance(part, Image | File | Opaque))

    def apart_texts(self, message: Message) -> tuple[str, ...]:
        """Return the label before these parts, and the text of a result without any."""
        has_text = any(isinstance(part, Text) for part in message.parts)
        added = () if has_text else (labels.MEDIA_FOLLOWS,)
        return (labels.media_label(message), *added) if self.apart(message) else ()

    def render(
        self,
        message: Message,
        ids: Mapping[str, str] = tool_calls.NO_IDS,
        *,
        accepts: Collection[str] = (),
        keep_reasoning: bool = False,
    ) -> dict[str, Any]:
        """Render a clean message as one `ChatCompletionMessageParam` dict.

        `accepts` names the families whose reasoning the model accepts. With `keep_reasoning` it is
        replayed; without, the message has only the fields that such a model requires.
        """
        is_replayed = reasoning_fields.is_replayed(message, accepts)
        message = self.adapt(message, ids)
        if message.role is Role.TOOL:
            texts = [part for part in message.parts if isinstance(part, Text)]
            content = self._content(texts) if texts else labels.MEDIA_FOLLOWS
            return {"role": "tool", "tool_call_id": message.tool_call_id, "content": content}
        if message.role is not Role.ASSISTANT:
            content = self._content(message.parts)
            return {"role": message.role.value, "content": content} | _name(message)
        rendered = self._render_assistant(message)
        if not is_replayed:
            return rendered
        if keep_reasoning:
            return self._with_reasoning(message, rendered)
        calls = {call.id: reasoning_fields.call_stand_in_fields(call) for call in message.calls}
        return _with_fields(rendered, {}, calls)

    def render_media(
        self, message: Message, ids: Mapping[str, str] = tool_calls.NO_IDS
    ) -> dict[str, Any] | None:
        """Render the user message that carries a tool message's media, None without any
        [openai-chat.sizes].

        Its place is after the last tool message of the call group, since results are adjacent
        [openai-chat.calls-answered-next].
        """
        message = self.adapt(message, ids)
        media = self.apart(message)
        if not media:
            return None
        label = Text(labels.media_label(message))
        return {"role": "user", "content": [self._wire_part(part) for part in (label, *media)]}

    def is_faithful(self, raw: Mapping[str, Any], message: Message) -> bool:
        """Return whether `raw` equals the rendering of its parsed `message`: it is sent as stored.

        Messages of plain text are not rendered for this.
        """
        content = raw.get("content")
        if len(raw) == 2 and isinstance(content, str):
            return is_sendable(content) and bool(content) and not content.isspace()
        return dict(raw) == self.render(clean(message))

    def _function(self, tool: ToolDefinition) -> dict[str, Any]:
        function = wire_fields(tool, "parameters", strict=tool.strict)
        return {"type": "function", "function": function}

    def _render_assistant(self, message: Message) -> dict[str, Any]:
        parts = [part for part in message.parts if not isinstance(part, Reasoning | ToolCall)]
        content = self._content(parts) if parts else None
        rendered: dict[str, Any] = {"role": "assistant", "content": content}
        if calls := [wire_call(call) for call in message.calls]:
            rendered["tool_calls"] = calls
        return rendered | self.beside(message) | _name(message)

    def _with_reasoning(self, message: Message, rendered: dict[str, Any]) -> dict[str, Any]:
        """Return a rendered assistant message with the fields of its reasoning as they came."""
        thoughts = {
            index: thought
            for index, part in enumerate(message.parts)
            if isinstance(part, Reasoning) and (thought := reasoning_fields.content_part(part))
        }
        if thoughts:
            rendered["content"] = [
                dict(thoughts[index]) if index in thoughts else self._wire_part(part)
                for index, part in enumerate(message.parts)
                if index in thoughts or not isinstance(part, Reasoning | ToolCall)
            ]
        own = (call for call in message.calls if call.format is reasoning_fields.FORMAT)
        calls = {call.id: call.block or {} for call in own}
        return _with_fields(rendered, reasoning_fields.message_fields(message), calls)

    def _content(self, parts: Sequence[Part]) -> str | list[dict[str, Any]]:
        visible = [part for part in parts if not isinstance(part, Reasoning)]
        if len(visible) == 1 and isinstance(visible[0], Text):
            return visible[0].text
        return [self._wire_part(part) for part in visible]

    def _wire_part(self, part: Part) -> dict[str, Any]:
        match part:
            case Text():
                return {"type": "text", "text": part.text}
            case Image():
                detail = {"detail": part.detail} if part.detail else {}
                url = {"url": media_parts.url_of(part)}
                return {"type": "image_url", "image_url": url | detail} | self.beside(part)
            case File():
                return {"type": "file", "file": _wire_file(part)} | self.beside(part)
            case Opaque():
                return dict(part.block)
            case _:
                raise TypeError(f"{type(part).__name__} is not a content part")

    def _extra_fields(self, part: Original, block: Mapping[str, Any]) -> dict[str, Any]:
        return {} if isinstance(part, Text | ToolCall) else dict(block)  # which are reasoning

    def signature_of(self, part: Text | ToolCall) -> Mapping[str, Any]:
        """Return the fields of a call that carry its signature."""
        return part.block or {} if isinstance(part, ToolCall) else {}

    def system(self, prompt: SystemPrompt, marked: Collection[int]) -> System:
        """Return a message for all static text, with a part where it has a breakpoint."""
        contents: list[Any] = prompt.texts
        if marked:
            contents[0] = [self.marked({"type": "text", "text": prompt.static})]
        return system_messages({"role": "system", "content": content} for content in contents)

    def body(self, fields: RequestFields) -> dict[str, Any]:
        """Return messages, tools and limit."""
        limit = {self.max_output_key: fields.max_output}
        return {self.items_key: fields.items, **fields.tools, **limit, **fields.cache_key}

    def call_id_fields(self, raw: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
        """List the calls and the message itself."""
        return [*((call, "id") for call in raw.get("tool_calls") or []), (raw, "tool_call_id")]

    def read_call(self, call: Fields) -> AgentCall:
        """Read an element of `tool_calls`."""
        call.expect_type("function", default="function")
        function = call.object("function")
        return AgentCall(call.filled_text("id"), function, "arguments")

    def result(
        self, call_id: str | None, name: str | None, text: str, *, is_error: bool = False
    ) -> dict[str, Any]:
        """Return a tool message."""
        content = f"Error: {text}" if is_error else text
        return {"role": "tool", "tool_call_id": call_id, "content": content}

    def emptied(self, message: Message, text: str) -> dict[str, Any]:
        """Return a message whose calls have no arguments."""
        raw: dict[str, Any] = {"role": message.role, "content": text}
        if message.role is Role.TOOL:
            raw["tool_call_id"] = message.tool_call_id
        bare = (replace(call, arguments="" if call.custom else "{}") for call in message.calls)
        if calls := list(map(wire_call, bare)):
            raw["tool_calls"] = calls
        return raw


def _with_fields(
    rendered: dict[str, Any], fields: Mapping[str, Any], calls: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Add fields to a message, after its content, and to its calls."""
    for call in rendered.get("tool_calls", ()):
        added = dict(calls.get(call["id"], {}))
        if function := added.pop("function", None):
            call["function"] |= function
        call.update(added)
    return {"role": rendered.pop("role"), "content": rendered.pop("content"), **fields, **rendered}


def _name(message: Message) -> dict[str, str]:
    return {"name": message.name} if message.name is not None else {}


def wire_call(call: ToolCall) -> dict[str, Any]:
    """Render a call."""
    if call.custom:
        custom = {"name": call.name, "input": call.arguments}
        return {"id": call.id, "type": "custom", "custom": custom}
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _wire_file(file: File) -> dict[str, Any]:
    named = {"filename": file.name} if file.name else {}
    url = media_parts.url_of(file)
    return {"file_id": file.file_id, **named} if url is None else {"file_data": url, **named}
