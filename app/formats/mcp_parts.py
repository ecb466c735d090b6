"""Parts of MCP results, which clients append to a tool message as their server sent them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.formats.base64_media import is_web_url
from app.formats.json_fields import Fields, object_in, text_in
from app.formats.message import File, Image, Part, Text

_TYPES: Final = ("image", "audio", "resource", "resource_link")


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


def read(part: Fields) -> Part | None:
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
