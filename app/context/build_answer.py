"""The answers of builds [delta.only-new], and the payloads of earlier builds [payload.as-of]."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.common import json_text
from app.common.errors import Gone, NotFound
from app.compaction.reduction import REPEATED_CLEARED
from app.context.choose_view import new_assembler, read_rows, rendered_rows
from app.context.rendering import Payload, RenderRequest, render_payload
from app.context.state import REASONING_DROPPED, SUMMARY_AS_USER, BuildState, CachedPayload
from app.conversations.conversation import BreakReason
from app.conversations.epoch import BuildId, Epoch, PromptChange, model_in, parse_build_id
from app.conversations.from_rows import changes_from, epoch_start_from
from app.conversations.receipt import Observer
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.turns import Entry
from app.conversations.view import spans_through
from app.conversations.view_changes import NO_PROVIDER_COMPACTION, shown_entries
from app.formats import PROVIDERS
from app.formats.message import FormatName
from app.models.budget import measure, pressure_status
from app.models.calibration import estimate_of
from app.payload.items import MisplacedBreakpoint, PayloadItems, StablePoint
from app.policy.policy import StrategyName
from app.repositories import Database, Repositories

_log = logging.getLogger("app.context")

MAX_SHOWN_MESSAGES = 1000
"""Messages that a dry run lists."""
TAIL_LEFT_OUT = "tail_left_out"
"""`degraded`: status, scratchpad and notes would follow a call that the provider goes on with."""
WINDOW_ASSUMED = "context_window_assumed"
"""`degraded`: the context window is that of the model after the colon, of the same family."""
TOOL_LEFT_OUT = "hosted_tool_left_out"
"""`degraded`: the format does not have the hosted tool of the type after the colon."""


@dataclass(frozen=True, slots=True)
class RecordedBuild:
    """A payload with its epoch and build id; of an epoch that `is_new`, no caller has one yet."""

    state: BuildState
    rendered: CachedPayload
    items: PayloadItems
    epoch: Epoch
    is_new_epoch: bool
    break_reason: BreakReason | None
    through_seq: int
    build_id: str


def respond(observer: Observer, build: RecordedBuild) -> dict[str, Any]:
    """Render the payload of a recorded build, and return the body of the answer.

    The payload is bytes already: the body is for a JSON writer that takes fragments.
    """
    state, view, items = build.state, build.rendered.view, build.items
    resolved, conversation = state.resolved, state.input.conversation
    request = RenderRequest(
        state.format,
        state.tools,
        conversation.cache_key,
        state.system_dynamic_texts,
        _caller_point(build),
        view,
        state.changes,
    )
    try:
        payload = render_payload(request, resolved, items)
    except MisplacedBreakpoint:
        _log.exception("cache_breakpoints_failed")
        payload = render_payload(request, resolved, items, breakpoints=False)
    degraded = (*state.degraded, *payload.degraded, *_lacking(build))
    tokens = state.tokens
    pressure = pressure_status(tokens.total, state.limits)
    is_degraded = any(value != REPEATED_CLEARED for value in degraded)
    observer.built(
        state.format, pressure.pressure, is_delta=payload.is_delta, is_degraded=is_degraded
    )
    answer = payload.as_answer(
        state.format,
        budget=measure(tokens, state.limits),
        notice=pressure.notice,
        next_threshold=pressure.next_threshold,
        tokens_to_next=pressure.tokens_to_next,
        estimate=estimate_of(
            conversation.counter, resolved.factor, state.limits.margin, conversation.calibration
        ),
        summary_used=bool(view.summaries or view.sent_item),
        compaction=state.attempt.compaction,
        deferred_tools=len(state.tools.deferred),
    )
    return {
        "build_id": build.build_id,
        "tokens_used": tokens.total,
        "pressure": pressure.pressure,
        "degraded": list(dict.fromkeys((*degraded, *_not_sent(build)))),
        "cache_break_reason": build.break_reason,
        "defers_natively": state.tools.native,
        "delta": payload.is_delta,
        "epoch": build.epoch.epoch,
        "through_seq": build.through_seq,
        "base_items": payload.base_items,
        **answer,
    }


def _caller_point(build: RecordedBuild) -> StablePoint | None:
    """Return where the caller's payload ends, None for one that is not of this epoch."""
    known, epoch = build.state.attempt.known, build.epoch
    id = parse_build_id(known.build_id) if known is not None else None
    if build.is_new_epoch or known is None or id is None or id.epoch_id != epoch.epoch_id:
        return None
    through_seq = id.through_seq if known.through_seq is None else known.through_seq
    if not epoch.start_seq <= through_seq <= build.through_seq:
        return None
    return build.rendered.assembler.point_at(through_seq)


