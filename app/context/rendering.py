"""Renders a payload: resolved settings and the items of a history as the provider's request.

1. The dict can be passed to the SDK's call as keyword arguments.
2. Cache breakpoints are added at the end. They are no part of the stable prefix.
3. Items are JSON already: they are joined, not parsed and written again.
4. A delta has only what the caller lacks: it keeps its first `base_items` items, appends the items
   of the delta, and puts the tail behind them for this one call.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, assert_never

import orjson

from app.common import json_text
from app.common.answers import answer
from app.conversations.provider_compaction import provider_fields
from app.conversations.provider_items import asks_provider
from app.conversations.view import WHOLE_VIEW, View
from app.formats.message import FormatName
from app.models.families import O200K
from app.payload.assembler import MAX_BREAKPOINTS
from app.payload.assemblers import BREAKPOINTS_JSON
from app.payload.payload_items import (
    BreakpointPosition,
    PayloadItems,
    StablePoint,
    with_breakpoints,
)
from app.prompt.resolved_settings import PayloadTools, ResolvedSettings
from app.prompt.sections import PromptSection, prefix_end_indices, static_sections, system_text

MAX_SYSTEM_BREAKPOINTS = 2
"""Breakpoints in the system prompt: after static text, and after text that seldom changes."""
WITHOUT_BREAKPOINTS = "cache_breakpoints"
"""`degraded`: the payload has no breakpoints, because their positions were wrong."""
_ANTHROPIC_BREAKPOINT = {"type": "ephemeral"}
_OPENAI_BREAKPOINT = {"mode": "explicit"}


@answer()
@dataclass(frozen=True, slots=True)
class Breakpoint:
    """Where a cached prefix may end: after a section or after a payload item."""

    after: Literal["section", "message"]
    """What it follows: a section or a payload item."""
    index: int
    """Index of that section, or of that payload item."""


@dataclass(frozen=True, slots=True)
class Payload:
    """A payload. `body` is ready for JSON; its first `stable_items` items will not change.

    The body of a delta has the items from `base_items` on. The next build replaces `tail`. `betas`
    are the beta features that the request needs.
    """

    body: dict[str, Any]
    stable_items: int
    prefix_hash: str
    breakpoints: tuple[Breakpoint, ...]
    tail: orjson.Fragment
    base_items: int = 0
    is_delta: bool = False
    betas: tuple[str, ...] = ()
    degraded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _System:
    """The system prompt: items before the history, or a field of the request.

    `hashed` is its JSON for the prefix hash. `breakpoints` are the indexes of the sections that
    have one.
    """

    items: tuple[bytes, ...] = ()
    field_value: Any = None
    hashed: bytes = b""
    breakpoints: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RenderRequest:
    """The inputs of a rendering beside settings and items.

    The provider routes requests with the same `cache_key` to the same cache. The system prompt ends
    with `dynamic_texts`. `caller_point` is where the caller's payload of this epoch ends; with it
    the payload is a delta. The history is that of `view`.
    """

    format: FormatName
    tools: PayloadTools
    cache_key: str
    dynamic_texts: tuple[str, ...] = ()
    caller_point: StablePoint | None = None
    view: View = WHOLE_VIEW


def render_payload(
    request: RenderRequest,
    resolved: ResolvedSettings,
    items: PayloadItems,
    *,
    breakpoints: bool = True,
) -> Payload:
    """Render the payload, with the agent tools after the caller's tools."""
    static = static_sections(resolved.sections)
    tools = resolved.wire_tools(request.format, request.tools)
    marked_sections = _sections_with_breakpoint(resolved, static, request) if breakpoints else ()
    system = _system(request, static, marked_sections, as_blocks=breakpoints)

    def chosen(positions: Sequence[BreakpointPosition]) -> tuple[BreakpointPosition, ...]:
        return _chosen_positions(resolved, request, positions, len(marked_sections))

    positions = chosen(items.breakpoints) if breakpoints else ()
    wire_items = _with_breakpoints(request.format, items.wire_items, positions)
    system_items = len(system.items)
    base_items = 0
    sent_items = [*system.items, *wire_items]
    if (point := request.caller_point) is not None:
        # The caller keeps its items up to the first one whose breakpoints changed.
        changed = set(positions) ^ set(chosen(point.breakpoints) if breakpoints else ())
        first_new = min([point.stable_items, *(position.item_index for position in changed)])
        sent_items = wire_items[first_new : len(wire_items) - items.tail_items]
        base_items = first_new + system_items
    provider = provider_fields(
        request.format,
        request.view,
        resolved.required_limits(),
        resolved.policy.compaction.threshold_ratio,
        compacts=asks_provider(resolved.policy, request.format, resolved.model or ""),
    )
    body = _body(request, resolved, system, tools, _joined(sent_items))
    return Payload(
        body={**body, **provider.fields},
        stable_items=items.stable_items + system_items,
        prefix_hash=_prefix_hash(system.hashed, tools, items),
        breakpoints=_breakpoints(request.format, static, system, positions, items),
        tail=_joined(wire_items[len(wire_items) - items.tail_items :]),
        base_items=base_items,
        is_delta=request.caller_point is not None,
        betas=provider.betas,
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
    resolved: ResolvedSettings, static: Sequence[PromptSection], request: RenderRequest
) -> tuple[int, ...]:
    """Return the last sections that end a prefix long enough to be cached."""
    if not _takes_breakpoints(resolved, request.format):
        return ()
    prefix_tokens = resolved.tool_tokens(request.tools)
    indexes = []
    ends = prefix_end_indices(static)
    for index, section in enumerate(static):
        prefix_tokens += resolved.section_tokens(section)
        if index in ends and prefix_tokens >= _min_cached_tokens(resolved):
            indexes.append(index)
    if request.format is FormatName.OPENAI_CHAT:
        return tuple(indexes[-1:])  # its system prompt is one message
    return tuple(indexes[-MAX_SYSTEM_BREAKPOINTS:])


