"""Renders a payload: resolved settings and the items of a history as the provider's request.

1. The dict can be passed to the SDK's call as keyword arguments.
2. Cache breakpoints are added at the end. They are no part of the stable prefix.
3. Items are JSON already: they are joined, not parsed and written again.
4. A delta has only what the caller lacks: it keeps its first `base_items` items, appends the items
   of the delta, and puts the tail after them for this one call.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from app.common.answer_schemas import answer
from app.conversations.epoch import PromptChange
from app.conversations.view import WHOLE_VIEW, View
from app.formats import PROVIDERS
from app.formats.base import Provider, System, SystemPrompt
from app.formats.message import FormatName
from app.models.model_info import O200K
from app.payload.items import (
    MAX_BREAKPOINTS,
    BreakpointPosition,
    PayloadItems,
    StablePoint,
    breakpoint_json,
    with_breakpoints,
)
from app.policy.policy import StrategyName
from app.prompt.resolved_settings import PayloadTools, ResolvedSettings
from app.prompt.sections import PromptSection, prefix_end_indices, static_sections

WITHOUT_BREAKPOINTS = "cache_breakpoints_left_out"
"""`degraded`: the payload has no breakpoints, because their positions were wrong."""


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

    def as_answer(self, format: FormatName, **diagnostics: Any) -> dict[str, Any]:
        """Return what every answer with a payload says of it, with these diagnostics."""
        return {
            "payload": self.body,
            "betas": self.betas,
            "tail": self.tail,
            "diagnostics": {
                "format": format,
                "stable_items": self.stable_items,
                "prefix_hash": self.prefix_hash,
                "breakpoints": self.breakpoints,
                **diagnostics,
            },
        }


@dataclass(frozen=True, slots=True)
class RenderRequest:
    """The inputs of a rendering beside settings and items.

    The provider routes requests with the same `cache_key` to the same cache. The system prompt ends
    with `dynamic_texts`. `caller_point` is where the caller's payload of this epoch ends; with it
    the payload is a delta. The history is that of `view`, with `changes` of sections and tools.
    """

    format: FormatName
    tools: PayloadTools
    cache_key: str
    dynamic_texts: tuple[str, ...] = ()
    caller_point: StablePoint | None = None
    view: View = WHOLE_VIEW
    changes: tuple[PromptChange, ...] = ()

    @property
    def provider(self) -> Provider:
        """The provider of the format."""
        return PROVIDERS[self.format]


def render_payload(
    request: RenderRequest,
    resolved: ResolvedSettings,
    items: PayloadItems,
    *,
    breakpoints: bool = True,
) -> Payload:
    """Render the payload, with the agent tools after the caller's tools."""
    static, provider = static_sections(resolved.sections), request.provider
    tools = resolved.wire_tools(provider.name, request.tools)
    info = resolved.info
    is_able = (info is not None and info.cache_breakpoint) or not provider.caches_by_itself
    marks = breakpoints and provider.breakpoint is not None and is_able
    min_tokens = (info.cache_minimum_tokens if info is not None else None) or 0
    marked_sections = _marked_sections(resolved, static, request, min_tokens) if marks else ()
    texts = tuple(section.content for section in static)
    prompt = SystemPrompt(texts, request.dynamic_texts, as_blocks=breakpoints)
    system = provider.system(prompt, marked_sections)

    def chosen(positions: Sequence[BreakpointPosition]) -> tuple[BreakpointPosition, ...]:
        """Return the newest positions after a prefix that is long enough to be cached."""
        fixed = resolved.raw_fixed.fixed - resolved.raw_dynamic  # what is the same in an epoch
        long_enough = [place for place in positions if place.tokens + fixed >= min_tokens]
        # OpenAI writes an implicit one.
        allowed = MAX_BREAKPOINTS - len(marked_sections) - provider.caches_by_itself
        return tuple(long_enough[:allowed]) if marks else ()

    positions = chosen(items.breakpoints)
    wire_items = _with_breakpoints(provider, items.wire_items, positions)
    system_items = len(system.items)
    base_items = 0
    sent_items = [*system.items, *wire_items]
    if (point := request.caller_point) is not None:
        # The caller keeps its items up to the first one whose breakpoints changed.
        moved = set(positions) ^ set(chosen(point.breakpoints))
        first_new = min([point.stable_items, *(position.item_index for position in moved)])
        sent_items = wire_items[first_new : len(wire_items) - items.tail_items]
        base_items = first_new + system_items
    policy, item = resolved.policy.compaction, request.view.sent_item
    is_provider = resolved.policy.strategy is StrategyName.PROVIDER
    compaction = provider.compaction(
        int(policy.threshold_ratio * resolved.required_limits().effective_window),
        item.requested if item is not None else None,
        asks=is_provider
        and policy.enabled
        and policy.auto
        and provider.compacts(resolved.model or ""),
    )
    ends = marked_sections or prefix_end_indices(static)
    body = _body(request, resolved, system, tools, _joined(sent_items))
    changed = [item for change in request.changes for item in change.items]
    return Payload(
        body={**body, **compaction.added},
        stable_items=items.stable_items + system_items,
        prefix_hash=_prefix_hash(system.hashed, tools, items),
        breakpoints=_breakpoints(request, ends, system_items, positions, items),
        tail=_joined(wire_items[len(wire_items) - items.tail_items :]),
        base_items=base_items,
        is_delta=request.caller_point is not None,
        betas=(*compaction.betas, *provider.betas_of(changed)),
        degraded=() if breakpoints else (WITHOUT_BREAKPOINTS,),
    )


# --- breakpoints ----------------------------------------------------------------------------------


def _marked_sections(
    resolved: ResolvedSettings,
    static: Sequence[PromptSection],
    request: RenderRequest,
    min_tokens: int,
) -> tuple[int, ...]:
    """Return the last sections that end a prefix long enough to be cached."""
    prefix_tokens = resolved.tool_tokens(request.tools)
    indexes, ends = [], prefix_end_indices(static)
    for index, section in enumerate(static):
        prefix_tokens += resolved.section_tokens(section)
        if index in ends and prefix_tokens >= min_tokens:
            indexes.append(index)
    return tuple(indexes[-request.provider.system_breakpoints :])


def _with_breakpoints(
    provider: Provider, wire_items: Sequence[bytes], positions: Iterable[BreakpointPosition]
) -> list[bytes]:
    offsets_by_item: dict[int, list[int]] = {}
    for position in positions:
        offsets_by_item.setdefault(position.item_index, []).append(position.byte_offset)
    items = list(wire_items)
    for index, offsets in offsets_by_item.items():
        items[index] = with_breakpoints(items[index], breakpoint_json(provider), offsets)
    return items


def _breakpoints(
    request: RenderRequest,
    sections: Sequence[int],
    system_items: int,
    positions: Iterable[BreakpointPosition],
    items: PayloadItems,
) -> tuple[Breakpoint, ...]:
    """Return where a cached prefix may end: at breakpoints, or where it ends without any."""
    after_sections = [Breakpoint("section", index) for index in sections]
    indexes = sorted({position.item_index for position in positions})
    if not indexes and items.stable_items and request.provider.caches_by_itself:
        indexes = [items.stable_items - 1]
    after_items = [Breakpoint("message", index + system_items) for index in indexes]
    return (*after_sections, *after_items)


# --- the body -------------------------------------------------------------------------------


def _body(
    request: RenderRequest,
    resolved: ResolvedSettings,
    system: System,
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
    body = request.provider.body(items, max_output, system_value, tool_field, cache_key)
    return {"model": resolved.model, **body}


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
