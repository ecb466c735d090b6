"""Pages of lists, bounded by the number of items and of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

PAGE_BYTES = 8 * 2**20
BATCH_BYTES = 2**20
"""The bytes that an answer of any length reads at once."""
_Item = TypeVar("_Item")
Place = tuple[datetime, str]
"""The place of a conversation in a list: when it was created, and its id."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The maximum bytes of the items of a page.

    With `whole_first` the first item is always on the page. Without it a larger first item is left
    out: the page is empty and `has_more` is true.
    """

    max_bytes: int
    whole_first: bool = True


UNBOUNDED = Bound(2**62)
"""For callers that bound a page in another way, such as by ids."""


class Page(list[_Item]):
    """The items of a page; `has_more` means that the list continues after them."""

    def __init__(self, items: Iterable[_Item] = (), *, has_more: bool = False) -> None:
        super().__init__(items)
        self.has_more = has_more


def first_of(items: Sequence[_Item], limit: int) -> Page[_Item]:
    """Return a page of the first items; one more was read."""
    return Page(items[:limit], has_more=len(items) > limit)


def batches(sizes: Mapping[int, int], max_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield ranges `[start, end)` of seqs with at most `max_bytes`, or of one item."""
    start, end, batch_bytes = 0, 0, 0
    for seq, size in sizes.items():
        if end and batch_bytes + size > max_bytes:
            yield start, end
            end = 0
        if not end:
            start, batch_bytes = seq, 0
        end, batch_bytes = seq + 1, batch_bytes + size
    if end:
        yield start, end
