"""Hits of a search on the wire."""

from __future__ import annotations

from datetime import datetime

from app.formats.message import Role
from app.http.fields import ResponseSchema
from app.http.pages import Page


class SearchHit(ResponseSchema):
    """A message that a search found."""

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
