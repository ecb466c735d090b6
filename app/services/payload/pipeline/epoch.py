"""Decides whether a payload continues the last epoch of its stream, or begins a new one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.domain.common.messages import FormatName, Role
from app.domain.conversations.epoch import Epoch
from app.domain.formats.reasoning_families import UNBOUND, accepted_families
from app.domain.payload.epochs import (
    Start,
    break_reason,
    keeps_prefix,
    model_in,
    requested_window,
    start_from,
)
from app.services.payload.pipeline.notes import own_tools
from app.services.payload.pipeline.state import REASONING_DROPPED, BuildState


@dataclass(frozen=True, slots=True)
class EpochChoice:
    """The epoch of a payload. `reason` says why it is not the last one, None where it is.

    `kept_tools` are the own tools of the last epoch that stay. `leaves_prefix` says that the
    payload does not begin as those of the last epoch do.
    """

    last: Epoch | None
    start: Start
    reason: str | None
    kept_tools: tuple[str, ...]
    leaves_prefix: bool = False

    def describes(self, state: BuildState) -> bool:
        """Whether the start is that of the payload as it is rendered now."""
        return (state.tools, state.dynamic_hash) == (self.start.tools, self.start.dynamic)


def choose_epoch(state: BuildState, previous: EpochChoice | None = None) -> EpochChoice:
    """Return the epoch that the payload belongs to; `previous` is what this build chose before.

    A build that left the prefix of the last epoch does not return to it. Without its reasoning a
    payload may need no notice, with it again one, and the build would never end.
    """
    last, format = state.read.epoch, state.format
    if last is None:
        is_bound = state.view.is_whole and not (
            _has_other_reasoning(state) or state.drops_reasoning
        )
        reason = "model_changed" if state.read.other_streams else None
        min_reasoning_after = 0
    else:
        before = start_from(last.start_json)
        kept = before.tools.extra
        after = _new_start(state, kept)
        window = requested_window(state.attempt.settings)
        visible = state.read.conversation.state
        changes = (last, before, after, state.resolved, visible, window, state.read.pins)
        reason = break_reason(*changes)
        has_left = previous is not None and previous.leaves_prefix
        if not (state.drops_reasoning or has_left):
            if reason is None:
                return EpochChoice(last, before, None, kept)
            if keeps_prefix(*changes):
                view = before.view
                start = _bound(after, view.reasoning_after, view.reasoning_of)
                return EpochChoice(last, start, reason, kept)
        chosen_before = previous.reason if previous is not None else None
        reason = reason or chosen_before or REASONING_DROPPED
        is_bound = False
        min_reasoning_after = before.view.reasoning_after
    reasoning_after = 0 if is_bound else max(min_reasoning_after, _reasoning_after(state))
    start = _bound(
        _new_start(state, ()), reasoning_after, state.resolved.takes_reasoning_of(format)
    )
    return EpochChoice(last, start, reason, (), leaves_prefix=last is not None)


def _new_start(state: BuildState, kept_tools: tuple[str, ...]) -> Start:
    extra = own_tools(state, kept_tools) if state.items is not None else kept_tools
    return Start(
        state.view,
        state.limits.total,
        state.limits.max_output_tokens,
        replace(state.tools, extra=extra),
        state.lasting_degraded,
        state.resolved.factor,
        state.dynamic_hash,
    )


def _bound(start: Start, reasoning_after: int, reasoning_of: tuple[str, ...]) -> Start:
    """Return a start whose payloads replay only the reasoning of these makers after this seq."""
    view = replace(start.view, reasoning_after=reasoning_after, reasoning_of=reasoning_of)
    return replace(start, view=view)


def _has_other_reasoning(state: BuildState) -> bool:
    """Whether another model may have made the reasoning that this stream would replay."""
    streams, format = state.read.other_streams, state.format
    if format is not FormatName.OPENAI_CHAT:
        return bool(streams)
    family = state.resolved.takes_reasoning_of(format)[:1]
    return any(
        accepted_families(model_in(stream), format)[:1] == family != () for stream in streams
    )


def _reasoning_after(state: BuildState) -> int:
    """Return after which seq reasoning is replayed where the prefix differs from before.

    Signed reasoning is bound to the prefix that it was made after. Plain text is not: the current
    turn keeps it, because some providers refuse a tool loop without it.
    """
    head_seq, format = state.read.conversation.state.head_seq, state.format
    accepts = state.resolved.takes_reasoning_of(format)
    if format is not FormatName.OPENAI_CHAT or state.drops_reasoning:
        return head_seq
    if not accepts:
        return 0
    if accepts[0] not in UNBOUND or _has_other_reasoning(state):
        return head_seq
    users = (item.seq for item in reversed(state.entries) if item.role is Role.USER)
    return next(users, head_seq)