def _lacking(build: RecordedBuild) -> list[str]:
    """Return the values of `degraded` for what is lost in rendering, not by the view."""
    state, view = build.state, build.rendered.view
    resolved, policy = state.resolved, state.resolved.policy
    takes_system = PROVIDERS[state.format].takes_system
    is_provider = policy.strategy is StrategyName.PROVIDER and policy.compaction.enabled
    lacking = {
        SUMMARY_AS_USER: view.summary_as_system and not takes_system and view.summary_texts(),
        REASONING_DROPPED: build.rendered.assembler.drops_reasoning,
        NO_PROVIDER_COMPACTION: is_provider
        and not PROVIDERS[state.format].compacts(resolved.model or ""),
        TAIL_LEFT_OUT: state.tail.texts and not build.items.tail_items,
    }
    return [name for name, is_lacking in lacking.items() if is_lacking]


def _not_sent(build: RecordedBuild) -> list[str]:
    """Return the values of `degraded` for what the format or the model registry does not have."""
    state = build.state
    info, budget = state.resolved.info, state.resolved.policy.budget
    context_window = state.attempt.settings.context_window or budget.context_window
    found = [f"{TOOL_LEFT_OUT}:{kind}" for kind in state.resolved.left_out_tools]
    if info is not None and info.assumed_from and context_window in (None, "derive"):
        found.append(f"{WINDOW_ASSUMED}:{info.assumed_from}")
    return found


def with_shown(build: RecordedBuild, body: dict[str, Any]) -> dict[str, Any]:
    """Return an answer whose diagnostics say what it shows of the log, and its thresholds."""
    diagnostics = body["diagnostics"]
    return body | {"diagnostics": diagnostics | _shown(build, diagnostics)}


def _shown(build: RecordedBuild, body: Mapping[str, Any]) -> dict[str, Any]:
    view, limits, assembler = build.rendered.view, build.state.limits, build.rendered.assembler
    system_items = body["stable_items"] - build.items.stable_items
    ratios = {
        "notice": limits.notice_at,
        "due": limits.due_at,
        "compact": limits.compact_trigger,
        "blocked": limits.blocked_at,
    }
    return {
        "shown_ranges": [
            [span.start, span.end] for span in spans_through(view.spans, build.through_seq)
        ],
        "shown_messages": _shown_messages(build),
        "summaries": [
            {"summary_range": [item.span.start, item.span.end], "token_count": item.tokens}
            for item in view.summaries
        ],
        "stable_through_seq": assembler.seq_of(build.items.stable_items - 1),
        "breakpoint_seqs": [
            assembler.seq_of(place.index - system_items)
            for place in body["breakpoints"]
            if place.after == "message"
        ],
        "thresholds": {
            name: math.ceil(ratio * limits.effective_window) if ratio is not None else None
            for name, ratio in ratios.items()
        },
    }


def _shown_messages(build: RecordedBuild) -> list[dict[str, Any]]:
    """Return the newest messages that the payload shows, in order, with what each costs there."""
    view, pins = build.rendered.view, set(build.state.input.pins)
    cut, costs = set(build.rendered.cut_seqs), build.rendered.assembler.costs_by_seq
    shortened = {short.seq for short in view.shortened}

    def state_of(item: Entry) -> str:
        if item.clearable and view.clears_result(item.seq):
            return "cleared"
        if item.seq in shortened:
            return "shortened"
        return "preview" if item.seq in cut else "verbatim"

    shown = [item for item in build.state.entries if view.shows(item.seq)][-MAX_SHOWN_MESSAGES:]
    return [
        {
            "seq": item.seq,
            "role": item.role,
            "token_count": costs.get(item.seq, there.tokens),
            "state": state_of(item),
            "pinned": item.seq in pins,
        }
        for item, there in zip(shown, shown_entries(shown, view), strict=True)
    ]


# --- earlier builds -------------------------------------------------------------------------------


