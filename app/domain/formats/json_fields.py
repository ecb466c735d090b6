"""What the wire formats share: reading fields, JSON text, ids, names and media.

A reader takes a value and the JSON pointer where it stands, and raises `ValidationError`
there when the value is not what the provider's type says.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NoReturn

from app.domain.common import json_text
from app.domain.common.errors import ValidationError
from app.domain.common.messages import (
    File,
    FormatName,
    Image,
    Message,
    Part,
    Reasoning,
    Role,
    Text,
    placeholder_for,
)

MAX_DEPTH: Final = 100
NO_IDS: Final[Mapping[str, str]] = MappingProxyType({})
TOOL_NAME_PATTERN: Final = "^[a-zA-Z0-9_-]{1,64}$"
OPENAI_FORMATS: Final = (FormatName.OPENAI_CHAT, FormatName.OPENAI_RESPONSES)
"""The formats of one provider, which knows its file ids in both."""

_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MEDIA_TYPE = re.compile(r"[a-zA-Z0-9.+_-]{1,80}/[a-zA-Z0-9.+_-]{1,80}")
_BASE64 = re.compile(r"(?:[a-zA-Z0-9+/]*|[a-zA-Z0-9_-]*)={0,2}")
_LAST_BITS = {2: "AQgw", 3: "AEIMQUYcgkosw048"}
_NOT_IN_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_MAGIC = {
    "iVBORw0KGgo": "image/png",
    "/9j/": "image/jpeg",
    "R0lGOD": "image/gif",
    "UklGR": "image/webp",
    "JVBERi": "application/pdf",
}
_SYSTEM_ADVICE = (
    "system text is not part of the log: store it as a section (PUT .../sections)"
    " or send it with the build"
)


def refuse_role(role: object, pointer: str, accepted: str) -> NoReturn:
    """Raise for a role the log does not take; system text is pointed to sections (A1)."""
    if role in ("system", "developer"):
        raise ValidationError.at(f"{pointer}/role", _SYSTEM_ADVICE)
    if role == "function":
        detail = 'role "function" is deprecated: send role "tool" with a tool_call_id'
        raise ValidationError.at(f"{pointer}/role", detail)
    raise ValidationError.at(f"{pointer}/role", f"role must be one of {accepted}")


def object_at(value: object, pointer: str) -> Mapping[str, Any]:
    """Read a JSON object."""
    if not isinstance(value, Mapping):
        raise ValidationError.at(pointer, f"must be an object, not {json_type(value)}")
    return value


def list_at(value: object, pointer: str) -> list[Any]:
    """Read a JSON array."""
    if not isinstance(value, list):
        raise ValidationError.at(pointer, f"must be a list, not {json_type(value)}")
    return value


def text_at(raw: Mapping[str, Any], key: str, pointer: str) -> str:
    """Read a required string field, which may be empty."""
    if key not in raw:
        raise ValidationError.at(f"{pointer}/{key}", "is required")
    value = raw[key]
    if not isinstance(value, str):
        raise ValidationError.at(f"{pointer}/{key}", f"must be a string, not {json_type(value)}")
    return value


def filled_text_at(raw: Mapping[str, Any], key: str, pointer: str) -> str:
    """Read a required string field that may not be empty."""
    value = text_at(raw, key, pointer)
    if not value:
        raise ValidationError.at(f"{pointer}/{key}", "must not be empty")
    return value


def optional_text_at(raw: Mapping[str, Any], key: str, pointer: str) -> str | None:
    """Read a string field that may be null or absent."""
    return None if raw.get(key) is None else text_at(raw, key, pointer)


def json_at(value: object, pointer: str) -> Any:
    """Pass a JSON value that is kept as it is, bounded in depth and without NaN or infinity."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        if not level:
            return value
        if any(isinstance(item, float) and not math.isfinite(item) for item in level):
            raise ValidationError.at(pointer, "numbers must be finite")
        level = _children(level)
    raise ValidationError.at(pointer, f"is nested deeper than {MAX_DEPTH} levels")


def json_type(value: object) -> str:
    """Name a value the way JSON does, for error details."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case Mapping():
            return "an object"
        case _:
            return "a list"


def compact(value: Any) -> str:
    """Dump JSON without spaces and without ASCII escapes, keys in their order."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def arguments_object(text: str) -> dict[str, Any] | None:
    """Parse a call's arguments when they are a JSON object, and give None otherwise."""
    value = _read_json(text) if text.lstrip()[:1] == "{" else None
    return value if isinstance(value, dict) else None


def sent_as_object(text: str) -> str:
    """Give a call's arguments as they stand where a format sends an object; others as they are."""
    arguments = arguments_object(text)
    return text if arguments is None else compact(arguments)


