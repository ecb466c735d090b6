"""What the `adapting` modules of several formats share."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from app.domain.common.messages import (
    File,
    Image,
    Message,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    placeholder_for,
)
from app.domain.formats import inline_media, labels, tool_calls

MEDIA_FOLLOWS = "[media follows]"
"""The text of a result that consists of media, which are sent apart."""


def media_label(message: Message) -> str:
    """Return the text before the media of an adapted tool message, where they are sent apart."""
    return f"[media from tool call {message.tool_call_id}]"


def adapted(
    message: Message, parts: list[Part], ids: Mapping[str, str], name: str | None
) -> Message:
    """Return a message with these parts and this name, and the call id to send.

    The same object is returned when nothing changes. A message without visible parts gets a
    placeholder [neutral.no-empty-content]; reasoning is not visible.
    """
    if all(isinstance(part, Reasoning) for part in parts):
        parts = [*parts, placeholder_for(message.role, parts)]
    call_id = message.tool_call_id
    sent = tool_calls.sent_id(call_id, ids) if call_id is not None else None
    if sent == call_id and name == message.name:
        return with_parts(message, parts)
    return replace(message, parts=tuple(parts), tool_call_id=sent, name=name)


def with_parts(message: Message, parts: Sequence[Part]) -> Message:
    """Return a message with these parts, the same object when it has them already."""
    same = len(parts) == len(message.parts) and all(map(operator.is_, parts, message.parts))
    return message if same else replace(message, parts=tuple(parts))


def result_name(message: Message) -> str | None:
    """Return a tool's name from its result, for formats that name no participants."""
    return message.name if message.role is Role.TOOL else None


def joined(texts: Sequence[Text]) -> Text:
    """Join texts where a format has room for one."""
    stands_for = tuple(kind for text in texts for kind in text.stands_for)
    return Text("\n".join(text.text for text in texts), stands_for=stands_for)


def openai_call(call: ToolCall, ids: Mapping[str, str]) -> ToolCall:
    """Return a call with the id, name and arguments that OpenAI accepts."""
    sent, name = tool_calls.sent_id(call.id, ids), tool_calls.tool_name(call.name)
    arguments = call.arguments
    if not call.custom and not tool_calls.is_json(arguments):
        arguments = tool_calls.wrapped_arguments(arguments)
    if (sent, name) == (call.id, call.name) and arguments is call.arguments:
        return call
    return replace(call, id=sent, name=name, arguments=arguments)


def openai_image(image: Image, details: Collection[str]) -> Image | Text:
    """Return an image with a media type and a detail of the format, or the label of an empty one.

    OpenAI Chat and Responses have different values for `detail`.
    """
    detail = image.detail if image.detail in details else None
    if image.data is None and not image.url:
        return labels.label_for(image)
    media_type = image.media_type
    if image.data is not None:
        media_type = inline_media.media_type_of(image) or "image/png"
    if (media_type, detail) == (image.media_type, image.detail):
        return image
    return replace(image, media_type=media_type, detail=detail)


def openai_content(file: File) -> File | Text | None:
    """Return a document with a name and a media type, or as text; None where it has no content."""
    if file.data is not None:
        media_type = inline_media.media_type_of(file) or "application/octet-stream"
        if file.name and media_type == file.media_type:
            return file
        return replace(file, name=file.name or "document", media_type=media_type)
    return labels.document_text(file)
