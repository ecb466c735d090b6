"""Snapshot files as downloads have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SNAPSHOT_ID = "0199a1b2-9c1d-7b2e-8f30-4a5b6c7d8e9f"
CONVERSATION_ID = "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"


def entry(message: Mapping[str, Any], number: int = 1, **own: Any) -> dict[str, Any]:
    """Return a message as the entry with this number, with own values of some fields."""
    fields = {
        "id": f"m{number}",
        "conversation_id": CONVERSATION_ID,
        "seq": number,
        "format": "openai_chat",
        "created_at": "2026-02-12T14:12:07.000211+00:00",
        "output_ref": None,
        "content_truncated": False,
        "content_collected": False,
        "given": None,
    }
    return {**message, **fields, **own}


def entries(*messages: Mapping[str, Any], **own: Any) -> list[dict[str, Any]]:
    """Return the entries of messages of one conversation."""
    return [entry(message, number, **own) for number, message in enumerate(messages, start=1)]


def snapshot_file(messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """Return a file with these entries, with own values of some fields."""
    return {
        "snapshot_id": SNAPSHOT_ID,
        "created_at": "2026-02-12T14:30:00+00:00",
        "description": "Working on auth refactor",
        "summary": "Implemented JWT token validation and refresh flow...",
        "message_count": len(messages),
        "window_start": "2026-02-12T00:00:00+00:00",
        "window_end": "2026-02-12T14:30:00+00:00",
        "agent_id": None,
        "conversation_ids": [CONVERSATION_ID],
        "models": [],
        "messages": messages,
        **fields,
    }
