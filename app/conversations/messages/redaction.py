"""Redactions: the records of who redacted which message, when and why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class NewRedaction:
    """A redaction to record; `key_id` is the caller's, None while no key exists."""

    seq: int
    message_id: str
    reason: str | None
    key_id: str | None


@dataclass(frozen=True, slots=True)
class Redaction:
    """The record of a redaction, without the content of its message."""

    seq: int
    message_id: str
    reason: str | None
    key_id: str | None
    redacted_at: datetime
