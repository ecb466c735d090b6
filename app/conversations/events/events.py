"""Events of a conversation, in order and without duplicates.

1. Events come from two sequences without gaps: messages by their seqs, and all other events by
   event seqs. An append stores no event: the log itself is the record of its messages.
2. A cursor is a position in both sequences. It is the id of an event and identifies exactly the
   events before it, for every process and at any time.
3. Each event advances one of the two positions. A page merges both sequences by time, and stops
   before an event that is newer than one beyond the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from heapq import merge
from itertools import groupby
from typing import Any

from app.common import json_text

CURSOR_PATTERN = r"^(0|[1-9][0-9]{0,15})\.(0|[1-9][0-9]{0,15})$"
"""The syntax of a cursor; sixteen digits hold every seq."""

_CURSOR = re.compile(CURSOR_PATTERN)


class EventType(StrEnum):
    """The types of events; `ready` and `deleted` are sent, not stored."""

    APPENDED = "appended"
    DUE = "due"
    STARTED = "started"
    COMPACTED = "compacted"
    FAILED = "failed"
    UNDONE = "undone"
    PINNED = "pinned"
    UNPINNED = "unpinned"
    CLEARED = "cleared"
    RESTORED = "restored"
    REDACTED = "redacted"
    GC = "gc"
    READY = "ready"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position in the log and in the stored events (rule 2)."""

    seq: int
    event_seq: int

    def __str__(self) -> str:
        return f"{self.seq}.{self.event_seq}"

    def is_beyond(self, newest: Cursor) -> bool:
        """Whether it is after the newest position of a conversation."""
        return self.seq > newest.seq or self.event_seq > newest.event_seq


@dataclass(frozen=True, slots=True)
class EventRow:
    """A row of either sequence: an event with its JSON text, or a message of the log (rule 1)."""

    seq: int
    created_at: datetime
    type: str = EventType.APPENDED
    data: str | None = None

    @property
    def is_message(self) -> bool:
        """Whether it is a message of the log."""
        return self.data is None


@dataclass(frozen=True, slots=True)
class EventPage:
    """The rows after a cursor: at most `limit` of each sequence, ascending."""

    newest: Cursor
    messages: Sequence[EventRow]
    stored: Sequence[EventRow]
    limit: int

    @property
    def is_last(self) -> bool:
        """Whether there are no rows after it."""
        return max(len(self.messages), len(self.stored)) < self.limit


@dataclass(frozen=True, slots=True)
class Event:
    """An event as a stream sends it; a client continues after `cursor`."""

    cursor: Cursor
    type: str
    created_at: datetime
    data: Mapping[str, Any]


def cursor_from(text: str) -> Cursor | None:
    """Parse a cursor; None for invalid text."""
    found = _CURSOR.fullmatch(text)
    return Cursor(int(found[1]), int(found[2])) if found else None


def events_after(after: Cursor, page: EventPage) -> list[Event]:
    """Return the events of a page after a cursor (rule 3).

    Messages without another event between them are one `appended` event, with the time of the
    last one.
    """
    events: list[Event] = []
    cursor = after
    for is_message, group in groupby(_in_order(page), key=lambda row: row.is_message):
        rows = list(group)
        if is_message:
            cursor = replace(cursor, seq=rows[-1].seq)
            events.append(_appended(cursor, rows, page.newest))
            continue
        for row in rows:
            cursor = replace(cursor, event_seq=row.seq)
            events.append(
                Event(cursor, row.type, row.created_at, json_text.loads(row.data or "{}"))
            )
    return events


def _in_order(page: EventPage) -> Iterator[EventRow]:
    """Yield both sequences by time, up to the end of one that continues after the page."""
    ends = [rows[-1] for rows in (page.messages, page.stored) if len(rows) == page.limit]
    for row in merge(page.messages, page.stored, key=lambda row: row.created_at):
        yield row
        if any(row is end for end in ends):
            return


def _appended(cursor: Cursor, rows: Sequence[EventRow], newest: Cursor) -> Event:
    data = {
        "first_seq": rows[0].seq,
        "last_seq": rows[-1].seq,
        "messages": len(rows),
        "head_seq": newest.seq,
    }
    return Event(cursor, EventType.APPENDED, rows[-1].created_at, data)
