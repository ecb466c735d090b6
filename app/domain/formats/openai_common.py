"""What OpenAI's two formats say alike: calls, images, and documents by their content."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from app.domain.common.messages import File, Image, Text, ToolCall
from app.domain.formats import json_fields, labels


def adapt_call(call: ToolCall, ids: Mapping[str, str]) -> ToolCall:
    """Give a call the id, name and arguments that OpenAI takes."""
    sent, name = json_fields.sent_id(call.id, ids), json_fields.tool_name(call.name)
    arguments = call.arguments
    if not call.custom and not json_fields.is_json(arguments):
        arguments = json_fields.wrapped_arguments(arguments)
    if (sent, name) == (call.id, call.name) and arguments is call.arguments:
        return call
    return replace(call, id=sent, name=name, arguments=arguments)


def adapt_image(image: Image, details: Collection[str]) -> Image | Text:
    """Give an image a media type and a detail the format has, or describe one nobody can send."""
    detail = image.detail if image.detail in details else None
    if image.data is None and not image.url:
        return labels.label_for(image)
    media_type = image.media_type
    if image.data is not None:
        media_type = json_fields.media_type_of(image) or "image/png"
    if (media_type, detail) == (image.media_type, image.detail):
        return image
    return replace(image, media_type=media_type, detail=detail)


def adapt_content(file: File) -> File | Text | None:
    """Give a document with a name and a media type, or as text; None where it has no content."""
    if file.data is not None:
        media_type = json_fields.media_type_of(file) or "application/octet-stream"
        if file.name and media_type == file.media_type:
            return file
        return replace(file, name=file.name or "document", media_type=media_type)
    if file.text is not None and file.text.strip():
        return Text(f"{labels.file_label(file)}\n{file.text}" if file.name else file.text)
    return None
