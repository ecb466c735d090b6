"""Media as callers send them and as every provider reads them, and messages that can be sent.

Clients append parts of MCP to a tool message as their server sent them [operation.no-fetch]. A
label is a short text in the place of content that a format cannot carry.

1. A label has the type of the content and its texts: a query, a title, a URL, a transcript.
2. A label depends on the content alone, so the same content always has the same label
   [neutral.same-bytes].
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from app.common.errors import ValidationError
from app.common.texts import sendable, sendable_json
from app.formats.json_fields import Fields, Raw, camel, object_in, text_in
from app.formats.message import File, Image, Message, Opaque, Part, Reasoning, Text, placeholder_for
from app.formats.tools import sendable_id

PDF: Final = "application/pdf"
_MAGIC: Final = {
    **{"iVBORw0KGgo": "image/png", "/9j/": "image/jpeg", "R0lGOD": "image/gif"},
    "JVBERi": PDF,
}
_RIFF: Final = "UklGR"
_SAME_TYPES: Final = {
    **dict.fromkeys(("image/jpg", "image/pjpeg"), "image/jpeg"),
    "image/x-png": "image/png",
}


def strict_base64(data: str) -> str | None:
    """Return base64 in one line of the standard alphabet, padded; None for any other text."""
    digits = "".join(data.split()).rstrip("=").replace("-", "+").replace("_", "/")
    try:
        decoded = base64.b64decode(digits + "=" * (-len(digits) % 4), validate=True)
    except ValueError:
        return None
    return base64.b64encode(decoded).decode() or None


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


_MEDIA_TYPE = re.compile(r"[a-zA-Z0-9.+_-]{1,80}/[a-zA-Z0-9.+_-]{1,80}")


def media_type_of(media: Image | File) -> str | None:
    """Return the declared media type in lower case, else the one that its base64 data shows."""
    declared = (media.media_type or "").lower()
    if _MEDIA_TYPE.fullmatch(declared):
        return declared
    return sniffed_type(media.data) if media.data is not None else None


def image_from_url(url: str, pointer: str, detail: str | None = None) -> Image:
    """Read an image URL; a data URL becomes an image by `data`, which all formats accept."""
    if (inline := split_data_url(url)) is None:
        return Image(url=url, detail=detail)
    media_type, data = inline
    if not data:
        raise ValidationError.at(pointer, "the image data is empty")
    return Image(media_type=media_type, data=data, detail=detail)


def url_of(media: Image | File) -> str | None:
    """Return the URL of an image or a document: a data URL where it has data."""
    return media.url if media.data is None else f"data:{media.media_type};base64,{media.data}"


def read_mcp(part: Fields) -> Part | None:
    """Read a part of MCP as a neutral one; None for any other part."""
    kind, raw = part.get("type"), part.raw
    if kind in ("image", "audio") and isinstance(raw.get("data"), str):
        return _media(part.optional_text("mimeType"), part.filled_text("data"), None)
    held = object_in(raw, "resource") if kind == "resource" else raw
    if kind not in ("resource", "resource_link") or not (uri := text_in(held, "uri")):
        return None
    name = text_in(held, "title") or text_in(held, "name")
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


def clean(message: Message) -> Message:
    """Return the message for use in a payload: sendable, and never empty
    [neutral.no-empty-content].

    Blank text parts are removed. A message without parts gets a placeholder. Media have the type
    that their data show, and data that every provider reads. Ids stay, so that calls and results
    match; rendering replaces them. A clean message is the same object.
    """
    parts = [_clean_part(part) for part in message.parts if not _is_blank(part)]
    if not parts:
        parts.append(placeholder_for(message.role))
    name = sendable(message.name) if message.name is not None else None
    block = sendable_json(message.block)
    message = message.with_parts(parts)
    is_same = name is message.name and block is message.block
    return message if is_same else replace(message, name=name, block=block)


def _is_blank(part: Part) -> bool:
    if isinstance(part, Text) or (isinstance(part, Reasoning) and part.block is None):
        return not part.text or part.text.isspace()
    return False


def _clean_part(part: Part) -> Part:
    """Make a part sendable; a reasoning block that would change is dropped.

    Reasoning blocks are replayed byte for byte or left out.
    """
    values = ((name, getattr(part, name)) for name in part.__slots__ if name != "id")
    cleaned = ((name, value, sendable_json(value)) for name, value in values)
    changes = {name: new for name, value, new in cleaned if new is not value}
    if isinstance(part, Reasoning) and "block" in changes:
        return Reasoning(sendable(part.text))
    part = replace(part, **changes) if changes else part
    if not isinstance(part, Image | File):
        return part
    is_data = part.data is None and sniffed_type(part.url or "")  # in the place of a URL
    data = part.url if is_data else part.data
    return part if data is None else _with_data(part, data)


def _with_data(media: Image | File, data: str) -> Part:
    """Return media as every provider reads them: another part where they are not what they claim.

    A data URL gives its data, a web URL in the place of data is a URL, and a label stands for data
    that nobody can read. [formats.media]
    """
    if is_web_url(data):
        return replace(media, data=None, url=data.strip())
    media_type = media.media_type
    if (inline := split_data_url(data)) is not None:
        media_type, data = inline[0] or media_type, inline[1]
    if (strict := strict_base64(data)) is None:
        kind = "image" if isinstance(media, Image) else "file"
        return Text(f"[{kind}: unreadable data]")
    shown, declared = sniffed_type(strict), (media_type or "").lower()
    if shown is not None and shown != _SAME_TYPES.get(declared, declared):
        if isinstance(media, Image) and shown == PDF:
            return File(shown, strict, block=media.block, format=media.format)
        is_image = isinstance(media, Image) or (media_type or "").startswith("image/")
        if not is_image and shown.startswith("image/"):
            return Image(shown, strict, block=media.block, format=media.format)
        media_type = shown if media_type else media_type
    if (media_type, strict, None) == (media.media_type, media.data, media.url):
        return media
    return replace(media, media_type=media_type, data=strict, url=None)


# --- labels ---------------------------------------------------------------------------------------

SYSTEM_LABEL: Final = "[System]"
"""What precedes a system message where a format has none inside a conversation."""
MEDIA_FOLLOWS: Final = "[media follows]"
"""The text of a result that consists of media, which are sent apart."""
_TOLD: Final = frozenset(
    (
        *("query", "queries", "url", "command", "code", "path", "pattern", "prompt", "title"),
        *("revised_prompt", "input", "refusal", "transcript", "text", "stdout", "output"),
        *("stderr", "error_code", "name", "tool_name", "file_id", "format", "mimeType"),
    )
)
"""Fields whose texts say what a provider's block is."""
_GEMINI_PARTS: Final = (
    *("executable_code", "code_execution_result", "tool_call", "tool_response"),
    *("inline_data", "file_data"),
)


