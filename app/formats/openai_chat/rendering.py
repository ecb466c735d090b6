"""Renders neutral messages and tools for OpenAI Chat Completions.

`adapt` returns a message as the format can carry it; `render` writes it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, assert_never

from app.common.sendable import is_sendable
from app.formats import adapting, inline_media, labels, openai_shared, tool_calls
from app.formats.hosted_tools import hosted_definition
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
    clean,
)
from app.formats.openai_chat import reasoning_fields
from app.formats.tools import ToolDefinition, wire_fields

_FORMAT = FormatName.OPENAI_CHAT
_DETAILS = ("auto", "low", "high")


def adapt(message: Message, ids: Mapping[str, str] = tool_calls.NO_IDS) -> Message:
    """Adapt a clean message, as `Format.adapt`; `render` decides about its reasoning."""
    parts = adapting.adapt_parts(
        message,
        _FORMAT,
        lambda call: openai_shared.adapt_call(call, ids),
        lambda image: openai_shared.adapt_image(image, _DETAILS),
        _adapt_file,
    )
    is_assistant = message.role is Role.ASSISTANT
    fields = adapting.beside(message, _FORMAT)
    parts = [
        _refusal_or_label(part, is_assistant)
        for part in parts
        if not (isinstance(part, Opaque) and part.block.get("type") in fields)
    ]
    if is_assistant:
        parts = _join_texts(parts)
    name = message.name
    if message.role is not Role.TOOL:
        name = tool_calls.participant_name(name or "")
    return adapting.adapted_message(message, parts, ids, name, has_fields=bool(fields))


def tool_media(message: Message) -> tuple[Part, ...]:
    """List the parts of a tool message that are sent in a user message after it."""
    if message.role is not Role.TOOL:
        return ()
    return tuple(part for part in message.parts if isinstance(part, Image | File | Opaque))


def _refusal_or_label(part: Part, is_assistant: bool) -> Part:
    """Return a part, with a label where it is one that the role does not have."""
    if isinstance(part, Opaque) and (part.block.get("type") == "refusal") != is_assistant:
        return labels.label_for(part)
    return part


def _adapt_file(file: File) -> File | Text:
    if (content := openai_shared.adapt_content(file)) is not None:
        return content
    is_own_url = file.url is not None and file.format is _FORMAT  # routers take it as `file_data`
    if is_own_url or (file.file_id is not None and file.format in OPENAI_FORMATS):
        return file
    return labels.label_for(replace(file, name=None) if file.url else file)


def _join_texts(parts: list[Part]) -> list[Part]:
    """Assistant content is one string, unless a refusal makes it a list of parts."""
    texts = [part for part in parts if isinstance(part, Text)]
    if len(texts) < 2 or any(isinstance(part, Opaque) for part in parts):
        return parts
    text = adapting.join_texts(texts)
    first = parts.index(texts[0])
    rest = [part for part in parts[first:] if not isinstance(part, Text)]
    return [*parts[:first], text, *rest]


def render(
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
    message = adapt(message, ids)
    match message.role:
        case Role.USER | Role.SYSTEM as role:
            content = _content(message.parts)
            return {"role": role.value, "content": content} | _name(message)
        case Role.ASSISTANT:
            if not is_replayed:
                return _render_assistant(message)
            if keep_reasoning:
                return _with_reasoning(message)
            calls = {call.id: reasoning_fields.call_stand_in_fields(call) for call in message.calls}
            return _with_fields(_render_assistant(message), {}, calls)
        case Role.TOOL:
            texts = [part for part in message.parts if isinstance(part, Text)]
            content = _content(texts) if texts else adapting.MEDIA_FOLLOWS
            return {"role": "tool", "tool_call_id": message.tool_call_id, "content": content}
        case _:
            assert_never(message.role)


def render_media(
    message: Message, ids: Mapping[str, str] = tool_calls.NO_IDS
) -> dict[str, Any] | None:
    """Render the user message that carries a tool message's media, None without any
    [openai-chat.sizes].

    Its place is after the last tool message of the call group, since results are adjacent
    [openai-chat.calls-answered-next].
    """
    message = adapt(message, ids)
    media = tool_media(message)
    if not media:
        return None
    label = Text(adapting.media_label(message))
    return {"role": "user", "content": [_wire_part(part) for part in (label, *media)]}


def is_faithful(raw: Mapping[str, Any], message: Message) -> bool:
    """Return whether `raw` equals the rendering of its parsed `message`: it is sent as stored.

    Messages of plain text are not rendered for this.
    """
    content = raw.get("content")
    if len(raw) == 2 and isinstance(content, str):
        return is_sendable(content) and bool(content) and not content.isspace()
    return dict(raw) == render(clean(message))


def tools_to_wire(tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """Render tool definitions as `ChatCompletionFunctionToolParam` dicts, in their order."""
    return [
        hosted_definition(tool.hosted)
        if tool.hosted is not None
        else {"type": "function", "function": wire_fields(tool, "parameters", strict=tool.strict)}
        for tool in tools
    ]


def _render_assistant(message: Message) -> dict[str, Any]:
    parts = [part for part in message.parts if not isinstance(part, Reasoning | ToolCall)]
    rendered: dict[str, Any] = {"role": "assistant", "content": _content(parts) if parts else None}
    calls = [_wire_call(call) for call in message.calls]
    if calls:
        rendered["tool_calls"] = calls
    return rendered | adapting.beside(message, _FORMAT) | _name(message)


def _with_reasoning(message: Message) -> dict[str, Any]:
    """Render an assistant message with the fields of its reasoning as they came."""
    rendered = _render_assistant(message)
    thoughts = {
        index: thought
        for index, part in enumerate(message.parts)
        if isinstance(part, Reasoning) and (thought := reasoning_fields.content_part(part))
    }
    if thoughts:
        rendered["content"] = [
            dict(thoughts[index]) if index in thoughts else _wire_part(part)
            for index, part in enumerate(message.parts)
            if index in thoughts or not isinstance(part, Reasoning | ToolCall)
        ]
    calls = {call.id: call.block or {} for call in message.calls if call.format is _FORMAT}
    return _with_fields(rendered, reasoning_fields.message_fields(message), calls)


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


def _content(parts: Sequence[Part]) -> str | list[dict[str, Any]]:
    match [part for part in parts if not isinstance(part, Reasoning)]:
        case [Text(text)]:
            return text
        case visible:
            return [_wire_part(part) for part in visible]


def _wire_call(call: ToolCall) -> dict[str, Any]:
    if call.custom:
        custom = {"name": call.name, "input": call.arguments}
        return {"id": call.id, "type": "custom", "custom": custom}
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _wire_part(part: Part) -> dict[str, Any]:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Image():
            detail = {"detail": part.detail} if part.detail else {}
            image = {"type": "image_url", "image_url": {"url": inline_media.url_of(part)} | detail}
            return image | adapting.beside(part, _FORMAT)
        case File():
            return {"type": "file", "file": _wire_file(part)} | adapting.beside(part, _FORMAT)
        case Opaque():
            return dict(part.block)
        case _:
            raise TypeError(f"{type(part).__name__} is not a content part")


def _wire_file(file: File) -> dict[str, Any]:
    if file.data is not None:
        return {"file_data": inline_media.url_of(file), "filename": file.name}
    if file.url is not None:
        return {"file_data": file.url} | ({"filename": file.name} if file.name else {})
    return {"file_id": file.file_id} | ({"filename": file.name} if file.name else {})
