"""Payload items for formats in which neighbours of one role share an item.

1. An item is closed when a message of the other role comes. The open one may grow, so it is never
   stable; its content stays where it is. Nor is an item stable that has a call of the provider
   without a result, or comes after one.
2. Cache breakpoints are at the last block from the log, and at every `BREAKPOINT_INTERVAL`th block
   before. The latter never move, so that an earlier payload differs only near its end.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from app.conversations.messages.row import LogRow
from app.formats.message import NO_RESULT
from app.models.tokens import MESSAGE_OVERHEAD
from app.payload.assembler import CONTINUE_NOTE, Assembler
from app.payload.payload_items import BreakpointPosition
from app.prompt.sections import DynamicTexts

BREAKPOINT_INTERVAL = 15
"""Blocks between fixed breakpoints; Anthropic looks back 20 blocks from a breakpoint."""
_ITEM_END = b"]}"
USER = "user"
"""The role that users and tool results share."""


class Block(NamedTuple):
    """One content block or part of an item as JSON; a `cacheable` one may have a breakpoint."""

    json: bytes
    cacheable: bool = True


class MergingAssembler(Assembler):
    """Renders rows into items of alternating roles."""

    open_items = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._role = ""
        self._blocks: list[bytes] = []
        self._closed: list[tuple[str, list[bytes]]] = []  # items that are not stable yet
        self._open_item_bytes = 0  # without `_ITEM_END`
        self._blocks_since_fixed = 0

    @abstractmethod
    def _item_start(self, role: str) -> bytes:
        """Return the JSON of an item up to its first block."""

    @abstractmethod
    def _text_block(self, text: str) -> bytes:
        """Return a block of text."""

    @abstractmethod
    def _result_block(self, wire_id: str, text: str) -> tuple[bytes, int]:
        """Return a block that answers a call with a text, and its tokens."""

    def _put(self, role: str, blocks: Sequence[Block], tokens: int) -> None:
        """Add blocks; `tokens` counts them without the overhead of an item."""
        if role != self._role:
            self._close_item()
            self._role = role
            self._open_item_bytes = len(self._item_start(role))
            self.tokens += MESSAGE_OVERHEAD
        self.tokens += tokens
        for block in blocks:
            self._open_item_bytes += len(block.json) + (1 if self._blocks else 0)
            self._blocks.append(block.json)
            self._blocks_since_fixed += 1
            if block.cacheable:
                self._add_breakpoint()

    def _add_message(self, row: LogRow) -> None:
        super()._add_message(row)
        if self._answer and self._role == USER:  # the answer comes next
            self._close_item()
            self._role = ""

    def _add_breakpoint(self) -> None:
        """Record the position behind the last block; every `BREAKPOINT_INTERVAL`th is fixed."""
        position = BreakpointPosition(
            self._item_count, self._open_item_bytes - 1, self.tokens + self.summary_tokens
        )
        self._positions.append(position)
        if self._blocks_since_fixed >= BREAKPOINT_INTERVAL:
            self._blocks_since_fixed = 0
            self._fixed_positions.append(position)

    def _close_item(self) -> None:
        if self._blocks:
            self._closed.append((self._role, self._blocks))
            self._blocks = []
        if not self._is_paused:
            for role, blocks in self._closed:
                self._append(self._item(role, blocks))
            self._closed.clear()

    @property
    def _item_count(self) -> int:
        return self.stable_items + len(self._closed)

    @property
    def _is_paused(self) -> bool:
        """Whether a call of the provider waits: it goes on with its answer."""
        return False

    def _item(self, role: str, blocks: Sequence[bytes]) -> bytes:
        return self._item_start(role) + b",".join(blocks) + _ITEM_END

    def _put_note(self, text: str, *, as_system: bool = False) -> None:
        self._has_first_message = True
        self._put(USER, [Block(self._text_block(text))], self.count(text))

    def _put_result(self, wire_id: str, text: str = NO_RESULT) -> None:
        block, tokens = self._result_block(wire_id, text)
        self._put(USER, [Block(block)], tokens)

    def _with_tail(self, tail: DynamicTexts) -> tuple[list[bytes], int, int, int]:
        """Return the items; the last one is the user's, as these providers require.

        Nothing follows a call of the provider that waits but results of the client.
        """
        closed = [self._item(role, blocks) for role, blocks in self._closed]
        wire_items, tokens = [*self._stable_items, *closed], self.tokens
        role, blocks = self._role, list(self._blocks)

        def append(text: str) -> int:
            """Add a text that is not stable to an item of the user; return the added tokens."""
            nonlocal role, blocks
            overhead = 0
            if role != USER:
                if blocks:
                    wire_items.append(self._item(role, blocks))
                role, blocks, overhead = USER, [], MESSAGE_OVERHEAD
            blocks.append(self._text_block(text))
            return self.count(text) + overhead

        if self._is_paused:
            return [*wire_items, self._item(role, blocks)], tokens, 0, 0
        if role != USER:
            tokens += append(CONTINUE_NOTE)
        tail_item = self._tail_item(tail)
        if tail_item is None:
            tail_tokens = sum(map(append, tail.texts))
            wire_items.append(self._item(role, blocks))
        else:
            tail_tokens = MESSAGE_OVERHEAD + sum(map(self.count, tail.texts))
            wire_items += [self._item(role, blocks), tail_item]
        return wire_items, tokens, 1 if tail.texts else 0, tail_tokens

    def _tail_item(self, tail: DynamicTexts) -> bytes | None:
        """Return the tail as an item of its own, None where it joins the last one."""
        return None
