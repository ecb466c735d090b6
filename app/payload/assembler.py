"""Assembles the items of a payload from the messages that a view shows.

1. An assembler renders rows of the log, in log order, into items of the provider's format. A
   rendered item never changes, so a later build extends an earlier one byte for byte.
2. Calls without a result are closed when their call group ends. At the end of the log they are
   closed after the stable items, because a result may still come. A result that came late is next
   to its call, or where it came, as text of the user.
3. Call ids are unique in a payload and short enough. Where a log uses an id again, the later one
   is rewritten. A result whose call is not shown is text as well. The messages of an answer with
   calls are one message, which is stable once a result has come.
4. A payload starts with a user message: where it would not, a note comes first. It also stands for
   a first message of which nothing is sent (rule 8), so that no payload is empty.
5. Text names an agent tool only where the payload has that tool.
6. Tokens are counted as items are added, from the counts stored with the rows.
7. Text that changes with every build is in the tail, after the stable items.
8. A payload that sends a provider's compaction item begins with it. Opening, summaries and pinned
   messages from before it follow, then the rest of its message. Other such items are left out.
9. Reasoning at the end of an assistant message, with nothing after it, begins the next message of
   the assistant, and is left out before any other message: providers refuse it as the last thing
   that the model said.
10. Changed sections and tools are items after a message of the user or complete results. An
   assembler in which one of them has no such place is `misplaced`.
11. Stable items and breakpoints are known after every row, so that a caller who has an earlier
   payload needs only new items.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import ClassVar

from app.common import json_text
from app.conversations.epoch import PromptChange
from app.conversations.messages.row import LogRow, joined_row
from app.conversations.view import ProviderItem
from app.formats import LOG_PROVIDER, media, reasoning
from app.formats.json_fields import Raw, Wire
from app.formats.message import LOG_FORMAT, NO_RESULT, Message, Reasoning, Role, Text
from app.formats.openai_responses import CONFIGURATIONS, is_configuration
from app.formats.tools import sendable_id, short_id
from app.models.tokens import (
    MESSAGE_OVERHEAD,
    count_reasoning,
    count_replayed,
    count_sealed,
    count_visible,
    counts_as_stored,
    media_overhead,
)
from app.payload.items import (
    MAX_BREAKPOINTS,
    BreakpointPosition,
    PayloadItems,
    ShownMessages,
    StablePoint,
    may_have_compaction,
)
from app.prompt.sections import NO_DYNAMIC_TEXTS, DynamicTexts

WINDOW_NOTE = "[Earlier messages are not shown.]"
START_NOTE = "[The conversation starts here.]"
CONTINUE_NOTE = "[Continue.]"
_CONFIGURATIONS = tuple(f'"{kind}"'.encode() for kind in CONFIGURATIONS)


@dataclass(eq=False)
class Assembler(ShownMessages, ABC):
    """Renders rows into the items of one payload, and counts their `tokens`."""

    open_items: ClassVar[int] = 0
    """How many items, after the stable ones, a row may add to."""
    newest_breakpoints: ClassVar[int] = 1
    """How many of the newest breakpoint positions are used beside the fixed ones."""

    leading_tokens: int = field(default=0, init=False)
    tokens: int = field(default=0, init=False)
    summary_tokens: int = field(default=0, init=False)
    rendered_through: int = field(default=0, init=False)
    size_bytes: int = field(default=0, init=False)
    has_calls: bool = field(default=False, init=False)
    has_reasoning: bool = field(default=False, init=False)
    drops_reasoning: bool = field(default=False, init=False)
    """Whether a shown message has reasoning of the model's own family that is not replayed."""
    changes: tuple[PromptChange, ...] = field(default=(), init=False)
    """All changes of sections and tools; the first `placed` of them are among the items."""
    placed: int = field(default=0, init=False)
    misplaced: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._used_ids: set[str] = set()
        self._open_calls: dict[str, str] = {}  # the id to send, by call id
        self._answer: list[LogRow] = []  # the messages with these calls, not put yet
        self._replaced_ids: dict[str, str] = {}  # of the calls in them
        self._has_result = False  # whether one has come for these calls
        self._late_results: dict[tuple[str, int], LogRow] = {}  # by id of the call and its seq
        self._expected: dict[str, LogRow] = {}  # the late ones of the open calls
        self._placed: set[int] = set()  # the late ones next to their calls
        self._late_texts: list[LogRow] = []  # those that wait for the end of a call group
        self._has_first_message = False
        self._newest_role: Role | None = None
        self._seqs: list[int] = []  # of the rows so far
        self._item_counts: list[int] = []  # how many items there were with each
        self._stable_items: list[bytes] = []
        self._hash = hashlib.sha256()
        self._summary_texts = self.view.summary_texts()
        self._calls: dict[str, Raw] = {}  # fields of rendered calls, by sent id
        self._sent_ids: dict[str, str] = {}  # by the id to send: that in the rendered call
        self._apart: list[Wire] = []  # media of results, sent after the open call group
        self._item_ids: set[str] = set()
        self._has_leading = False
        self._has_item = self.view.sent_item is None
        self._rows_before_item: list[LogRow] = []
        self._held: LogRow | None = None
        self._positions: list[BreakpointPosition] = []
        self._fixed_positions: list[BreakpointPosition] = []
        # By row: how many stable items, positions, fixed positions, tokens and sealed tokens.
        self._counts: list[tuple[int, int, int, int, int]] = []

    def add(self, row: LogRow) -> None:
        """Render one row. Call it once for each row that the view shows, in log order."""
        self._put_changes(row.seq)
        item = self.view.sent_item
        if item is not None and not self._has_item:
            if row.seq < item.seq:
                self._rows_before_item.append(row)
                return
            if row.seq == item.seq:
                self._put_provider_item(row, item)
            self._add_rows_before_item()
        self._add(row)

    def copied(self) -> Assembler:
        """Return a copy to which rows can be added apart."""
        other = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict | list | set):
                setattr(other, name, copy(value))
        other._hash = self._hash.copy()
        return other

    def _put_provider_item(self, row: LogRow, item: ProviderItem) -> None:
        """Begin with the provider's item of a row (rule 8)."""
        part = reasoning.last_compaction(row.message())
        if part is None or part.block is None:
            return
        block = dict(part.block)
        self.summary_tokens += self._tokens_of(
            lambda: self._put(Role.ASSISTANT, [block], item.tokens)
        )
        self._has_first_message = True

    def _tokens_of(self, put: Callable[[], None]) -> int:
        """Add something whose tokens are not those of the history, and return them."""
        before = self.tokens
        put()
        added, self.tokens = self.tokens - before, before
        return added

    def _add_rows_before_item(self) -> None:
        rows, self._rows_before_item, self._has_item = self._rows_before_item, [], True
        for row in rows:
            self._add(row)

    def _add(self, row: LogRow) -> None:
        row = self._with_held(row)
        self._put_opening()
        if self._summary_texts:
            hidden = self.view.hidden
            if hidden is None or row.seq >= hidden.start:
                self._put_summary()
        is_held = self._hold_back(row)
        if not self._has_first_message and row.role is Role.ASSISTANT:
            self._put_first_note(row)
            self._has_first_message = True
        if is_held:
            self._record_cost(row, 0)
        elif row.role is Role.TOOL:
            self._add_tool_row(row)
        else:
            if not self._goes_on(row):
                self._end_group()
            if row.role is not Role.SYSTEM or not self.provider.takes_system:
                self._has_first_message = True
            if self._sends_nothing(row):
                self._record_cost(row, 0)
            else:
                self._add_message(row)
            self.has_calls = self.has_calls or bool(row.call_ids)
        if row.reasoning_tokens:
            if row.seq > self.view.reasoning_after:
                self.has_reasoning = True
            elif not self.drops_reasoning:
                self.drops_reasoning = self._is_own_reasoning(row)
        self.rendered_through = row.seq
        self._newest_role = row.role
        self.size_bytes += len(row.text)
        self._record_point(row.seq)

    def _with_held(self, row: LogRow) -> LogRow:
        """Return a row with the reasoning that was held back before it (rule 9)."""
        held, self._held = self._held, None
        if held is None:
            return row
        if row.role is not Role.ASSISTANT or row.format is not held.format:
            self.drops_reasoning = self.drops_reasoning or self._is_own_reasoning(held)
            return row
        tokens = row.reasoning_tokens + held.reasoning_tokens
        return replace(row, earlier_reasoning=held.earlier_reasoning, reasoning_tokens=tokens)

    def _hold_back(self, row: LogRow) -> bool:
        """Hold back reasoning at the end of a row (rule 9); return whether that is all of it."""
        if not row.reasoning_tokens or row.call_ids or may_have_compaction(row):
            return False
        message = row.message()
        parts = message.parts
        back = takewhile(lambda part: isinstance(part, Reasoning), reversed(parts))
        ending = tuple(part for part in back if isinstance(part, Reasoning))[::-1]
        is_all = len(ending) == len(parts) and message.block is None
        is_held = ending and (is_all or not self.provider.ends_with_reasoning)
        if is_held and row.seq > self.view.reasoning_after:
            tokens = count_reasoning(replace(message, parts=ending), self.count)
            self._held = replace(row, earlier_reasoning=ending, reasoning_tokens=tokens)
        return is_all

    def _sends_nothing(self, row: LogRow) -> bool:
        """Whether a row adds nothing here, like a compaction item or another format's settings."""
        if row.format is not self.format and any(kind in row.text for kind in _CONFIGURATIONS):
            return is_configuration(row.message())
        if not may_have_compaction(row):
            return False
        rest = self._without_compactions(row)
        return rest is None or all(isinstance(part, Reasoning) for part in rest.parts)

    def _put_first_note(self, row: LogRow) -> None:
        """Begin with a note, because this row of the assistant is the first (rule 4)."""
        has_item = may_have_compaction(row) and reasoning.last_compaction(row.message())
        self._put_notes([WINDOW_NOTE if has_item or self.view.cuts_the_start else START_NOTE])

    # --- call groups ------------------------------------------------------------------------------

    def expect(self, rows: Sequence[LogRow]) -> None:
        """Find the results that come late in these rows; call it before the rows are added."""
        called: dict[str, tuple[int, int]] = {}  # the seqs of the call and of its group
        group_seq = 0
        for row in rows:
            if row.seq > self.view.late_through:
                break
            if row.role is not Role.TOOL:
                group_seq = group_seq if row.joins else row.seq
                called |= dict.fromkeys(row.call_ids, (row.seq, group_seq))
                continue
            seq, of_group = called.pop(row.call_ids[0], (0, group_seq))
            if of_group != group_seq:
                self._late_results[row.call_ids[0], seq] = row

    def _goes_on(self, row: LogRow) -> bool:
        """Whether a message that belongs to the call group before can stand in it."""
        repeats = not self._open_calls.keys().isdisjoint(row.call_ids)
        is_next = self._has_result or row.role is Role.USER or repeats
        return row.joins and not (self._open_calls and is_next)

    def _add_tool_row(self, row: LogRow) -> None:
        if row.call_ids[0] in self._open_calls:
            self._put_answer()
            self._has_result = True
            self._add_result(row, self._open_calls.pop(row.call_ids[0]))
        elif row.seq not in self._placed:
            self._late_texts.append(row)
            if not self._waits:
                self._end_group()

    @property
    def _waits(self) -> bool:
        """Whether results have to come before any text."""
        return bool(self._open_calls)

    def _end_group(self) -> None:
        """End the last call group: what comes now does not belong to it."""
        self._close_calls()

    def _close_calls(self) -> None:
        """Answer the open calls: by late results, or by the note that there is none."""
        self._put_answer()
        for call_id, wire_id in self._open_calls.items():
            if (late := self._expected.get(call_id)) is not None:
                self._placed.add(late.seq)
                self._add_result(late, wire_id)
            else:
                self._put_result(wire_id)
        self._open_calls.clear()
        self._expected.clear()
        self._has_result = False
        self._finish_group()
        if not self._waits:
            rows, self._late_texts = self._late_texts, []
            for row in rows:
                self._put_late_text(row)

    def _put_answer(self) -> None:
        """Put the messages of the assistant with the open calls, as one."""
        rows, self._answer = self._answer, []
        if not rows:
            return
        self._put_row(rows[0] if len(rows) == 1 else joined_row(rows), self._replaced_ids)
        self._replaced_ids = {}
        for index in range(bisect_left(self._seqs, rows[0].seq), len(self._seqs)):
            self._item_counts[index] = self._item_count

    def _put_late_text(self, row: LogRow) -> None:
        """Put a result as text of the user, where it came."""
        if self._is_cleared(row):
            shown = Message(Role.TOOL, (Text(self._placeholder(row)),))
        else:
            shown = self._message_with_media(row)
        shown = replace(shown, tool_call_id=row.call_ids[0])
        message = LOG_PROVIDER.adapt(Message(Role.USER, media.labelled_result(shown)))
        tokens = count_visible(message, self.count)
        text = json_text.dump_payload(LOG_PROVIDER.wire(message))
        user = LogRow(row.id, row.seq, Role.USER, tokens, 0, (), True, LOG_FORMAT, text)
        self._has_first_message = True
        self._put_row(user, {})
        self.costs_by_seq[row.seq] = tokens

    def _add_message(self, row: LogRow) -> None:
        for call_id in row.call_ids:
            wire_id = self._unique_id(call_id)
            self._open_calls[call_id] = wire_id
            self._replaced_ids |= replaced_id(call_id, wire_id)
            if (late := self._late_results.get((call_id, row.seq))) is not None:
                self._expected[call_id] = late
        self._answer.append(row)
        if not (self.provider.joins_answers and self._open_calls):
            self._put_answer()

    def _unique_id(self, call_id: str) -> str:
        """Return the id to send: valid, unique in the payload, the original where possible."""
        form = short_id if reasoning.MISTRAL in self.view.reasoning_of else self.provider.call_id
        wire_id, number = form(call_id), 1
        while wire_id in self._used_ids:
            number += 1
            wire_id = form(f"{call_id}\0{number}")
        self._used_ids.add(wire_id)
        return wire_id

    def _add_result(self, row: LogRow, wire_id: str) -> None:
        if self._is_cleared(row):
            self._put_result(wire_id, self._placeholder(row))
        else:
            self._put_row(row, self._result_ids(row.call_ids[0], wire_id))
        if not self._open_calls:
            self._finish_group()

    def _result_ids(self, call_id: str, wire_id: str) -> dict[str, str]:
        return replaced_id(call_id, wire_id)

    # --- items ------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Render what follows the last row: a summary of everything before, and changes."""
        self._put_beginning()
        self._put_changes()

    def _put_beginning(self) -> None:
        self._add_rows_before_item()
        self._put_opening()
        if self._summary_texts:
            self._put_summary()

    def _put_changes(self, next_seq: int | None = None) -> None:
        """Put the changes that stand before the next row, by default all (rule 10)."""
        while self.placed < len(self.changes):
            change = self.changes[self.placed]
            if next_seq is not None and change.after_seq >= next_seq:
                return
            self.placed += 1
            self._put_beginning()  # the build that made the change had it
            is_open = self._waits or self._newest_role in (None, Role.ASSISTANT)
            self.misplaced = self.misplaced or is_open
            if change.items:
                self._tokens_of(partial(self._put_change, change.items))

    @property
    def stable_items(self) -> int:
        """How many items will not change."""
        return len(self._stable_items)

    @property
    def _item_count(self) -> int:
        return self.stable_items

    def point_at(self, seq: int) -> StablePoint | None:
        """Return the point that a payload up to this seq reached, None before the first row."""
        if (index := bisect_right(self._seqs, seq)) == 0:
            return None
        stable_items, position_count, fixed_count, _, _ = self._counts[index - 1]
        return StablePoint(stable_items, self._breakpoints(position_count, fixed_count))

    def tokens_at(self, seq: int) -> tuple[int, int]:
        """Return the tokens of the history up to this seq, and those of them that are sealed."""
        index = bisect_right(self._seqs, seq)
        return self._counts[index - 1][3:] if index else (0, 0)

    def seq_of(self, item_index: int) -> int | None:
        """Return the seq of the last row in this item, None for what stands before all rows."""
        after = bisect_right(self._item_counts, item_index) - self.open_items
        return (self._seqs[after] or None) if 0 <= after < len(self._seqs) else None

    def _record_point(self, seq: int) -> None:
        self._seqs.append(seq)
        self._item_counts.append(self._item_count)
        positions = len(self._positions), len(self._fixed_positions)
        self._counts.append((self.stable_items, *positions, self.tokens, self.sealed_tokens))

    def _breakpoints(self, position_count: int, fixed_count: int) -> tuple[BreakpointPosition, ...]:
        """Return the breakpoints, newest first, of a payload with only the first positions."""
        start = max(0, position_count - self.newest_breakpoints)
        newest = self._positions[start:position_count]
        fixed = self._fixed_positions[max(0, fixed_count - MAX_BREAKPOINTS) : fixed_count]
        return tuple(sorted({*newest, *fixed}, reverse=True)[:MAX_BREAKPOINTS])

    def _append(self, item: bytes) -> None:
        """Add an item that will not change."""
        self._stable_items.append(item)
        self._hash.update(item)

    def _put_opening(self) -> None:
        if self._has_leading:
            return
        self._has_leading = True
        had_first_message = self._has_first_message
        self.leading_tokens = self._tokens_of(
            lambda: self._put_notes(self.leading.texts, as_system=self.leading.as_system)
        )
        if self.leading.as_system and self.provider.takes_system:
            # The conversation still has to begin with the user.
            self._has_first_message = had_first_message

    def _put_summary(self) -> None:
        texts, self._summary_texts = self._summary_texts, ()
        self._end_group()
        self.summary_tokens += self._tokens_of(
            lambda: self._put_notes(texts, as_system=self.view.summary_as_system)
        )
        # Every payload of this view that has the last row before the summary has the summary too.
        self._record_point(self._seqs[-1] if self._seqs else 0)

    def _put_notes(self, texts: Sequence[str], *, as_system: bool = False) -> None:
        """Add texts of the service, as the system's or the user's."""
        role = Role.SYSTEM if as_system and self.provider.takes_system else Role.USER
        for text in texts:
            self._has_first_message = True
            pieces = self.provider.render(Message(role, (Text(text),)))
            self._put(role, pieces, MESSAGE_OVERHEAD + self.count(text))

    def _put_row(self, row: LogRow, ids: Mapping[str, str]) -> None:
        stored, accepts = self._message(row), self.view.reasoning_of
        prepared = self._prepared(stored)
        message = self.provider.without_foreign(prepared, accepts)
        is_own = row.format is self.format
        replays = is_own and row.seq > self.view.reasoning_after and message is prepared
        shown = self.provider.for_payload(message, ids, replays=replays, accepts=accepts)
        shown = self.provider.without_repeated_ids(shown, self._item_ids)
        shown, pieces = self._rendered(shown)
        self.sealed_tokens += count_sealed(shown, self.format, self.count)
        self._keep_calls(row, shown, self.provider.rendered_calls(pieces))
        is_stored = (
            not (ids or row.needs_body or self._is_rewritten(row) or self._is_reshaped(shown))
            and message is stored
            and not (self.provider.names_family and row.reasoning_tokens)  # which is apart
            and counts_as_stored(message, shown, self.format)
        )
        tokens = row.tokens if is_stored else self._counted(shown, pieces)
        replayed = row.reasoning_tokens if is_own else 0
        replayed = count_replayed(replayed, stored, shown, self.count, self.format)
        replayed += self._completed(row, pieces)
        tokens = self._record_cost(row, tokens, replayed)
        if row.role is Role.TOOL:
            self._put_tool_result(shown.tool_call_id or "", pieces, tokens)
        else:
            self._put(row.role, pieces, tokens)

    def _put_result(self, wire_id: str, text: str = NO_RESULT) -> None:
        """Answer a call with a text, by default with the note that it has no result."""
        message = Message(Role.TOOL, (Text(text),), self._sent_ids.get(wire_id, wire_id))
        shown, pieces = self._rendered(message)
        self._put_tool_result(shown.tool_call_id or "", pieces, self._counted(shown, pieces))

    def _rendered(self, shown: Message) -> tuple[Message, list[Wire]]:
        """Return a message and its items; a result gets the fields that follow from its call."""
        call = self._calls.get(shown.tool_call_id or "")
        shown = self.provider.linked(shown, call)
        return shown, self.provider.render(shown, call)

    def _is_reshaped(self, shown: Message) -> bool:
        return self.provider.is_reshaped(self._calls.get(shown.tool_call_id or ""))

    def _counted(self, shown: Message, pieces: Sequence[Wire]) -> int:
        """Count a rendered message. Some types of results have no place for texts."""
        if self._is_reshaped(shown):
            (shown,) = self.provider.parse(pieces[0], "")
        overhead = media_overhead(self.format, shown, self.count)
        return count_visible(shown, self.count, self.format) + overhead

    def _keep_calls(self, row: LogRow, shown: Message, rendered: Sequence[Raw]) -> None:
        """Remember what the results of rendered calls have to know."""
        for call_id, call, fields in zip(row.call_ids, shown.calls, rendered, strict=False):
            self._calls[call.id] = fields
            self._sent_ids[self._open_calls.get(call_id, "")] = call.id

    def _put_tool_result(self, call_id: str, pieces: Sequence[Wire], tokens: int) -> None:
        """Add a result; its media that are sent in a message of their own come after the group."""
        self._put(Role.TOOL, pieces[:1], tokens)
        self._apart += pieces[1:]

    def _finish_group(self) -> None:
        apart, self._apart = self._apart, []
        if apart:  # the counts of the results include it
            overhead = 0 if self.provider.sends_apart_message else MESSAGE_OVERHEAD
            self._put(Role.USER, apart, overhead)

    def _prepared(self, message: Message) -> Message:
        """Return a stored message with what this payload cannot show replaced."""
        return message

    def _completed(self, row: LogRow, pieces: Sequence[Wire]) -> int:
        """Complete a rendered message by what its model demands; return the added tokens."""
        return 0

    @abstractmethod
    def _put_change(self, pieces: Sequence[Wire]) -> None:
        """Add a change as part of the last row; its tokens are not those of the history."""

    @abstractmethod
    def _put(self, role: Role, pieces: Sequence[Wire], tokens: int) -> None:
        """Add the pieces of a message; `tokens` has the overhead of one."""

    def items(self, tail: DynamicTexts = NO_DYNAMIC_TEXTS) -> PayloadItems:
        """Return the items of the rows so far, open calls closed, and a tail.

        More rows can be added afterwards. A tail is left out where nothing may follow.
        """
        closed = self
        if self._open_calls or self._late_texts:
            closed = self.copied()
            closed._close_calls()
        wire_items, tokens, tail_items, tail_tokens = closed._with_tail(tail)
        return PayloadItems(
            wire_items=wire_items,
            stable_items=self.stable_items,
            tokens=tokens,
            sealed_tokens=closed.sealed_tokens,
            summary_tokens=self.summary_tokens,
            prefix_digest=self._hash.hexdigest(),
            rendered_through=self.rendered_through,
            has_calls=self.has_calls,
            breakpoints=self._breakpoints(len(self._positions), len(self._fixed_positions)),
            mentions=tuple(sorted(closed.mentions)),
            references=tuple(sorted(closed.references)),
            tail_items=tail_items,
            leading_tokens=self.leading_tokens,
            tail_tokens=tail_tokens,
        )

    @abstractmethod
    def _with_tail(self, tail: DynamicTexts) -> tuple[list[bytes], int, int, int]:
        """Return all items and their tokens, how many are the tail's, and the tokens of it."""


def replaced_id(call_id: str, wire_id: str) -> dict[str, str]:
    """Map a call's id, as in the log and as in its chat item, to another id to send."""
    return {call_id: wire_id, sendable_id(call_id): wire_id} if wire_id != call_id else {}
