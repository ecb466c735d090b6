"""Snapshots: records of active windows that can be read, exported and restored.

The functions choose the part of a window that a summary is generated from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from app.common.answers import answer
from app.conversations.view import Span, count_in
from app.formats.message import File, Message, Part, Text, ToolCall

FAILED_SUMMARY = "(summary generation failed)"
"""The summary of a snapshot whose summary could not be generated."""
SUMMARY_PROMPT = """\
Say in 2 to 4 sentences what happened above: what was accomplished, which decisions were made, \
and what is unfinished. Where a line in brackets says that another conversation begins, speak of \
all of them. Plain sentences without headings or lists, in the language of the conversation."""
"""The instruction to the model; the summariser adds the tags of every summary."""
SUMMARY_TOKENS = 400
"""The output limit, enough for four sentences in any language."""
MIN_SUMMARY_CHARS = 2_000
"""A summary of this length is accepted for windows of any length."""


@answer()
@dataclass(frozen=True, slots=True)
class SnapshotModel:
    """The model of a conversation in a snapshot."""

    conversation_id: str
    """The conversation."""
    model: str
    """The model that its payloads were built for, its own or an inherited one."""


SNAPSHOT: dict[str, Any] = {
    "session_id": "0199a1b2-9c1d-7b2e-8f30-4a5b6c7d8e9f",
    "timestamp": "2026-02-12T14:30:00.123456+00:00",
    "description": "Working on auth refactor",
    "summary": "Implemented JWT token validation and the refresh flow. Tests of expiry are open.",
    "message_count": 1,
    "window_start": "2026-02-12T00:00:00+00:00",
    "window_end": "2026-02-12T14:30:00.123456+00:00",
    "agent_id": None,
    "conversation_ids": ["0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"],
    "imported": False,
    "models": [
        {
            "conversation_id": "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b",
            "model": "claude-sonnet-4-5",
        }
    ],
}


@answer(SNAPSHOT)
@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot without its messages; its conversations have their public ids."""

    session_id: str
    """Id of the snapshot."""
    timestamp: datetime
    """When it was saved."""
    description: str | None
    """The purpose of the snapshot."""
    summary: str
    """A few sentences on what was accomplished, decided and left unfinished; `(summary
    generation failed)` if the model failed."""
    message_count: int
    """The number of messages."""
    window_start: datetime
    """Start of the window: the last clear or the rolling window, else the time of the first
    message."""
    window_end: datetime
    """End of the window."""
    agent_id: str | None
    """The agent whose conversations were saved, or of the conversation."""
    conversation_ids: tuple[str, ...]
    """The conversations that it has messages of."""
    imported: bool = False
    """Whether it was imported with its messages."""
    models: tuple[SnapshotModel, ...] = ()
    """The models of its conversations, without those that have none."""

    def model_of(self, conversation_id: str) -> str | None:
        """Return the model of a conversation, None if it is unknown."""
        models = (item.model for item in self.models if item.conversation_id == conversation_id)
        return next(models, None)


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """The messages of one conversation in a snapshot: ascending spans of seqs, each with an end."""

    conversation_id: str
    public_id: str
    spans: tuple[Span, ...]

    @property
    def message_count(self) -> int:
        """The number of messages."""
        return count_in(self.spans)


def without_middle(
    spans: Sequence[tuple[str, Span]], first_count: int, last_count: int
) -> list[tuple[str, Span]]:
    """Return the spans of conversations reduced to their first and last messages together."""
    total = count_in(span for _, span in spans)
    if total <= first_count + last_count:
        return list(spans)
    ends: list[tuple[str, Span]] = []
    position = 0
    for conversation_id, span in spans:
        # Positions count the messages of all spans.
        span_start, span_end = position, position + span.end - span.start
        position = span_end
        first = span_start, min(span_end, first_count)
        last = max(span_start, total - last_count), span_end
        for start, end in (first, last):
            if start < end:
                shift = span.start - span_start
                ends.append((conversation_id, Span(start + shift, end + shift)))
    return ends


def truncated(message: Message, max_chars: int) -> Message:
    """Return a message with long texts truncated in the middle."""
    return replace(message, parts=tuple(_truncated_part(part, max_chars) for part in message.parts))


def _truncated_part(part: Part, max_chars: int) -> Part:
    match part:
        case Text():
            return Text(_truncated_text(part.text, max_chars))
        case File(text=str(text)):
            return replace(part, text=_truncated_text(text, max_chars))
        case ToolCall():
            return replace(part, arguments=_truncated_text(part.arguments, max_chars))
    return part


def _truncated_text(text: str, max_chars: int) -> str:
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]} […] {text[-half:]}"
