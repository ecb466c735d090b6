"""What an agent's other conversations are doing, for the one that asks (B4).

1. It is read from their heads, and held for a second: a build in a busy agent must not ask anew
   each time, and a status that is a second old is as good.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from cachetools import TTLCache

from app.domain.conversations.active_window import DEFAULT_ROLLING_WINDOW_SECONDS
from app.domain.conversations.conversation import Conversation
from app.domain.conversations.status import MAX_LOOKED_AT, MAX_TOLD, Activity, status_text
from app.services.ports import Database

_HELD_SECONDS = 1.0
_MAX_AGENTS = 1024


class Statuses:
    """Tells conversations of each other."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database = database
        self._now = now
        self._held: TTLCache[tuple[str, str], Sequence[Activity]]
        self._held = TTLCache(_MAX_AGENTS, _HELD_SECONDS, timer=lambda: now().timestamp())

    async def of(self, tenant_id: str, conversation: Conversation) -> str | None:
        """Return what a conversation is told of its agent's others, None without any."""
        if conversation.agent_id is None:
            return None
        key = tenant_id, conversation.agent_id
        activities = self._held.get(key)
        if activities is None:
            seconds = conversation.rolling_window_seconds or DEFAULT_ROLLING_WINDOW_SECONDS
            async with self._database.session() as records:
                activities = await records.windows.activities(
                    tenant_id,
                    conversation.agent_id,
                    self._now() - timedelta(seconds=seconds),
                    MAX_LOOKED_AT,
                    MAX_TOLD + 1,
                )
            self._held[key] = activities
        return status_text(activities, conversation.conversation_id)