def _chosen_positions(
    resolved: ResolvedSettings,
    request: RenderRequest,
    positions: Sequence[BreakpointPosition],
    used: int,
) -> tuple[BreakpointPosition, ...]:
    """Return the newest positions behind a prefix that is long enough to be cached.

    `used` breakpoints are in the system prompt already.
    """
    if not _takes_breakpoints(resolved, request.format):
        return ()
    fixed = resolved.raw_fixed.fixed - resolved.raw_dynamic  # nothing that changes inside an epoch
    min_tokens = _min_cached_tokens(resolved) - fixed
    long_enough = [position for position in positions if position.tokens >= min_tokens]
    allowed = MAX_BREAKPOINTS - used
    if request.format is not FormatName.ANTHROPIC:
        allowed -= 1  # OpenAI writes an implicit one
    return tuple(long_enough[:allowed])


def _min_cached_tokens(resolved: ResolvedSettings) -> int:
    return (resolved.info.cache_minimum_tokens if resolved.info is not None else None) or 0


def _with_breakpoints(
    format: FormatName, wire_items: Sequence[bytes], positions: Iterable[BreakpointPosition]
) -> list[bytes]:
    offsets_by_item: dict[int, list[int]] = {}
    for position in positions:
        offsets_by_item.setdefault(position.item_index, []).append(position.byte_offset)
    items = list(wire_items)
    for index, offsets in offsets_by_item.items():
        items[index] = with_breakpoints(items[index], BREAKPOINTS_JSON[format], offsets)
    return items


