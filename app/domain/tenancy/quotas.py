"""What a tenant may do in a while: requests in a minute, calls of summarisers in an hour, bytes in
a day (architecture, security; E9).

1. Time is cut into windows of a fixed length, counted from 1970, so that every process knows them.
2. The processes together take from one allowance. Each takes a share ahead and spends that by
   itself, so that a request costs no round trip; what is taken and not spent when the window ends
   is lost, never given twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

SHARES = 20
"""Into how many shares a window's allowance is cut at least."""


class QuotaKind(StrEnum):
    """What is counted."""

    REQUESTS = "requests"
    BYTES = "bytes"
    SUMMARISER_CALLS = "summariser_calls"

    @property
    def window_seconds(self) -> int:
        """The length of its window."""
        return {QuotaKind.REQUESTS: 60, QuotaKind.SUMMARISER_CALLS: 3_600, QuotaKind.BYTES: 86_400}[
            self
        ]


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """What a tenant may do, and how much it may store; None is no limit."""

    requests_per_minute: int | None = None
    bytes_per_day: int | None = None
    summarizer_calls_per_hour: int | None = None
    storage_bytes: int | None = None

    def over(self, defaults: TenantLimits) -> TenantLimits:
        """Return these limits, with the defaults where they say nothing."""

        def first(own: int | None, default: int | None) -> int | None:
            return own if own is not None else default

        return TenantLimits(
            first(self.requests_per_minute, defaults.requests_per_minute),
            first(self.bytes_per_day, defaults.bytes_per_day),
            first(self.summarizer_calls_per_hour, defaults.summarizer_calls_per_hour),
            first(self.storage_bytes, defaults.storage_bytes),
        )

    def of(self, kind: QuotaKind) -> int | None:
        """Return the limit of a kind for one of its windows."""
        match kind:
            case QuotaKind.REQUESTS:
                return self.requests_per_minute
            case QuotaKind.BYTES:
                return self.bytes_per_day
            case QuotaKind.SUMMARISER_CALLS:
                return self.summarizer_calls_per_hour


def window_start(now: datetime, seconds: int) -> datetime:
    """Return when the window that holds this time began (rule 1)."""
    return datetime.fromtimestamp(now.timestamp() // seconds * seconds, UTC)


def share_of(limit: int, wanted: int) -> int:
    """Return how much to take ahead, which is never less than what is wanted (rule 2)."""
    return max(wanted, limit // SHARES)


def granted_of(limit: int, taken: int, asked: int) -> int:
    """Return how much of what was asked is inside the limit, after it was added to `taken`."""
    return max(0, min(asked, limit - (taken - asked)))
