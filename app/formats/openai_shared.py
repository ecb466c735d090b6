"""What the two formats of OpenAI share: calls, images, files and content."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from app.common.errors import ValidationError
from app.formats import base64_media, inline_media, json_fields, labels, tool_calls
from app.formats.base64_media import strict_base64
from app.formats.json_fields import Fields
from app.formats.message import File, FormatName, Image, Opaque, Part, Text, ToolCall


def parts_at(
    value: object, pointer: str, parse_part: Callable[[object, str], Part]
) -> tuple[Part, ...]:
    """Read a content: a string or a list of parts."""
    match value:
        case str(text):
            return (Text(text),)
        case list(items):
            return tuple(parse_part(item, f"{pointer}/{i}") for i, item in enumerate(items))
        case _:
            detail = f"must be a string or a list of parts, not {json_fields.json_type(value)}"
            raise ValidationError.at(pointer, detail)


def file_at(file: Fields, format: FormatName) -> File:
    """Read a file; only OpenAI Responses has `file_url`."""
    has_url = format is FormatName.OPENAI_RESPONSES
    name = file.optional_text("filename")
    if file_data := file.optional_text("file_data"):
        if base64_media.is_web_url(file_data):
            return File(url=file_data.strip(), name=name, format=format)
        media_type, data = base64_media.split_data_url(file_data) or (None, file_data)
        return File(media_type=media_type, data=data, name=name)
    if has_url and (url := file.optional_text("file_url")):
        return File(url=url, name=name)
    if file_id := file.optional_text("file_id"):
        return File(file_id=file_id, name=name, format=format)
    fields = "file_data, file_url or file_id" if has_url else "file_data or file_id"
    raise ValidationError.at(file.at, f"must have {fields}")


def audio_at(part: Fields, format: FormatName) -> Opaque | Text:
    """Read an `input_audio` part; a label stands for data that nobody can read."""
    block = part.json(*json_fields.CACHE_MARKS)
    data = json_fields.text_in(block.get("input_audio"), "data")
    if not data:
        return Opaque(block, format)
    if (strict := strict_base64(data)) is None:
        return Text("[audio: unreadable data]", stands_for=("audio",))
    return Opaque(block | {"input_audio": {**block["input_audio"], "data": strict}}, format)


def adapt_call(call: ToolCall, ids: Mapping[str, str]) -> ToolCall:
    """Return a call with the id, name and arguments that OpenAI accepts."""
    sent, name = tool_calls.sent_id(call.id, ids), tool_calls.tool_name(call.name)
    arguments = call.arguments
    if not call.custom and not tool_calls.is_json(arguments):
        arguments = tool_calls.wrapped_arguments(arguments)
    if (sent, name) == (call.id, call.name) and arguments is call.arguments:
        return call
    return replace(call, id=sent, name=name, arguments=arguments)


def adapt_image(image: Image, details: Collection[str]) -> Image | Text:
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


def adapt_content(file: File) -> File | Text | None:
    """Return a document with a name and a media type, or as text; None where it has no content."""
    if file.data is not None:
        media_type = inline_media.media_type_of(file) or "application/octet-stream"
        if media_type.startswith(("audio/", "video/")):
            return labels.label_for(file)
        if file.name and media_type == file.media_type:
            return file
        return replace(file, name=file.name or "document", media_type=media_type)
    return labels.document_text(file)
