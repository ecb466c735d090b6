"""The rendered items of a payload, and places in them for cache breakpoints."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple


class BreakpointPlace(NamedTuple):
    """A place for a cache breakpoint: its item, the byte in it, and the tokens before it."""

    item: int
    offset: int
    tokens: int


class StablePoint(NamedTuple):
    """How many items were stable after a row, and the breakpoints then, newest first."""

    stable: int
    breakpoints: tuple[BreakpointPlace, ...]


@dataclass(frozen=True, slots=True)
class PayloadItems:
    """The wire items of a payload's history; the first `stable` of them will not change.

    `tokens` counts the history without summary, opening and tail. The next build replaces the last
    `tail` items. `breakpoints` are places for cache breakpoints, newest first. `mentions` are the
    agent tools that the items name, `references` the tools that search results refer to, and
    `not_carried` the types of content that labels stand for.
    """

    wire: list[bytes]
    stable: int
    tokens: int
    summary_tokens: int
    prefix_digest: str
    rendered_through: int
    has_calls: bool
    breakpoints: tuple[BreakpointPlace, ...] = ()
    mentions: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    tail: int = 0
    opening_tokens: int = 0
    tail_tokens: int = 0
    not_carried: tuple[str, ...] = ()


class MisplacedBreakpoint(ValueError):
    """A cache breakpoint would not stand at the end of a block."""


def with_breakpoints(item: bytes, json: bytes, offsets: Collection[int]) -> bytes:
    """Return an item with a breakpoint at each of these offsets, the ends of its blocks."""
    for offset in sorted(offsets, reverse=True):
        if item[offset : offset + 1] != b"}":
            raise MisplacedBreakpoint(f"No block of the item ends at byte {offset}")
        item = item[:offset] + json + item[offset:]
    return item
