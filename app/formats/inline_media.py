"""Media in base64 and in data URLs, and their media types [operation.no-fetch]."""

from __future__ import annotations

import re

from app.common.errors import ValidationError
from app.formats.base64_media import sniffed_type, split_data_url
from app.formats.message import File, Image

_MEDIA_TYPE = re.compile(r"[a-zA-Z0-9.+_-]{1,80}/[a-zA-Z0-9.+_-]{1,80}")


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
