"""Hits of a search on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from app.formats.message import Role
from app.http.fields import ResponseSchema, examples
from app.http.pages import Page

_HIT: dict[str, Any] = {
    "conversation_id": "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b",
    "seq": 12,
    "id": "0199a1b2-5d6e-7f80-9a1b-2c3d4e5f6071",
    "role": "user",
    "snippet": "…we planned the trip to Bergen in May, with two nights…",
    "created_at": "2026-01-05T09:30:00.123456+00:00",
}


class SearchHit(ResponseSchema):
    """A message that a search found."""

    model_config = examples(_HIT)

    conversation_id: str
    """UUID of its conversation."""
    seq: int
    """Its position in the log."""
    id: str
    """Id of the message."""
    role: Role
    """Role of the message."""
    snippet: str
    """Its text around the words, on one line."""
    created_at: datetime
    """When it was received."""


class SearchPage(Page[SearchHit]):
    """Hits, those of the newest conversation first."""
