"""Totals of model calls by day and model: tokens, cost, and what was saved.

1. A day is a day of UTC. A call belongs to the day on which it was reported.
2. A call is priced once, when it is reported, with the prices of that time. A call without a price
   adds its tokens, but no cost: `unpriced_calls` counts such calls.
3. What a call saved are the tokens of the log that it did not send, at the price of input.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum

from app.common.errors import ValidationError
from app.models.limits import ModelInfo

_USD_DIGITS = 12
"""Decimals of an amount in an answer: sums of floating-point numbers have meaningless ones."""

MAX_DAYS = 366
"""The longest range of days of an answer."""
USUAL_DAYS = 30
"""The range of days where none is requested."""


class Purpose(StrEnum):
    """Who made the calls: the caller, who reported them, or the service, for summaries."""

    REPORTED = "reported"
    SUMMARIES = "summaries"


class GroupBy(StrEnum):
    """What each row of an answer stands for."""

    DAY = "day"
    MODEL = "model"
    DAY_AND_MODEL = "day,model"

    @property
    def has_day(self) -> bool:
        """Whether each row is of one day."""
        return self is not GroupBy.MODEL

    @property
    def has_model(self) -> bool:
        """Whether each row is of one model."""
        return self is not GroupBy.DAY


@dataclass(frozen=True, slots=True)
class CallTotals:
    """The sums of some calls; `input_tokens` excludes cached tokens."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_tokens: int = 0
    cache_read_tokens: int = 0
    cost_usd: float = 0.0
    unpriced_calls: int = 0

    @property
    def known_cost_usd(self) -> float | None:
        """The cost, None where no call has a price."""
        return None if 0 < self.calls == self.unpriced_calls else self.cost_usd

    def plus(self, other: CallTotals) -> CallTotals:
        """Return the sums of both."""
        return CallTotals(
            *(getattr(self, name) + getattr(other, name) for name in CallTotals.__slots__)
        )


@dataclass(frozen=True, slots=True)
class UsageEntry:
    """What calls of one model add to the totals of today."""

    model: str
    purpose: Purpose
    calls: CallTotals
    saved_tokens: int = 0
    saved_usd: float = 0.0


@dataclass(frozen=True, slots=True)
class UsageRow:
    """The totals of a day, of a model or of both; None where a row is of all."""

    day: date | None
    model: str | None
    reported: CallTotals
    summaries: CallTotals
    saved_tokens: int
    saved_usd: float


@dataclass(frozen=True, slots=True)
class DayRange:
    """Days from the first to the last, both inclusive."""

    first: date
    last: date


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """Which totals to read: of these days, and of one model if it is named.

    Rows are ordered by day and model; a page starts after the row of `after`.
    """

    days: DayRange
    group_by: GroupBy = GroupBy.DAY_AND_MODEL
    model: str | None = None
    limit: int = 50
    after: tuple[date | None, str | None] | None = None


def day_range(first: date | None, last: date | None, today: date) -> DayRange:
    """Return a range of days, by default up to today; raises ValidationError."""
    last = last or today
    try:
        first = first or last - timedelta(days=USUAL_DAYS - 1)
    except OverflowError:
        raise ValidationError.at("/query/to", "No range of days ends so early") from None
    if first > last:
        raise ValidationError.at("/query/from", f"The range ends before that, on {last}")
    if (last - first).days >= MAX_DAYS:
        raise ValidationError.at("/query/from", f"At most {MAX_DAYS} days, up to {last}")
    return DayRange(first, last)


def call_totals(
    info: ModelInfo | None,
    input_tokens: int,
    output_tokens: int,
    cache_creation_tokens: int = 0,
    cache_read_tokens: int = 0,
) -> CallTotals:
    """Return the totals of one call of a model (rule 2)."""
    tokens = (input_tokens, output_tokens, cache_creation_tokens, cache_read_tokens)
    cost = info.cost(*tokens) if info is not None else None
    return CallTotals(1, *tokens, cost or 0.0, int(cost is None))


def reported_entry(
    model: str, info: ModelInfo | None, calls: CallTotals, log_tokens: int
) -> UsageEntry:
    """Return what a reported call adds, where the log had so many tokens (rule 3)."""
    sent = calls.input_tokens + calls.cache_creation_tokens + calls.cache_read_tokens
    saved = max(0, log_tokens - sent)
    saved_usd = info.cost(saved, 0, 0, 0) if info is not None else None
    return UsageEntry(model, Purpose.REPORTED, calls, saved, saved_usd or 0.0)


def shown_usd(amount: float | None) -> float | None:
    """Return an amount without the decimals that a sum does not have."""
    return None if amount is None else round(amount, _USD_DIGITS)
