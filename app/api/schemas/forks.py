"""Forks on the wire."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from app.api.schemas.conversations import ShownConversation
from app.api.schemas.fields import MOST_SEQ, Answered, Asked, ConversationId, Metadata
from app.domain.policy import DEFAULTS

_EXAMPLE: dict[str, Any] = {
    "conversation_id": "0199a1b2-9f8e-7d6c-8b5a-4c3d2e1f0a9b",
    "agent_id": "support-bot",
    "model": None,
    "metadata": {"customer": "42"},
    "head_seq": 12,
    "turns": 3,
    "message_count": 12,
    "tokens": 1840,
    "rolling_window_seconds": 86_400,
    "last_cleared_at": None,
    "created_at": "2026-01-05T09:45:00.123456+00:00",
    "updated_at": "2026-01-05T09:45:00.123456+00:00",
    "effective_model": "gpt-4o",
    "policy": dict(DEFAULTS),
    "policy_overrides": {"sandwich": {"preserve_bottom": 8}},
    "sections": [],
    "sections_version": 0,
    "tools": [],
    "tools_version": 0,
    "forked_from": {"conversation_id": "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b", "at_seq": 12},
}


class ForkAsk(Asked):
    """What to copy of a conversation, and into which."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"at_seq": 12}]})

    at_seq: int | None = Field(
        default=None,
        ge=0,
        le=MOST_SEQ,
        description="Seq of the last message of the fork; the head by default, 0 for an empty log.",
    )
    conversation_id: ConversationId | None = None
    metadata: Metadata | None = Field(
        default=None, description="Instead of the metadata of the conversation that is forked."
    )


class ForkedFrom(Answered):
    """What a fork is a copy of."""

    conversation_id: str = Field(description="UUID of the conversation that was forked.")
    at_seq: int = Field(description="Seq of the last message that was copied.")


class Fork(ShownConversation):
    """A conversation that was made as a fork."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    forked_from: ForkedFrom = Field(description="Where it comes from.")
