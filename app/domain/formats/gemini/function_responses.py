"""The function response of a tool message: its text, its name, and the media that follow it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.domain.common.messages import File, FormatName, Image, Message, Part, Role, Text
from app.domain.formats import adapting, json_fields
from app.domain.formats.gemini.fields import field_in, function_name

RESULT_KEY = "response"
"""The field of a result that holds its content."""
_TEXT_KEYS = ("output", "result", "error")


def response_text(response: Mapping[str, Any]) -> str:
    """Return a response as text: its only text, else the whole as JSON."""
    if not response:
        return ""
    key = text_key(response)
    return response[key] if key is not None else json_fields.compact(response)


def text_key(response: Mapping[str, Any]) -> str | None:
    """Return the field that holds the only text of a response, None where there is none."""
    (key, *others) = response or ("",)
    is_text = not others and key in _TEXT_KEYS and isinstance(response.get(key), str)
    return key if is_text else None


def original_part(message: Message) -> Mapping[str, Any] | None:
    """Return the part that a result came as, None where its text has been replaced since."""
    if message.role is not Role.TOOL:
        return None
    own = (p.block for p in message.parts if isinstance(p, Text) and p.format is FormatName.GEMINI)
    return next((block for block in own if block is not None), None)


def response_of(message: Message) -> Mapping[str, Any]:
    """Return the response object of an adapted tool message (rule 4)."""
    original = original_part(message)
    if original is not None:
        response: Mapping[str, Any] = field_in(original, "functionResponse").get(RESULT_KEY) or {}
        return response
    return {"error" if message.is_error else "output": message.text or adapting.MEDIA_FOLLOWS}


def response_json(message: Message) -> str:
    """Return the response object of an adapted tool message as JSON."""
    return json_fields.compact(response_of(message))


def response_name(message: Message) -> str:
    """Return the name in an adapted tool message's response, where no call decides about it."""
    return function_name(message.name or "tool")


def tool_media(message: Message) -> tuple[Part, ...]:
    """List the media of an adapted tool message that are sent as parts of their own (rule 4)."""
    if message.role is not Role.TOOL or original_part(message) is not None:
        return ()
    return tuple(part for part in message.parts if isinstance(part, Image | File))
