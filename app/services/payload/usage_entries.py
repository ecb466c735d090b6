"""What a reported call adds to usage totals: its tokens, its cost and what it saved.

1. The saving is the full history minus the payload, both by the conversation's counter times the
   calibration factor of the model. What both have is not counted: system prompt, tools, tail.
2. The full history are all messages of the active window, with tool results in full. Messages
   outside of the window are not counted: they would not be sent without compactions either.
3. A call is without a saving of compactions where the view is no more that of its payload. A
   payload that was not built here is without any saving.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.conversations.conversation import Conversation
from app.domain.conversations.epoch import Epoch
from app.domain.conversations.view import spans_through
from app.domain.models.budget import scaled
from app.domain.models.limits import ModelInfo
from app.domain.models.usage_totals import Purpose, UsageEntry, call_totals, saved_by
from app.domain.payload.reported_usage import TokenUsage, UsageReport
from app.services.ports import Repositories


@dataclass(frozen=True, slots=True)
class SentCall:
    """A reported call: what its provider bills, and the newest epoch of its payload stream."""

    report: UsageReport
    billed: TokenUsage
    newest_epoch: Epoch | None


async def usage_entry(
    session: Repositories,
    conversation: Conversation,
    info: ModelInfo | None,
    sent: SentCall,
    shown_tokens: int,
    factor: float,
) -> UsageEntry:
    """Return what a new report adds.

    `shown_tokens` are the tokens of the log in the next build, `factor` is the calibration's.
    """
    report, billed, newest = sent.report, sent.billed, sent.newest_epoch
    call = call_totals(
        info,
        billed.input_tokens,
        billed.output_tokens,
        billed.cache_creation_tokens,
        billed.cache_read_tokens,
    )
    compacted = offloaded = 0
    if newest is not None:
        state = conversation.state
        if (newest.epoch, newest.view_version) == (report.epoch, state.view_version):
            in_window = state.tokens - state.outside_tokens
            compacted = in_window - shown_tokens - state.summary_tokens
        spans = spans_through(state.window.spans, report.through_seq)
        offloaded = await session.usage_totals.offloaded_tokens(
            conversation.conversation_id, spans, report.through_seq
        )
    saved = saved_by(call, info, scaled(compacted, factor), scaled(offloaded, factor))
    return UsageEntry(report.model, Purpose.REPORTED, call, saved)
