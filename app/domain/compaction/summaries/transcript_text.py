"""Messages and summaries as labelled plain text, which a summariser reads.

Tool calls are described, never sent as tool blocks. Images and reasoning are described by their
size. [summary.labelled-text] [summary.no-reasoning-no-media]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from app.domain.common.messages import (
    File,
    Image,
    Message,
    Opaque,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
)
from app.domain.formats.labels import block_label

_VERBATIM_LABEL = " (kept word for word)"


def without_trailing_calls(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Remove the calls of a last assistant message, or the message where it has no other text."""
    if not messages or not messages[-1].calls:
        return tuple(messages)
    *before, last = messages
    if not last.text.strip():
        return tuple(before)
    parts = tuple(part for part in last.parts if not isinstance(part, ToolCall))
    return (*before, replace(last, parts=parts))


def call_names(messages: Iterable[Message]) -> dict[str, str]:
    """Return the tool name of every call by id; the newest call of an id wins."""
    return {call.id: call.name for message in messages for call in message.calls}


def format_messages(
    messages: Sequence[Message], verbatim_indices: frozenset[int] = frozenset()
) -> tuple[str, ...]:
    """Return each message as labelled text, its tags not yet escaped.

    `verbatim_indices` are those of messages that stay verbatim beside the summary.
    """
    names = call_names(messages)
    texts = []
    for index, message in enumerate(messages):
        label = f"{_label(message, names)}{_VERBATIM_LABEL if index in verbatim_indices else ''}"
        described = (_describe(part) for part in message.parts)
        body = "\n".join(text for text in described if text) or "[nothing]"
        texts.append(f"{label}:\n{body}")
    return tuple(texts)


def format_summaries(texts: Sequence[str]) -> tuple[str, ...]:
    """Return each summary labelled by its position, its tags not yet escaped."""
    return tuple(f"Part {number}:\n{text}" for number, text in enumerate(texts, start=1))


def _label(message: Message, names: Mapping[str, str]) -> str:
    match message.role:
        case Role.USER:
            return "User"
        case Role.ASSISTANT:
            return "Assistant"
        case Role.TOOL:
            name = message.name or names.get(message.tool_call_id or "")
            failed = ", failed" if message.is_error else ""
            return f"Result of {name or 'a tool'}{failed}"
        case _:
            assert_never(message.role)


def _describe(part: Part) -> str:
    match part:
        case Text():
            return part.text
        case ToolCall():
            return f"[called {part.name} with {part.arguments or 'no arguments'}]"
        case Image():
            return f"[image, {_media(part)}, not shown]"
        case File():
            named = f" {part.name}" if part.name else ""
            if part.text is not None:
                return f"[file{named}]\n{part.text}"
            return f"[file{named}, {_media(part)}, not shown]"
        case Reasoning():
            return f"[reasoning, {len(part.text):,} characters, not shown]"
        case Opaque():
            return block_label(part.block)
        case _:
            assert_never(part)


def _media(part: Image | File) -> str:
    kind = part.media_type or "type unknown"
    return f"{kind}, {len(part.data) * 3 // 4:,} bytes" if part.data else kind
