"""Quotas of a tenant: requests per minute, summariser calls per hour and bytes per day.

1. A rate window has a fixed length and starts at a multiple of it since 1970, so that all processes
   use the same windows.
2. All processes draw on one quota. A process reserves a share of it ahead, so that a request costs
   no round trip. A reserved share that is not used when the window ends is lost, never used twice.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from math import ceil

SHARES = 20
"""The number of shares of a quota; a larger need is reserved at once."""


class QuotaKind(StrEnum):
    """What a quota limits, with the length of its rate window and its field in the limits."""

    window_seconds: int
    limit_name: str

    def __new__(cls, value: str, window_seconds: int, limit_name: str) -> QuotaKind:
        """Return a member with its attributes."""
        kind = str.__new__(cls, value)
        kind._value_ = value
        kind.window_seconds = window_seconds
        kind.limit_name = limit_name
        return kind

    REQUESTS = "requests", 60, "requests_per_minute"
    BYTES = "bytes", 86_400, "bytes_per_day"
    SUMMARISER_CALLS = "summariser_calls", 3_600, "summarizer_calls_per_hour"


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """The limits of a tenant; None is no limit."""

    requests_per_minute: int | None = None
    bytes_per_day: int | None = None
    summarizer_calls_per_hour: int | None = None
    storage_bytes: int | None = None

    def with_defaults(self, defaults: TenantLimits) -> TenantLimits:
        """Return these limits, with the defaults in place of None."""
        own = {name: limit for name, limit in asdict(self).items() if limit is not None}
        return replace(defaults, **own)

    def of(self, kind: QuotaKind) -> int | None:
        """Return the limit of a kind in one of its rate windows."""
        limit: int | None = getattr(self, kind.limit_name)
        return limit


@dataclass(frozen=True, slots=True)
class QuotaState:
    """What is left of a quota; `remaining` is None where a process has not read it.

    Reserved shares of other processes count as used.
    """

    kind: QuotaKind
    limit: int
    remaining: int | None
    reset_seconds: int


def window_start(now: datetime, seconds: int) -> datetime:
    """Return the start of the rate window at this time (rule 1)."""
    return datetime.fromtimestamp(now.timestamp() // seconds * seconds, UTC)


def seconds_left(now: datetime, window: datetime, seconds: int) -> int:
    """Return the seconds until a rate window ends, rounded up and at least one."""
    return max(1, ceil(seconds - (now - window).total_seconds()))


def share_of(limit: int, needed: int) -> int:
    """Return how much to reserve, at least `needed` (rule 2)."""
    return max(needed, limit // SHARES)


def granted_of(limit: int, used: int, reserved: int) -> int:
    """Return how much of a reservation is inside the limit; `used` already includes it."""
    return max(0, min(reserved, limit - (used - reserved)))
