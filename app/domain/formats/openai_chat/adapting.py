"""Returns neutral messages as OpenAI Chat can carry them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from app.domain.common.messages import (
    OPENAI_FORMATS,
    File,
    FormatName,
    Image,
    Message,
    Opaque,
    Part,
    Role,
    Text,
    ToolCall,
)
from app.domain.formats import adapting, labels, tool_calls

_FORMAT = FormatName.OPENAI_CHAT
_DETAILS = ("auto", "low", "high")


def adapt(message: Message, ids: Mapping[str, str] = tool_calls.NO_IDS) -> Message:
    """Adapt a clean message, as `Format.adapt`; `render` decides about its reasoning."""
    parts = [new for part in message.parts for new in _adapt_part(part, message.role, ids)]
    if message.role is Role.ASSISTANT:
        parts = _join_texts(parts)
    keeps_name = message.role is Role.TOOL or tool_calls.is_name(message.name or "")
    return adapting.adapted(message, parts, ids, message.name if keeps_name else None)


def tool_media(message: Message) -> tuple[Part, ...]:
    """List the parts of a tool message that are sent in a user message after it."""
    if message.role is not Role.TOOL:
        return ()
    return tuple(part for part in message.parts if isinstance(part, Image | File | Opaque))


def _adapt_part(part: Part, role: Role, ids: Mapping[str, str]) -> tuple[Part, ...]:
    match part:
        case ToolCall():
            return (adapting.openai_call(part, ids),) if role is Role.ASSISTANT else ()
        case Image() | File() if role is Role.ASSISTANT:
            return (labels.label_for(part),)
        case Image():
            return (adapting.openai_image(part, _DETAILS),)
        case File():
            return (_adapt_file(part),)
        case Opaque():
            is_refusal = part.block.get("type") == "refusal"
            is_allowed = part.format is _FORMAT and is_refusal == (role is Role.ASSISTANT)
            return (part if is_allowed else labels.label_for(part),)
        case _:
            return (part,)


def _adapt_file(file: File) -> File | Text:
    if (content := adapting.openai_content(file)) is not None:
        return content
    if file.file_id is not None and file.format in OPENAI_FORMATS:
        return file
    return labels.label_for(replace(file, name=None) if file.url else file)


def _join_texts(parts: list[Part]) -> list[Part]:
    """Assistant content is one string, unless a refusal makes it a list of parts."""
    texts = [part for part in parts if isinstance(part, Text)]
    if len(texts) < 2 or any(isinstance(part, Opaque) for part in parts):
        return parts
    joined = adapting.joined(texts)
    first = parts.index(texts[0])
    rest = [part for part in parts[first:] if not isinstance(part, Text)]
    return [*parts[:first], joined, *rest]