def _breakpoints(
    format: FormatName,
    static: Sequence[PromptSection],
    system: _System,
    positions: Iterable[BreakpointPosition],
    items: PayloadItems,
) -> tuple[Breakpoint, ...]:
    """Return where a cached prefix may end: at breakpoints, or where it ends without any."""
    sections = system.breakpoints or tuple(prefix_end_indices(static))
    after_sections = [Breakpoint("section", index) for index in sections]
    indexes = sorted({position.item_index for position in positions})
    if not indexes and items.stable_items and format is not FormatName.ANTHROPIC:
        indexes = [items.stable_items - 1]
    after_items = [Breakpoint("message", index + len(system.items)) for index in indexes]
    return (*after_sections, *after_items)


# --- the system prompt ----------------------------------------------------------------------


def _system(
    request: RenderRequest,
    static: Sequence[PromptSection],
    breakpoints: tuple[int, ...],
    *,
    as_blocks: bool = True,
) -> _System:
    """Return the system prompt; without `as_blocks` it is one text where the format has blocks."""
    text = system_text(static)
    texts = [*([text] if text else []), *request.dynamic_texts]
    match request.format:
        case FormatName.OPENAI_CHAT:
            # A message for all static text; its content has a part where it has a breakpoint.
            contents: list[Any] = list(texts)
            if breakpoints:
                part = {"type": "text", "text": text, "prompt_cache_breakpoint": _OPENAI_BREAKPOINT}
                contents[0] = [part]
            return _system_messages(
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
            messages += [[{"type": "input_text", "text": text}] for text in request.dynamic_texts]
            return _system_messages(
                (
                    {"type": "message", "role": "developer", "content": content}
                    for content in messages
                ),
                breakpoints,
            )
        case FormatName.ANTHROPIC if as_blocks:
            # A block per section, so that any of them can have a breakpoint.
            block_texts = (*(section.content for section in static), *request.dynamic_texts)
            blocks = [{"type": "text", "text": text} for text in block_texts]
            value = [
                {**block, "cache_control": _ANTHROPIC_BREAKPOINT} if index in breakpoints else block
                for index, block in enumerate(blocks)
            ]
            hashed = json_text.dump_payload(blocks)
            return _System(field_value=value or None, hashed=hashed, breakpoints=breakpoints)
        case FormatName.ANTHROPIC:
            joined = "\n\n".join(texts)
            return _System(field_value=joined or None, hashed=json_text.dump_payload(joined))
        case FormatName.GEMINI:
            instruction = {"parts": [{"text": text} for text in texts]} if texts else None
            return _System(field_value=instruction, hashed=json_text.dump_payload(instruction))
        case _:
            assert_never(request.format)


def _system_messages(messages: Iterable[dict[str, Any]], breakpoints: tuple[int, ...]) -> _System:
    items = tuple(map(json_text.dump_payload, messages))
    return _System(items, None, b",".join(items), breakpoints)


# --- the body -------------------------------------------------------------------------------


def _body(
    request: RenderRequest,
    resolved: ResolvedSettings,
    system: _System,
    tools: bytes | None,
    items: orjson.Fragment,
) -> dict[str, Any]:
    """Return the request; a delta leaves out system prompt and tools."""
    max_output = resolved.required_limits().max_output_tokens
    is_whole = request.caller_point is None
    tool_field = {"tools": orjson.Fragment(tools)} if is_whole and tools is not None else {}
    system_value = system.field_value if is_whole else None
    cache_key = {}
    if resolved.info is not None and resolved.info.tokenizer == O200K:
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


def _joined(items: Sequence[bytes]) -> orjson.Fragment:
    """Return the items as a JSON array, for which their bytes are copied once."""
    if not items:
        return orjson.Fragment(b"[]")
    parts = [b"[" + items[0], *items[1:]]
    parts[-1] += b"]"
    return orjson.Fragment(b",".join(parts))


def _prefix_hash(system: bytes, tools: bytes | None, items: PayloadItems) -> str:
    """Hash the stable prefix: tools, system prompt, and the stable items."""
    parts = (tools or b"", system, items.prefix_digest.encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
