"""Token counts of images, documents, audio and video.

1. An image counts its pixels / 750, at least 85 and at most 1600 tokens; the size is read from its
   header. Without a known size it counts 1000 tokens.
2. Plain text counts as text, also in base64.
3. A document counts 2000 tokens a page: providers charge about 1500 to 3000 for the text and the
   image of a page. A PDF's pages are counted in its first megabytes and extrapolated. Where no page
   is recognised, 20 KB count as a page.
4. Audio and video count by their bytes: 32 tokens a second of sound at the usual rates.
5. Text that only its provider can read, such as encrypted reasoning, counts by its length
   [tokens.sealed].
6. A flat value is used only for a URL and for a provider's file id. A name is counted, too. The
   work is bounded, and so are the tokens of a document.

What providers take in one request beside tokens is from Anthropic's, OpenAI's and Google's pages on
vision and on request sizes. Others publish no such limits, or none that all their models share.
"""

from __future__ import annotations

import base64
import io
import math
import re
import struct
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, NamedTuple

from app.formats import PROVIDERS
from app.formats.media import is_base64, media_type_of, sniffed_type, split_data_url
from app.formats.message import File, FormatName, Image
from app.formats.reasoning import ANTHROPIC, GEMINI, OPENAI

CountText = Callable[[str], int]
IMAGE_TOKENS: Final = 1000
FILE_TOKENS: Final = 2000
"""Tokens of a page, and of a file with unknown content."""
MAX_PAGES: Final = 1000
MAX_ESTIMATED_PAGES: Final = 100
"""The maximum of estimated pages; providers accept 100 to 1000."""
_PIXELS_PER_TOKEN = 750
_IMAGE_TOKEN_RANGE = (85, 1600)
_HEADER_CHARS = 1 << 18  # base64 characters read for the size; a JPEG's comes after its metadata
_BYTES_PER_PAGE = 20_000
_MEDIA_BYTES_PER_TOKEN = 250
_RAW_AUDIO_BYTES_PER_TOKEN = 1_500
_RAW_AUDIO = ("audio/wav", "audio/x-wav", "audio/wave", "audio/pcm", "audio/pcm16", "audio/l16")
_TEXT_TYPES = ("application/json", "application/xml", "application/yaml", "application/javascript")
_PDF = "application/pdf"
_URL_FIELDS = ("url", "image_url", "file_data", "video_url")
MAX_SEARCH_TOKENS: Final = 6_000
"""The maximum for the pages of one search: a provider sends parts of each page."""
_SEARCH_RESULTS, _GENERATED_IMAGE = "web_search_tool_result", "image_generation_call"
_REDACTED = ("redacted_thinking", "reasoning.encrypted")
_SEALED = re.compile(r"encrypted_|signature$|Signature$|^redacted")
_CIPHERTEXT = re.compile(r"[\w+/=.:-]{64,}", re.ASCII)
_FERNET = "gAAAA"
"""How OpenAI's sealed text begins: AES and base64, so four characters of it stand for three."""
_THOUGHT_SIGNATURES = ("thoughtSignature", "thought_signature")
_MAX_THOUGHT_CHARS = 1 << 17
"""A longer one of Gemini seals an image: its thoughts have at most 32,768 tokens."""
_SCANNED_CHARS = 1 << 22
_PAGE = re.compile(rb"/Type\s{0,8}/Page(?![A-Za-z])")
_OBJECTS = re.compile(rb"/ObjStm")
_STREAM = re.compile(rb"[^>]{0,400}>>\s{0,8}stream\r?\n")
_MAX_STREAMS = 64
_MAX_PACKED_BYTES = 1 << 18
_MAX_UNPACKED_BYTES = 1 << 19
_MB: Final = 1_000_000
_LARGE_WINDOW: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """The limits of a request; `many` is the number of images above which none is larger than
    `many_pixels` a side.
    """

    bytes: int
    media: int
    many: int | None = None
    many_pixels: int = 0


_BY_FAMILY: Final[Mapping[str, MediaLimits]] = {
    ANTHROPIC: MediaLimits(32 * _MB, 100, 20, 2000),
    OPENAI: MediaLimits(50 * _MB, 500),
    GEMINI: MediaLimits(20 * _MB, 3000),
}
_ANTHROPIC_LARGE_WINDOW: Final = 600
_HOSTS: Final = (("bedrock", 20 * _MB), ("vertex", 30 * _MB))
"""Hosts of Anthropic's models that take smaller requests."""


def image_tokens(image: Image, count: CountText) -> int:
    """Count an image by its pixels; an image by URL has a flat value."""
    if image.data is None:
        return max(IMAGE_TOKENS, count(image.url or ""))
    return _image_data_tokens(image.data)


def file_tokens(file: File, count: CountText) -> int:
    """Count a document, with its name."""
    name_tokens = count(file.name) if file.name else 0
    if file.data is not None:
        return name_tokens + data_tokens(media_type_of(file) or "", file.data, count)
    if file.text is not None and file.text.strip():
        return name_tokens + count(file.text)
    return name_tokens + max(FILE_TOKENS, count(file.url or file.file_id or ""))


