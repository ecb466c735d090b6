"""Payload items for formats in which neighbours of one role share an item.

1. An item is closed when the other role speaks. The open one may grow, so it is never stable; its
   content stays where it is.
2. Cache breakpoints are at the last block from the log, and at every `BREAKPOINT_INTERVAL`th block
   before. The latter never move, so that an earlier payload differs only near its end.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import NamedTuple

from app.domain.common.messages import NO_RESULT
from app.domain.conversations.view import View
from app.domain.models.tokens import MESSAGE_OVERHEAD, CountText
from app.domain.payload.assembler import (
    ALL_TOOLS,
    CONTINUE_NOTE,
    MAX_BREAKPOINTS,
    NO_NAMES,
    Assembler,
    BreakpointPlace,
    PayloadItems,
)
from app.domain.prompt.sections import NO_TAIL, Tail

BREAKPOINT_INTERVAL = 15
"""Blocks between fixed breakpoints; Anthropic looks back 20 blocks from a breakpoint."""
_CLOSING = b"]}"


class Block(NamedTuple):
    """One part of an item as JSON; some cannot have a breakpoint."""

    json: bytes
    cacheable: bool = True


class MergingAssembler(Assembler):
    """Renders rows into items of alternating roles."""

    user: str
    """The role that users and tool results share."""

    def __init__(
        self,
        view: View,
        count: CountText,
        tools: Collection[str] = ALL_TOOLS,
        opening: Tail = NO_TAIL,
        defined: Collection[str] = NO_NAMES,
    ) -> None:
        super().__init__(view, count, tools, opening, defined)
        self._closed: list[bytes] = []
        self._role = ""
        self._blocks: list[bytes] = []
        self._end = 0  # bytes of the open item so far, without its closing
        self._hash = hashlib.sha256()
        self._since_breakpoint = 0
        self._lasting: list[BreakpointPlace] = []
        self._newest: BreakpointPlace | None = None
        self._history: list[tuple[int, BreakpointPlace | None]] = []

    @abstractmethod
    def _head(self, role: str) -> bytes:
        """Return what an item of a role begins with, up to its first block."""

    @abstractmethod
    def _text_block(self, text: str) -> bytes:
        """Return a block that says a text."""

    @abstractmethod
    def _result_block(self, wire_id: str, text: str) -> tuple[bytes, int]:
        """Return a block that answers a call with a text, and its tokens."""

    @property
    def stable(self) -> int:
        """The items that are closed."""
        return len(self._closed)

    def _put(self, role: str, blocks: Sequence[Block], tokens: int) -> None:
        """Add blocks; `tokens` is their cost without the overhead of an item."""
        if role != self._role:
            self._close()
            self._role = role
            self._end = len(self._head(role))
            self.tokens += MESSAGE_OVERHEAD
        self.tokens += tokens
        for block in blocks:
            self._end += len(block.json) + (1 if self._blocks else 0)
            self._blocks.append(block.json)
            self._since_breakpoint += 1
            if block.cacheable:
                self._add_breakpoint()

    def _add_breakpoint(self) -> None:
        """Note the place behind the last block; every `BREAKPOINT_INTERVAL`th lasts."""
        self._newest = BreakpointPlace(
            len(self._closed), self._end - 1, self.tokens + self.summary_tokens
        )
        if self._since_breakpoint >= BREAKPOINT_INTERVAL:
            self._since_breakpoint = 0
            self._lasting.append(self._newest)

    def _close(self) -> None:
        if self._blocks:
            item = self._item(self._role, self._blocks)
            self._closed.append(item)
            self._hash.update(item)
            self._blocks = []

    def _item(self, role: str, blocks: Sequence[bytes]) -> bytes:
        return self._head(role) + b",".join(blocks) + _CLOSING

    def _after_row(self) -> None:
        self._history.append((len(self._lasting), self._newest))

    def _breakpoints_at(self, place: int) -> tuple[BreakpointPlace, ...]:
        lasting, newest = self._history[place]
        return self._breakpoint_places(lasting, newest)

    def _breakpoint_places(
        self, lasting: int, newest: BreakpointPlace | None
    ) -> tuple[BreakpointPlace, ...]:
        found = [] if newest is None else [newest]
        recent = self._lasting[max(0, lasting - MAX_BREAKPOINTS) : lasting]
        found += [place for place in reversed(recent) if place != newest]
        return tuple(found[:MAX_BREAKPOINTS])

    def _put_note(self, text: str, *, as_system: bool = False) -> None:
        self._started = True
        self._put(self.user, [Block(self._text_block(text))], self.count(text))

    def _put_result(self, wire_id: str, text: str = NO_RESULT) -> None:
        block, tokens = self._result_block(wire_id, text)
        self._put(self.user, [Block(block)], tokens)

    def items(self, tail: Tail = NO_TAIL) -> PayloadItems:
        """Return the items; the last one is the user's, as these providers want it."""
        wire, tokens = list(self._closed), self.tokens
        role, blocks = self._role, list(self._blocks)

        def say(block: bytes, cost: int) -> int:
            """Add what is not stable as the user's; return what it costs."""
            nonlocal role, blocks
            overhead = 0
            if role != self.user:
                if blocks:
                    wire.append(self._item(role, blocks))
                role, blocks, overhead = self.user, [], MESSAGE_OVERHEAD
            blocks.append(block)
            return cost + overhead

        for block, cost in self._closing():
            tokens += say(block, cost)
        if role != self.user:
            tokens += say(self._text_block(CONTINUE_NOTE), self.count(CONTINUE_NOTE))
        tail_tokens = 0
        apart = self._tail_item(tail)
        if apart is None:
            for text in tail.texts:
                tail_tokens += say(self._text_block(text), self.count(text))
        wire.append(self._item(role, blocks))
        if apart is not None:
            wire.append(apart)
            tail_tokens = MESSAGE_OVERHEAD + sum(map(self.count, tail.texts))
        return PayloadItems(
            wire=wire,
            stable=len(self._closed),
            tokens=tokens,
            summary_tokens=self.summary_tokens,
            prefix_digest=self._hash.hexdigest(),
            rendered_through=self.rendered_through,
            has_calls=self.has_calls,
            breakpoints=self._breakpoint_places(len(self._lasting), self._newest),
            mentions=tuple(sorted(self.mentions)),
            references=tuple(sorted(self.references)),
            tail=1 if tail.texts else 0,
            opening_tokens=self.opening_tokens,
            tail_tokens=tail_tokens,
            not_carried=tuple(self._not_carried),
        )

    def _closing(self) -> list[tuple[bytes, int]]:
        """Return the blocks, with their tokens, that close the open call group."""
        return [self._result_block(wire_id, NO_RESULT) for wire_id in self._open.values()]

    def _tail_item(self, tail: Tail) -> bytes | None:
        """Return the tail as an item of its own, None where it joins the last one."""
        return None
