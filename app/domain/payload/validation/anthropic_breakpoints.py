"""Cache marks of Anthropic Messages (A7, A8).

1. Marks are counted in the order of the prefix: tools, system, messages. An automatic one, at the
   top of the payload, is the last.
2. From a mark the provider looks back 20 blocks for an entry that an earlier request wrote. What
   was appended since has to have a mark inside that reach.
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


class _Mark(NamedTuple):
    """A mark: after how many blocks of the prefix, where, how long it lasts, on which block."""

    position: int
    pointer: str
    ttl: str
    block: Object


def judge(shape: Shape, context: Context, found: Findings) -> None:
    """Judge the marks of a payload, and whether they find what the build before wrote."""
    marks = list(_marks(shape))
    _judge_each(marks, found)
    automatic = shape.payload.get("cache_control")
    if len(marks) + bool(automatic) > MAX_BREAKPOINTS:
        where = "/cache_control" if automatic else marks[MAX_BREAKPOINTS].pointer
        found.add("A7", where, f"at most {MAX_BREAKPOINTS} cache marks are taken")
    least = context.model.cache_minimum_tokens if context.model is not None else None
    if marks and least and context.tokens is not None and context.tokens < least:
        found.add("A8", marks[-1].pointer, f"fewer than {least:,} tokens are not cached")
    if context.previous is not None and not automatic:
        _judge_reach(shape, marks, context, found)


def _judge_each(marks: list[_Mark], found: Findings) -> None:
    is_short = False
    for mark in marks:
        kind = mark.block.get("type")
        if kind in THINKING:
            found.add("A7", mark.pointer, "thinking takes no cache mark")
        elif kind == "text" and is_blank(mark.block.get("text")):
            found.add("A7", mark.pointer, "an empty text takes no cache mark")
        elif mark.block.get("defer_loading"):
            found.add("A7", mark.pointer, "a deferred tool takes no cache mark")
        if mark.ttl == "1h" and is_short:
            found.add("A7", mark.pointer, "marks of an hour stand before those of 5 minutes")
        is_short = is_short or mark.ttl != "1h"


def _judge_reach(shape: Shape, marks: list[_Mark], context: Context, found: Findings) -> None:
    """A8: a mark reaches back to what the build before wrote."""
    assert context.previous is not None
    old = read(context.previous, FormatName.ANTHROPIC)
    written = [mark.position for mark in _marks(old)]
    if has_other_model(shape, old) or not written:
        return
    last, end = written[-1], sum(1 for _ in _blocks(shape))
    reach = (mark for mark in marks if last <= mark.position <= last + LOOK_BACK)
    if end - last >= LOOK_BACK and next(reach, None) is None:
        message = f"no mark within {LOOK_BACK} blocks of the one that the build before wrote"
        found.add("A8", marks[-1].pointer if marks else shape.at, message)


def _blocks(shape: Shape) -> Iterator[tuple[str, Object]]:
    """Yield the blocks of the prefix in its order."""
    for index, tool in enumerate(shape.tools):
        yield f"{shape.tools_at}/{index}", object_of(tool)
    for index, block in enumerate(list_of(shape.system)):
        yield f"{shape.system_at}/{index}", object_of(block)
    for index, item in enumerate(shape.items):
        for place, block in blocks_of(item):
            yield f"{shape.at}/{index}{place}", block


def _marks(shape: Shape) -> Iterator[_Mark]:
    for position, (pointer, block) in enumerate(_blocks(shape), 1):
        if mark := block.get("cache_control"):
            yield _Mark(position, pointer, _ttl(mark), block)
        for place, nested in enumerate(list_of(block.get("content"))):
            if mark := object_of(nested).get("cache_control"):
                yield _Mark(position, f"{pointer}/content/{place}", _ttl(mark), object_of(nested))


def _ttl(mark: Any) -> str:
    return word(object_of(mark).get("ttl")) or "5m"
