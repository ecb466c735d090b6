"""Cache breakpoints of Anthropic Messages.

1. They are read in the order tools, system, messages. Nested blocks count as the one around them.
2. There are at most four, the automatic one of the payload included.
3. None is on a blank text or on a deferred tool; the SDK has none on thinking.
4. One that lasts an hour does not come after one that lasts five minutes.
5. Up to 20 blocks before a breakpoint are searched for an earlier entry of the cache, and one of
   this payload has to reach the last that the build before wrote. A short prefix is not cached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tests.judge.findings import Facts, Findings, is_blank, objects

MAX_BREAKPOINTS: Final = 4
LOOKBACK: Final = 20

Block = dict[str, Any]


def judge_breakpoints(payload: dict[str, Any], facts: Facts, findings: Findings) -> None:
    """Judge all breakpoints of a payload."""
    marked = _marked(payload)
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
    if marked and facts.tokens is not None and facts.tokens < (facts.cache_minimum or 0):
        findings.warn("prefix-short", marked[-1][1], f"{facts.tokens} tokens are not cached")
    old = facts.previous
    if old is not None and old.get("model") == payload.get("model"):
        _judge_reach(payload, [number for number, _, _ in marked], old, findings)


def _judge_reach(
    payload: dict[str, Any], marked: list[int], old: Mapping[str, Any], findings: Findings
) -> None:
    written = [number for number, _, _ in _marked(old)]
    end = max((number for number, _, _ in _blocks(payload)), default=0)
    if not written or payload.get("cache_control") or end - written[-1] < LOOKBACK:
        return
    if not any(0 <= number - written[-1] <= LOOKBACK for number in marked):
        findings.warn(
            "breakpoint-unreached", "$.messages", "none reaches the last that was written"
        )


def _marked(payload: Mapping[str, Any]) -> list[tuple[int, str, Block]]:
    return [found for found in _blocks(payload) if found[2].get("cache_control")]


def _judge_place(block: Block, place: str, findings: Findings) -> None:
    if block.get("type") == "text" and is_blank(block.get("text")):
        findings.error("breakpoint-on-blank", place, "the text is blank")
    if block.get("defer_loading"):
        findings.error("breakpoint-on-deferred", place, "a deferred tool takes no breakpoint")


def _blocks(payload: Mapping[str, Any]) -> Iterator[tuple[int, str, Block]]:
    """Yield the numbered blocks of a payload; a message that is a text is one block."""
    blocks = [
        (f"$.{key}[{index}]", block)
        for key in ("tools", "system")
        for index, block in enumerate(objects(payload.get(key)))
    ]
    for index, message in enumerate(objects(payload.get("messages"))):
        content, place = message.get("content"), f"$.messages[{index}]"
        read = objects(content) if isinstance(content, list) else [{}]
        blocks += [(f"{place}.content[{at}]", block) for at, block in enumerate(read)]
    for number, (place, block) in enumerate(blocks):
        for at, nested in enumerate(objects(block.get("content"))):
            yield number, f"{place}.content[{at}]", nested
        yield number, place, block
