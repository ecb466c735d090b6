"""The status of an agent's other conversations, as one of them is told of it (B4).

1. It says which conversations are active, since when, and which tools they wait for. It quotes no
   message: what one conversation's user said is no business of another's.
2. A conversation is called what its metadata's `title` says, and else by its id; what its metadata
   says as `status` stands beside it. Both are the caller's own words.
3. Times are given to the minute, so that the text changes seldom.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from app.domain.common import json_text

MAX_TOLD = 10
MAX_LOOKED_AT = 50
"""So many of an agent's newest conversations are looked at: its cost must not grow with them."""
_MAX_CHARS = 200


@dataclass(frozen=True, slots=True)
class Activity:
    """What a conversation does: when its newest message came, and the tools it waits for."""

    conversation_id: str
    metadata: str
    newest_at: datetime
    waits_for: tuple[str, ...] = ()


def status_text(activities: Sequence[Activity], conversation_id: str) -> str | None:
    """Return what a conversation is told of the others, newest first; None without any."""
    others = [item for item in activities if item.conversation_id != conversation_id][:MAX_TOLD]
    if not others:
        return None
    return "\n".join(("Other conversations of this agent:", *map(_line, others)))


def _line(activity: Activity) -> str:
    metadata = json_text.loads(activity.metadata)
    name = _words(metadata, "title") or activity.conversation_id
    parts = [f"last message {activity.newest_at:%Y-%m-%d %H:%M} UTC"]
    if (told := _words(metadata, "status")) is not None:
        parts.insert(0, told)
    if activity.waits_for:
        parts.append(f"waiting for {', '.join(dict.fromkeys(activity.waits_for))}")
    return f"- {name}: {'; '.join(parts)}"


def _words(metadata: Mapping[str, Any], name: str) -> str | None:
    """Return a text of the metadata on one line; None for one that is empty or no text."""
    value = metadata.get(name)
    words = " ".join(value.split()) if isinstance(value, str) else ""
    return words[:_MAX_CHARS] or None
