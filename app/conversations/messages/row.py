"""The log as values: rows as builds and transcripts read them, open calls, batches to append.

1. A client's call is open until it has a result. A call with the id of an open one closes that.
2. A call group begins at a message of the user or the assistant. To it belong the results of its
   calls, and whatever comes while the provider runs a call of it. While no result has come, another
   message of the assistant goes on with the same answer: some callers append it block by block.
3. Any other message of the user or the assistant begins a new group. A result that comes later is
   late: it belongs to the group at the end of the log if that waits, or else to none. A group that
   leaves the active window has ended.
4. Calls with equal ids are numbered; their results answer them in order.
5. A batch is checked as a whole before any of it is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import accumulate
from typing import Any

from app.blobs.chunks import ToolOutputRef
from app.blobs.stored_output import StoredOutput, inline_output, stored_output_from
from app.common import json_text
from app.common.errors import UnpairedToolResult
from app.conversations.messages.draft import Draft
from app.formats import PROVIDERS
from app.formats.media import clean
from app.formats.message import LOG_FORMAT, FormatName, Message, Reasoning, Role
from app.formats.tools import own_id, unnumbered

MAX_OPEN_CALLS = 256
"""How many calls of earlier groups stay open: the oldest ones of more are closed."""


@dataclass(slots=True, eq=False)
class LogRow:
    """One stored message as a build reads it: `text` is JSON in `format`.

    It belongs to the call group before it, if it `joins` that. `tokens` is its cost in a payload
    without reasoning, `reasoning_tokens` the cost of replayed reasoning. `stored_output` is the
    JSON of a tool result's `StoredOutput`. `text` may be empty where the build shows a placeholder.
    `earlier_reasoning` came before it, in messages of its own. A row that stands for several joined
    messages of one answer has their `rows`.
    """

    id: str
    seq: int
    role: Role
    tokens: int
    reasoning_tokens: int
    call_ids: tuple[str, ...]
    needs_body: bool
    format: FormatName
    text: bytes
    stored_output: str | None = None
    joins: bool = False
    earlier_reasoning: tuple[Reasoning, ...] = ()
    rows: tuple[LogRow, ...] = ()

    @property
    def output(self) -> StoredOutput | None:
        """The stored output of a tool result; None for a small one and for other messages."""
        return stored_output_from(self.stored_output) if self.stored_output is not None else None

    def message(self) -> Message:
        """Return the neutral message, without characters that providers refuse."""
        message = clean(parse_stored(self.text, self.format))
        if message.tool_call_id not in (None, *self.call_ids):
            return replace(message, tool_call_id=self.call_ids[0])  # one of several with its id
        earlier = self.earlier_reasoning
        return replace(message, parts=(*earlier, *message.parts)) if earlier else message


def row_of(draft: Draft, id: str, seq: int, format: FormatName, *, as_chat: bool) -> LogRow:
    """Return the row of a message that was just stored, as a build reads it.

    A chat build reads the rendered item, unless that lacks media of results, labels or reasoning.
    """
    is_item = as_chat and not draft.needs_body and not draft.reasoning_tokens
    return LogRow(
        id=id,
        seq=seq,
        role=draft.role,
        tokens=draft.tokens,
        reasoning_tokens=draft.reasoning_tokens,
        call_ids=draft.call_ids,
        needs_body=draft.needs_body,
        format=LOG_FORMAT if is_item else format,
        text=draft.chat_item if is_item and draft.chat_item is not None else draft.body,
        stored_output=draft.stored_output,
        joins=draft.joins,
    )


def joined_row(rows: Sequence[LogRow]) -> LogRow:
    """Return several messages of one answer as the one message that payloads send."""
    return replace(
        rows[0],
        tokens=sum(row.tokens for row in rows),
        reasoning_tokens=sum(row.reasoning_tokens for row in rows),
        call_ids=tuple(call_id for row in rows for call_id in row.call_ids),
        needs_body=True,
        text=b"".join(row.text for row in rows),
        rows=tuple(rows),
    )


def parse_stored(body: bytes, format: FormatName) -> Message:
    """Parse one stored body back into the neutral message it was stored for."""
    return PROVIDERS[format].parse(json_text.loads(body), "")[0]


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message of a transcript; `body` is the message as the caller sent it.

    The body of an offloaded result holds its preview, and `stored_output` refers to its blob.
    """

    id: str
    seq: int
    turn: int
    role: str
    format: str
    token_count: int
    body: str
    created_at: datetime
    stored_output: str | None = None

    @property
    def byte_size(self) -> int:
        """The size of the body as JSON."""
        return len(self.body) if self.body.isascii() else len(self.body.encode())

    @property
    def output(self) -> StoredOutput | None:
        """The output of a tool result; computed for a small one, None for other messages."""
        if self.stored_output is not None:
            return stored_output_from(self.stored_output)
        if self.role != Role.TOOL:
            return None
        return inline_output(parse_stored(self.body.encode(), FormatName(self.format)))

    @property
    def output_ref(self) -> ToolOutputRef | None:
        """The reference by which a tool result is read."""
        output = self.output
        return output.ref_in(self.id, self.seq) if output is not None else None


