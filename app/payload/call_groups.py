"""How the messages of a view are shown, and the groups of calls and results among them.

Messages are shown cleared, shortened, without media or compactions; in a payload each call has an
id of its own and a result. The rules are those of the assembler.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.blobs.preview import READ_LINES, placeholder
from app.blobs.stored_output import StoredOutput, inline_output, message_ref, without_tool_names
from app.common import json_text
from app.conversations.messages.row import LogRow, joined_row
from app.conversations.partial_messages import (
    MEDIA_WORDS,
    SentMedia,
    media_in,
    shortened_preview,
    without_media,
)
from app.conversations.turns import MAX_PLACEHOLDER_TOKENS
from app.conversations.view import View
from app.formats import LOG_PROVIDER, labels, reasoning
from app.formats.base import Provider
from app.formats.message import (
    EMPTY_MESSAGE,
    LOG_FORMAT,
    NO_RESULT,
    Message,
    Part,
    Role,
    Text,
    ToolCall,
)
from app.formats.tools import sendable_id, short_id
from app.models.tokens import CountText, count_sealed, count_visible, signed_parts
from app.policy.policy import AGENT_TOOL_NAMES
from app.prompt.sections import NO_DYNAMIC_TEXTS, DynamicTexts

MAX_NOT_CARRIED = 16
"""How many types of content a payload lists as not carried."""
_COMPACTION_TYPE = f'"{reasoning.COMPACTION}"'.encode()


def placeholder_of(row: LogRow, *, names_tool: bool = True) -> str:
    """Return the placeholder of a cleared tool result."""
    output = _output_of(row)
    return placeholder(output.ref_in(row.id, row.seq).id, output.byte_size, named=names_tool)


def _output_of(row: LogRow) -> StoredOutput:
    """Return how a row shows its tool result, whole by default."""
    return row.output or inline_output(row.message())


@dataclass(eq=False)
class ShownMessages:
    """Reads rows as messages of one payload, and counts them.

    Its text may name the agent tools in `mentionable_tools`; `mentions` are those that it would
    name if it could.
    `defined_tools` are the tools that the payload defines, `references` those of them that a search
    result refers to. `opening` is the dynamic text before the history.
    """

    provider: Provider
    view: View
    count: CountText
    mentionable_tools: Collection[str] = frozenset(AGENT_TOOL_NAMES)
    opening: DynamicTexts = NO_DYNAMIC_TEXTS
    defined_tools: Collection[str] = frozenset()
    mentions: set[str] = field(default_factory=set, init=False)
    references: set[str] = field(default_factory=set, init=False)
    sealed_tokens: int = field(default=0, init=False)
    """Those of the tokens that are of reasoning and sealed text."""
    costs_by_seq: dict[int, int] = field(default_factory=dict, init=False)
    """The tokens of messages whose items cost another number than their stored count."""
    media: list[SentMedia] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.format = self.provider.name
        self._not_carried: dict[str, None] = {}
        self._shortened_by_seq = {shortened.seq: shortened for shortened in self.view.shortened}

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
        if row.rows:
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
        message = row.message()
        if may_have_compaction(row):
            message = self._without_compactions(row) or message
        if (shortened := self._shortened_by_seq.get(row.seq)) is not None:  # (rule 5)
            ref = message_ref(row.id, row.seq)
            preview, mentions = shortened_preview(message, shortened, ref, self.mentionable_tools)
            self.mentions.update(mentions)
            return preview
        if self._has_sent_item(row) or not self._is_rewritten(row):
            return message
        return _without_tool_names(message, _output_of(row))

    def _has_sent_item(self, row: LogRow) -> bool:
        item = self.view.sent_item
        return item is not None and row.seq == item.seq

    def _without_compactions(self, row: LogRow) -> Message | None:
        """Return a message without compactions, None where nothing else is in it (rule 8)."""
        message = row.message()
        if self._has_sent_item(row):
            return reasoning.after_compaction(message)
        return reasoning.without_compactions(
            self.provider.unbound(message) if row.format is self.format else message
        )

    def _is_own_reasoning(self, row: LogRow) -> bool:
        """Whether the model would take the reasoning of a message."""
        if row.format is not self.format:
            return False
        message, accepts = row.message(), self.view.reasoning_of
        parts = self.provider.sent_parts(message, accepts, replays=True)
        return bool(signed_parts(message.with_parts(parts)))

    def _record_cost(self, row: LogRow, visible: int, reasoning: int = 0) -> int:
        """Record what the items of a row cost, and return it."""
        self.sealed_tokens += reasoning
        tokens = visible + reasoning
        if tokens != row.tokens:
            others = row.rows[1:]
            self.costs_by_seq[row.seq] = tokens - sum(other.tokens for other in others)
        return tokens

    def _record_content(self, shown: Message) -> None:
        """Count the sealed text of a shown message, and collect the types that labels stand for."""
        self.sealed_tokens += count_sealed(shown, self.format, self.count)
        for part in shown.parts:
            if isinstance(part, Text) and part.stands_for and part.format is not self.format:
                room = MAX_NOT_CARRIED - len(self._not_carried)
                new = (kind for kind in part.stands_for if kind not in self._not_carried)
                self._not_carried |= dict.fromkeys(list(dict.fromkeys(new))[:room])


@dataclass(eq=False)
class CallGroups(ShownMessages, ABC):
    """Keeps the calls that are open, and answers each."""

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
        self._seqs: list[int] = []  # of the rows so far
        self._item_counts: list[int] = []  # how many items there were with each

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

    @property
    @abstractmethod
    def _item_count(self) -> int:
        """How many items are complete: the stable ones, and those that wait for a result."""

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
        message = LOG_PROVIDER.adapt(Message(Role.USER, labels.labelled_result(shown)))
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

    @abstractmethod
    def _put_row(self, row: LogRow, ids: Mapping[str, str]) -> None:
        """Add a row; `ids` replaces call ids."""

    @abstractmethod
    def _put_result(self, wire_id: str, text: str = NO_RESULT) -> None:
        """Answer a call with a text, by default with the note that it has no result."""

    @abstractmethod
    def _finish_group(self) -> None:
        """Add what follows all results of a call group."""


def replaced_id(call_id: str, wire_id: str) -> dict[str, str]:
    """Map a call's id, as in the log and as in its chat item, to another id to send."""
    return {call_id: wire_id, sendable_id(call_id): wire_id} if wire_id != call_id else {}


def may_have_media(row: LogRow) -> bool:
    """Whether media may be in a row, by the words in its text."""
    return any(word in row.text for word in MEDIA_WORDS)


def may_have_compaction(row: LogRow) -> bool:
    """Whether a compaction of a provider may be in a row, by the words in its text."""
    return (
        row.role is Role.ASSISTANT
        and row.format in reasoning.CONTENT_KEYS
        and _COMPACTION_TYPE in row.text
    )


def _without_tool_names(message: Message, output: StoredOutput) -> Message:
    """Return a truncated result whose note, at the end of its last text, names no tool."""
    parts: list[Part] = list(message.parts)
    for index in reversed(range(len(parts))):
        if isinstance(part := parts[index], Text):
            parts[index] = Text(without_tool_names(part.text, output))
            break
    return replace(message, parts=tuple(parts))
