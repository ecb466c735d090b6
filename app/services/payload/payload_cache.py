"""The windows a process has built lately, so that a warm build reads only what is new.

The log never changes, so a folded window stays true as long as its epoch lasts. What is kept
is bounded in bytes; a window that does not fit is built anew, at the price of one read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cachetools import LRUCache

from app.domain.compaction.tool_result_clearing import output_tokens
from app.domain.conversations.log.row import LogRow
from app.domain.conversations.turns import Entry, entry
from app.domain.conversations.view import View
from app.domain.payload.assembler import Assembler

_ROW_BYTES = 400
"""What a folded row costs in memory besides its text."""


@dataclass(slots=True)
class CachedPayload:
    """A lane's folded window: everything its epoch shows, up to `assembler.folded_through`.

    `resolved` is the epoch's stored frame, `output_tokens` the tool output shown (F3). `tool_names`
    are those of results up to `named_through`, as far as they were asked for. `kept_tail` names
    the tail of its newest build.
    """

    epoch_id: str
    start_json: str
    view: View
    assembler: Assembler
    entries: list[Entry] = field(default_factory=list)
    output_tokens: int = 0
    tool_names: dict[int, str] = field(default_factory=dict)
    named_through: int = 0
    kept_tail: str = ""
    size_bytes: int = 0

    def feed(self, row: LogRow) -> None:
        """Fold one more row of what the view shows."""
        self.assembler.feed(row)
        item = entry(row.seq, row.role, row.tokens)
        self.entries.append(item)
        self.output_tokens += output_tokens(item, self.view)


class PayloadCache:
    """Windows by lane, the least recently used dropped first."""

    def __init__(self, most_bytes: int) -> None:
        self._payloads: LRUCache[tuple[str, ...], CachedPayload]
        self._payloads = LRUCache(most_bytes, getsizeof=lambda payload: payload.size_bytes)

    def find(self, key: tuple[str, ...]) -> CachedPayload | None:
        """Return the lane's window, if it is still held."""
        return self._payloads.get(key)

    def keep(self, key: tuple[str, ...], window: CachedPayload) -> None:
        """Hold a window, in the place of the lane's earlier one."""
        window.size_bytes = window.assembler.size_bytes + _ROW_BYTES * len(window.entries)
        if window.size_bytes <= self._payloads.maxsize:
            self._payloads[key] = window
        else:
            self.drop(key)

    def drop(self, key: tuple[str, ...]) -> None:
        """Forget a lane's window."""
        self._payloads.pop(key, None)
