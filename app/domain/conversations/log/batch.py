"""Batches of messages: their call pairing and their times.

A batch is checked as a whole before any of it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, takewhile

from app.domain.common.errors import UnpairedToolResult
from app.domain.common.messages import Role
from app.domain.conversations.log.draft import Draft


@dataclass(frozen=True, slots=True)
class BatchShape:
    """How a batch changes the open calls of its log.

    `required_calls` are the calls that its leading results answer. With `closes_group` a user or
    assistant message ends the call group before it; `open_calls` are then open after the batch.
    """

    required_calls: tuple[str, ...]
    closes_group: bool
    open_calls: tuple[str, ...]
    turns: int


def batch_shape(drafts: Sequence[Draft]) -> BatchShape:
    """Check the pairing inside a batch, and return how it changes the open calls.

    Raises UnpairedToolResult for a result that is invalid after any log.
    """
    required_calls: list[str] = []
    open_calls: list[str] | None = None
    turns = 0
    for draft in drafts:
        if draft.role is Role.TOOL:
            (call_id,) = draft.call_ids
            if open_calls is None:
                if call_id in required_calls:
                    raise unpaired(call_id, "is answered twice in this batch")
                required_calls.append(call_id)
            elif call_id in open_calls:
                open_calls.remove(call_id)
            else:
                raise unpaired(call_id, "answers no open call")
        else:
            open_calls = list(draft.call_ids)
            turns += draft.role is Role.USER
    return BatchShape(
        required_calls=tuple(required_calls),
        closes_group=open_calls is not None,
        open_calls=tuple(open_calls or ()),
        turns=turns,
    )


@dataclass(frozen=True, slots=True)
class Times:
    """The times of a batch's messages, as the active window uses them.

    `sent` are the timestamps of the messages; it is None for a message without one or with one
    in the future, whose time is `now`. `newest` is the maximum up to each message. The first
    `leading_results` messages are results of calls from before the batch.
    """

    now: datetime
    sent: tuple[datetime | None, ...]
    newest: tuple[datetime, ...]
    leading_results: int

    @property
    def oldest_sent(self) -> datetime | None:
        """The oldest timestamp."""
        return min(filter(None, self.sent), default=None)

    @property
    def oldest_sent_after(self) -> datetime | None:
        """The oldest timestamp after the leading results."""
        return min(filter(None, self.sent[self.leading_results :]), default=None)

    @property
    def only_results(self) -> bool:
        """Whether the batch has only leading results."""
        return self.leading_results == len(self.sent)


def batch_times(drafts: Sequence[Draft], now: datetime) -> Times:
    """Return the times of a batch that is received at `now`."""
    times = (draft.sent_at for draft in drafts)
    sent = tuple(at if at is not None and at < now else None for at in times)
    newest = tuple(accumulate((at or now for at in sent), max))
    leading_results = sum(1 for _ in takewhile(lambda draft: draft.role is Role.TOOL, drafts))
    return Times(now, sent, newest, leading_results)


def unpaired(call_id: str, what: str) -> UnpairedToolResult:
    """Return the error for a tool result that answers no open call."""
    return UnpairedToolResult(
        f"Tool result for call {call_id!r} {what}; nothing was stored", {"tool_call_id": call_id}
    )
