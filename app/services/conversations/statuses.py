"""What an agent's other conversations are doing, for the one that asks (B4).

1. It is read from their heads, and held for a second: a build in a busy agent must not ask anew
   each time, and a status that is a second old is as good.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from app.domain.conversations.active_window import DEFAULT_ROLLING_WINDOW_SECONDS
from app.domain.conversations.records import Conversation
from app.domain.conversations.status import MAX_LOOKED_AT, MAX_TOLD, Activity, status_text
from app.services.ports import Database

_HELD_FOR = timedelta(seconds=1)
_MAX_AGENTS = 1024


class Statuses:
    """Tells conversations of each other."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database = database
        self._now = now
        self._held: OrderedDict[tuple[str, str], tuple[datetime, Sequence[Activity]]]
        self._held = OrderedDict()

    async def of(self, tenant_id: str, conversation: Conversation) -> str | None:
        """Return what a conversation is told of its agent's others, None without any."""
        if conversation.agent_id is None:
            return None
        now, key = self._now(), (tenant_id, conversation.agent_id)
        until, activities = self._held.get(key, (now, ()))
        if until <= now:
            seconds = conversation.rolling_window_seconds or DEFAULT_ROLLING_WINDOW_SECONDS
            async with self._database.session() as records:
                activities = await records.windows.activities(
                    tenant_id,
                    conversation.agent_id,
                    now - timedelta(seconds=seconds),
                    MAX_LOOKED_AT,
                    MAX_TOLD + 1,
                )
            self._held[key] = (now + _HELD_FOR, activities)
            self._held.move_to_end(key)
            while len(self._held) > _MAX_AGENTS:
                self._held.popitem(last=False)
        return status_text(activities, conversation.conversation_id)
