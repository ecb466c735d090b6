"""Snapshots: records of active windows that can be read, exported and restored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from app.domain.conversations.view import Span, count_in

FAILED_SUMMARY = "(summary generation failed)"
"""The summary of a snapshot whose summary could not be generated."""
REMOVED_SUMMARY = "(the summary told of a conversation that was deleted)"
"""The summary of a snapshot after one of its conversations was deleted."""


@dataclass(frozen=True, slots=True)
class SnapshotModel:
    """The model that a conversation's payloads were built for."""

    conversation_id: str
    model: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot without its messages; `models` leaves out conversations without a model."""

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
    """The messages of one conversation in a snapshot: ascending closed spans of seqs."""

    conversation_id: str
    spans: tuple[Span, ...]

    @property
    def message_count(self) -> int:
        """The number of messages."""
        return count_in(self.spans)
