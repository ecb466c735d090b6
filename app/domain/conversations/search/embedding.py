"""How far the messages of a conversation are embedded, and the work that a worker claims."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.conversations.conversation import ConversationState


@dataclass(frozen=True, slots=True)
class EmbeddingProgress:
    """Up to which seq a conversation is embedded, by which model."""

    model: str
    through_seq: int


@dataclass(frozen=True, slots=True)
class EmbeddingClaim:
    """A conversation whose messages after `through_seq` up to `requested_seq` are to be embedded.

    `model` made the vectors that are stored. `attempts` counts the claims since the last progress.
    """

    tenant_id: str
    conversation_id: str
    model: str
    through_seq: int
    requested_seq: int
    attempts: int


def last_hidden_seq(state: ConversationState) -> int:
    """Return the newest seq that the payload may leave out, 0 if it shows the whole log."""
    hidden = state.hidden_span.end - 1 if state.hidden_span is not None else 0
    return min(state.head_seq, max(hidden, state.window.since - 1))
