"""Expiry: the time from which a conversation is answered as unknown."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from app.common.errors import Problem, ValidationError

MAX_TTL_SECONDS = 100 * 366 * 86_400


@dataclass(frozen=True, slots=True)
class Expiry:
    """An expiry as a caller gives it: a time, or seconds from now; without both there is none."""

    expires_at: datetime | None = None
    ttl_seconds: int | None = None

    def at(self, now: datetime) -> datetime | None:
        """Return the time; raises ValidationError for both, and for one that is not after now."""
        if self.ttl_seconds is not None:
            if self.expires_at is not None:
                places = (Problem("/ttl_seconds", "must not be set beside expires_at"),)
                raise ValidationError("Set expires_at or ttl_seconds, not both", problems=places)
            return now + timedelta(seconds=self.ttl_seconds)
        if self.expires_at is not None and self.expires_at <= now:
            raise ValidationError.at("/expires_at", "must be in the future")
        return self.expires_at


NO_EXPIRY = Expiry()
