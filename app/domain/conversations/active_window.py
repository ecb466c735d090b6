"""The active window: which of a conversation's messages may be shown at all (B2, B3, I4).

1. A message is in the window if it is newer than the marker, `max(last_cleared_at, now - rolling
   window)`. Its time is the one it gives, but not one in the future, or else when it was received.
2. A call group is in the window as a whole or not at all, so that no result is orphaned. What
   comes in later for a group that is outside stays outside with it.
3. Times nearly always rise with the seqs. So the window is everything from one seq on, `since`,
   but for `gaps`: messages that came later and are older than the marker.
4. What was restored is shown again, until a rolling window's length after that, or until a clear.
5. The window moves only when something has to leave it, and then by a step more than it must, so
   that a busy conversation's prefix does not break on every turn (decision 10). Nothing that is
   shown is ever older than the rolling window; what leaves with it may be younger by a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from app.domain.common import json_text
from app.domain.conversations.view import ENDLESS, WHOLE, Span, minus, union

DEFAULT_ROLLING_WINDOW_SECONDS = 86_400
"""What an agent has that says nothing else (B1)."""
EARLIEST = datetime(1, 1, 2, tzinfo=UTC)
"""No message is older: databases take the first moment there is for minus infinity."""
TICK = timedelta(microseconds=1)
"""The least time there is between two moments."""
OUT_OF_DATE = -1
"""The length that a window is said to have been moved by when it has to be moved in any case."""
STEPS = 24
"""So many steps make a rolling window (decision 10)."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A range of seqs that was put back into the window, and when (I4)."""

    span: Span
    at: datetime


@dataclass(frozen=True, slots=True)
class ActiveWindow:
    """Everything from `since` on without the `gaps`, and what was `restored` of the rest."""

    since: int = 1
    gaps: tuple[Span, ...] = ()
    restored: tuple[Restored, ...] = ()

    @property
    def spans(self) -> tuple[Span, ...]:
        """The seqs in the window, ascending; the last span is open."""
        if self.is_plain:
            return WHOLE if self.since == 1 else (Span(self.since, ENDLESS),)
        newer = minus((Span(self.since, ENDLESS),), union(self.gaps))
        return union((*newer, *(item.span for item in self.restored)))

    @property
    def is_plain(self) -> bool:
        """Whether it is all that follows one seq."""
        return not (self.gaps or self.restored)

    def holds(self, seq: int) -> bool:
        """Whether the message with this seq is in the window."""
        if self.is_plain:
            return seq >= self.since
        return any(span.holds(seq) for span in self.spans)

    def with_restored(self, spans: Iterable[Span], at: datetime) -> ActiveWindow:
        """Return the window with these ranges put back, as far as they are not in it."""
        new = minus(union(spans), self.spans)
        return ActiveWindow(
            self.since, self.gaps, (*self.restored, *(Restored(span, at) for span in new))
        )

    def parts_as_json(self) -> str:
        """Return the text that is stored of gaps and restored ranges, empty without any."""
        if self.is_plain:
            return ""
        return json_text.dumps(
            {
                "gaps": [[gap.start, gap.end] for gap in self.gaps],
                "restored": [
                    [item.span.start, item.span.end, item.at.isoformat()] for item in self.restored
                ],
            }
        )


NO_LIMIT = ActiveWindow()
"""The window of a conversation that nothing was taken out of."""


def window_from(since: int, parts: str) -> ActiveWindow:
    """Read a window back from its seq and what `parts_as_json` wrote."""
    if not parts:
        return ActiveWindow(since) if since != 1 else NO_LIMIT
    raw: Mapping[str, Any] = json_text.loads(parts)
    return ActiveWindow(
        since,
        tuple(Span(start, end) for start, end in raw["gaps"]),
        tuple(
            Restored(Span(start, end), datetime.fromisoformat(at))
            for start, end, at in raw["restored"]
        ),
    )


def marker_of(
    cleared_at: datetime | None,
    window_seconds: int | None,
    now: datetime,
    *,
    steps_ahead: bool = False,
) -> datetime | None:
    """Return the time at or before which nothing is shown, None where there is none (rule 1).

    One that steps ahead leaves a step's time until it has to move again (rule 5).
    """
    rolled = None
    if window_seconds is not None:
        window = timedelta(seconds=window_seconds)
        rolled = _before(now, window - window / STEPS if steps_ahead else window)
    return max(filter(None, (cleared_at, rolled)), default=None)


def after_clear(now: datetime, cleared_at: datetime | None) -> datetime:
    """Return the time, which is later than the last clear whatever the clocks say."""
    return now if cleared_at is None else max(now, cleared_at + TICK)


def has_to_move(
    settled_seconds: int | None,
    window_seconds: int | None,
    cleared_at: datetime | None,
    oldest_at: datetime | None,
    now: datetime,
) -> bool:
    """Whether a window is out of date: by its oldest message, or as its length was changed."""
    if settled_seconds != window_seconds:
        return True
    marker = marker_of(cleared_at, window_seconds, now)
    return marker is not None and oldest_at is not None and oldest_at <= marker


def still_restored(
    restored: Iterable[Restored], window: ActiveWindow, marker: datetime | None
) -> tuple[Restored, ...]:
    """Return what of the restored ranges stays beside a window that was moved."""
    return tuple(
        Restored(span, item.at)
        for item in restored
        if marker is None or item.at > marker
        for span in minus((item.span,), window.spans)
    )


def time_from(text: str) -> datetime | None:
    """Read a message's own time, UTC where it names no zone.

    None for what is no ISO 8601 time, or one before all others.
    """
    try:
        given = datetime.fromisoformat(text)
        if given.tzinfo is None:
            given = given.replace(tzinfo=UTC)
        given = given.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return given if given >= EARLIEST else None


def _before(now: datetime, span: timedelta) -> datetime:
    try:
        return max(now - span, EARLIEST)
    except OverflowError:
        return EARLIEST
