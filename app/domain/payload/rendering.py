"""Renders a payload: resolved settings and a history's items in the provider's request shape.

1. The dict can be splatted into the SDK's call. Model and output limit have the provider's names.
2. Cache breakpoints are added at the end. They are no part of the stable prefix.
3. Items are JSON already: they are joined, not parsed and written again.
4. A delta has only what the caller lacks: it keeps its first `base_items` items, appends the items
   of the delta, and puts the tail behind them for this one call.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import orjson

from app.domain.common import json_text
from app.domain.common.messages import FormatName
from app.domain.payload.assembler import MAX_BREAKPOINTS
from app.domain.payload.assemblers import BREAKPOINTS_JSON
from app.domain.payload.payload_items import (
    BreakpointPlace,
    PayloadItems,
    StablePoint,
    with_breakpoints,
)
from app.domain.prompt.resolved_settings import PayloadTools, ResolvedSettings
from app.domain.prompt.sections import (
    PromptSection,
    prefix_end_indices,
    static_sections,
    system_text,
)

MAX_SYSTEM_BREAKPOINTS = 2
"""Breakpoints in the system prompt: after static text, and after text that seldom changes."""
WITHOUT_BREAKPOINTS = "cache_breakpoints"
"""`degraded`: the payload has no breakpoints, because their places were wrong."""
_ANTHROPIC_BREAKPOINT = {"type": "ephemeral"}
_OPENAI_BREAKPOINT = {"mode": "explicit"}


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """Where a cached prefix may end: after a section or after a payload item."""

    after: str
    index: int


@dataclass(frozen=True, slots=True)
class Payload:
    """A payload. `body` is ready for JSON; its first `stable_items` items will not change.

    The body of a delta has the items from `base_items` on. The next build replaces `tail`.
    """

    body: dict[str, Any]
    stable_items: int
    prefix_hash: str
    breakpoints: tuple[Breakpoint, ...]
    tail: orjson.Fragment
    base_items: int = 0
    is_delta: bool = False
    degraded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _System:
    """The system prompt on the wire: items before the history, or a value beside it.

    `plain` is the same without breakpoints, which `breakpoints` lists by section.
    """

    items: tuple[bytes, ...] = ()
    value: Any = None
    plain: bytes = b""
    breakpoints: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """What a payload is rendered for.

    `cache_key` routes requests with equal prefixes to the same cache. `dynamic` texts end the
    system prompt. `caller_point` is where the caller's payload of this epoch ends.
    """

    format: FormatName
    tools: PayloadTools
    cache_key: str
    dynamic: tuple[str, ...] = ()
    caller_point: StablePoint | None = None


def render_payload(
    request: Request, resolved: ResolvedSettings, items: PayloadItems, *, breakpoints: bool = True
) -> Payload:
    """Render the payload, with agent tools after the caller's."""
    static = static_sections(resolved.sections)
    tools = resolved.wire_tools(request.format, request.tools)
    after = _sections_with_breakpoint(resolved, static, request) if breakpoints else ()
    system = _system(request, static, after, as_blocks=breakpoints)
    places = _chosen_places(resolved, request, items.breakpoints, len(after)) if breakpoints else ()
    wire = _with_breakpoints(request.format, items.wire, places)
    shift = len(system.items)
    base = 0
    if request.caller_point is not None:
        caller_places = request.caller_point.breakpoints if breakpoints else ()
        earlier = _chosen_places(resolved, request, caller_places, len(after))
        changed = {place.item for place in set(places) ^ set(earlier)}
        base = (
            min(request.caller_point.stable, *changed) if changed else request.caller_point.stable
        )
    shown = wire[base : len(wire) - items.tail] if request.caller_point is not None else wire
    if request.caller_point is None:
        shown = [*system.items, *shown]
    return Payload(
        body=_body(request, resolved, system, tools, _joined(shown)),
        stable_items=items.stable + shift,
        prefix_hash=_prefix_hash(system.plain, tools, items),
        breakpoints=_breakpoints(request.format, static, system, places, items, shift),
        tail=_joined(wire[len(wire) - items.tail :]),
        base_items=base + shift if request.caller_point is not None else 0,
        is_delta=request.caller_point is not None,
        degraded=() if breakpoints else (WITHOUT_BREAKPOINTS,),
    )


