"""Agents: settings that several conversations share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from app.common.ids import AgentId
from app.conversations.settings import NO_VERSIONS, ListVersions, StoredSettings
from app.conversations.windows.active_window import (
    DEFAULT_AGENT_WINDOW_SECONDS,
    RollingWindow,
    WindowSource,
)

DEFAULT_AGENT_WINDOW = RollingWindow(DEFAULT_AGENT_WINDOW_SECONDS, WindowSource.SERVICE)


@dataclass(frozen=True, slots=True)
class Agent:
    """A stored agent."""

    agent_id: AgentId
    name: str
    settings: StoredSettings
    metadata: str
    created_at: datetime
    updated_at: datetime
    versions: ListVersions = NO_VERSIONS
    rolling_window: RollingWindow = DEFAULT_AGENT_WINDOW
    cleared_at: datetime | None = None

    @property
    def model(self) -> str | None:
        """The model of its conversations, unless they have their own."""
        return self.settings.model

    @property
    def last_cleared_at(self) -> datetime:
        """When it was last cleared; if it never was, when it was created."""
        return self.cleared_at or self.created_at
