"""Counts refused keys by the client's network, so that guessing is slowed down.

1. The count is of one process and one minute, and of a bounded number of networks. More networks
   than that within a minute push out those that were refused longest ago.
2. It decides only how a refused key is answered, and which lookups wait for each other. A valid key
   always passes, so no client can lock out others behind the same address.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from cachetools import LRUCache

from app.tenancy.api_keys import network_of

MAX_NETWORKS = 10_000
_WINDOW_SECONDS = 60


class RefusedKeys:
    """The numbers of refused keys of this minute; a limit of 0 is none."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._counts: LRUCache[tuple[str, int], int] = LRUCache(MAX_NETWORKS)

    def count(self, address: str) -> int:
        """Count a refused key, and return by how much its network is over the limit."""
        place = self._place(address)
        self._counts[place] = self._counts.get(place, 0) + 1
        return max(0, self._counts[place] - self._per_minute) if self._per_minute else 0

    def is_over(self, address: str) -> bool:
        """Return whether the next refused key of a network is over the limit."""
        counted: int = self._counts.get(self._place(address), 0)
        return 0 < self._per_minute <= counted

    def seconds_left(self) -> int:
        """Return when counts begin anew."""
        return ceil(_WINDOW_SECONDS - self._clock() % _WINDOW_SECONDS)

    def _place(self, address: str) -> tuple[str, int]:
        return network_of(address), int(self._clock() // _WINDOW_SECONDS)