def data_tokens(media_type: str, data: str, count: CountText) -> int:
    """Count base64 data of a media type, which may be empty."""
    kind = media_type.lower()
    size = len(data) * 3 // 4
    if kind.startswith("image/"):
        return _image_data_tokens(data)
    if kind.startswith(("audio/", "video/")):
        is_raw = kind in _RAW_AUDIO
        return -(-size // (_RAW_AUDIO_BYTES_PER_TOKEN if is_raw else _MEDIA_BYTES_PER_TOKEN))
    if kind.startswith("text/") or kind in _TEXT_TYPES:
        try:
            return count(base64.b64decode(data).decode())
        except ValueError:
            return -(-size // 4)
    return FILE_TOKENS * (_pdf_pages(data) if kind == _PDF else _estimated_pages(data))


class Block(NamedTuple):
    """A provider's block without its data, and the tokens of its media and of its sealed text."""

    rest: Any
    media: int = 0
    sealed: int = 0


def without_data(value: Any, count: CountText) -> Block:
    """Remove base64 media and sealed text from a provider's block, and count them."""
    match value:
        case list():
            items = [without_data(item, count) for item in value]
            rest: Any = [item.rest for item in items]
            media, sealed = sum(item.media for item in items), sum(item.sealed for item in items)
            return Block(rest, media, sealed)
        case Mapping():
            found, is_redacted = _media_in(value), value.get("type") in _REDACTED
            seals = {
                key: _sealed_tokens(key, text)
                for key, text in value.items()
                if isinstance(text, str)
                and (_SEALED.search(key) or (is_redacted and key == "data"))
                and _CIPHERTEXT.fullmatch(text)
            }
            media = sum(data_tokens(kind, data, count) for kind, data in found.values())
            names = [key for key in value if key not in found and key not in seals]
            inner = without_data([value[key] for key in names], count)
            sealed = inner.sealed + sum(seals.values())
            if value.get("type") == _SEARCH_RESULTS:
                sealed = min(sealed, MAX_SEARCH_TOKENS)
            rest = dict(zip(names, inner.rest, strict=True))
            return Block(rest, media + inner.media, sealed)
        case _:
            return Block(value)


def _sealed_tokens(name: str, text: str) -> int:
    """Count the sealed text of a field, by what providers bill for it."""
    if text.startswith(_FERNET):
        return len(text) * 3 // 20
    if "signature" not in name.lower():
        return -(-len(text) // 4)
    is_image = name in _THOUGHT_SIGNATURES and len(text) > _MAX_THOUGHT_CHARS
    return _IMAGE_TOKEN_RANGE[1] if is_image else -(-len(text) // 5)


def _media_in(block: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the fields of a block that hold base64, each with its media type and its data."""
    media: dict[str, tuple[str, str]] = {}
    is_image = block.get("type") == _GENERATED_IMAGE
    for key, text in block.items():
        if not isinstance(text, str):
            continue
        inline = split_data_url(text) if key in _URL_FIELDS else None
        if inline is not None and is_base64(inline[1]):
            media[key] = (inline[0] or "", inline[1])
        elif is_image and key == "result":
            media[key] = (sniffed_type(text) or "image/png", text)
    named = [block.get(key) for key in ("media_type", "mimeType", "mime_type")]
    named += [f"audio/{block['format']}" if isinstance(block.get("format"), str) else None]
    kind, data = next((kind for kind in named if isinstance(kind, str)), None), block.get("data")
    is_text = block.get("type") == "text"
    if kind is not None and isinstance(data, str) and not is_text and is_base64(data):
        media["data"] = (kind, data)
    return media


def _image_data_tokens(data: str) -> int:
    size = pixel_size(data)
    if size is None:
        return IMAGE_TOKENS
    low, high = _IMAGE_TOKEN_RANGE
    return min(high, max(low, math.ceil(size[0] * size[1] / _PIXELS_PER_TOKEN)))


def pixel_size(data: str) -> tuple[int, int] | None:
    """Read the size of common image types only; the package has larger parsers for others."""
    if sniffed_type(data) is None:
        return None
    import imagesize  # which imports parsers of XML and URLs

    try:
        width, height = imagesize.get(io.BytesIO(_decoded(data[:_HEADER_CHARS])))
    except (ValueError, struct.error):
        return None
    return (width, height) if width > 0 and height > 0 else None


def _decoded(data: str) -> bytes:
    """Decode base64 that may be cut: only whole groups of four characters."""
    return base64.b64decode(data[: len(data) // 4 * 4])


def _estimated_pages(data: str) -> int:
    return min(MAX_ESTIMATED_PAGES, max(1, -(-len(data) * 3 // 4 // _BYTES_PER_PAGE)))


def _pdf_pages(data: str) -> int:
    scanned = data[:_SCANNED_CHARS]
    try:
        content = _decoded(scanned)
    except ValueError:
        return _estimated_pages(data)
    pages = len(_PAGE.findall(content)) or _packed_pages(content)
    if not pages:
        return _estimated_pages(data)
    return min(MAX_PAGES, math.ceil(pages * len(data) / len(scanned)))


def _packed_pages(content: bytes) -> int:
    """Count the pages in compressed object streams."""
    pages = 0
    for objects in islice(_OBJECTS.finditer(content), _MAX_STREAMS):
        start = _STREAM.match(content, objects.end())
        if start is None:
            continue
        packed = memoryview(content)[start.end() : start.end() + _MAX_PACKED_BYTES]
        with suppress(zlib.error):
            unpacked = zlib.decompressobj().decompress(packed, _MAX_UNPACKED_BYTES)
            pages += len(_PAGE.findall(unpacked))
    return pages


def media_limits(model: str, format: FormatName, window: int | None) -> MediaLimits | None:
    """Return the limits of a model's family, None where they are unknown."""
    limits = _BY_FAMILY.get(next(iter(PROVIDERS[format].accepted_families(model)), ""))
    if limits is None or limits.many is None:
        return limits
    max_bytes = next((size for host, size in _HOSTS if host in model.lower()), limits.bytes)
    is_large = window is not None and window >= _LARGE_WINDOW
    return replace(
        limits, bytes=max_bytes, media=_ANTHROPIC_LARGE_WINDOW if is_large else limits.media
    )
