"""Snapshots: records of active windows that can be read, exported and restored.

The functions choose the part of a window that a summary is generated from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

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


@dataclass(frozen=True, slots=True)
class SnapshotModel:
    """The model that a conversation's payloads were built for; the id is the public one."""

    conversation_id: str
    model: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot without its messages; `models` leaves out conversations without a model.

    `conversation_ids` are public ids.
    """

    session_id: str
    timestamp: datetime
    description: str | None
    summary: str
    message_count: int
    window_start: datetime
    window_end: datetime
    agent_id: str | None
    conversation_ids: tuple[str, ...]
    imported: bool = False
    models: tuple[SnapshotModel, ...] = ()

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