# --- breakpoints ----------------------------------------------------------------------------------


def _takes_breakpoints(resolved: ResolvedSettings, format: FormatName) -> bool:
    match format:
        case FormatName.ANTHROPIC:
            return True
        case FormatName.OPENAI_CHAT | FormatName.OPENAI_RESPONSES:
            return resolved.info is not None and resolved.info.cache_breakpoint
        case FormatName.GEMINI:
            return False
        case _:
            assert_never(format)


def _sections_with_breakpoint(
    resolved: ResolvedSettings, static: Sequence[PromptSection], request: Request
) -> tuple[int, ...]:
    """Return the last sections that end a prefix long enough to be cached."""
    if not _takes_breakpoints(resolved, request.format):
        return ()
    reach = resolved.tool_tokens(request.tools)
    indexes = []
    ends = prefix_end_indices(static)
    for index, section in enumerate(static):
        reach += resolved.section_tokens(section)
        if index in ends and reach >= _minimum(resolved):
            indexes.append(index)
    if request.format is FormatName.OPENAI_CHAT:
        return tuple(indexes[-1:])  # its system prompt is one message
    return tuple(indexes[-MAX_SYSTEM_BREAKPOINTS:])


def _chosen_places(
    resolved: ResolvedSettings, request: Request, places: Sequence[BreakpointPlace], used: int
) -> tuple[BreakpointPlace, ...]:
    """Return the newest places behind a prefix that is long enough to be cached."""
    if not _takes_breakpoints(resolved, request.format):
        return ()
    fixed = resolved.raw_fixed.fixed - resolved.raw_dynamic  # nothing that changes inside an epoch
    long_enough = [place for place in places if fixed + place.tokens >= _minimum(resolved)]
    allowed = MAX_BREAKPOINTS - used
    if request.format is not FormatName.ANTHROPIC:
        allowed -= 1  # OpenAI writes an implicit one
    return tuple(long_enough[:allowed])


def _minimum(resolved: ResolvedSettings) -> int:
    return (resolved.info.cache_minimum_tokens if resolved.info is not None else None) or 0


def _with_breakpoints(
    format: FormatName, wire: Sequence[bytes], chosen: Iterable[BreakpointPlace]
) -> list[bytes]:
    places: dict[int, list[int]] = {}
    for place in chosen:
        places.setdefault(place.item, []).append(place.offset)
    items = list(wire)
    for item, offsets in places.items():
        items[item] = with_breakpoints(items[item], BREAKPOINTS_JSON[format], offsets)
    return items


def _breakpoints(
    format: FormatName,
    static: Sequence[PromptSection],
    system: _System,
    places: Iterable[BreakpointPlace],
    items: PayloadItems,
    shift: int,
) -> tuple[Breakpoint, ...]:
    """Return where a cached prefix may end: at breakpoints, or where it ends without any."""
    sections = system.breakpoints or tuple(prefix_end_indices(static))
    of_sections = [Breakpoint("section", index) for index in sections]
    items_with = sorted({place.item for place in places})
    if not items_with and items.stable and format is not FormatName.ANTHROPIC:
        items_with = [items.stable - 1]
    return (*of_sections, *(Breakpoint("message", index + shift) for index in items_with))


# --- the system prompt ----------------------------------------------------------------------