class BuildReplayService:
    """Renders earlier builds again, from what was stored when their epoch began.

    A build's id names its epoch, its newest message, how many changes come after that, and the
    hash of its tail. With the log, which never changes, these give the payload byte for byte.
    Current settings are not used, except the limits and prices of the model.
    """

    def __init__(self, database: Database, resolver: SettingsResolver) -> None:
        self._database = database
        self._resolver = resolver

    async def get(self, tenant_id: str, conversation_id: str, build_id: str) -> dict[str, Any]:
        """Return the payload of a build; raises NotFound for an unknown conversation or build.

        Raises Gone where a message was redacted since its epoch began.
        """
        unknown = NotFound(f"No build {build_id!r}", {"build_id": build_id})
        async with self._database.session() as session:
            build = await find_build(session, conversation_id, build_id)
            conversation = await session.conversations.get(
                tenant_id, conversation_id, model_in(build[1].payload_stream) if build else None
            )
            if build is None:
                raise unknown
            (_, through_seq, tail_hash, count), epoch = build
            if epoch.view_version < conversation.state.redacted_version:
                message = "A message of this conversation was redacted after that build"
                raise Gone(message, {"build_id": build_id})
            if not epoch.start_seq <= through_seq <= conversation.state.head_seq:
                raise unknown
            start, format = epoch_start_from(epoch.start_json), FormatName(epoch.format)
            changes = changes_at(epoch, through_seq, count)
            if changes is None:
                raise unknown
            hashes = (epoch.sections_hash, epoch.tools_hash, epoch.policy_hash, start.dynamic_hash)
            texts = await session.contexts.texts(conversation_id, [*hashes, tail_hash or ""])
            rows = await read_rows(session, conversation_id, format, start.view, through_seq)
        is_stored = set(filter(None, (*hashes, tail_hash))) <= texts.keys()
        if not is_stored or (tail_hash is not None and not _is_tail(texts[tail_hash])):
            raise unknown
        resolved = self._resolver.recorded(conversation, epoch, start, texts)

        def dynamic_texts(hash: str | None) -> tuple[str, ...]:
            return tuple(json_text.loads(texts[hash])) if hash else ()

        def render() -> tuple[Payload, list[int | None]]:
            """Return the payload, and the newest message of each of its items."""
            before = dynamic_texts(start.dynamic_hash)
            is_leading = resolved.policy.dynamic_position == "before_window"
            leading = resolved.dynamic_texts_of(before if is_leading else ())
            assembler = new_assembler(format, start.view, resolved, start.tools, leading)
            assembler.changes = changes
            rendered_rows(rows, assembler)
            items = assembler.items(resolved.dynamic_texts_of(dynamic_texts(tail_hash)))
            in_system = () if is_leading else before
            request = RenderRequest(
                format, start.tools, conversation.cache_key, in_system, None, start.view, changes
            )
            payload = render_payload(request, resolved, items)
            seqs = [assembler.seq_of(index) for index in range(len(items.wire_items))]
            return payload, [None] * (payload.stable_items - items.stable_items) + seqs

        payload, item_seqs = await asyncio.to_thread(render)
        return {
            "build_id": build_id,
            "epoch": epoch.epoch,
            "through_seq": through_seq,
            **payload.as_answer(format, item_seqs=item_seqs),
        }


async def find_build(
    session: Repositories, conversation_id: str, build_id: str
) -> tuple[BuildId, Epoch] | None:
    """Return a build's parsed id and its epoch, None for an id of no build."""
    parsed_id = parse_build_id(build_id)
    if parsed_id is None:
        return None
    epoch = await session.contexts.find_epoch(conversation_id, parsed_id.epoch_id)
    return (parsed_id, epoch) if epoch is not None else None


def changes_at(epoch: Epoch, seq: int, count: int | None) -> tuple[PromptChange, ...] | None:
    """Return the changes in the payload of a build; None where its id is of no build.

    `count` of them come after its newest message; with None all that do.
    """
    changes = changes_from(epoch.changes)
    before = tuple(change for change in changes if change.after_seq < seq)
    last = tuple(change for change in changes if change.after_seq == seq)
    return (*before, *last[:count]) if (count or 0) <= len(last) else None


def _is_tail(text: str) -> bool:
    """Whether a stored text is a tail, not sections, tools or a policy."""
    value = json_text.loads(text)
    return isinstance(value, list) and [*map(type, value)] == [str] * len(value) != []
