"""A cache of rendered histories in memory, so that a warm build reads only new messages.

The log never changes, so a rendered history is valid as long as its epoch lasts. One that is not
in the cache is rendered again from the log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, TypeVar

from cachetools import LRUCache

from app.common.concurrency import in_thread_if
from app.compaction.reduction import tool_output_tokens
from app.conversations.epochs import Epoch, model_in
from app.conversations.messages.row import LogRow
from app.conversations.turns import Entry, entry
from app.conversations.view import View
from app.payload.assembler import Assembler

_Result = TypeVar("_Result")
LONG_BYTES = 2**20
"""The length of rendered rows that only a thread copies; they are not shared while they grow."""
_ROW_BYTES = 400
"""Memory of a rendered row beside its text."""


@dataclass(slots=True)
class CachedPayload:
    """The rendered history of one payload stream: what its epoch shows of the log so far.

    `output_tokens` counts the shown tool output, `cut_seqs` are the results of which the log has a
    preview. `tool_names` maps the seqs of results up to `tool_names_through` to their tools.
    `tail_hash` is that of the newest build's tail.
    """

    epoch_id: str
    start_json: str
    view: View
    assembler: Assembler
    entries: list[Entry] = field(default_factory=list)
    output_tokens: int = 0
    cut_seqs: list[int] = field(default_factory=list)
    tool_names: dict[int, str] = field(default_factory=dict)
    tool_names_through: int = 0
    tail_hash: str = ""

    @property
    def size_bytes(self) -> int:
        """Roughly how much memory it takes."""
        return self.assembler.size_bytes + _ROW_BYTES * len(self.entries)

    async def call(self, work: Callable[..., _Result], *arguments: Any) -> _Result:
        """Call a function that copies what is rendered, in a thread if that is long."""
        return await in_thread_if(self.assembler.size_bytes > LONG_BYTES, work, *arguments)

    def show(self, view: View) -> None:
        """Take another view, of which every item is the same."""
        self.view = self.assembler.view = view

    def copied(self) -> CachedPayload:
        """Return a copy to which rows can be added apart."""
        return replace(
            self,
            assembler=self.assembler.copied(),
            entries=[*self.entries],
            cut_seqs=[*self.cut_seqs],
            tool_names={**self.tool_names},
        )

    def add(self, row: LogRow) -> None:
        """Render one more row that the view shows."""
        self.assembler.add(row)
        item = entry(row.seq, row.role, row.tokens, joins=row.joins)
        self.entries.append(item)
        self.output_tokens += tool_output_tokens(item, self.view)
        if (output := row.output) is not None and output.is_cut:
            self.cut_seqs.append(row.seq)


class PayloadCache:
    """Rendered histories by payload stream, bounded in bytes; the least recently used go first."""

    def __init__(self, max_bytes: int) -> None:
        self._cached: LRUCache[tuple[str, ...], CachedPayload] = LRUCache(
            max_bytes, getsizeof=attrgetter("size_bytes")
        )

    def find(self, key: tuple[str, ...]) -> CachedPayload | None:
        """Return the rendered history of a stream, None without one."""
        return self._cached.get(key)

    def of_epoch(self, tenant_id: str, conversation_id: str, epoch: Epoch) -> CachedPayload | None:
        """Return the rendered history of an epoch, None where this process has none."""
        for model in ("", model_in(epoch.payload_stream)):
            key = (tenant_id, conversation_id, epoch.format, model, str(epoch.window))
            cached = self.find(key)
            if cached is not None and cached.epoch_id == epoch.epoch_id:
                return cached
        return None

    def put(self, key: tuple[str, ...], payload: CachedPayload) -> None:
        """Replace the rendered history of a stream; one that is too large is not kept."""
        self.drop(key)
        if payload.size_bytes <= self._cached.maxsize:
            self._cached[key] = payload

    def drop(self, key: tuple[str, ...]) -> None:
        """Remove the rendered history of a stream."""
        self._cached.pop(key, None)
