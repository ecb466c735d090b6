"""Snapshots: records of active windows that can be read, exported and restored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from app.common.answers import answer
from app.conversations.view import Span, count_in


@answer()
@dataclass(frozen=True, slots=True)
class SnapshotModel:
    """The model of a conversation in a snapshot."""

    conversation_id: str
    """The conversation."""
    model: str
    """The model that its payloads were built for, its own or an inherited one."""


@answer()
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
    models: tuple[SnapshotModel, ...] = ()
    """The models of its conversations, without those that have none."""


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
