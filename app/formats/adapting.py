"""What several formats share in adapting a message to what they can carry."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace

from app.formats import tool_calls
from app.formats.message import Message, Part, Reasoning, Role, Text, placeholder_for

SYSTEM_LABEL = "[System]"
"""What precedes a system message where a format has none inside a conversation."""
MEDIA_FOLLOWS = "[media follows]"
"""The text of a result that consists of media, which are sent apart."""


def media_label(message: Message) -> str:
    """Return the text before the media of an adapted tool message, where they are sent apart."""
    return f"[media from tool call {message.tool_call_id}]"


def without_system(message: Message) -> Message:
    """Return a system message as the user's, with a label, for formats that have none."""
    if message.role is not Role.SYSTEM:
        return message
    return replace(message, role=Role.USER, parts=(Text(SYSTEM_LABEL), *message.parts))


def adapted_message(
    message: Message,
    parts: list[Part],
    ids: Mapping[str, str],
    name: str | None,
    *,
    has_fields: bool = False,
) -> Message:
    """Return a message with these parts and this name, and the call id to send.

    The same object is returned when nothing changes. A message without parts gets a placeholder
    [neutral.no-empty-content]. With `has_fields` its content is in fields. Where the name of a
    participant is not sent, the text begins with it.
    """
    if not (parts or has_fields):
        parts = [placeholder_for(message.role)]
    if name is None and message.role is not Role.TOOL and (message.name or "").strip():
        parts = _with_speaker(parts, message.name or "")
    call_id = message.tool_call_id
    sent = tool_calls.sent_id(call_id, ids) if call_id is not None else None
    if sent == call_id and name == message.name:
        return with_parts(message, parts)
    return replace(message, parts=tuple(parts), tool_call_id=sent, name=name)


def _with_speaker(parts: Sequence[Part], name: str) -> list[Part]:
    """Put a participant's name before the first text, or before all that is visible."""
    for index, part in enumerate(parts):
        if isinstance(part, Text):
            spoken = Text(f"{name}: {part.text}", stands_for=part.stands_for)
            return [*parts[:index], spoken, *parts[index + 1 :]]
    first = sum(isinstance(part, Reasoning) for part in parts)
    return [*parts[:first], Text(f"{name}:"), *parts[first:]]


def with_parts(message: Message, parts: Sequence[Part]) -> Message:
    """Return a message with these parts, the same object when it has them already."""
    same = len(parts) == len(message.parts) and all(map(operator.is_, parts, message.parts))
    return message if same else replace(message, parts=tuple(parts))


def join_texts(texts: Sequence[Text]) -> Text:
    """Join texts where a format has room for one."""
    stands_for = tuple(kind for text in texts for kind in text.stands_for)
    return Text("\n".join(text.text for text in texts), stands_for=stands_for)