def _system(
    request: Request,
    static: Sequence[PromptSection],
    breakpoints: tuple[int, ...],
    *,
    as_blocks: bool = True,
) -> _System:
    """Return the system prompt; without `as_blocks` it is one text where the format has blocks."""
    text = system_text(static)
    texts = [*([text] if text else []), *request.dynamic]
    match request.format:
        case FormatName.OPENAI_CHAT:
            # A message for all static text; its content has a part where it has a breakpoint.
            contents: list[Any] = list(texts)
            if breakpoints:
                part = {"type": "text", "text": text, "prompt_cache_breakpoint": _OPENAI_BREAKPOINT}
                contents[0] = [part]
            return _system_items(
                ({"role": "system", "content": content} for content in contents), breakpoints
            )
        case FormatName.OPENAI_RESPONSES:
            # A developer message with a part per section: `instructions` take no breakpoint.
            parts = [
                {"type": "input_text", "text": section.content}
                | ({"prompt_cache_breakpoint": _OPENAI_BREAKPOINT} if index in breakpoints else {})
                for index, section in enumerate(static)
            ]
            messages = [parts] if parts else []
            messages += [[{"type": "input_text", "text": text}] for text in request.dynamic]
            return _system_items(
                (
                    {"type": "message", "role": "developer", "content": content}
                    for content in messages
                ),
                breakpoints,
            )
        case FormatName.ANTHROPIC if as_blocks:
            # A block per section, so that any of them can have a breakpoint.
            sections = (section.content for section in static)
            blocks = [{"type": "text", "text": text} for text in (*sections, *request.dynamic)]
            value = [
                {**block, "cache_control": _ANTHROPIC_BREAKPOINT} if index in breakpoints else block
                for index, block in enumerate(blocks)
            ]
            plain = json_text.dump_payload(blocks)
            return _System(value=value or None, plain=plain, breakpoints=breakpoints)
        case FormatName.ANTHROPIC:
            joined = "\n\n".join(texts)
            return _System(value=joined or None, plain=json_text.dump_payload(joined))
        case FormatName.GEMINI:
            instruction = {"parts": [{"text": text} for text in texts]} if texts else None
            return _System(value=instruction, plain=json_text.dump_payload(instruction))
        case _:
            assert_never(request.format)


def _system_items(messages: Iterable[dict[str, Any]], breakpoints: tuple[int, ...]) -> _System:
    items = tuple(map(json_text.dump_payload, messages))
    return _System(items, None, b",".join(items), breakpoints)


# --- the body -------------------------------------------------------------------------------


def _body(
    request: Request,
    resolved: ResolvedSettings,
    system: _System,
    tools: bytes | None,
    items: orjson.Fragment,
) -> dict[str, Any]:
    """Return the request; a delta leaves out system prompt and tools."""
    max_output = resolved.required_limits().max_output_tokens
    is_whole = request.caller_point is None
    tool_field = {"tools": orjson.Fragment(tools)} if is_whole and tools is not None else {}
    system_value = system.value if is_whole else None
    cache_key = {}
    if resolved.info is not None and resolved.info.exact:
        cache_key = {"prompt_cache_key": request.cache_key}
    body: dict[str, Any] = {"model": resolved.model}
    match request.format:
        case FormatName.OPENAI_CHAT:
            body |= {"messages": items, **tool_field, "max_completion_tokens": max_output}
            return body | cache_key
        case FormatName.OPENAI_RESPONSES:
            return body | {"input": items, "max_output_tokens": max_output} | tool_field | cache_key
        case FormatName.ANTHROPIC:
            system_field = {"system": system_value} if system_value is not None else {}
            return body | {"max_tokens": max_output, **system_field, "messages": items} | tool_field
        case FormatName.GEMINI:
            config = {"max_output_tokens": max_output} | tool_field
            if system_value is not None:
                config["system_instruction"] = system_value
            return body | {"contents": items, "config": config}
        case _:
            assert_never(request.format)


def _joined(wire: Sequence[bytes]) -> orjson.Fragment:
    return orjson.Fragment(b"[" + b",".join(wire) + b"]")


def _prefix_hash(system: bytes, tools: bytes | None, items: PayloadItems) -> str:
    """Hash the stable prefix: tools, system prompt, and the stable items."""
    parts = (tools or b"", system, items.prefix_digest.encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
