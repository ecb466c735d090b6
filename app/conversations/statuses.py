"""The status of an agent's other conversations, cached for a second.

Builds of one agent's conversations share the cached status instead of a query each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from cachetools import TTLCache

from app.conversations.conversation import Conversation
from app.conversations.status import MAX_CONVERSATIONS, MAX_LISTED, Activity, status_text
from app.conversations.windows.active_window import DEFAULT_AGENT_WINDOW_SECONDS
from app.repositories import Database

_CACHE_SECONDS = 1.0
_MAX_AGENTS = 1024


class Statuses:
    """Reads and caches the activities of agents' conversations."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database = database
        self._now = now
        self._cache: TTLCache[tuple[str, str], Sequence[Activity]]
        self._cache = TTLCache(_MAX_AGENTS, _CACHE_SECONDS, timer=lambda: now().timestamp())

    async def of(self, tenant_id: str, conversation: Conversation) -> str | None:
        """Return the text about the agent's other conversations, None without any."""
        if conversation.agent_id is None:
            return None
        key = tenant_id, conversation.agent_id
        activities = self._cache.get(key)
        if activities is None:
            seconds = conversation.rolling_window.seconds or DEFAULT_AGENT_WINDOW_SECONDS
            async with self._database.session() as session:
                activities = await session.windows.activities(
                    tenant_id,
                    conversation.agent_id,
                    self._now() - timedelta(seconds=seconds),
                    MAX_CONVERSATIONS,
                    MAX_LISTED + 1,
                )
            self._cache[key] = activities
        return status_text(activities, conversation.conversation_id)
