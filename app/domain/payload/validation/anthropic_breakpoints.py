"""Cache breakpoints of Anthropic Messages (`A7`, `A8`).

1. Breakpoints are counted in the order of the prefix: tools, system, messages. An automatic one,
   at the top of the payload, is the last.
2. From a breakpoint the provider looks back 20 blocks for an entry that an earlier request wrote.
   So new blocks need a breakpoint within that distance.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from app.domain.payload.assembler import MAX_BREAKPOINTS
from app.domain.payload.validation.anthropic_thinking import THINKING
from app.domain.payload.validation.rules import Check
from app.domain.payload.validation.shapes import (
    Object,
    Shape,
    blocks_of,
    is_blank,
    list_of,
    object_of,
    string_of,
)

LOOK_BACK: Final = 20


class _Breakpoint(NamedTuple):
    """A breakpoint after `position` blocks of the prefix."""

    position: int
    pointer: str
    ttl: str
    block: Object


def judge(check: Check) -> None:
    """Judge the breakpoints, and whether they reach those of the build before."""
    breakpoints = list(_breakpoints(check))
    _judge_each(breakpoints, check)
    automatic = check.payload.get("cache_control")
    if len(breakpoints) + bool(automatic) > MAX_BREAKPOINTS:
        where = "/cache_control" if automatic else breakpoints[MAX_BREAKPOINTS].pointer
        check.add("A7", where, f"at most {MAX_BREAKPOINTS} cache breakpoints are taken")
    model, tokens = check.context.model, check.context.tokens
    minimum = model.cache_minimum_tokens if model is not None else None
    if breakpoints and minimum and tokens is not None and tokens < minimum:
        check.add("A8", breakpoints[-1].pointer, f"fewer than {minimum:,} tokens are not cached")
    if check.previous is not None and not automatic and not check.has_other_model:
        _judge_reach(breakpoints, check.previous, check)


def _judge_each(breakpoints: list[_Breakpoint], check: Check) -> None:
    is_short = False
    for breakpoint in breakpoints:
        kind = breakpoint.block.get("type")
        if kind in THINKING:
            check.add("A7", breakpoint.pointer, "thinking takes no cache breakpoint")
        elif kind == "text" and is_blank(breakpoint.block.get("text")):
            check.add("A7", breakpoint.pointer, "an empty text takes no cache breakpoint")
        elif breakpoint.block.get("defer_loading"):
            check.add("A7", breakpoint.pointer, "a deferred tool takes no cache breakpoint")
        if breakpoint.ttl == "1h" and is_short:
            check.add(
                "A7", breakpoint.pointer, "breakpoints of an hour stand before those of 5 minutes"
            )
        is_short = is_short or breakpoint.ttl != "1h"


def _judge_reach(breakpoints: list[_Breakpoint], old: Shape, check: Check) -> None:
    """`A8`: a breakpoint reaches back to those that the previous build wrote."""
    written = [breakpoint.position for breakpoint in _breakpoints(old)]
    if not written:
        return
    last, end = written[-1], sum(1 for _ in _blocks(check))
    is_reached = any(0 <= item.position - last <= LOOK_BACK for item in breakpoints)
    if end - last >= LOOK_BACK and not is_reached:
        message = f"no breakpoint within {LOOK_BACK} blocks of the one that the build before wrote"
        check.add("A8", breakpoints[-1].pointer if breakpoints else check.items_at, message)


def _blocks(shape: Shape) -> Iterator[tuple[str, Object]]:
    """Yield the blocks of the prefix in its order."""
    yield from shape.tool_objects()
    for index, block in enumerate(list_of(shape.system)):
        yield f"{shape.system_at}/{index}", object_of(block)
    for at, raw in shape.objects():
        for path, block in blocks_of(raw):
            yield f"{at}{path}", block


def _breakpoints(shape: Shape) -> Iterator[_Breakpoint]:
    for position, (pointer, block) in enumerate(_blocks(shape), 1):
        nested = (
            (f"{pointer}/content/{index}", object_of(item))
            for index, item in enumerate(list_of(block.get("content")))
        )
        for at, holder in ((pointer, block), *nested):
            if breakpoint := holder.get("cache_control"):
                ttl = string_of(object_of(breakpoint).get("ttl")) or "5m"
                yield _Breakpoint(position, at, ttl, holder)
