"""Pages of lists: bounded by a number of items and by a number of bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Bound:
    """How many bytes the items of a page may have together.

    With `whole_first` the first item is on the page whatever its size. Without it a first item
    that is larger is left out: the page is empty, and `has_more` tells that there is one.
    """

    max_bytes: int
    whole_first: bool = True


UNBOUNDED = Bound(2**62)
"""For readers that bound what they read in another way, such as by its ids."""


class Page(list[_Item]):
    """The items of a page; `has_more` tells that the list goes on after them."""

    def __init__(self, items: Iterable[_Item] = (), *, has_more: bool = False) -> None:
        super().__init__(items)
        self.has_more = has_more
