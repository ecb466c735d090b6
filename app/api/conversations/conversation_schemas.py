"""Conversations on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import ConfigDict, Field

from app.api.http.fields import (
    AgentId,
    Answered,
    AnyObject,
    AnyTool,
    Asked,
    ConversationId,
    Metadata,
    ModelName,
    StoredTools,
)
from app.api.http.pages import Page
from app.api.prompt.policy_schemas import PolicyPatch, ShownPolicy
from app.api.prompt.section_schemas import ShownSection, StoredSections
from app.domain.common.policy import DEFAULTS

_ID = "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"
_ITEM: dict[str, Any] = {
    "conversation_id": _ID,
    "agent_id": "support-bot",
    "model": None,
    "metadata": {"customer": "42"},
    "head_seq": 12,
    "turns": 3,
    "message_count": 12,
    "tokens": 1840,
    "rolling_window_seconds": 86_400,
    "last_cleared_at": None,
    "created_at": "2026-01-05T09:30:00.123456+00:00",
    "updated_at": "2026-01-05T09:30:00.123456+00:00",
}
CONVERSATION: dict[str, Any] = {
    **_ITEM,
    "effective_model": "gpt-4o",
    "policy": dict(DEFAULTS),
    "policy_overrides": {"sandwich": {"preserve_bottom": 8}},
    "sections": [],
    "sections_version": 0,
    "tools": [],
    "tools_version": 0,
}
"""An example, for what has more to show of one as well."""


class ConversationCreate(Asked):
    """A new conversation."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": "gpt-4o",
                    "sections": [{"name": "base", "content": "You are a careful assistant."}],
                    "policy": {"sandwich": {"preserve_bottom": 8}},
                    "metadata": {"customer": "42"},
                }
            ]
        }
    )

    conversation_id: ConversationId | None = None
    agent_id: AgentId | None = Field(default=None, description="The agent it belongs to.")
    model: ModelName | None = Field(
        default=None, description="Model whose window counts; the agent's by default."
    )
    policy: PolicyPatch | None = Field(default=None, description="Its own settings.")
    sections: StoredSections = Field(
        default_factory=list, description="Its own parts of the system prompt."
    )
    tools: StoredTools = Field(default_factory=list, description="Its own tools.")
    metadata: Metadata = Field(default_factory=dict)


class ConversationPatch(Asked):
    """A change; what is left out stays."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"policy": {"budget": {"context_window": 32000, "notice_at": None}}}]
        }
    )

    model: ModelName | None = Field(default=None, description="null goes back to the agent's.")
    policy: PolicyPatch | None = Field(
        default=None,
        description="Merged leaf by leaf: a null leaf inherits again, a null policy resets all.",
    )
    metadata: Metadata = Field(default_factory=dict, description="Replaces the metadata there are.")


class ConversationItem(Answered):
    """A conversation in a list."""

    conversation_id: str = Field(description="UUID of the conversation.")
    agent_id: str | None = Field(description="The agent it belongs to.")
    model: str | None = Field(description="Its own model; null inherits.")
    metadata: Metadata = Field(description="As the caller gave it.")
    head_seq: int = Field(description="Seq of the newest message; 0 for an empty log.")
    turns: int = Field(description="User messages so far.")
    message_count: int = Field(description="Messages in the log.")
    tokens: int = Field(description="Tokens of the whole log, by the conversation's counter.")
    rolling_window_seconds: int | None = Field(
        description="The agent's: how old a message may be that is shown; null is no limit."
    )
    last_cleared_at: datetime | None = Field(
        description="When it was cleared last, alone or with its agent; null if never."
    )
    created_at: datetime = Field(description="When it was created.")
    updated_at: datetime = Field(description="When its settings last changed.")


class ClearedConversation(Answered):
    """A conversation that starts anew."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "conversation_id": "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b",
                    "last_cleared_at": "2026-01-05T09:30:00.123456+00:00",
                    "head_seq": 42,
                }
            ]
        }
    )

    conversation_id: str = Field(description="UUID of the conversation.")
    last_cleared_at: datetime = Field(description="Nothing from before is shown any more.")
    head_seq: int = Field(description="Seq of the last message that is not shown any more.")


class ConversationPage(Page[ConversationItem]):
    """Conversations, newest first."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"data": [_ITEM], "next_cursor": None}]}
    )


class ShownConversation(ConversationItem):
    """A conversation with all its settings."""

    model_config = ConfigDict(json_schema_extra={"examples": [CONVERSATION]})

    effective_model: str | None = Field(description="The model after inheriting.")
    policy: ShownPolicy = Field(description="The effective policy, every setting.")
    policy_overrides: AnyObject = Field(description="The settings of its own layer.")
    sections: list[ShownSection] = Field(description="Its own parts of the system prompt.")
    sections_version: int = Field(description="Version of the sections, 0 for none.")
    tools: list[AnyTool] = Field(description="Its own tools, as they were given.")
    tools_version: int = Field(description="Version of the tools, 0 for none.")
