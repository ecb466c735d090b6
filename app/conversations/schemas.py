"""Conversations on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from app.conversations.expiry import MAX_TTL_SECONDS, Expiry
from app.conversations.listing_filters import LastCompaction
from app.conversations.settings_schemas import (
    EFFECTIVE_SETTINGS,
    EffectiveSettings,
    ListedSettings,
    SettingsCreate,
    SettingsPatch,
)
from app.conversations.windows.active_window import INHERIT
from app.http.fields import (
    AgentId,
    ConversationId,
    OwnRollingWindow,
    ResponseSchema,
    Time,
    examples,
)
from app.http.pages import Page
from app.models.budget import ContextBudget, Pressure
from app.models.usage_totals import MAX_DAYS

TtlSeconds = Annotated[int, Field(ge=1, le=MAX_TTL_SECONDS, examples=[86_400])]

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
    "rolling_window_source": "agent",
    "last_cleared_at": None,
    "last_message_at": "2026-01-05T09:41:12.654321+00:00",
    "expires_at": None,
    "created_at": "2026-01-05T09:30:00.123456+00:00",
    "updated_at": "2026-01-05T09:30:00.123456+00:00",
}
CONVERSATION: dict[str, Any] = {
    **_ITEM,
    **EFFECTIVE_SETTINGS,
    "policy_overrides": {"sandwich": {"preserve_bottom": 8}},
}
"""An example of a conversation with all its settings."""


class ConversationCreate(SettingsCreate):
    """A new conversation."""

    model_config = examples(
        {
            "model": "gpt-4o",
            "sections": [{"name": "base", "content": "You are a careful assistant."}],
            "policy": {"sandwich": {"preserve_bottom": 8}},
            "metadata": {"customer": "42"},
        }
    )

    conversation_id: ConversationId | None = None
    agent_id: AgentId | None = None
    """The agent it belongs to."""
    rolling_window_seconds: OwnRollingWindow = INHERIT
    expires_at: Time | None = None
    """When it expires; null for never, without `ttl_seconds`."""
    ttl_seconds: TtlSeconds | None = None
    """Seconds from now until it expires, instead of `expires_at`."""

    def expiry(self) -> Expiry:
        """Return the expiry that the caller gives."""
        return Expiry(self.expires_at, self.ttl_seconds)


class ConversationPatch(SettingsPatch):
    """A change; omitted fields stay unchanged."""

    model_config = examples(
        {"policy": {"budget": {"context_window": 32000, "notice_at": None}}},
        {"agent_id": "support-bot"},
        {"ttl_seconds": 86_400},
    )

    agent_id: AgentId | None = None
    """The agent it belongs to from now on; null for none."""
    rolling_window_seconds: OwnRollingWindow = None
    expires_at: Time | None = None
    """A new time of expiry; null for never."""
    ttl_seconds: TtlSeconds | None = None
    """Seconds from now until it expires, instead of `expires_at`; null for never."""

    def expiry(self) -> Expiry | None:
        """Return the new expiry, None where it stays."""
        if self.model_fields_set.isdisjoint(("expires_at", "ttl_seconds")):
            return None
        return Expiry(self.expires_at, self.ttl_seconds)


class ConversationItem(ListedSettings):
    """A conversation in a list."""

    conversation_id: str
    """Id of the conversation."""
    agent_id: str | None
    """The agent it belongs to."""
    head_seq: int
    """Seq of the newest message; 0 for an empty log."""
    turns: int
    """User messages so far."""
    message_count: int
    """Messages in the log."""
    tokens: int
    """Tokens of the whole log, by the conversation's counter."""
    last_cleared_at: datetime | None
    """When it was last cleared, alone or with its agent; null if it never was."""
    last_message_at: datetime | None
    """When its newest message was received; null without messages."""
    expires_at: datetime | None
    """From then on it is answered as unknown, and soon deleted; null for never."""


class ConversationUsage(ResponseSchema):
    """How full the context window of a conversation is, and what it cost."""

    budget: ContextBudget | None
    """The budget of the next build; null without a known context window."""
    pressure: Pressure | None
    """The highest level reached."""
    cost_usd: float | None = Field(
        description=f"Price of its calls of the last {MAX_DAYS} days; null where none has a price."
    )
    saved_tokens: int
    """Tokens of the log that its calls of these days did not send."""
    last_compaction: LastCompaction | None
    """Its newest compaction, undone or not; null without one."""


class ListedConversation(ConversationItem):
    """A conversation in a list, on request with its usage."""

    usage: ConversationUsage | None
    """With `include=usage`; null without it."""


class ClearedConversation(ResponseSchema):
    """A conversation that was cleared."""

    conversation_id: str
    """Id of the conversation."""
    last_cleared_at: datetime
    """Payloads show no message from before."""
    head_seq: int
    """Seq of the newest message that was cleared."""


class ConversationPage(Page[ListedConversation]):
    """Conversations, newest first in the requested order."""


class ShownConversation(EffectiveSettings, ConversationItem):
    """A conversation with all its settings."""
