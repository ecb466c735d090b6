"""Lists of conversations, newest first by creation: filters, and how far a page reads.

1. A page is read from the index of the tenant's or of an agent's conversations, in its order. Each
   row is compared with the other filters, at most MAX_SCANNED rows: the page may have fewer items
   than its limit, and the list continues after it.
2. With values of metadata at most MAX_TRIED rows are read so. If these do not fill the page, the
   index of metadata is read, unless more than MAX_SCANNED conversations have these values.
3. A conversation is active at the time of its newest message; before the first one, and after a
   fork, at its creation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from app.common.answers import answer
from app.common.times import EARLIEST_TIME
from app.conversations.compaction_receipt import Trigger

MAX_LABELS: Final = 8
MAX_LABEL_KEY_CHARS: Final = 64
MAX_LABEL_VALUE_CHARS: Final = 512
MAX_SCANNED: Final = 5_000
"""Conversations that are compared with the filters for one page."""
MAX_TRIED: Final = 250
"""Conversations that are compared before the index of metadata is read."""
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)

Place = tuple[datetime, str]
"""The place of a conversation in a list: when it was created, and its id."""
FIRST_ID: Final = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A range of times without its ends; None is no limit."""

    after: datetime | None = None
    before: datetime | None = None

    def __bool__(self) -> bool:
        return self.after is not None or self.before is not None

    @property
    def start(self) -> datetime:
        """The end that every time of the range is after."""
        return self.after or EARLIEST_TIME

    @property
    def end(self) -> datetime:
        """The end that every time of the range is before."""
        return self.before or LATEST


@dataclass(frozen=True, slots=True)
class ConversationFilter:
    """What conversations of a list have in common; `model` is their own model, not an inherited.

    `labels` are values of the metadata by key: strings, or numbers and booleans as JSON writes
    them.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    agent_id: str | None = None
    model: str | None = None
    created: TimeRange = TimeRange()
    active: TimeRange = TimeRange()


EVERY_CONVERSATION: Final = ConversationFilter()


@dataclass(frozen=True, slots=True)
class Places:
    """Places of conversations that match, in order.

    If the read ended before the list did and found too few, `end` is the place of its last row.
    """

    items: tuple[Place, ...]
    end: Place | None = None


@answer()
@dataclass(frozen=True, slots=True)
class LastCompaction:
    """The newest compaction of a conversation."""

    compaction_id: str
    """Its id."""
    created_at: datetime
    """When it was applied."""
    trigger: Trigger
    """Why it ran."""


@dataclass(frozen=True, slots=True)
class ListedTotals:
    """What a list shows of a conversation's usage and compactions, as they are stored.

    `cost_usd` and `saved_tokens` are sums of the last MAX_DAYS days; the cost is None where no
    call has a price.
    """

    cost_usd: float | None
    saved_tokens: int
    last_compaction: LastCompaction | None
