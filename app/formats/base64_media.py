"""Base64 media as callers send them, and as every provider reads them."""

from __future__ import annotations

import base64
import re
from typing import Final

PDF: Final = "application/pdf"
_BASE64: Final = re.compile(r"(?:[a-zA-Z0-9+/]*|[a-zA-Z0-9_-]*)={0,2}")
_DIGITS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_TO_STANDARD: Final = bytes.maketrans(b"-_", b"+/")
_SPACES: Final = b" \t\r\n\f\v"
_LAST_DIGITS: Final = {2: b"AQgw", 3: b"AEIMQUYcgkosw048"}
"""The digits whose unused bits are zero, by the number of digits in the last group of four."""
_MAGIC: Final = {
    "iVBORw0KGgo": "image/png",
    "/9j/": "image/jpeg",
    "R0lGOD": "image/gif",
    "JVBERi": PDF,
}
_RIFF: Final = "UklGR"
SAME_TYPES: Final = {
    "image/jpg": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "image/x-png": "image/png",
}


def strict_base64(data: str) -> str | None:
    """Return base64 in one line of the standard alphabet, padded; None for any other text."""
    if not data.isascii():
        return None
    raw = data.encode()
    padding = raw.translate(None, _DIGITS)
    if padding not in (b"", b"=", b"=="):
        raw = raw.translate(_TO_STANDARD, _SPACES)
        padding = raw.translate(None, _DIGITS)
    digits = raw.rstrip(b"=")
    if not digits or padding.strip(b"=") or len(raw) - len(digits) != len(padding):
        return None
    if not _ends_well(digits):
        return None
    strict = (digits + b"=" * (-len(digits) % 4)).decode()
    return data if strict == data else strict


def is_base64(data: str) -> bool:
    """Return whether a strict reader accepts data as base64, in either alphabet, padded or not."""
    digits = data.rstrip("=")
    is_padded = len(digits) == len(data) or len(data) % 4 == 0
    return bool(_BASE64.fullmatch(data)) and is_padded and _ends_well(digits.encode())


def _ends_well(digits: bytes) -> bool:
    """Return whether the last group of four has a length and a digit that base64 ends with."""
    last_group = len(digits) % 4
    return last_group == 0 or (last_group > 1 and digits[-1] in _LAST_DIGITS[last_group])


def sniffed_type(data: str) -> str | None:
    """Return the media type that the first characters of base64 data identify."""
    if data.startswith(_RIFF):
        is_webp = len(data) >= 16 and base64.b64decode(data[:16])[8:] == b"WEBP"
        return "image/webp" if is_webp else None
    return next((kind for magic, kind in _MAGIC.items() if data.startswith(magic)), None)


def split_data_url(url: str) -> tuple[str | None, str] | None:
    """Split `data:<type>;base64,<data>` into type and data; None for any other URL."""
    comma = url.find(",", 0, 256)
    header = url[:comma]
    if comma < 0 or header[:5].lower() != "data:" or not header.lower().endswith(";base64"):
        return None
    return header[5:-7].partition(";")[0].lower() or None, url[comma + 1 :]


def is_web_url(url: str | None) -> bool:
    """Return whether a provider can fetch a URL."""
    return (url or "")[:16].lstrip().lower().startswith(("https://", "http://"))
