"""The budget and pressure of a conversation as its head tells them, without reading its log."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.budget import ContextBudget, PressureReading, measure, read_pressure
from app.domain.compaction import own_tools_cost
from app.domain.errors import ContextError
from app.domain.policy import StrategyName
from app.domain.records import Conversation
from app.services.frames import Frames
from app.services.ports import Records


@dataclass(frozen=True, slots=True)
class Reading:
    """A budget with its pressure."""

    budget: ContextBudget
    pressure: PressureReading


async def read_budget(
    frames: Frames, records: Records, conversation: Conversation
) -> Reading | None:
    """Return the reading for the stored settings, None while no window is known (decision 6).

    Counts what the next build would show: the whole log less what a summary stands for, or the
    last N messages of a sliding window.
    """
    try:
        frame = await frames.of(conversation)
    except ContextError:
        return None
    if frame.limits is None:
        return None
    head = conversation.head
    shown = head.shown_tokens
    if frame.policy.strategy is StrategyName.SLIDING_WINDOW:
        before = head.head_seq - frame.policy.sliding_window.keep_last_n
        if before > 0:
            shown = head.tokens - await records.log.total_at(conversation.conversation_id, before)
    usage = frame.usage(shown, head.summary_tokens, own_tools_cost(frame, head))
    return Reading(measure(usage, frame.limits), read_pressure(usage.total, frame.limits))
