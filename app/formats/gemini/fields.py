"""Fields of Gemini's parts, in either spelling, and the function responses of tool messages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from app.formats import adapting, json_fields, tool_calls
from app.formats.message import File, FormatName, Image, Message, Part, Role, Text, ToolCall

STAND_IN_SIGNATURE = "skip_thought_signature_validator"
"""Marks a call that was not made by the model to which it is sent."""

RESULT_KEY = "response"
"""The field of a result that holds its content."""
_TEXT_KEYS = ("output", "result", "error")

_SNAKE = {
    "functionCall": "function_call",
    "functionResponse": "function_response",
    "inlineData": "inline_data",
    "fileData": "file_data",
    "mimeType": "mime_type",
    "fileUri": "file_uri",
    "displayName": "display_name",
    "thoughtSignature": "thought_signature",
}
_OWN_FILES = "https://generativelanguage.googleapis.com/"
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")


def key_in(raw: Mapping[str, Any], name: str) -> str:
    """Return a field's name as it is spelled in `raw`, in camelCase where it is absent."""
    snake = _SNAKE.get(name, name)
    return snake if name not in raw and snake in raw else name


def field_in(raw: Mapping[str, Any], name: str) -> Any:
    """Return a field in either spelling, None where it is absent."""
    return raw.get(key_in(raw, name))


def signature_in(part: Mapping[str, Any]) -> str:
    """Return the thought signature of a wire part, empty without one."""
    signature = field_in(part, "thoughtSignature")
    return signature if isinstance(signature, str) else ""


def unsigned(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a wire part without its thought signature."""
    signatures = ("thoughtSignature", "thought_signature")
    return {key: item for key, item in part.items() if key not in signatures}


def original_call(call: ToolCall) -> Mapping[str, Any] | None:
    """Return the function call as Gemini made it, None for a call of another provider."""
    if call.block is None or call.format is not FormatName.GEMINI:
        return None
    original: Mapping[str, Any] = field_in(call.block, "functionCall")
    return original


def function_name(name: str) -> str:
    """Return the name of a function as Gemini accepts it [gemini.names]."""
    if _NAME.fullmatch(name):
        return name
    valid = tool_calls.tool_name(name)
    return valid if _NAME.fullmatch(valid) else f"_{valid}"


def is_own_file(uri: str) -> bool:
    """Return whether a URI names a file that was uploaded to Gemini."""
    return uri.startswith(_OWN_FILES)


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


def response_name(message: Message) -> str:
    """Return the name in an adapted tool message's response, where no call decides about it."""
    return function_name(message.name or "tool")


def tool_media(message: Message) -> tuple[Part, ...]:
    """List the media of an adapted tool message that are sent as parts of their own (rule 4)."""
    if message.role is not Role.TOOL or original_part(message) is not None:
        return ()
    return tuple(part for part in message.parts if isinstance(part, Image | File))
