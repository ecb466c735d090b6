"""Timestamps in requests."""

from __future__ import annotations

from datetime import UTC, datetime

EARLIEST_TIME = datetime(1, 1, 2, tzinfo=UTC)
"""The oldest time of a message: databases read the minimum time as minus infinity."""


def time_from(text: str) -> datetime | None:
    """Parse a timestamp, as UTC without a zone.

    Returns None for text that is not an ISO 8601 time, and for a time before `EARLIEST_TIME`.
    """
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        time = time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return time if time >= EARLIEST_TIME else None
