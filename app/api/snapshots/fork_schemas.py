"""Schemas of forks."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from app.api.conversations.conversation_schemas import CONVERSATION, ShownConversation
from app.api.http.fields import (
    MAX_SEQ,
    ConversationId,
    Metadata,
    RequestSchema,
    ResponseSchema,
    examples,
)

_FORKED_AT = "2026-01-05T09:45:00.123456+00:00"
_EXAMPLE: dict[str, Any] = {
    **CONVERSATION,
    "conversation_id": "0199a1b2-9f8e-7d6c-8b5a-4c3d2e1f0a9b",
    "created_at": _FORKED_AT,
    "updated_at": _FORKED_AT,
    "forked_from": {"conversation_id": CONVERSATION["conversation_id"], "at_seq": 12},
}


class ForkRequest(RequestSchema):
    """A fork to create."""

    model_config = examples({"at_seq": 12})

    at_seq: int | None = Field(
        default=None,
        ge=0,
        le=MAX_SEQ,
        description="Seq of the last message of the fork; the head by default, 0 for an empty log.",
    )
    conversation_id: ConversationId | None = None
    metadata: Metadata | None = Field(
        default=None, description="Metadata that replaces that of the source conversation."
    )


class ForkedFrom(ResponseSchema):
    """The source of a fork."""

    conversation_id: str = Field(description="UUID of the source conversation.")
    at_seq: int = Field(description="Seq of the last copied message.")


class Fork(ShownConversation):
    """A conversation that was created as a fork."""

    model_config = examples(_EXAMPLE)

    forked_from: ForkedFrom = Field(description="The source of the fork.")