@dataclass(frozen=True, slots=True)
class RawBatch:
    """A batch as the caller sent it; `messages` are JSON objects in `format`.

    With `applies_compactions` a provider's compaction item hides what is before it.
    """

    messages: Sequence[Mapping[str, Any]]
    format: FormatName = FormatName.OPENAI_CHAT
    expected_seq: int | None = None
    idempotency_key: str | None = None
    applies_compactions: bool = True


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of a log without a result.

    `open` has the seqs of the client's calls by id, `provider` the calls that the provider runs.
    The last call group begins at `group_seq`. With `is_answering` it ends with the assistant's
    message, and another one goes on with it (rule 2).
    """

    open: Mapping[str, int] = field(default_factory=dict)
    group_seq: int = 1
    provider: tuple[str, ...] = ()
    is_answering: bool = False

    def ended(self, head_seq: int) -> Calls:
        """Return them with the last group ended at the head: no later message joins it."""
        return replace(self, group_seq=head_seq + 1, provider=(), is_answering=False)


NO_CALLS = Calls()


@dataclass(frozen=True, slots=True)
class BatchShape:
    """A batch in its log.

    The `drafts` have the ids of their calls, and whether they belong to the group before them.
    `answered_calls` are the open calls from before the batch that it answers, `closed_calls` those
    that are open no longer. `opened_calls` has the indices of messages by the calls that stay open.
    The last group begins at `group_index`, None for one from before the batch. `running_calls` are
    its calls that the provider runs, None where these stay as they are. Unless `is_known`, the
    state of the log has to be the usual one: the first results answer its last group, and if the
    assistant's message follows (`begins_answer`), that is complete then.
    """

    drafts: tuple[Draft, ...]
    answered_calls: tuple[str, ...]
    closed_calls: tuple[str, ...]
    opened_calls: Mapping[str, int]
    group_index: int | None
    running_calls: tuple[str, ...] | None
    is_answering: bool
    begins_answer: bool
    is_known: bool

    @property
    def turns(self) -> tuple[int, ...]:
        """How many turns have begun at each message."""
        return tuple(accumulate(int(draft.starts_turn) for draft in self.drafts))

    def after(self, before: Calls, head_seq: int) -> Calls:
        """Return the calls without a result after the batch; before it, at `head_seq`, these."""
        left = {id: seq for id, seq in before.open.items() if id not in self.closed_calls}
        opened_calls = {id: head_seq + 1 + index for id, index in self.opened_calls.items()}
        start = before.group_seq if self.group_index is None else head_seq + 1 + self.group_index
        provider = before.provider if self.running_calls is None else self.running_calls
        return Calls(left | opened_calls, start, provider, self.is_answering)


def batch_shape(
    drafts: Sequence[Draft], before: Calls | None = None, head_seq: int = 0
) -> BatchShape | None:
    """Check the pairing of a batch after these calls of the log, or without reading the log.

    Without it the log is taken to be in its usual state (`BatchShape`); None where that cannot be
    assumed. Raises UnpairedToolResult.
    """
    usual = before is None
    calls = before or NO_CALLS
    waiting = {call_id: seq - head_seq - 1 for call_id, seq in calls.open.items()}
    start = calls.group_seq - head_seq - 1 if before is not None else -1
    provider, is_answering = calls.provider, calls.is_answering
    placed: list[Draft] = []
    answered: list[str] = []
    called: list[str] = []
    for index, draft in enumerate(drafts):
        is_waiting = bool(provider) or any(at >= start for at in waiting.values())
        if draft.role is Role.TOOL:
            (call_id,) = draft.call_ids
            own = _answered(call_id, waiting)
            if own is None and usual and start < 0:
                own, waiting = own_id(call_id, answered), {**waiting, own_id(call_id, answered): -1}
            elif own is None:
                if usual:
                    return None
                raise UnpairedToolResult(
                    f"Tool result for call {call_id!r} answers no open call; nothing was stored",
                    {"tool_call_id": call_id},
                )
            at = waiting.pop(own)
            answered += [own] if at < 0 else []
            is_answering = is_answering and at < start
            placed.append(replace(draft, call_ids=(own,), joins=is_waiting or at >= start))
            continue
        if usual and start < 0 and (draft.resolves or draft.role is Role.SYSTEM):
            return None
        if draft.role is Role.ASSISTANT:
            repeats = any(waiting.get(call_id, start - 1) >= start for call_id in draft.call_ids)
            joins = (is_answering and not repeats) or bool(provider)
        else:
            joins = not set(provider).isdisjoint(draft.resolves)
        if not joins:
            start, provider = index, ()
        provider = (*(id for id in provider if id not in draft.resolves), *draft.provider_calls)
        waiting = {id: at for id, at in waiting.items() if id not in draft.call_ids}
        waiting |= dict.fromkeys(draft.call_ids, index)
        called += draft.call_ids
        is_answering = draft.role is Role.ASSISTANT and any(at >= start for at in waiting.values())
        placed.append(draft if draft.joins == joins else replace(draft, joins=joins))
    late = [call_id for call_id, at in waiting.items() if at < start]
    dropped = late[: max(0, len(late) - MAX_OPEN_CALLS)]
    opened_calls = {id: at for id, at in waiting.items() if at >= 0 and id not in dropped}
    first = next((draft for draft in placed if not draft.joins), None)
    return BatchShape(
        drafts=tuple(placed),
        answered_calls=tuple(answered),
        closed_calls=(*answered, *called, *dropped),
        opened_calls=opened_calls,
        group_index=start if start >= 0 else None,
        running_calls=None if usual and start < 0 else provider,
        is_answering=is_answering,
        begins_answer=usual and first is not None and first.role is Role.ASSISTANT,
        is_known=not usual,
    )


def _answered(call_id: str, waiting: Mapping[str, int]) -> str | None:
    """Return the open call that a result answers: of several with its id the first (rule 4)."""
    if call_id in waiting:
        return call_id
    return next((id for id in waiting if unnumbered(id) == unnumbered(call_id)), None)
