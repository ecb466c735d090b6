"""The payload: a frame and a history's items in the provider's own request shape (K1, G2).

1. The dict can be splatted into the SDK's call; it carries the model and the output limit under
   the provider's own names.
2. Cache marks are laid on at the end. They are not part of the promised prefix (N9).
3. Items are JSON already; they are joined, not parsed and written again.
4. A delta has only what its caller lacks: it keeps its first `base_items`, adds the items of the
   delta, and puts the tail behind them for this one call (G4, decision 18).
5. Should the marks fail to be laid, the payload goes without them (G7).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import orjson

from app.domain.common import json_text
from app.domain.common.messages import FormatName
from app.domain.payload.assembler import (
    MAX_BREAKPOINTS,
    BreakpointPlace,
    PayloadItems,
    StablePoint,
    with_breakpoints,
)
from app.domain.payload.assemblers import CACHE_MARKS
from app.domain.prompt.resolved_settings import PayloadTools, ResolvedSettings
from app.domain.prompt.sections import PromptSection, prefix_sections, static_sections, system_text

MAX_SYSTEM_MARKS = 2
"""Marks on the system prompt: after what never changes, and after what seldom does (S2, 4)."""
UNMARKED = "cache_breakpoints"
"""The step of a payload whose marks could not be laid (G7)."""
_ANTHROPIC_MARK = {"type": "ephemeral"}
_OPENAI_MARK = {"mode": "explicit"}


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """Where a cached prefix may end: after a section or after a payload item (G2)."""

    after: str
    index: int


@dataclass(frozen=True, slots=True)
class Payload:
    """A finished payload; `body` is ready for JSON, `stable_items` of its items will stay.

    The body of a delta has only items from `base_items` on; `tail` is what the next one replaces.
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

    `value` has its marks, `plain` is the same without them. `dynamic` text is in both.
    """

    items: tuple[bytes, ...] = ()
    value: Any = None
    plain: bytes = b""
    marked: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """What a payload is made for: its format, its tools, and text that stands in the system
    prompt although it changes; `known` is where the caller's own copy of the epoch ends.
    """

    format: FormatName
    tools: PayloadTools
    cache_key: str
    dynamic: tuple[str, ...] = ()
    known: StablePoint | None = None


def render_payload(
    request: Request, resolved: ResolvedSettings, items: PayloadItems, *, marked: bool = True
) -> Payload:
    """Assemble the payload, with tools of the service's own after the caller's.

    `cache_key` routes equal prefixes to the same cache.
    """
    static = static_sections(resolved.sections)
    tools = resolved.wire_tools(request.format, request.tools)
    after = _marked_sections(resolved, static, request) if marked else ()
    system = _system(request, static, after) if marked else _plain_system(request, static)
    marks = _marks(resolved, request, items.marks, len(after)) if marked else ()
    wire = _laid(request.format, items.wire, marks)
    shift = len(system.items)
    base = 0
    if request.known is not None:
        earlier = _marks(resolved, request, request.known.marks, len(after)) if marked else ()
        changed = {mark.item for mark in set(marks) ^ set(earlier)}
        base = min(request.known.stable, *changed) if changed else request.known.stable
    shown = wire[base : len(wire) - items.tail] if request.known is not None else wire
    if request.known is None:
        shown = [*system.items, *shown]
    return Payload(
        body=_body(request, resolved, system, tools, _joined(shown)),
        stable_items=items.stable + shift,
        prefix_hash=_prefix_hash(system.plain, tools, items),
        breakpoints=_breakpoints(request.format, static, system, marks, items, shift),
        tail=_joined(wire[len(wire) - items.tail :]),
        base_items=base + shift if request.known is not None else 0,
        is_delta=request.known is not None,
        degraded=() if marked else (UNMARKED,),
    )


# --- marks ----------------------------------------------------------------------------------


def _takes_marks(resolved: ResolvedSettings, format: FormatName) -> bool:
    match format:
        case FormatName.ANTHROPIC:
            return True
        case FormatName.OPENAI_CHAT | FormatName.OPENAI_RESPONSES:
            return resolved.info is not None and resolved.info.cache_breakpoint
        case FormatName.GEMINI:
            return False
        case _:
            assert_never(format)


def _marked_sections(
    resolved: ResolvedSettings, static: Sequence[PromptSection], request: Request
) -> tuple[int, ...]:
    """Return the sections to mark: the last ones that end a prefix long enough to be cached."""
    if not _takes_marks(resolved, request.format):
        return ()
    reach = resolved.tool_tokens(request.tools)
    found = []
    ends = prefix_sections(static)
    for index, section in enumerate(static):
        reach += resolved.section_tokens(section)
        if index in ends and reach >= _minimum(resolved):
            found.append(index)
    if request.format is FormatName.OPENAI_CHAT:
        return tuple(found[-1:])  # its system prompt is one message
    return tuple(found[-MAX_SYSTEM_MARKS:])


def _marks(
    resolved: ResolvedSettings, request: Request, found: Sequence[BreakpointPlace], taken: int
) -> tuple[BreakpointPlace, ...]:
    """Return the newest marks that may be laid; each stands or falls by its own place (A8)."""
    if not _takes_marks(resolved, request.format):
        return ()
    fixed = resolved.raw_fixed.fixed - resolved.raw_dynamic  # nothing that changes inside an epoch
    long_enough = [mark for mark in found if fixed + mark.tokens >= _minimum(resolved)]
    most = MAX_BREAKPOINTS - taken
    if request.format is not FormatName.ANTHROPIC:
        most -= 1  # OpenAI's own, implicit one (C8)
    return tuple(long_enough[:most])


def _minimum(resolved: ResolvedSettings) -> int:
    return (resolved.info.cache_minimum_tokens if resolved.info is not None else None) or 0


def _laid(
    format: FormatName, wire: Sequence[bytes], marks: Iterable[BreakpointPlace]
) -> list[bytes]:
    places: dict[int, list[int]] = {}
    for mark in marks:
        places.setdefault(mark.item, []).append(mark.offset)
    laid = list(wire)
    for item, offsets in places.items():
        laid[item] = with_breakpoints(laid[item], CACHE_MARKS[format], offsets)
    return laid


def _breakpoints(
    format: FormatName,
    static: Sequence[PromptSection],
    system: _System,
    marks: Iterable[BreakpointPlace],
    items: PayloadItems,
    shift: int,
) -> tuple[Breakpoint, ...]:
    """Return where a cached prefix may end: where marks are, or where it ends by itself."""
    sections = system.marked or tuple(prefix_sections(static))
    found = [Breakpoint("section", index) for index in sections]
    places = sorted({mark.item for mark in marks})
    if not places and items.stable and format is not FormatName.ANTHROPIC:
        places = [items.stable - 1]
    return (*found, *(Breakpoint("message", index + shift) for index in places))


# --- the system prompt ----------------------------------------------------------------------


def _system(request: Request, static: Sequence[PromptSection], marked: tuple[int, ...]) -> _System:
    match request.format:
        case FormatName.OPENAI_CHAT:
            return _chat_system(static, request.dynamic, marked)
        case FormatName.OPENAI_RESPONSES:
            return _responses_system(static, request.dynamic, marked)
        case FormatName.ANTHROPIC:
            return _anthropic_system(static, request.dynamic, marked)
        case FormatName.GEMINI:
            texts = [text for text in (system_text(static), *request.dynamic) if text]
            value = {"parts": [{"text": text} for text in texts]} if texts else None
            return _System(value=value, plain=json_text.dump_payload(value))
        case _:
            assert_never(request.format)


def _plain_system(request: Request, static: Sequence[PromptSection]) -> _System:
    """The system prompt as one text where the format would have it in pieces (G7)."""
    if request.format is not FormatName.ANTHROPIC:
        return _system(request, static, ())
    text = "\n\n".join(text for text in (system_text(static), *request.dynamic) if text)
    return _System(value=text or None, plain=json_text.dump_payload(text))


def _chat_system(
    static: Sequence[PromptSection], dynamic: Sequence[str], marked: tuple[int, ...]
) -> _System:
    """One message, whose content is a text; with a mark it has to be a part."""
    text = system_text(static)
    content: Any = text
    if marked:
        content = [{"type": "text", "text": text, "prompt_cache_breakpoint": _OPENAI_MARK}]
    items = [json_text.dump_payload({"role": "system", "content": content})] if text else []
    items += [json_text.dump_payload({"role": "system", "content": added}) for added in dynamic]
    return _System(tuple(items), None, b",".join(items), marked)


def _responses_system(
    static: Sequence[PromptSection], dynamic: Sequence[str], marked: tuple[int, ...]
) -> _System:
    """A developer message with a part for each section, which can be marked; not `instructions`."""
    parts = [
        {"type": "input_text", "text": section.content}
        | ({"prompt_cache_breakpoint": _OPENAI_MARK} if index in marked else {})
        for index, section in enumerate(static)
    ]
    items = [_developer(parts)] if parts else []
    items += [_developer([{"type": "input_text", "text": text}]) for text in dynamic]
    return _System(tuple(items), None, b",".join(items), marked)


def _developer(parts: list[dict[str, Any]]) -> bytes:
    return json_text.dump_payload({"type": "message", "role": "developer", "content": parts})


def _anthropic_system(
    static: Sequence[PromptSection], dynamic: Sequence[str], marked: tuple[int, ...]
) -> _System:
    """A block for each section, so that any of them can be marked."""
    blocks = [{"type": "text", "text": section.content} for section in static]
    blocks += [{"type": "text", "text": text} for text in dynamic]
    value = [
        {**block, "cache_control": _ANTHROPIC_MARK} if index in marked else block
        for index, block in enumerate(blocks)
    ]
    return _System(value=value or None, plain=json_text.dump_payload(blocks), marked=marked)


# --- the body -------------------------------------------------------------------------------


def _body(
    request: Request,
    resolved: ResolvedSettings,
    system: _System,
    tools: bytes | None,
    items: orjson.Fragment,
) -> dict[str, Any]:
    """Return the request; a delta leaves system prompt and tools to the copy it goes on from."""
    most = resolved.required_limits().max_output_tokens
    whole = request.known is None
    given = {"tools": orjson.Fragment(tools)} if whole and tools is not None else {}
    routed: dict[str, Any] = {}
    body: dict[str, Any]
    if resolved.info is not None and resolved.info.exact:
        routed = {"prompt_cache_key": request.cache_key}
    match request.format:
        case FormatName.OPENAI_CHAT:
            body = {"model": resolved.model, "messages": items} | given
            return body | {"max_completion_tokens": most} | routed
        case FormatName.OPENAI_RESPONSES:
            return (
                {"model": resolved.model, "input": items, "max_output_tokens": most}
                | given
                | routed
            )
        case FormatName.ANTHROPIC:
            body = {"model": resolved.model, "max_tokens": most}
            if whole and system.value is not None:
                body["system"] = system.value
            return body | {"messages": items} | given
        case FormatName.GEMINI:
            config: dict[str, Any] = {"max_output_tokens": most} | given
            if whole and system.value is not None:
                config["system_instruction"] = system.value
            return {"model": resolved.model, "contents": items, "config": config}
        case _:
            assert_never(request.format)


def _joined(wire: Sequence[bytes]) -> orjson.Fragment:
    return orjson.Fragment(b"[" + b",".join(wire) + b"]")


def _prefix_hash(system: bytes, tools: bytes | None, items: PayloadItems) -> str:
    """Hash what is promised to stay: tools, system, and the stable items."""
    parts = (tools or b"", system, items.prefix_digest.encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
