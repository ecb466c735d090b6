"""What a batch changes in the state of its conversation, computed from a state in memory.

An append that knows the state stores the change alone, and lets the database compare the versions:

1. `state_version` counts every change that is not an append. As long as it is the known one, only
   `head_seq`, `turns`, `tokens`, `open_calls` and `due_at` may differ from the state in memory.
   The first three grow by relative amounts, so appends of other processes do no harm.
2. A user or assistant message ends the call group before it, whatever it is. A result needs the
   open calls that this process knows.
3. A state is not computed here where a batch changes more: results outside the active window,
   messages with times of their own, results with blobs, previews that name other tools, and the
   first messages of an active window. A statement that reads the whole state stores those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from app.domain.common.messages import FormatName, Role
from app.domain.conversations.conversation import Conversation, ConversationState
from app.domain.conversations.log.batch import BatchShape
from app.domain.conversations.log.draft import Draft


@dataclass(frozen=True, slots=True)
class StateChange:
    """A change of a conversation's state, valid in `state_version` alone.

    With `open_before` these calls have to be open; `open_calls` are open afterwards. Large results
    are offloaded by the settings: with results these have to be those of `settings_version`. A
    compaction becomes due from `due_tokens` of the log on, or with more than `due_messages`, if the
    log has `resume_at_tokens`.
    """

    state_version: int
    settings_version: int | None
    open_before: tuple[str, ...] | None
    open_calls: tuple[str, ...]
    due_tokens: int | None
    due_messages: int | None
    resume_at_tokens: int


@dataclass(frozen=True, slots=True)
class KnownAppend:
    """A batch to append to a known state, with the change of that state.

    `ids` are those of the drafts. `now` is the time of the messages. With `expected_seq` the log
    has to end there.
    """

    known: Conversation
    format: FormatName
    drafts: Sequence[Draft]
    ids: Sequence[str]
    change: StateChange
    now: datetime
    expected_seq: int | None


@dataclass(frozen=True, slots=True)
class LogTotals:
    """The totals of a log after an append, and whether a compaction is or became due."""

    head_seq: int
    turns: int
    tokens: int
    is_due: bool
    became_due: bool


def state_change(
    known: Conversation,
    drafts: Sequence[Draft],
    shape: BatchShape,
    now: datetime,
    *,
    due_tokens: int | None,
    due_messages: int | None,
) -> StateChange | None:
    """Return the change of a known state by a batch, None where it may change more (rule 3).

    A compaction is due from `due_tokens` of shown messages and summaries on, or with more shown
    messages than `due_messages`.
    Also None for a conversation that has expired, and for results that answer no open call: what
    reads the stored state refuses both.
    """
    state = known.state
    if state.oldest_at is None or state.oldest_at > now:
        return None
    if known.expires_at is not None and known.expires_at <= now:
        return None
    for draft in drafts:
        if draft.timestamp is not None or draft.blob_ids:
            return None
        if draft.output is not None and not set(draft.output.mentions) <= set(state.mentions):
            return None
    if not set(shape.required_calls) <= set(state.open_calls):
        return None
    has_results = any(draft.role is Role.TOOL for draft in drafts)
    open_calls = shape.open_calls
    if not shape.closes_group:
        open_calls = tuple(call for call in state.open_calls if call not in shape.required_calls)
    if due_tokens is not None:
        due_tokens += state.hidden_tokens - state.summary_tokens
    if due_messages is not None:
        due_messages += state.hidden_messages
    return StateChange(
        state_version=state.version,
        settings_version=known.settings_version if has_results else None,
        open_before=state.open_calls if shape.required_calls else None,
        open_calls=open_calls,
        due_tokens=due_tokens,
        due_messages=due_messages,
        resume_at_tokens=state.resume_at_tokens,
    )


def state_after(
    state: ConversationState, change: StateChange, totals: LogTotals
) -> ConversationState:
    """Return a known state after a change that was stored (rule 1)."""
    return replace(
        state,
        head_seq=totals.head_seq,
        turns=totals.turns,
        tokens=totals.tokens,
        open_calls=change.open_calls,
        is_due=totals.is_due,
        became_due=totals.became_due and not state.is_due,
    )
