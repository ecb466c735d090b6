"""The active window: the messages of a conversation that payloads may show.

1. A message is in the window if it is newer than the marker, `max(last_cleared_at, now - rolling
   window)`. Its time is its own timestamp unless that is in the future, or else the time at which
   it was received.
2. A whole call group is inside or outside. One that leaves the window has ended: a result that
   comes then belongs to no group, and is inside.
3. Times nearly always rise with the seqs. So the window is everything from the seq `since` on,
   except for `gaps`: later messages with a time before the marker.
4. A restored message is shown again for the length of a rolling window, or until a clear.
5. The window moves only when a message has to leave it, and then by one step more than necessary,
   so that the prompt cache of a busy conversation does not miss on every turn. No shown message is
   older than the rolling window. Messages that leave early are younger by at most one step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from app.common import json_text
from app.conversations.view import ENDLESS, WHOLE, Span, minus, union

TICK = timedelta(microseconds=1)
"""The resolution of times."""
STEPS_PER_WINDOW = 24
"""The window moves by its length divided by this number (rule 5)."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A range of seqs that was put back into the window, and when."""

    span: Span
    at: datetime


@dataclass(frozen=True, slots=True)
class ActiveWindow:
    """All messages from `since` on without the `gaps`, and the `restored` ranges."""

    since: int = 1
    gaps: tuple[Span, ...] = ()
    restored: tuple[Restored, ...] = ()

    @property
    def spans(self) -> tuple[Span, ...]:
        """The seqs in the window, ascending; the last span has no end."""
        if self.is_plain:
            return WHOLE if self.since == 1 else (Span(self.since, ENDLESS),)
        newer = minus((Span(self.since, ENDLESS),), union(self.gaps))
        return union((*newer, *(item.span for item in self.restored)))

    @property
    def is_plain(self) -> bool:
        """Whether it has neither gaps nor restored ranges."""
        return not (self.gaps or self.restored)

    def holds(self, seq: int) -> bool:
        """Whether the message with this seq is in the window."""
        if self.is_plain:
            return seq >= self.since
        return any(span.holds(seq) for span in self.spans)

    def with_restored(self, spans: Iterable[Span], at: datetime) -> ActiveWindow:
        """Return the window with the parts of these ranges that are outside it put back."""
        new = minus(union(spans), self.spans)
        return ActiveWindow(
            self.since, self.gaps, (*self.restored, *(Restored(span, at) for span in new))
        )

    def parts_as_json(self) -> str:
        """Return gaps and restored ranges as stored: JSON, or empty without any."""
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


WHOLE_LOG_WINDOW = ActiveWindow()
"""The window that holds the whole log."""


def window_from(since: int, parts: str) -> ActiveWindow:
    """Read a window back from its seq and what `parts_as_json` wrote."""
    if not parts:
        return ActiveWindow(since) if since != 1 else WHOLE_LOG_WINDOW
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
    one_step_ahead: bool = False,
) -> datetime | None:
    """Return the time up to which no message is shown, None without one (rule 1).

    With `one_step_ahead` it is one step later, so that the next read does not move the window
    again.
    """
    rolled = None
    if window_seconds is not None:
        window = timedelta(seconds=window_seconds)
        rolled = now - (window - window / STEPS_PER_WINDOW if one_step_ahead else window)
    return max(filter(None, (cleared_at, rolled)), default=None)


def time_after_clear(now: datetime, cleared_at: datetime | None) -> datetime:
    """Return the current time, or a tick after the last clear if that is later."""
    return now if cleared_at is None else max(now, cleared_at + TICK)


def still_restored(
    restored: Iterable[Restored], window: ActiveWindow, marker: datetime | None
) -> tuple[Restored, ...]:
    """Return the restored ranges that stay in a window after a move."""
    return tuple(
        Restored(span, item.at)
        for item in restored
        if marker is None or item.at > marker
        for span in minus((item.span,), window.spans)
    )
