"""Cache breakpoints of Anthropic Messages (`A7`, `A8`).

1. Breakpoints are counted in the order of the prefix: tools, system, messages. An automatic one,
   at the top of the payload, is the last.
2. From a breakpoint the provider looks back 20 blocks for an entry that an earlier request wrote.
   So new blocks need a breakpoint within that distance.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from app.domain.common.messages import FormatName
from app.domain.payload.assembler import MAX_BREAKPOINTS
from app.domain.payload.validation.anthropic_thinking import THINKING
from app.domain.payload.validation.neutral import has_other_model
from app.domain.payload.validation.rules import Context, Findings
from app.domain.payload.validation.shapes import (
    Object,
    Shape,
    blocks_of,
    is_blank,
    list_of,
    object_of,
    read,
    word,
)

LOOK_BACK: Final = 20


class _Breakpoint(NamedTuple):
    """A breakpoint after `position` blocks of the prefix."""

    position: int
    pointer: str
    ttl: str
    block: Object


def judge(shape: Shape, context: Context, found: Findings) -> None:
    """Judge the breakpoints, and whether they reach those of the build before."""
    breakpoints = list(_breakpoints(shape))
    _judge_each(breakpoints, found)
    automatic = shape.payload.get("cache_control")
    if len(breakpoints) + bool(automatic) > MAX_BREAKPOINTS:
        where = "/cache_control" if automatic else breakpoints[MAX_BREAKPOINTS].pointer
        found.add("A7", where, f"at most {MAX_BREAKPOINTS} cache breakpoints are taken")
    least = context.model.cache_minimum_tokens if context.model is not None else None
    if breakpoints and least and context.tokens is not None and context.tokens < least:
        found.add("A8", breakpoints[-1].pointer, f"fewer than {least:,} tokens are not cached")
    if context.previous is not None and not automatic:
        _judge_reach(shape, breakpoints, context, found)


def _judge_each(breakpoints: list[_Breakpoint], found: Findings) -> None:
    is_short = False
    for breakpoint in breakpoints:
        kind = breakpoint.block.get("type")
        if kind in THINKING:
            found.add("A7", breakpoint.pointer, "thinking takes no cache breakpoint")
        elif kind == "text" and is_blank(breakpoint.block.get("text")):
            found.add("A7", breakpoint.pointer, "an empty text takes no cache breakpoint")
        elif breakpoint.block.get("defer_loading"):
            found.add("A7", breakpoint.pointer, "a deferred tool takes no cache breakpoint")
        if breakpoint.ttl == "1h" and is_short:
            found.add(
                "A7", breakpoint.pointer, "breakpoints of an hour stand before those of 5 minutes"
            )
        is_short = is_short or breakpoint.ttl != "1h"


def _judge_reach(
    shape: Shape, breakpoints: list[_Breakpoint], context: Context, found: Findings
) -> None:
    """`A8`: a breakpoint reaches back to what the build before wrote."""
    assert context.previous is not None
    old = read(context.previous, FormatName.ANTHROPIC)
    written = [breakpoint.position for breakpoint in _breakpoints(old)]
    if has_other_model(shape, old) or not written:
        return
    last, end = written[-1], sum(1 for _ in _blocks(shape))
    reach = (
        breakpoint for breakpoint in breakpoints if last <= breakpoint.position <= last + LOOK_BACK
    )
    if end - last >= LOOK_BACK and next(reach, None) is None:
        message = f"no breakpoint within {LOOK_BACK} blocks of the one that the build before wrote"
        found.add("A8", breakpoints[-1].pointer if breakpoints else shape.at, message)


def _blocks(shape: Shape) -> Iterator[tuple[str, Object]]:
    """Yield the blocks of the prefix in its order."""
    for index, tool in enumerate(shape.tools):
        yield f"{shape.tools_at}/{index}", object_of(tool)
    for index, block in enumerate(list_of(shape.system)):
        yield f"{shape.system_at}/{index}", object_of(block)
    for index, item in enumerate(shape.items):
        for place, block in blocks_of(item):
            yield f"{shape.at}/{index}{place}", block


def _breakpoints(shape: Shape) -> Iterator[_Breakpoint]:
    for position, (pointer, block) in enumerate(_blocks(shape), 1):
        if breakpoint := block.get("cache_control"):
            yield _Breakpoint(position, pointer, _ttl(breakpoint), block)
        for place, nested in enumerate(list_of(block.get("content"))):
            if breakpoint := object_of(nested).get("cache_control"):
                yield _Breakpoint(
                    position, f"{pointer}/content/{place}", _ttl(breakpoint), object_of(nested)
                )


def _ttl(breakpoint: Any) -> str:
    return word(object_of(breakpoint).get("ttl")) or "5m"
