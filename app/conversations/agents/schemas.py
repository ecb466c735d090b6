"""Agents on the wire."""

from __future__ import annotations

from datetime import datetime

from app.conversations.settings_schemas import (
    EffectiveSettings,
    ListedSettings,
    SettingsCreate,
    SettingsPatch,
)
from app.conversations.windows.active_window import INHERIT
from app.http.fields import AgentId, DisplayName, OwnRollingWindow, ResponseSchema, examples
from app.http.pages import Page


class AgentCreate(SettingsCreate):
    """A new agent."""

    model_config = examples(
        {
            "agent_id": "support-bot",
            "name": "Support bot",
            "model": "gpt-4o",
            "sections": [{"name": "base", "content": "You answer support questions."}],
        }
    )

    agent_id: AgentId | None = None
    name: DisplayName
    rolling_window_seconds: OwnRollingWindow = INHERIT


class AgentPatch(SettingsPatch):
    """A change; omitted fields stay unchanged."""

    model_config = examples({"name": "Support bot (EU)", "model": None})

    name: DisplayName | None = None
    """A new name; null leaves it."""
    rolling_window_seconds: OwnRollingWindow = None


class AgentItem(ListedSettings):
    """An agent in a list."""

    agent_id: str
    """Id of the agent."""
    name: str
    """Display name."""
    last_cleared_at: datetime
    """When it was last cleared; when it was created if it never was."""


class ClearedAgent(ResponseSchema):
    """An agent whose conversations were cleared."""

    agent_id: str
    """Id of the agent."""
    last_cleared_at: datetime
    """Payloads show no message from before."""
    conversations: int
    """How many conversations were cleared."""


class AgentPage(Page[AgentItem]):
    """Agents, newest first."""


class ShownAgent(EffectiveSettings, AgentItem):
    """An agent with all its settings."""
