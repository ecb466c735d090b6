"""Cache breakpoints of Anthropic Messages.

1. They are read in the order tools, system, messages; nested blocks before the block around them.
2. There are at most four, the automatic one of the payload included.
3. None is on a blank text, on thinking, or on a deferred tool.
4. One that lasts an hour does not come after one that lasts five minutes.
5. Up to 20 blocks before a breakpoint are searched for an earlier entry of the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tests.judge.findings import Findings, is_blank, objects

MAX_BREAKPOINTS: Final = 4
LOOKBACK: Final = 20
_UNMARKED = ("thinking", "redacted_thinking")

Block = dict[str, Any]


def judge_breakpoints(payload: dict[str, Any], findings: Findings) -> None:
    """Judge all breakpoints of a payload."""
    marked = [
        (number, place, block)
        for number, (place, block) in enumerate(_blocks(payload))
        if block.get("cache_control")
    ]
    count = len(marked) + bool(payload.get("cache_control"))
    if count > MAX_BREAKPOINTS:
        findings.error("too-many-breakpoints", "$", f"{count} blocks have cache_control")
    short_at = before = None
    for number, place, block in marked:
        _judge_place(block, place, findings)
        control = block["cache_control"]
        ttl = (control.get("ttl") if isinstance(control, dict) else None) or "5m"
        if ttl == "1h" and short_at is not None:
            findings.error("breakpoint-ttl", place, f"it lasts longer than that of {short_at}")
        if ttl == "5m" and short_at is None:
            short_at = place
        if before is not None and place.startswith("$.messages") and number - before > LOOKBACK:
            findings.warn("breakpoint-far", place, f"{number - before} blocks after the last one")
        before = number


def _judge_place(block: Block, place: str, findings: Findings) -> None:
    if block.get("type") == "text" and is_blank(block.get("text")):
        findings.error("breakpoint-on-blank", place, "the text is blank")
    if block.get("type") in _UNMARKED:
        findings.error("breakpoint-on-thinking", place, "thinking takes no breakpoint")
    if block.get("defer_loading"):
        findings.error("breakpoint-on-deferred", place, "a deferred tool takes no breakpoint")


def _blocks(payload: dict[str, Any]) -> Iterator[tuple[str, Block]]:
    """Yield the blocks of a payload in their order; a message that is a text is one block."""
    for key in ("tools", "system"):
        yield from _walk(objects(payload.get(key)), f"$.{key}")
    for index, message in enumerate(objects(payload.get("messages"))):
        content = message.get("content")
        if isinstance(content, list):
            yield from _walk(objects(content), f"$.messages[{index}].content")
        else:
            yield f"$.messages[{index}]", {}


def _walk(blocks: list[Block], place: str) -> Iterator[tuple[str, Block]]:
    for index, block in enumerate(blocks):
        at = f"{place}[{index}]"
        yield from _walk(objects(block.get("content")), f"{at}.content")
        yield at, block
