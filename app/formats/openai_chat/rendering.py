"""Renders neutral messages and tools for OpenAI Chat Completions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from app.common.sendable import is_sendable
from app.formats import adapting, inline_media, labels, tool_calls
from app.formats.message import (
    File,
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
from app.formats.openai_chat import reasoning_fields
from app.formats.openai_chat.parsing import ChatParsing
from app.formats.tools import ToolDefinition, wire_fields


class ChatRendering(ChatParsing):
    """Renders messages."""

    said_types: ClassVar[tuple[str, ...]] = ("refusal",)
    """Types of parts that only the assistant has."""
    details = ("auto", "low", "high")

    def _sent_name(self, message: Message) -> str | None:
        if message.role is Role.TOOL:
            return message.name
        return tool_calls.participant_name(message.name or "")

    def _arranged(self, parts: list[Part], message: Message) -> list[Part]:
        """Leave out parts that are sent as fields; assistant content is one string.

        Unless a refusal makes it a list of parts.
        """
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
        return [*kept[:first], adapting.join_texts(texts), *rest]

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
        added = () if has_text else (adapting.MEDIA_FOLLOWS,)
        return (adapting.media_label(message), *added) if self.apart(message) else ()

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
            content = self._content(texts) if texts else adapting.MEDIA_FOLLOWS
            return {"role": "tool", "tool_call_id": message.tool_call_id, "content": content}
        if message.role is not Role.ASSISTANT:
            content = self._content(message.parts)
            return {"role": message.role.value, "content": content} | _name(message)
        if not is_replayed:
            return self._render_assistant(message)
        if keep_reasoning:
            return self._with_reasoning(message)
        calls = {call.id: reasoning_fields.call_stand_in_fields(call) for call in message.calls}
        return _with_fields(self._render_assistant(message), {}, calls)

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
        label = Text(adapting.media_label(message))
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

    def _with_reasoning(self, message: Message) -> dict[str, Any]:
        """Render an assistant message with the fields of its reasoning as they came."""
        rendered = self._render_assistant(message)
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
        match [part for part in parts if not isinstance(part, Reasoning)]:
            case [Text(text)]:
                return text
            case visible:
                return [self._wire_part(part) for part in visible]

    def _wire_part(self, part: Part) -> dict[str, Any]:
        match part:
            case Text():
                return {"type": "text", "text": part.text}
            case Image():
                detail = {"detail": part.detail} if part.detail else {}
                url = {"url": inline_media.url_of(part)}
                return {"type": "image_url", "image_url": url | detail} | self.beside(part)
            case File():
                return {"type": "file", "file": _wire_file(part)} | self.beside(part)
            case Opaque():
                return dict(part.block)
            case _:
                raise TypeError(f"{type(part).__name__} is not a content part")


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
    if file.data is not None:
        return {"file_data": inline_media.url_of(file), "filename": file.name}
    if file.url is not None:
        return {"file_data": file.url} | ({"filename": file.name} if file.name else {})
    return {"file_id": file.file_id} | ({"filename": file.name} if file.name else {})
