"""Media in base64 and in data URLs, and those of MCP results [operation.no-fetch].

Clients append parts of MCP to a tool message as their server sent them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from app.common.errors import ValidationError
from app.formats.base64_media import is_web_url, sniffed_type, split_data_url
from app.formats.json_fields import Fields, object_in, text_in
from app.formats.message import File, Image, Part, Text

_MEDIA_TYPE = re.compile(r"[a-zA-Z0-9.+_-]{1,80}/[a-zA-Z0-9.+_-]{1,80}")
_TYPES: Final = ("image", "audio", "resource", "resource_link")


def media_type_of(media: Image | File) -> str | None:
    """Return the declared media type in lower case, else the one that its base64 data shows."""
    declared = (media.media_type or "").lower()
    if _MEDIA_TYPE.fullmatch(declared):
        return declared
    return sniffed_type(media.data) if media.data is not None else None


def image_from_url(url: str, pointer: str, detail: str | None = None) -> Image:
    """Read an image URL; a data URL becomes an image by `data`, which all formats accept."""
    inline = split_data_url(url)
    if inline is None:
        return Image(url=url, detail=detail)
    media_type, data = inline
    if not data:
        raise ValidationError.at(pointer, "the image data is empty")
    return Image(media_type=media_type, data=data, detail=detail)


def url_of(media: Image | File) -> str | None:
    """Return the URL of an image or a document: a data URL where it has data."""
    return media.url if media.data is None else f"data:{media.media_type};base64,{media.data}"


def is_mcp(part: Mapping[str, Any]) -> bool:
    """Return whether a part has the form of MCP: other formats have other fields for media."""
    match part.get("type"):
        case "image" | "audio":
            return isinstance(part.get("data"), str)
        case "resource":
            return bool(text_in(object_in(part, "resource"), "uri"))
        case "resource_link":
            return bool(text_in(part, "uri"))
        case _:
            return False


def read_mcp(part: Fields) -> Part | None:
    """Read a part of MCP as a neutral one; None for any other part."""
    if part.get("type") not in _TYPES or not is_mcp(part.raw):
        return None
    if part.raw["type"] in ("image", "audio"):
        return _media(part.optional_text("mimeType"), part.filled_text("data"), None)
    held = object_in(part.raw, "resource") or part.raw
    uri, name = text_in(held, "uri"), text_in(held, "title") or text_in(held, "name")
    media_type = text_in(held, "mimeType") or None
    if blob := text_in(held, "blob"):
        return _media(media_type, blob, name or uri)
    if text := text_in(held, "text"):
        return File(media_type, text=text, name=name or uri)
    if is_web_url(uri) and (media_type or "").startswith("image/"):
        return Image(media_type, url=uri)
    return Text(f"[resource: {' '.join(filter(None, (name, uri)))}]")


def _media(media_type: str | None, data: str, name: str | None) -> Image | File:
    is_image = (media_type or "image/").startswith("image/")
    return Image(media_type, data) if is_image else File(media_type, data, name=name)