def labelled_result(message: Message) -> tuple[Part, ...]:
    """Return a result as the user's text, where its call is not."""
    return Text(f"[result of tool call {sendable_id(message.tool_call_id or '')}]"), *message.parts


def media_label(message: Message) -> str:
    """Return the text before the media of an adapted tool message, where they are sent apart."""
    return f"[media from tool call {message.tool_call_id}]"


def join_texts(texts: Sequence[Text]) -> Text:
    """Join texts where a format has room for one."""
    return Text("\n".join(text.text for text in texts))


def image_label(image: Image) -> str:
    """Return the label of an image."""
    url = _web(image.url) if image.data is None else ""
    return _label("image", url or image.media_type or "")


def file_label(file: File) -> str:
    """Return the label of a document."""
    return _label("file", file.name or _web(file.url) or file.file_id or file.media_type or "")


def document_text(file: File) -> Text | None:
    """Return a plain text document as text, after its name; None for any other document."""
    if file.text is None or not file.text.strip():
        return None
    return Text(f"{file_label(file)}\n{file.text}" if file.name else file.text)


def label_for(part: Image | File | Opaque) -> Text:
    """Return the label of a part that a format cannot carry."""
    match part:
        case Image():
            return Text(image_label(part))
        case File():
            return Text(file_label(part))
        case Opaque():
            return Text(block_label(part.block))


def kind_of(block: Raw) -> str:
    """Return the type of a provider's block, by the provider's own name."""
    kind = block.get("type")
    if isinstance(kind, str) and kind:
        return kind[:64]
    return next((kind for kind in _GEMINI_PARTS if block.get(camel(kind)) is not None), "part")


def block_label(block: Raw) -> str:
    """Return the label of a provider's block."""
    return _label(kind_of(block), "; ".join(dict.fromkeys(_told(block))))


def _told(value: Any, key: str = "") -> Iterator[str]:
    """Yield the texts that say what a block is, those of the blocks in it too."""
    match value:
        case str() if key in _TOLD and value[:5].lower() != "data:" and value.strip():
            yield value
        case list():
            for item in value:
                yield from _told(item, key)
        case Mapping():
            for name, item in value.items():
                yield from _told(item, name)


def _label(kind: str, detail: str) -> str:
    return f"[{kind}: {detail}]" if detail else f"[{kind}]"


def _web(url: str | None) -> str:
    return "" if url is None or url[:5].lower() == "data:" else url
