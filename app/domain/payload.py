"""The payload: a frame and a history's items in the provider's own request shape (K1, G2).

1. The dict can be splatted into the SDK's call; it carries the model and the output limit under
   the provider's own names.
2. Cache marks are laid on at the end. They are not part of the promised prefix (N9).
3. Items are JSON already; they are joined, not parsed and written again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import orjson

from app.domain import jsontext
from app.domain.assemblers.anthropic import CACHE_MARK
from app.domain.frames import Frame
from app.domain.messages import FormatName
from app.domain.prompt import MOST_MARKS, Items, with_marks
from app.domain.sections import prefix_sections, system_text

MOST_SYSTEM_MARKS = 1
_MARK = {"type": "ephemeral"}


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """Where a cached prefix may end: after a section or after a payload item (G2)."""

    after: str
    index: int


@dataclass(frozen=True, slots=True)
class Payload:
    """A finished payload; `body` is ready for JSON, `stable_items` of its items will stay."""

    body: dict[str, Any]
    stable_items: int
    prefix_hash: str
    breakpoints: tuple[Breakpoint, ...]


def render_payload(
    format: FormatName,
    frame: Frame,
    items: Items,
    extra_tools: tuple[str, ...],
    cache_key: str,
) -> Payload:
    """Assemble the payload, with tools of the service's own after the caller's.

    `cache_key` routes equal prefixes to the same cache.
    """
    limits = frame.required_limits()
    tools = frame.wire_tools(format, extra_tools)
    if format is FormatName.ANTHROPIC:
        return _anthropic(frame, items, tools, limits.max_output_tokens)
    return _openai_chat(frame, items, tools, limits.max_output_tokens, cache_key)


def _openai_chat(
    frame: Frame, items: Items, tools: bytes | None, max_output_tokens: int, cache_key: str
) -> Payload:
    text = system_text(frame.sections)
    wire = items.wire
    head = b""
    if text:
        head = jsontext.dump_payload({"role": "system", "content": text})
        wire = [head, *wire]
    body: dict[str, Any] = {"model": frame.model, "messages": _joined(wire)}
    if tools is not None:
        body["tools"] = orjson.Fragment(tools)
    body["max_completion_tokens"] = max_output_tokens
    if frame.info is not None and frame.info.exact:
        body["prompt_cache_key"] = cache_key
    shift = 1 if text else 0
    found = [Breakpoint("section", index) for index in prefix_sections(frame.sections)]
    if items.stable:
        found.append(Breakpoint("message", items.stable + shift - 1))
    return Payload(
        body=body,
        stable_items=items.stable + shift,
        prefix_hash=_prefix_hash(head, tools, items),
        breakpoints=tuple(found),
    )


def _anthropic(frame: Frame, items: Items, tools: bytes | None, max_output_tokens: int) -> Payload:
    wire = list(items.wire)
    system = [{"type": "text", "text": section.content} for section in frame.sections]
    plain = jsontext.dump_payload(system)
    after_sections = prefix_sections(frame.sections)[-MOST_SYSTEM_MARKS:]
    marked = [
        {**block, "cache_control": _MARK} if index in after_sections else block
        for index, block in enumerate(system)
    ]
    found = [Breakpoint("section", index) for index in after_sections]
    places: dict[int, list[int]] = {}
    for mark in items.marks[: MOST_MARKS - len(after_sections)]:
        places.setdefault(mark.item, []).append(mark.offset)
    for index in sorted(places):
        wire[index] = with_marks(wire[index], CACHE_MARK, places[index])
        found.append(Breakpoint("message", index))
    body: dict[str, Any] = {"model": frame.model, "max_tokens": max_output_tokens}
    if marked:
        body["system"] = marked
    body["messages"] = _joined(wire)
    if tools is not None:
        body["tools"] = orjson.Fragment(tools)
    return Payload(
        body=body,
        stable_items=items.stable,
        prefix_hash=_prefix_hash(plain, tools, items),
        breakpoints=tuple(found),
    )


def _joined(wire: list[bytes]) -> orjson.Fragment:
    return orjson.Fragment(b"[" + b",".join(wire) + b"]")


def _prefix_hash(system: bytes, tools: bytes | None, items: Items) -> str:
    """Hash what is promised to stay: tools, system, and the stable items."""
    parts = (tools or b"", system, items.prefix_digest.encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
