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
10. Stable items and breakpoints are known after every row, so that a caller who has an earlier
   payload needs only new items.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, ClassVar

from app.blobs.preview import READ_LINES, placeholder
from app.blobs.stored_output import StoredOutput, inline_output, message_ref, without_tool_names
from app.common import json_text
from app.conversations.messages.row import JoinedRow, LogRow
from app.conversations.sent_media import MEDIA_WORDS, SentMedia, media_in, without_media
from app.conversations.text_shortening import shortened_preview
from app.conversations.turns import MAX_PLACEHOLDER_TOKENS
from app.conversations.view import ProviderItem, ShortenedMessage, View
from app.formats import PROVIDERS, compactions, labels
from app.formats.base import Provider
from app.formats.message import (
    EMPTY_MESSAGE,
    LOG_FORMAT,
    NO_RESULT,
    Message,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
)
from app.formats.openai_chat.reasoning_conversion import convert_reasoning
from app.formats.openai_chat.reasoning_fields import is_replayed
from app.formats.openai_responses.items import CONFIGURATION, is_configuration
from app.formats.reasoning_families import MISTRAL
from app.formats.registry import openai_chat
from app.formats.tool_calls import sendable_id, short_id
from app.models.tokens import (
    CountText,
    count_reasoning,
    count_sealed,
    count_visible,
    counts_as_stored,
    signed_parts,
)
from app.payload.payload_items import BreakpointPosition, PayloadItems, StablePoint
from app.policy.policy import AGENT_TOOL_NAMES
from app.prompt.sections import NO_DYNAMIC_TEXTS, DynamicTexts

ALL_TOOLS = frozenset(AGENT_TOOL_NAMES)
NO_NAMES: frozenset[str] = frozenset()
WINDOW_NOTE = "[Earlier messages are not shown.]"
START_NOTE = "[The conversation starts here.]"
CONTINUE_NOTE = "[Continue.]"
MAX_NOT_CARRIED = 16
"""How many types of content a payload lists as not carried."""
_CONFIGURATION = f'"{CONFIGURATION}"'.encode()
_COMPACTION_TYPE = f'"{compactions.COMPACTION}"'.encode()
MAX_BREAKPOINTS = 4
"""How many cache breakpoints providers take in a payload."""


def placeholder_of(row: LogRow, *, names_tool: bool = True) -> str:
    """Return the placeholder of a cleared tool result."""
    output = output_of(row)
    return placeholder(output.ref_in(row.id, row.seq).id, output.byte_size, named=names_tool)


def output_of(row: LogRow) -> StoredOutput:
    """Return how a row shows its tool result, whole by default."""
    if (output := row.output) is not None:
        return output
    return inline_output(row.message())


