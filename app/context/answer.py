"""The answer to a build [delta.only-new]."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from app.context.epoch import RecordedBuild
from app.context.rendering import Payload, RenderRequest, render_payload
from app.context.state import REASONING_DROPPED, SUMMARY_AS_USER, BuildDependencies, BuildState
from app.conversations.provider_items import UNAVAILABLE, has_compaction
from app.conversations.turns import Entry
from app.conversations.view import spans_through
from app.conversations.views import shown_entries
from app.database.sql import fields_of
from app.formats import PROVIDERS
from app.models.budget import measure, pressure_status
from app.models.calibration import estimate_of
from app.payload.assembler import MisplacedBreakpoint, StablePoint
from app.policy.policy import StrategyName

_log = logging.getLogger("app.context")

MAX_SHOWN_MESSAGES = 1000
"""Messages that a preview lists."""
NOT_CARRIED = "content_not_carried"
"""`degraded`: a label stands for content of the type after the colon."""
TAIL_LEFT_OUT = "tail_left_out"
"""`degraded`: status, scratchpad and notes would follow a call that the provider goes on with."""
BUILTIN_TOOLS_DEFERRED = "builtin_tools_deferred"
"""`degraded`: tools that usually stay are deferred, to leave room for messages."""
WINDOW_ASSUMED = "context_window_assumed"
"""`degraded`: the window is that of the model after the colon, another one of the family."""
TOOL_LEFT_OUT = "hosted_tool_left_out"
"""`degraded`: the format does not have the hosted tool of the type after the colon."""


def respond(deps: BuildDependencies, recorded: RecordedBuild) -> dict[str, Any]:
    """Render the payload of a recorded build, and return the body of the answer.

    The payload is bytes already: the body is for a JSON writer that takes fragments.
    """
    state, rendered, epoch = recorded.state, recorded.rendered, recorded.epoch
    items, view = state.items, rendered.view
    assert items is not None
    request = RenderRequest(
        state.format,
        state.tools,
        state.attempt.conversation_id,
        state.system_dynamic_texts,
        _caller_point(recorded),
        view,
    )
    payload = _render(request, state)
    state = state.degrade(*payload.degraded)
    if view.summary_as_system and not PROVIDERS[state.format].takes_system and view.summary_texts():
        state = state.degrade(SUMMARY_AS_USER)
    if rendered.assembler.drops_reasoning:
        state = state.degrade(REASONING_DROPPED)
    if state.resolved.has_last_resort(state.tools.deferred):
        state = state.degrade(BUILTIN_TOOLS_DEFERRED)
    policy, model = state.resolved.policy, state.resolved.model or ""
    is_provider = policy.strategy is StrategyName.PROVIDER and policy.compaction.enabled
    if is_provider and not has_compaction(state.format, model):
        state = state.degrade(UNAVAILABLE)
    if state.tail.texts and not items.tail_items:
        state = state.degrade(TAIL_LEFT_OUT)
    is_degraded = bool(state.degraded)
    info = state.resolved.info
    named = state.attempt.settings.max_context_tokens or policy.budget.context_window
    is_assumed = info is not None and info.assumed_from and named in (None, "derive")
    state = state.degrade(
        *(f"{NOT_CARRIED}:{kind}" for kind in items.not_carried),
        *(f"{TOOL_LEFT_OUT}:{kind}" for kind in state.resolved.left_out_tools),
        *((f"{WINDOW_ASSUMED}:{info.assumed_from}",) if is_assumed and info is not None else ()),
    )
    usage, conversation = state.usage, state.input.conversation
    pressure = pressure_status(usage.total, state.limits)
    deps.observer.built(
        state.format, pressure.pressure, is_delta=payload.is_delta, is_degraded=is_degraded
    )
    return {
        "format": state.format,
        **payload.as_answer(),
        "build_id": recorded.build_id,
        "epoch": epoch.epoch,
        "through_seq": recorded.through_seq,
        "base_items": payload.base_items,
        "cache_break_reason": recorded.break_reason,
        "tokens_used": usage.total,
        "budget": measure(usage, state.limits),
        **fields_of(pressure),
        "estimate": estimate_of(
            usage.total,
            conversation.counter,
            state.resolved.factor,
            state.limits.margin,
            conversation.calibration,
        ),
        "summary_used": bool(view.summaries or view.sent_item),
        "new_state": _new_state(state),
        "compaction": state.attempt.compaction,
        "degraded": list(state.degraded),
        "deferred_tools": len(state.tools.deferred),
        "defers_natively": state.tools.native,
        "delta": payload.is_delta,
    }


def shown(recorded: RecordedBuild, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the payload of an answer shows of the log, by seqs, and its thresholds.

    Of its messages only the newest MAX_SHOWN_MESSAGES are listed.
    """
    state, assembler, view = recorded.state, recorded.rendered.assembler, recorded.rendered.view
    items, limits = state.items, state.limits
    assert items is not None
    system_items = body["stable_items"] - items.stable_items
    ratios = {
        "notice": limits.notice_at,
        "due": limits.due_at,
        "compact": limits.compact_trigger,
        "blocked": limits.hard_block,
    }
    return {
        "shown_ranges": [
            [span.start, span.end] for span in spans_through(view.spans, recorded.through_seq)
        ],
        "shown_messages": _shown_messages(recorded),
        "cleared_through": view.results_cleared_through,
        "uncleared_seqs": view.uncleared_results,
        "summaries": [
            {"summary_range": [item.span.start, item.span.end], "tokens": item.tokens}
            for item in view.summaries
        ],
        "stable_through": assembler.seq_of(items.stable_items - 1),
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


def _shown_messages(recorded: RecordedBuild) -> list[dict[str, Any]]:
    """Return the newest messages that the payload shows, in order, with what each costs there."""
    view, pins = recorded.rendered.view, set(recorded.state.input.pins)
    cut, costs = set(recorded.rendered.cut_seqs), recorded.rendered.assembler.costs_by_seq
    shortened = {short.seq for short in view.shortened}

    def state_of(item: Entry) -> str:
        if item.clearable and view.clears_result(item.seq):
            return "cleared"
        if item.seq in shortened:
            return "shortened"
        return "preview" if item.seq in cut else "verbatim"

    shown = [item for item in recorded.state.entries if view.shows(item.seq)][-MAX_SHOWN_MESSAGES:]
    return [
        {
            "seq": item.seq,
            "role": item.role,
            "tokens": costs.get(item.seq, there.tokens),
            "state": state_of(item),
            "pinned": item.seq in pins,
        }
        for item, there in zip(shown, shown_entries(shown, view), strict=True)
    ]


def _caller_point(recorded: RecordedBuild) -> StablePoint | None:
    """Return where the caller's payload ends, None for one that is not of this epoch."""
    known, epoch = recorded.state.attempt.known, recorded.epoch
    if recorded.is_new_epoch or known is None or known.epoch != epoch.epoch:
        return None
    if known.build_id is not None and not known.build_id.startswith(f"{epoch.epoch_id}."):
        return None
    if not epoch.start_seq <= known.through_seq <= recorded.through_seq:
        return None
    return recorded.rendered.assembler.point_at(known.through_seq)


def _render(request: RenderRequest, state: BuildState) -> Payload:
    assert state.items is not None
    try:
        return render_payload(request, state.resolved, state.items)
    except MisplacedBreakpoint:
        _log.exception("cache_breakpoints_failed")
        return render_payload(request, state.resolved, state.items, breakpoints=False)


def _new_state(state: BuildState) -> dict[str, Any] | None:
    compaction, view = state.attempt.compaction, state.view
    if compaction is None or compaction.summary_range is None or not view.summaries:
        return None
    return {
        "strategy": state.input.compaction_strategy,
        "summary": "\n\n".join(summary.text for summary in view.summaries),
        "summary_range": compaction.summary_range,
        "compressed_at": state.input.compacted_at,
    }
