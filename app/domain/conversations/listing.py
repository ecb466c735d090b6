"""Lists of conversations: filters, orders, and the index that a page is read from.

1. A conversation is active at the time of its newest append; before the first one, and after a
   fork, at its creation.
2. A page is read from one index, and each row is compared with the other filters. First an index
   in the order of the list is tried for a few rows. If these do not fill the page, the index of the
   filter that the fewest conversations match is read, unless it has more than MAX_SCANNED entries.
   Then the ordered index is read, up to MAX_SCANNED rows: the page may have fewer items than its
   limit, and the list continues after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

MAX_LABELS: Final = 8
MAX_LABEL_KEY_CHARS: Final = 64
MAX_LABEL_VALUE_CHARS: Final = 512
MAX_SCANNED: Final = 5_000
"""Rows of an index that are read for one page."""
TRIED_PER_ITEM: Final = 4
"""Rows of the ordered index that are tried first, for each item of the page."""
EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)

Place = tuple[datetime, str]
"""The place of a conversation in a list: its time in the order of the list, and its id."""
FIRST_ID: Final = "00000000-0000-0000-0000-000000000000"


class ListOrder(StrEnum):
    """Newest first, by creation or by the newest append."""

    CREATED = "created"
    ACTIVE = "active"


class ListIndex(StrEnum):
    """The indexes that a page can be read from."""

    LABEL = "label"
    AGENT = "agent"
    MODEL = "model"
    CREATED = "created"
    ACTIVE = "active"

    def is_ordered_by(self, order: ListOrder) -> bool:
        """Whether its entries are in this order."""
        return (self is ListIndex.ACTIVE) is (order is ListOrder.ACTIVE)


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
        return self.after or EARLIEST

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
class Lead:
    """The index that a page is read from; `label` is the key of a label."""

    index: ListIndex
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Places:
    """Places of conversations that match, in order.

    If the read ended because of MAX_SCANNED, `end` is the place of the last row that was read.
    """

    items: tuple[Place, ...]
    end: Place | None = None


@dataclass(frozen=True, slots=True)
class LastCompaction:
    """The newest compaction of a conversation, in a list; `trigger` is what started it."""

    compaction_id: str
    created_at: datetime
    trigger: str


@dataclass(frozen=True, slots=True)
class ListedTotals:
    """What a list shows of a conversation's usage and compactions, as they are stored.

    `cost_usd` and `saved_tokens` are sums of the last MAX_DAYS days; the cost is None where no
    call has a price.
    """

    cost_usd: float | None
    saved_tokens: int
    last_compaction: LastCompaction | None


def ordered_lead(wanted: ConversationFilter, order: ListOrder) -> Lead:
    """Return the index in the order of the list that the fewest filters are left to check for."""
    if order is ListOrder.ACTIVE:
        return Lead(ListIndex.ACTIVE)
    return next(
        (lead for lead in other_leads(wanted, order) if lead.index.is_ordered_by(order)),
        Lead(ListIndex.CREATED),
    )


def other_leads(wanted: ConversationFilter, order: ListOrder) -> list[Lead]:
    """Return the indexes of filters, which few conversations may match."""
    found = [Lead(ListIndex.LABEL, key) for key in wanted.labels]
    if wanted.agent_id is not None:
        found.append(Lead(ListIndex.AGENT))
    if wanted.model is not None:
        found.append(Lead(ListIndex.MODEL))
    if order is ListOrder.ACTIVE and wanted.created:
        found.append(Lead(ListIndex.CREATED))
    if order is ListOrder.CREATED and wanted.active:
        found.append(Lead(ListIndex.ACTIVE))
    return found


def rarest(counts: Mapping[Lead, int]) -> Lead | None:
    """Return the index with the fewest entries that match, None if each has many (rule 2)."""
    few = [lead for lead, count in counts.items() if count <= MAX_SCANNED]
    return min(few, key=lambda lead: counts[lead], default=None)