@dataclass(eq=False)
class Assembler(ABC):
    """Renders rows into the items of one payload, and counts their `tokens`.

    Its text may name the agent tools in `mentionable_tools`; `mentions` are those that it would
    name if it could.
    `defined_tools` are the tools that the payload defines, `references` those of them that a search
    result refers to. `opening` is the dynamic text before the history.
    """

    takes_system_notes: ClassVar[bool] = False
    """Whether the format takes system text inside a conversation."""
    joins_answers: ClassVar[bool] = True
    """Whether messages of one answer are joined, because results have to follow their calls."""
    open_items: ClassVar[int] = 0
    """How many items, after the stable ones, a row may add to."""
    ends_with_reasoning: ClassVar[bool] = False
    """Whether a message may end with reasoning behind something else."""
    linked_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of a call that its result has to have, too."""
    newest_breakpoints: ClassVar[int] = 1
    """How many of the newest breakpoint positions are used beside the fixed ones."""

    provider: Provider
    view: View
    count: CountText
    mentionable_tools: Collection[str] = ALL_TOOLS
    opening: DynamicTexts = NO_DYNAMIC_TEXTS
    defined_tools: Collection[str] = NO_NAMES
    mentions: set[str] = field(default_factory=set, init=False)
    references: set[str] = field(default_factory=set, init=False)
    opening_tokens: int = field(default=0, init=False)
    tokens: int = field(default=0, init=False)
    summary_tokens: int = field(default=0, init=False)
    rendered_through: int = field(default=0, init=False)
    size_bytes: int = field(default=0, init=False)
    has_calls: bool = field(default=False, init=False)
    has_reasoning: bool = field(default=False, init=False)
    drops_reasoning: bool = field(default=False, init=False)
    """Whether a shown message has reasoning of the model's own family that is not replayed."""
    sealed_tokens: int = field(default=0, init=False)
    """Those of the tokens that are of reasoning and sealed text."""
    costs_by_seq: dict[int, int] = field(default_factory=dict, init=False)
    """The tokens of messages whose items cost another number than their stored count."""
    media: list[SentMedia] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.format = self.provider.name
        self._stable_items: list[bytes] = []
        self._hash = hashlib.sha256()
        self._not_carried: dict[str, None] = {}
        self._used_ids: set[str] = set()
        self._open_calls: dict[str, str] = {}  # the id to send, by call id
        self._answer: list[LogRow] = []  # the messages with these calls, not put yet
        self._replaced_ids: dict[str, str] = {}  # of the calls in them
        self._has_result = False  # whether one has come for these calls
        self._late_results: dict[tuple[str, int], LogRow] = {}  # by id of the call and its seq
        self._expected: dict[str, LogRow] = {}  # the late ones of the open calls
        self._placed: set[int] = set()  # the late ones next to their calls
        self._late_texts: list[LogRow] = []  # those that wait for the end of a call group
        self._linked: dict[str, dict[str, Any]] = {}  # by the id to send
        self._summary_texts = self.view.summary_texts()
        self._shortened_by_seq = {shortened.seq: shortened for shortened in self.view.shortened}
        self._has_first_message = False
        self._has_opening = False
        self._has_item = self.view.sent_item is None
        self._rows_before_item: list[LogRow] = []
        self._held: LogRow | None = None
        self._positions: list[BreakpointPosition] = []
        self._fixed_positions: list[BreakpointPosition] = []
        # By row: its seq, and how many stable items, positions, fixed positions, tokens and sealed
        # tokens there were then.
        self._seqs: list[int] = []
        self._counts: list[tuple[int, int, int, int, int]] = []
        self._item_counts: list[int] = []  # how many items there were with the row

    def expect(self, rows: Sequence[LogRow]) -> None:
        """Take note of results that come late in these rows, which are added afterwards."""
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

    def add(self, row: LogRow) -> None:
        """Render one row. Call it once for each row that the view shows, in log order."""
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
        part = compactions.last_compaction(row.message())
        if part is None or part.block is None:
            return
        tokens_before = self.tokens
        self._put_compaction(part.block, item.tokens)
        self.summary_tokens += self.tokens - tokens_before
        self.tokens = tokens_before
        self._has_first_message = True

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
            if row.role is not Role.SYSTEM or not self.takes_system_notes:
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
        self.size_bytes += len(row.text)
        self._record_point(row.seq)

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

    def _with_held(self, row: LogRow) -> LogRow:
        """Return a row with the reasoning that was held back before it (rule 9)."""
        held, self._held = self._held, None
        if held is None:
            return row
        if row.role is not Role.ASSISTANT or row.format is not held.format:
            self.drops_reasoning = self.drops_reasoning or self._is_own_reasoning(held)
            return row
        tokens = row.reasoning_tokens + held.reasoning_tokens
        return replace(row, lead=held.lead, reasoning_tokens=tokens)

    def _hold_back(self, row: LogRow) -> bool:
        """Hold back reasoning at the end of a row (rule 9); return whether that is all of it."""
        if not row.reasoning_tokens or row.call_ids or _may_have_compaction(row):
            return False
        message = row.message()
        parts = message.parts
        back = takewhile(lambda part: isinstance(part, Reasoning), reversed(parts))
        ending = tuple(part for part in back if isinstance(part, Reasoning))[::-1]
        is_all = len(ending) == len(parts) and message.block is None
        is_held = ending and (is_all or not self.ends_with_reasoning)
        if is_held and row.seq > self.view.reasoning_after:
            tokens = count_reasoning(replace(message, parts=ending), self.count)
            self._held = replace(row, lead=ending, reasoning_tokens=tokens)
        return is_all

    def _sends_nothing(self, row: LogRow) -> bool:
        """Whether a row has nothing for this payload: a compaction, another format's settings."""
        if row.format is not self.format and _CONFIGURATION in row.text:
            return is_configuration(row.message())
        if not _may_have_compaction(row):
            return False
        rest = self._without_compactions(row)
        return rest is None or all(isinstance(part, Reasoning) for part in rest.parts)

    def _put_first_note(self, row: LogRow) -> None:
        """Begin with a note, because this row of the assistant is the first (rule 4)."""
        has_item = _may_have_compaction(row) and compactions.last_compaction(row.message())
        if has_item:  # nothing shows what it stands for
            self._not_carried[compactions.COMPACTION] = None
        self._put_note(WINDOW_NOTE if has_item or self.view.cuts_the_start else START_NOTE)

    def finish(self) -> None:
        """Render what follows the last row: a summary of everything before."""
        self._add_rows_before_item()
        self._put_opening()
        if self._summary_texts:
            self._put_summary()

    @property
    def stable_items(self) -> int:
        """How many items will not change."""
        return len(self._stable_items)

    @property
    def _item_count(self) -> int:
        """How many items are complete: the stable ones, and those that wait for a result."""
        return self.stable_items

    def point_at(self, seq: int) -> StablePoint | None:
        """Return the point that a payload up to this seq reached, None before the first row."""
        index = bisect_right(self._seqs, seq) - 1
        if index < 0:
            return None
        stable_items, position_count, fixed_count, _, _ = self._counts[index]
        return StablePoint(stable_items, self._breakpoints(position_count, fixed_count))

    def tokens_at(self, seq: int) -> tuple[int, int]:
        """Return the tokens of the history up to this seq, and those of them that are sealed."""
        index = bisect_right(self._seqs, seq) - 1
        return self._counts[index][3:] if index >= 0 else (0, 0)

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
        if self._has_opening:
            return
        self._has_opening = True
        tokens_before, had_first_message = self.tokens, self._has_first_message
        for text in self.opening.texts:
            self._put_note(text, as_system=self.opening.as_system)
        if self.opening.as_system and self.takes_system_notes:
            # The conversation still has to begin with the user.
            self._has_first_message = had_first_message
        self.opening_tokens = self.tokens - tokens_before
        self.tokens = tokens_before

    def _put_summary(self) -> None:
        texts, self._summary_texts = self._summary_texts, ()
        self._end_group()
        tokens_before = self.tokens
        for text in texts:
            self._put_note(text, as_system=self.view.summary_as_system)
        self.summary_tokens += self.tokens - tokens_before
        self.tokens = tokens_before
        # Every payload of this view that has the last row before the summary has the summary too.
        self._record_point(self._seqs[-1] if self._seqs else 0)

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
        self._put_row(rows[0] if len(rows) == 1 else JoinedRow(rows), self._replaced_ids)
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
        message = openai_chat.adapt(Message(Role.USER, labels.labelled_result(shown)))
        tokens = count_visible(message, self.count)
        text = json_text.dump_payload(openai_chat.render(message))
        user = LogRow(row.id, row.seq, Role.USER, tokens, 0, (), True, LOG_FORMAT, text)
        self._has_first_message = True
        self._put_row(user, {})
        self.costs_by_seq[row.seq] = tokens

    def _is_cleared(self, row: LogRow) -> bool:
        return row.tokens > MAX_PLACEHOLDER_TOKENS and self.view.clears_result(row.seq)

    def _placeholder(self, row: LogRow) -> str:
        self.mentions.add(READ_LINES)
        return placeholder_of(row, names_tool=READ_LINES in self.mentionable_tools)

    def _is_rewritten(self, row: LogRow) -> bool:
        """Whether a row is not shown as it is stored, and so counted again.

        The names of tools leave its preview (rule 5), its text is shortened, or it loses what a
        compaction item in it stands for (rule 8).
        """
        if row.seq in self._shortened_by_seq or self._has_sent_item(row):
            return True
        if self.view.cuts_media(row.seq) and may_have_media(row):
            return True
        output = row.output
        if output is None or not output.mentions:
            return False
        self.mentions.update(output.mentions)
        return any(name not in self.mentionable_tools for name in output.mentions)

    def _message(self, row: LogRow) -> Message:
        """Return a row's message as it is shown."""
        if isinstance(row, JoinedRow):
            messages = [self._message(each) for each in row.rows]
            joined = [p for each in messages for p in each.parts if p != Text(EMPTY_MESSAGE)]
            joined.sort(key=lambda part: isinstance(part, ToolCall))  # texts precede calls
            first = next((each for each in messages if each.block is not None), messages[0])
            return replace(first, parts=tuple(joined))
        message = self._message_with_media(row)
        cut = self.view.media_cut
        if cut is not None and row.seq <= cut.seq:
            ref = row.output.ref_in(row.id, row.seq).id if row.output else None
            count = cut.count if row.seq == cut.seq else len(message.parts)
            message = without_media(message, count, ref or message_ref(row.id, row.seq))
        self.media += media_in(row.seq, message)
        return message

    def _message_with_media(self, row: LogRow) -> Message:
        if (shortened := self._shortened_by_seq.get(row.seq)) is not None:
            return self._shortened(row, shortened)
        message = self._sent_message(row)
        if self._has_sent_item(row):
            return message
        return _without_tool_names(message, output_of(row)) if self._is_rewritten(row) else message

    def _has_sent_item(self, row: LogRow) -> bool:
        item = self.view.sent_item
        return item is not None and row.seq == item.seq

    def _sent_message(self, row: LogRow) -> Message:
        if not _may_have_compaction(row):
            return row.message()
        return self._without_compactions(row) or row.message()

    def _without_compactions(self, row: LogRow) -> Message | None:
        """Return a message without compactions, None where nothing else is in it (rule 8)."""
        message = row.message()
        if self._has_sent_item(row):
            return compactions.after_compaction(message)
        return compactions.without_compactions(self._unbound(row, message))

    def _unbound(self, row: LogRow, message: Message) -> Message:
        """Return a message as it is accepted without the compactions in it."""
        return message

    def _shortened(self, row: LogRow, shortened: ShortenedMessage) -> Message:
        """Return a message with the middle of its texts left out (rule 5)."""
        message, ref = self._sent_message(row), message_ref(row.id, row.seq)
        preview = shortened_preview(message, shortened, ref)
        self.mentions.update(preview.mentions)
        if all(name in self.mentionable_tools for name in preview.mentions):
            return preview.message
        return shortened_preview(message, shortened, ref, named=False).message

    def _with_converted_reasoning(self, row: LogRow, message: Message) -> Message:
        """Return a message with reasoning that came in the Chat format in this format's form."""
        if not (row.reasoning_tokens and PROVIDERS[row.format].names_family):
            return message
        accepts = self.view.reasoning_of if row.seq > self.view.reasoning_after else ()
        return convert_reasoning(message, self.format, accepts)

    def _is_own_reasoning(self, row: LogRow) -> bool:
        """Whether the model would take the reasoning of a message."""
        message = row.message()
        if row.format is self.format and not self.provider.names_family:
            return any(part.format is self.format for part in signed_parts(message))
        return is_replayed(message, self.view.reasoning_of)

    def _visible_tokens(
        self, row: LogRow, message: Message, shown: Message, *, is_changed: bool
    ) -> int:
        """Return the tokens of a row without reasoning: the stored count where that still holds.

        `message` is sent as `shown`; with `is_changed` it is not the stored one.
        """
        is_same = not (is_changed or row.has_media or self._is_rewritten(row))
        if is_same and counts_as_stored(message, shown, self.format):
            return row.tokens
        return count_visible(shown, self.count, self.format)

    def _record_cost(self, row: LogRow, visible: int, reasoning: int = 0) -> int:
        """Record what the items of a row cost, and return it."""
        self.sealed_tokens += reasoning
        tokens = visible + reasoning
        if tokens != row.tokens:
            others = row.rows[1:] if isinstance(row, JoinedRow) else ()
            self.costs_by_seq[row.seq] = tokens - sum(other.tokens for other in others)
        return tokens

    def _record_content(self, shown: Message) -> None:
        """Count the sealed text of a shown message, and collect the types that labels stand for."""
        self.sealed_tokens += count_sealed(shown, self.format, self.count)
        for part in shown.parts:
            if isinstance(part, Text) and part.stands_for and part.format is not self.format:
                for kind in part.stands_for:
                    if len(self._not_carried) < MAX_NOT_CARRIED:
                        self._not_carried[kind] = None

    def _add_message(self, row: LogRow) -> None:
        for call_id in row.call_ids:
            wire_id = self._unique_id(call_id)
            self._open_calls[call_id] = wire_id
            self._replaced_ids |= replaced_id(call_id, wire_id)
            if (late := self._late_results.get((call_id, row.seq))) is not None:
                self._expected[call_id] = late
        self._answer.append(row)
        if not (self.joins_answers and self._open_calls):
            self._put_answer()

    def _unique_id(self, call_id: str) -> str:
        """Return the id to send: valid, unique in the payload, the original where possible."""
        form = short_id if MISTRAL in self.view.reasoning_of else sendable_id
        wire_id, number = form(call_id), 1
        while wire_id in self._used_ids:
            number += 1
            wire_id = form(f"{call_id}\0{number}")
        self._used_ids.add(wire_id)
        return wire_id

    def _link(self, call_id: str, call: Mapping[str, Any]) -> None:
        """Remember the fields of a rendered call that its result has to have."""
        if fields := {key: call[key] for key in self.linked_fields if call.get(key)}:
            self._linked[call_id] = fields

    def _with_linked(self, message: Message) -> Message:
        """Return an adapted result with the fields of its call."""
        linked = self._linked.get(message.tool_call_id or "")
        if linked is None:
            return message
        own = message.block if message.format is self.format else None
        return replace(message, block={**linked, **(own or {})}, format=self.format)

    def _add_result(self, row: LogRow, wire_id: str) -> None:
        if self._is_cleared(row):
            self._put_result(wire_id, self._placeholder(row))
        else:
            self._put_row(row, replaced_id(row.call_ids[0], wire_id))

    @abstractmethod
    def _put_row(self, row: LogRow, ids: Mapping[str, str]) -> None:
        """Add a row; `ids` replaces call ids."""

    def _put_compaction(self, block: Mapping[str, Any], tokens: int) -> None:
        """Add a provider's compaction item, which only some formats have."""
        raise NotImplementedError(f"{self.format} has no compaction items")

    @abstractmethod
    def _put_note(self, text: str, *, as_system: bool = False) -> None:
        """Add a text of the service, as the system's or the user's."""

    @abstractmethod
    def _put_result(self, wire_id: str, text: str = NO_RESULT) -> None:
        """Answer a call with a text, by default with the note that it has no result."""

    def _finish_group(self) -> None:  # noqa: B027  # most formats need nothing
        """Add what follows all results of a call group."""

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
            opening_tokens=self.opening_tokens,
            tail_tokens=tail_tokens,
            not_carried=tuple(closed._not_carried),
        )

    @abstractmethod
    def _with_tail(self, tail: DynamicTexts) -> tuple[list[bytes], int, int, int]:
        """Return all items and their tokens, how many are the tail's, and the tokens of it."""


def may_have_media(row: LogRow) -> bool:
    """Whether media may be in a row, by the words in its text."""
    return any(word in row.text for word in MEDIA_WORDS)


def _may_have_compaction(row: LogRow) -> bool:
    return (
        row.role is Role.ASSISTANT
        and row.format in compactions.CONTENT_KEYS
        and _COMPACTION_TYPE in row.text
    )


def replaced_id(call_id: str, wire_id: str) -> dict[str, str]:
    """Map a call's id, as in the log and as in its chat item, to another id to send."""
    if wire_id == call_id:
        return {}
    return {call_id: wire_id, sendable_id(call_id): wire_id}


def _without_tool_names(message: Message, output: StoredOutput) -> Message:
    """Return a truncated result whose note, at the end of its last text, names no tool."""
    parts: list[Part] = list(message.parts)
    for index in reversed(range(len(parts))):
        part = parts[index]
        if isinstance(part, Text):
            parts[index] = Text(without_tool_names(part.text, output))
            break
    return replace(message, parts=tuple(parts))
