"""The rendered items of a payload, and positions in them for cache breakpoints."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from app.common import json_text
from app.formats.base import Provider


class BreakpointPosition(NamedTuple):
    """Where a cache breakpoint may be: an item, a byte in it, and the tokens up to there."""

    item_index: int
    byte_offset: int
    tokens: int


class StablePoint(NamedTuple):
    """The number of stable items after a row, and the breakpoints then, newest first."""

    stable_items: int
    breakpoints: tuple[BreakpointPosition, ...]


@dataclass(frozen=True, slots=True)
class PayloadItems:
    """The messages of a payload as the provider's items; the first `stable_items` never change.

    Each of the `wire_items` is the JSON of one item. The last `tail_items` are replaced by the next
    build. `tokens` counts the history without summary, opening and tail; `sealed_tokens` of them
    are of reasoning and sealed text. `breakpoints` are the positions for cache breakpoints, newest
    first. `mentions` are the agent tools that the items name, `references` the tools that search
    results refer to, and `not_carried` the types of content that labels stand for.
    """

    wire_items: list[bytes]
    stable_items: int
    tokens: int
    sealed_tokens: int
    summary_tokens: int
    prefix_digest: str
    rendered_through: int
    has_calls: bool
    breakpoints: tuple[BreakpointPosition, ...] = ()
    mentions: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    tail_items: int = 0
    opening_tokens: int = 0
    tail_tokens: int = 0
    not_carried: tuple[str, ...] = ()


def breakpoint_json(provider: Provider) -> bytes:
    """Return the JSON that makes a block a breakpoint."""
    return b"," + json_text.dump_payload(provider.marked({}))[1:-1]


class MisplacedBreakpoint(ValueError):
    """A cache breakpoint would not stand at the end of a block."""


def with_breakpoints(item: bytes, breakpoint_json: bytes, byte_offsets: Collection[int]) -> bytes:
    """Return an item with a breakpoint at each of these offsets, the ends of its blocks."""
    for offset in sorted(byte_offsets, reverse=True):
        if item[offset : offset + 1] != b"}":
            raise MisplacedBreakpoint(f"No block of the item ends at byte {offset}")
        item = item[:offset] + breakpoint_json + item[offset:]
    return item
