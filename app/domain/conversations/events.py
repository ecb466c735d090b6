"""Events: what happened to a conversation, told once and in order (L3).

1. Two sequences tell it: the log by its seqs, everything else by event seqs. Neither has gaps.
   Appending writes no event: that messages were appended, the log itself tells.
2. A cursor is a place in both. It is the id of an event, and says exactly what its reader has
   been told, to any process and at any time.
3. Each event moves one of the two on. A page tells them by time, each sequence in its own order,
   and nothing ahead of something older that the page did not reach.
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

from app.domain.common import json_text

CURSOR_PATTERN = r"^(0|[1-9][0-9]{0,15})\.(0|[1-9][0-9]{0,15})$"
"""A cursor's one spelling; sixteen digits hold every seq there can be."""

_CURSOR = re.compile(CURSOR_PATTERN)


class EventType(StrEnum):
    """What an event says; `ready` and `deleted` are said by a stream, and never stored."""

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
    GC = "gc"
    READY = "ready"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a reader has come: in the log, and in the events (rule 2)."""

    seq: int
    event_seq: int

    def __str__(self) -> str:
        return f"{self.seq}.{self.event_seq}"

    def is_beyond(self, newest: Cursor) -> bool:
        """Whether it names something that a conversation with this head does not have."""
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
    """What one read finds after a cursor: at most `limit` rows of either sequence, ascending."""

    newest: Cursor
    messages: Sequence[EventRow]
    stored: Sequence[EventRow]
    limit: int

    @property
    def is_last(self) -> bool:
        """Whether nothing is left after it."""
        return max(len(self.messages), len(self.stored)) < self.limit


@dataclass(frozen=True, slots=True)
class Event:
    """One event as it is told; whoever has had it goes on after `cursor`."""

    cursor: Cursor
    type: str
    created_at: datetime
    data: Mapping[str, Any]


def cursor_from(text: str) -> Cursor | None:
    """Read a cursor back from its text; None for what is no cursor's text."""
    found = _CURSOR.fullmatch(text)
    return Cursor(int(found[1]), int(found[2])) if found else None


def events_after(after: Cursor, page: EventPage) -> list[Event]:
    """Return what a page tells whoever has come to `after` (rule 3).

    Messages with no other event between them are one `appended`, at the time of the last.
    """
    told: list[Event] = []
    cursor = after
    for is_message, group in groupby(_in_order(page), key=lambda row: row.is_message):
        rows = list(group)
        if is_message:
            cursor = replace(cursor, seq=rows[-1].seq)
            told.append(_appended(cursor, rows, page.newest))
            continue
        for row in rows:
            cursor = replace(cursor, event_seq=row.seq)
            told.append(Event(cursor, row.type, row.created_at, json_text.loads(row.data or "{}")))
    return told


def _in_order(page: EventPage) -> Iterator[EventRow]:
    """Yield both sequences by time, up to the end of one that goes on after the page."""
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