def is_json(text: str) -> bool:
    """Tell whether a text is strict JSON: finite numbers and at most `MAX_DEPTH` levels."""
    return _read_json(text) is not _INVALID


def wrapped_arguments(text: str) -> str:
    """Put arguments that are no JSON into an object, so that every provider takes them (A17)."""
    return compact({"arguments": text}) if text.strip() else "{}"


def sendable_id(call_id: str) -> str:
    """Map a call id to one every provider takes: at most 40 of `[a-zA-Z0-9_-]` (N3, B4).

    The map is a function of the id alone, so a call and its result keep the same id.
    """
    if _ID.fullmatch(call_id):
        return call_id
    digest = hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()
    return f"call_{digest[:24]}"


def sent_id(call_id: str, ids: Mapping[str, str]) -> str:
    """Give the id to send: the caller's replacement, else a sendable form of the id itself."""
    return ids.get(call_id) or sendable_id(call_id)


def tool_name(name: str) -> str:
    """Turn any called name into one every provider takes (A19, B4)."""
    if is_name(name):
        return name
    return _NOT_IN_NAME.sub("_", name[:64]) or "tool"


def is_name(name: str) -> bool:
    """Tell whether providers take this as the name of a tool or a participant."""
    return _NAME.fullmatch(name) is not None


def sniffed_type(data: str) -> str | None:
    """Tell the media type of base64 data from its first characters."""
    return next((kind for magic, kind in _MAGIC.items() if data.startswith(magic)), None)


def is_base64(data: str) -> bool:
    """Tell whether data is base64 as strict readers take it, in either alphabet, padded or not."""
    if not _BASE64.fullmatch(data):
        return False
    digits = data.rstrip("=")
    over = len(digits) % 4
    is_padded = len(digits) == len(data) or len(data) % 4 == 0
    return is_padded and over != 1 and (over == 0 or digits[-1] in _LAST_BITS[over])


def media_type_of(media: Image | File) -> str | None:
    """Give the declared media type in lower case, or the one its base64 data shows."""
    declared = (media.media_type or "").lower()
    if _MEDIA_TYPE.fullmatch(declared):
        return declared
    return sniffed_type(media.data) if media.data is not None else None


def image_from_url(url: str, pointer: str, detail: str | None = None) -> Image:
    """Read an image URL; a data URL is an image by `data`, so that all formats take it."""
    inline = split_data_url(url)
    if inline is None:
        return Image(url=url, detail=detail)
    media_type, data = inline
    if not data:
        raise ValidationError.at(pointer, "the image data is empty")
    return Image(media_type=media_type, data=data, detail=detail)


def split_data_url(url: str) -> tuple[str | None, str] | None:
    """Split `data:<type>;base64,<data>` in two; None for any other URL."""
    comma = url.find(",", 0, 256)
    header = url[:comma]
    if comma < 0 or header[:5].lower() != "data:" or not header.lower().endswith(";base64"):
        return None
    return header[5:-7].partition(";")[0].lower() or None, url[comma + 1 :]


def takes_system(format: FormatName) -> bool:
    """Whether a format has system text among its messages, whatever the model."""
    return format in OPENAI_FORMATS


def joined(texts: Sequence[Text]) -> Text:
    """Join texts where a format has one; it stands for what any of them stood for."""
    stands_for = tuple(kind for text in texts for kind in text.stands_for)
    return Text("\n".join(text.text for text in texts), stands_for=stands_for)


def adapted(
    message: Message, parts: list[Part], ids: Mapping[str, str], name: str | None
) -> Message:
    """Give a message these parts and the ids to send; the same object when nothing is another.

    What is left with nothing to show gets a placeholder (N6). Reasoning shows nothing.
    """
    if all(isinstance(part, Reasoning) for part in parts):
        parts = [*parts, placeholder_for(message.role, parts)]
    call_id = message.tool_call_id
    sent = sent_id(call_id, ids) if call_id is not None else None
    same = len(parts) == len(message.parts) and all(map(operator.is_, parts, message.parts))
    if same and sent == call_id and name == message.name:
        return message
    return replace(message, parts=tuple(parts), tool_call_id=sent, name=name)


def result_name(message: Message) -> str | None:
    """Give the name that stays in formats which name no participant: that of a tool's result."""
    return message.name if message.role is Role.TOOL else None


_INVALID: Final = object()


def _read_json(text: str) -> Any:
    try:
        value = json_text.loads_exact(text)
        json_at(value, "")
    except (ValueError, ValidationError):
        return _INVALID
    return value


def _children(level: list[object]) -> list[object]:
    found: list[object] = []
    for item in level:
        if isinstance(item, Mapping):
            found.extend(item.values())
        elif isinstance(item, list | tuple):
            found.extend(item)
    return found
