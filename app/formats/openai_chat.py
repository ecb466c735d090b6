"""OpenAI Chat Completions.

1. One wire message is one neutral message. System text is refused. Audio is sent back by its id,
   to other formats as a label with the transcript.
2. Reasoning has no place in the format itself: providers and gateways add fields of their own
   (`reasoning`). It is replayed as it came, to a model of the family that made it.
3. A tool message carries text only. Its media follow in a user message.
4. A label stands in the place of content that the format cannot carry.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from app.common.texts import is_sendable
from app.formats import json_fields, labels, media, reasoning
from app.formats.base import AgentCall, Original, System, SystemPrompt
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
)
from app.formats.shared import OpenAIProvider, system_messages
from app.formats.tools import ToolDefinition, participant_name, wire_fields, with_own_ids

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
    ends_with_reasoning = True
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
        if of_reasoning := reasoning.fields_of(message.raw):
            json_fields.json_at(of_reasoning, message.at)
            parts.append(Reasoning(reasoning.text_of(of_reasoning), of_reasoning, self.name))
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
            if url := json_fields.text_in(json_fields.object_in(item, "image_url"), "url"):
                media_type, data = media.split_data_url(url) or (None, None)
                parts.append(Image(media_type, data, url if data is None else None))
        if message.get("tool_calls") is not None:
            calls = map(self._parse_call, message.objects("tool_calls"))
            parts.extend(with_own_ids(calls))
        name, beside = message.optional_text("name"), (fields, self.name) if fields else ()
        return Message(Role.ASSISTANT, tuple(parts), None, name, False, *beside)

    def _parse_content(self, message: Fields, role: Role) -> tuple[Part, ...]:
        if message.get("content") is None:
            return ()
        parse_part = partial(self._parse_part, is_assistant=role is Role.ASSISTANT)
        return self._parse_parts(message, "content", parse_part)

    def _parse_part(self, part: Fields, *, is_assistant: bool) -> Part:
        if not is_assistant and (of_mcp := media.read_mcp(part)) is not None:
            return of_mcp
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
            case "input_audio":
                return self._parse_audio(part)
            case "thinking" | "redacted_thinking" if is_assistant:  # Mistral's parts
                return Reasoning(json_fields.text_in(part.raw, "thinking"))
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
        if message.role is Role.TOOL:
            return message.name
        return participant_name(message.name or "")

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

    def sent_parts(
        self, message: Message, accepts: Collection[str], *, replays: bool
    ) -> list[Part]:
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
        self, message: Message, call: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Render a message as one `ChatCompletionMessageParam` dict, and one for a result's media.

        [openai-chat.sizes, openai-chat.calls-answered-next]
        """
        name = {"name": message.name} if message.name is not None else {}
        if message.role is Role.TOOL:
            texts = [part for part in message.parts if isinstance(part, Text)]
            content = self._content(texts) if texts else labels.MEDIA_FOLLOWS
            result = {"role": "tool", "tool_call_id": message.tool_call_id, "content": content}
            if not (apart := self.apart(message)):
                return [result]
            shown = self._content([Text(labels.media_label(message)), *apart])
            return [result, {"role": "user", "content": shown}]
        said = [part for part in message.parts if not isinstance(part, Reasoning | ToolCall)]
        rendered: dict[str, Any] = {"role": message.role.value, "content": None}
        if said or message.role is not Role.ASSISTANT:
            rendered["content"] = self._content(said)
        for part in message.parts:
            rendered |= part.block or {} if isinstance(part, Reasoning) else {}
        if calls := [_wire_call(call) for call in message.calls]:
            rendered["tool_calls"] = calls
        return [rendered | self.beside(message) | name]

    def is_faithful(self, raw: Mapping[str, Any], message: Message) -> bool:
        """Return whether `raw` equals the rendering of its parsed `message`: it is sent as stored.

        Messages of plain text are not rendered for this.
        """
        content = raw.get("content")
        if len(raw) == 2 and isinstance(content, str):
            return is_sendable(content) and bool(content) and not content.isspace()
        return [dict(raw)] == self.render(self.for_payload(media.clean(message)))

    def _function(self, tool: ToolDefinition) -> dict[str, Any]:
        function = wire_fields(tool, "parameters", strict=tool.strict)
        return {"type": "function", "function": function}

    def _content(self, parts: Sequence[Part]) -> str | list[dict[str, Any]]:
        if len(parts) == 1 and isinstance(parts[0], Text):
            return parts[0].text
        return [self._wire_part(part) for part in parts]

    def _wire_part(self, part: Part) -> dict[str, Any]:
        match part:
            case Text():
                return {"type": "text", "text": part.text}
            case Image():
                detail = {"detail": part.detail} if part.detail else {}
                shown = {"url": media.url_of(part), **detail}
                return {"type": "image_url", "image_url": shown} | self.beside(part)
            case File():
                named = {"filename": part.name} if part.name else {}
                url = media.url_of(part)
                file = {"file_id": part.file_id} if url is None else {"file_data": url}
                return {"type": "file", "file": file | named} | self.beside(part)
            case Opaque():
                return dict(part.block)
            case _:
                raise TypeError(f"{type(part).__name__} is not a content part")

    def _extra_fields(self, part: Original, block: Mapping[str, Any]) -> dict[str, Any]:
        return {} if isinstance(part, ToolCall) else dict(block)  # which are reasoning

    def signature_of(self, part: Text | ToolCall) -> Mapping[str, Any]:
        """Return the fields of a call that carry its signature."""
        return part.block or {} if isinstance(part, ToolCall) else {}

    def system(self, prompt: SystemPrompt, marked: Collection[int]) -> System:
        """Return a message for all static text, with a part where it has a breakpoint."""
        contents: list[Any] = prompt.texts
        if marked:
            contents[0] = [self.marked({"type": "text", "text": contents[0]})]
        return system_messages({"role": "system", "content": content} for content in contents)

    def call_id_fields(self, raw: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
        """List the calls and the message itself."""
        return [*((call, "id") for call in raw.get("tool_calls") or []), (raw, "tool_call_id")]

    def read_call(self, call: Fields) -> AgentCall:
        """Read an element of `tool_calls`."""
        call.expect_type("function", default="function")
        return AgentCall(call.filled_text("id"), call.object("function"), "arguments")


def _wire_call(call: ToolCall) -> dict[str, Any]:
    if call.custom:
        custom = {"name": call.name, "input": call.arguments}
        return {"id": call.id, "type": "custom", "custom": custom}
    function = {"name": call.name, "arguments": call.arguments}
    added = dict(call.block or {})
    function |= added.pop("function", {})
    return {"id": call.id, "type": "function", "function": function, **added}
