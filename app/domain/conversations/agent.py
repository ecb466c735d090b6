"""Agents: settings that several conversations share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from app.domain.conversations.active_window import DEFAULT_ROLLING_WINDOW_SECONDS
from app.domain.conversations.settings import NO_VERSIONS, Settings, Versions


@dataclass(frozen=True, slots=True)
class Agent:
    """A stored agent (B1); without `rolling_window_seconds` its windows have no limit of time."""

    agent_id: str
    name: str
    settings: Settings
    metadata: str
    created_at: datetime
    updated_at: datetime
    versions: Versions = NO_VERSIONS
    rolling_window_seconds: int | None = DEFAULT_ROLLING_WINDOW_SECONDS
    cleared_at: datetime | None = None

    @property
    def last_cleared_at(self) -> datetime:
        """When it was cleared last; by default, when it was created (B1)."""
        return self.cleared_at or self.created_at
