"""Media in base64 and in data URLs, and their media types [operation.no-fetch]."""

from __future__ import annotations

import re

from app.domain.common.errors import ValidationError
from app.domain.common.messages import File, Image

_MEDIA_TYPE = re.compile(r"[a-zA-Z0-9.+_-]{1,80}/[a-zA-Z0-9.+_-]{1,80}")
_BASE64 = re.compile(r"(?:[a-zA-Z0-9+/]*|[a-zA-Z0-9_-]*)={0,2}")
_LAST_DIGITS = {2: "AQgw", 3: "AEIMQUYcgkosw048"}
"""The digits whose unused bits are zero, by the number of digits in the last group of four."""
_MAGIC = {
    "iVBORw0KGgo": "image/png",
    "/9j/": "image/jpeg",
    "R0lGOD": "image/gif",
    "UklGR": "image/webp",
    "JVBERi": "application/pdf",
}


def sniffed_type(data: str) -> str | None:
    """Return the media type that the first characters of base64 data identify."""
    return next((kind for magic, kind in _MAGIC.items() if data.startswith(magic)), None)


def is_base64(data: str) -> bool:
    """Return whether a strict reader accepts data as base64, in either alphabet, padded or not."""
    if not _BASE64.fullmatch(data):
        return False
    digits = data.rstrip("=")
    last_group = len(digits) % 4
    is_padded = len(digits) == len(data) or len(data) % 4 == 0
    return (
        is_padded
        and last_group != 1
        and (last_group == 0 or digits[-1] in _LAST_DIGITS[last_group])
    )


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


def split_data_url(url: str) -> tuple[str | None, str] | None:
    """Split `data:<type>;base64,<data>` into type and data; None for any other URL."""
    comma = url.find(",", 0, 256)
    header = url[:comma]
    if comma < 0 or header[:5].lower() != "data:" or not header.lower().endswith(";base64"):
        return None
    return header[5:-7].partition(";")[0].lower() or None, url[comma + 1 :]


def is_web_url(url: str | None) -> bool:
    """Return whether a provider can fetch a URL."""
    return (url or "").lower().startswith(("https://", "http://"))


def url_of(media: Image | File) -> str | None:
    """Return the URL of an image or a document: a data URL where it has data."""
    return media.url if media.data is None else f"data:{media.media_type};base64,{media.data}"
