"""Cursors and pages of events: told once, in order, from any place on. [events.resume]"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from app.conversations.events.events import (
    Cursor,
    Event,
    EventPage,
    EventRow,
    EventType,
    cursor_from,
    events_after,
)

START = datetime(2026, 1, 5, tzinfo=UTC)
numbers = st.integers(0, 10**16 - 1)
times = st.lists(st.integers(0, 20), max_size=12)


def rows(seconds: Sequence[int], *, stored: bool = False) -> list[EventRow]:
    """Return a sequence of rows with these times."""
    at = [START + timedelta(seconds=second) for second in seconds]
    if not stored:
        return [EventRow(seq, time) for seq, time in enumerate(at, start=1)]
    return [EventRow(seq, time, "due", f'{{"n":{seq}}}') for seq, time in enumerate(at, start=1)]


def page_after(
    after: Cursor, messages: Sequence[EventRow], stored: Sequence[EventRow], limit: int
) -> EventPage:
    """Return the next rows of either sequence, as the database does."""
    return EventPage(
        Cursor(len(messages), len(stored)),
        messages[after.seq :][:limit],
        stored[after.event_seq :][:limit],
        limit,
    )


def seqs_of(events: Sequence[Event]) -> list[int]:
    """Return the seqs of the `appended` events."""
    return [
        seq
        for event in events
        if event.type == EventType.APPENDED
        for seq in range(event.data["first_seq"], event.data["last_seq"] + 1)
    ]


@given(seq=numbers, event_seq=numbers)
def test_a_cursor_is_read_back_from_its_text(seq: int, event_seq: int) -> None:
    """The id of an event holds both positions."""
    assert cursor_from(str(Cursor(seq, event_seq))) == Cursor(seq, event_seq)


def test_neighbouring_messages_are_one_event() -> None:
    """Messages without another event between them are one `appended`, with the time of the last.

    [events.order]
    """
    page = page_after(Cursor(0, 0), rows([1, 2, 4]), rows([3], stored=True), 10)
    first, due, second = events_after(Cursor(0, 0), page)
    assert (first.cursor, first.type) == (Cursor(2, 0), "appended")
    assert first.data == {"first_seq": 1, "last_seq": 2, "messages": 2, "head_seq": 3}
    assert first.created_at == START + timedelta(seconds=2)
    assert (due.cursor, due.type, due.data) == (Cursor(2, 1), "due", {"n": 1})
    assert (second.cursor, second.data["messages"]) == (Cursor(3, 1), 1)


@given(message_times=times, stored_times=times, limit=st.integers(1, 5), data=st.data())
def test_a_stream_resumed_anywhere_has_every_event_once(
    message_times: list[int], stored_times: list[int], limit: int, data: st.DataObject
) -> None:
    """After any event a reader can stop and resume without loss or repetition."""
    messages, stored = rows(message_times), rows(stored_times, stored=True)
    cursor, told = Cursor(0, 0), list[Event]()
    while True:
        page = page_after(cursor, messages, stored, limit)
        events = events_after(cursor, page)
        if not events:
            break
        taken = data.draw(st.integers(1, len(events)), label="events taken before leaving")
        told += events[:taken]
        cursor = told[-1].cursor
    assert page.is_last and cursor == page.newest
    assert seqs_of(told) == [row.seq for row in messages]
    assert [event.data["n"] for event in told if event.type == "due"] == [row.seq for row in stored]
