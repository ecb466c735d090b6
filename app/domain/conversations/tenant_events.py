"""Events of all conversations of a tenant, in one order.

1. An event is ordered by the transaction that stored it, and inside of that by a number. Only
   events older than every transaction under way are read: what commits later comes after them.
   So a position identifies exactly the events before it, whatever the order of the commits.
2. Transactions are numbered by the database server. A position of another server, such as one
   before a restore, is refused.
3. Appends are not among them: they would cost every append a row, and the one who appends knows
   of them. The stream of a conversation has them.
4. A deletion deletes the conversation's events. Of those that a stream has not sent, only `deleted`
   is left.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from app.domain.conversations.events import EventType

TENANT_CURSOR_PATTERN = r"^(0|[1-9][0-9]{0,18})\.(0|[1-9][0-9]{0,17})\.(0|[1-9][0-9]{0,17})$"
"""The syntax of a position; a server's id has up to nineteen digits."""
TENANT_EVENT_TYPES = tuple(
    kind for kind in EventType if kind not in {EventType.APPENDED, EventType.READY}
)
"""The types of the events of a tenant."""
CREATED_SEQ = 0
"""The event seq of `created`, before all others of a conversation."""
DELETED_SEQ = -1
"""The event seq of `deleted`, which stays when the other events of a conversation are deleted."""

_CURSOR = re.compile(TENANT_CURSOR_PATTERN)
_MAX_BIGINT = 2**63 - 1


@dataclass(frozen=True, slots=True, order=True)
class TenantCursor:
    """A position among the events of a tenant (rule 1); `server_id` 0 is the beginning."""

    server_id: int
    transaction_id: int
    number: int

    def __str__(self) -> str:
        return f"{self.server_id}.{self.transaction_id}.{self.number}"


BEGINNING = TenantCursor(0, 0, 0)


@dataclass(frozen=True, slots=True)
class TenantPosition:
    """Where the events of a tenant are: the newest one, and the next transaction."""

    newest: TenantCursor
    next_transaction_id: int

    def has_reached(self, cursor: TenantCursor) -> bool:
        """Whether a cursor is one of this server, and not of its future (rule 2)."""
        return (
            cursor.server_id == self.newest.server_id
            and cursor.transaction_id < self.next_transaction_id
        )


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events a stream sends; no types are all types."""

    agent_id: str | None = None
    types: Sequence[str] = ()


ALL_EVENTS = EventFilter()


@dataclass(frozen=True, slots=True)
class TenantEventRow:
    """A stored event; `data` is a JSON object, None if the filter leaves the event out."""

    cursor: TenantCursor
    conversation_id: str
    agent_id: str | None
    type: str
    created_at: datetime
    data: str | None


@dataclass(frozen=True, slots=True)
class TenantEventPage:
    """The events after a cursor, at most `limit`, and the server that was read."""

    server_id: int
    limit: int
    rows: Sequence[TenantEventRow] = field(default_factory=tuple)

    @property
    def is_last(self) -> bool:
        """Whether there are no events after it."""
        return len(self.rows) < self.limit


def tenant_cursor_from(text: str) -> TenantCursor | None:
    """Parse a position; None for invalid text."""
    found = _CURSOR.fullmatch(text)
    numbers = [int(number) for number in found.groups()] if found else []
    return TenantCursor(*numbers) if numbers and max(numbers) <= _MAX_BIGINT else None
