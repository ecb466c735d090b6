"""Ids, names and arguments of tool calls, in the form that every provider accepts."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from itertools import chain, count
from types import MappingProxyType
from typing import Any, Final

import orjson

from app.common import json_text
from app.common.errors import ValidationError
from app.common.json_text import MESSAGE_LIMITS
from app.common.texts import sendable_json
from app.formats import json_fields
from app.formats.message import Part, ToolCall

NO_IDS: Final[Mapping[str, str]] = MappingProxyType({})
TOOL_NAME_PATTERN: Final = "^[a-zA-Z0-9_-]{1,64}$"

_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOT_IN_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_NUMBER = re.compile(r"#\d+$")
_INVALID: Final = object()
_MAX_BYTES: Final = 4 * 2**20
"""The longest text of a message."""
_LIMITS: Final = replace(MESSAGE_LIMITS, bytes=_MAX_BYTES)


def sendable_id(call_id: str) -> str:
    """Map a call id to one that every provider accepts: at most 40 of `[a-zA-Z0-9_-]`
    [neutral.unique-call-ids, openai-chat.sizes].

    The result depends on the id alone, so a call and its result keep the same id.
    """
    if _ID.fullmatch(call_id):
        return call_id
    digest = hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()
    return f"call_{digest[:24]}"


def short_id(call_id: str) -> str:
    """Map a call id to one that Mistral accepts: nine letters or digits."""
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]


def sent_id(call_id: str, ids: Mapping[str, str]) -> str:
    """Return the id to send: the replacement in `ids`, else a sendable form of the id itself."""
    return ids.get(call_id) or sendable_id(call_id)


def unnumbered(call_id: str) -> str:
    """Return a call id as the caller gave it: of several equal ones, later ones have a number."""
    return _NUMBER.sub("", call_id)


def own_id(call_id: str, taken: Container[str]) -> str:
    """Return the id of a call beside others: a number is added to an id that is `taken`."""
    numbered = (f"{call_id}#{number}" for number in count(2))
    return next(id for id in chain((call_id,), numbered) if id not in taken)


def with_own_ids(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return the parts of a message, of whose calls each has an id of its own."""
    found: list[Part] = []
    taken: set[str] = set()
    for part in parts:
        if not isinstance(part, ToolCall):
            found.append(part)
            continue
        call_id = own_id(part.id, taken)
        taken.add(call_id)
        found.append(part if call_id == part.id else replace(part, id=call_id))
    return tuple(found)


def is_name(name: str) -> bool:
    """Return whether every provider accepts this name of a tool or a participant."""
    return _NAME.fullmatch(name) is not None


def tool_name(name: str) -> str:
    """Return the name of a called tool in a form that every provider accepts [anthropic.sizes]."""
    return name if is_name(name) else _NOT_IN_NAME.sub("_", name[:64]) or "tool"


def participant_name(name: str) -> str | None:
    """Return a participant's name in a form that OpenAI accepts, None where it has none.

    Accents are left out. A name with letters that no ASCII letter stands for has no such form.
    """
    if is_name(name):
        return name
    folded = unicodedata.normalize("NFKD", name)
    if any(char.isalnum() and not char.isascii() for char in folded):
        return None
    ascii_name = "".join(filter(str.isascii, folded))[:64]
    return _NOT_IN_NAME.sub("_", ascii_name).strip("_") or None


def is_json(text: str) -> bool:
    """Return whether a text is strict JSON: finite numbers, at most `MAX_DEPTH` levels, `_LIMITS`.

    What orjson accepts is such JSON; what it refuses may still be.
    """
    try:
        json_fields.json_at(json_text.loads_within(text, _LIMITS, orjson.loads), "")
    except orjson.JSONDecodeError:
        return _read_json(text) is not _INVALID
    except (json_text.ExceedsLimits, ValidationError):
        return False
    return True


def arguments_object(text: str) -> dict[str, Any] | None:
    """Parse arguments that are a JSON object; None for any others."""
    value = _read_json(text) if text.lstrip()[:1] == "{" else None
    return value if isinstance(value, dict) else None


def sent_as_object(text: str) -> str:
    """Return arguments as text the way a format sends them that sends an object."""
    arguments = arguments_object(text)
    return text if arguments is None else json_fields.compact(arguments)


def object_arguments(text: str) -> str:
    """Return arguments for a format that sends an object [anthropic.input-object].

    Characters that JSON escapes stand for must be sendable, too.
    """
    arguments = arguments_object(text)
    if arguments is None:
        return wrapped_arguments(text)
    cleaned = sendable_json(arguments) if "\\u" in text else arguments
    return text if cleaned is arguments else json_fields.compact(cleaned)


def wrapped_arguments(text: str) -> str:
    """Put arguments that are not JSON into an object, so that every provider accepts them."""
    return json_fields.compact({"arguments": text}) if text.strip() else "{}"


def _read_json(text: str) -> Any:
    try:
        return json_fields.json_at(json_text.loads_within(text, _LIMITS, json_text.loads_exact), "")
    except (ValueError, ValidationError):
        return _INVALID
