"""The text that lists an agent's other conversations in a system prompt, held for a second.

1. It names the active conversations, the time of their newest message, and the tools that they
   wait for. It quotes no message, because each may belong to another user.
2. The name of a conversation is the `title` of its metadata, or else its id. The `status` of its
   metadata follows.
3. Times are rounded to minutes, so that the text changes seldom.
4. Builds of one agent's conversations share what was read instead of a query each.
5. While it cannot be read, builds do without it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from cachetools import TTLCache

from app.common import json_text
from app.common.errors import ServiceUnavailable
from app.conversations.conversation import DEFAULT_AGENT_WINDOW_SECONDS, Conversation
from app.conversations.messages.repository import named_calls
from app.database.connections import Statement
from app.database.tables import NOT_EXPIRED
from app.repositories import Database

MAX_LISTED = 10
MAX_CONVERSATIONS = 50
"""Newest conversations of an agent that are read: a bound of the cost."""
_MAX_CHARS = 200
_CACHE_SECONDS = 1.0
_MAX_AGENTS = 1024
_READ_SECONDS = 2.0
_REST = timedelta(seconds=10)
"""How long nothing is read after that failed, so that builds do not wait for the timeout."""
_log = logging.getLogger("app.statuses")
# The newest conversations of an agent with recent messages in their active windows.
ACTIVITIES = Statement(f"""
    SELECT c.conversation_id, c.own_id, c.metadata, h.newest_at, calling.call_ids,
        calling.call_names, h.open_calls
    FROM (
        SELECT * FROM conversations c
        WHERE tenant_id = :tenant_id AND agent_id = :agent_id AND {NOT_EXPIRED}
        ORDER BY created_at DESC, conversation_id DESC
        LIMIT {MAX_CONVERSATIONS}
    ) c
    JOIN states h ON h.conversation_id = c.conversation_id
    LEFT JOIN LATERAL (
        SELECT m.call_ids, m.call_names FROM messages m
        WHERE m.conversation_id = h.conversation_id AND m.seq >= h.group_seq
            AND m.seq = h.open_seqs[cardinality(h.open_seqs)]
        LIMIT 1
    ) calling ON true
    WHERE h.newest_at > CAST(:since AS timestamptz) AND h.outside_messages < h.head_seq
    ORDER BY h.newest_at DESC, c.conversation_id LIMIT {MAX_LISTED + 1}
""")


def _line(row: Any) -> str:
    """Return the line about a conversation."""
    metadata = json_text.loads(row["metadata"])
    name = _one_line(metadata, "title") or row["own_id"] or row["conversation_id"]
    parts = [f"last message {row['newest_at']:%Y-%m-%d %H:%M} UTC"]
    if (status := _one_line(metadata, "status")) is not None:
        parts.insert(0, status)
    calls = named_calls(row["call_ids"], row["call_names"])
    waits_for = dict.fromkeys(name for key, name in calls.items() if key in row["open_calls"])
    if waits_for:
        parts.append(f"waiting for {', '.join(waits_for)}")
    return f"- {name}: {'; '.join(parts)}"


def _one_line(metadata: Mapping[str, Any], name: str) -> str | None:
    """Return a string of the metadata on one line; None for an empty or missing one."""
    value = metadata.get(name)
    words = " ".join(value.split()) if isinstance(value, str) else ""
    return words[:_MAX_CHARS] or None


class OtherConversations:
    """Reads and caches the lines about agents' conversations."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database = database
        self._now = now
        self._rests_until = datetime.min.replace(tzinfo=UTC)
        self._cache: TTLCache[tuple[str, str], Mapping[str, str]]
        self._cache = TTLCache(_MAX_AGENTS, _CACHE_SECONDS, timer=lambda: now().timestamp())

    async def of(self, tenant_id: str, conversation: Conversation) -> str | None:
        """Return the text about the agent's other conversations, None without any."""
        if conversation.agent_id is None:
            return None
        key = tenant_id, conversation.agent_id
        lines = self._cache.get(key)
        if lines is None:
            lines = self._cache[key] = await self._read(*key, conversation.rolling_window_seconds)
        others = [line for id, line in lines.items() if id != conversation.conversation_id]
        if not others:
            return None
        return "\n".join(("Other conversations of this agent:", *others[:MAX_LISTED]))

    async def _read(self, tenant_id: str, agent_id: str, seconds: int | None) -> dict[str, str]:
        """Return the lines by conversation, none while they cannot be read.

        On Citus the other conversations are on all nodes, and one of these may be down.
        """
        now = self._now()
        if now < self._rests_until:
            return {}
        since = now - timedelta(seconds=seconds or DEFAULT_AGENT_WINDOW_SECONDS)
        try:
            async with self._database.session(_READ_SECONDS) as session:
                rows = await session.session.all(
                    ACTIVITIES, tenant_id=tenant_id, agent_id=agent_id, since=since
                )
        except ServiceUnavailable:
            self._rests_until = now + _REST
            _log.warning("statuses_left_out")
            return {}
        return {str(row["conversation_id"]): _line(row) for row in rows}
