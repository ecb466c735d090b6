"""Groups of calls and their results in a payload, where each call has an id of its own.

The rules are those of the assembler.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from app.common import json_text
from app.conversations.messages.row import JoinedRow, LogRow
from app.formats import labels
from app.formats.message import LOG_FORMAT, NO_RESULT, Message, Role, Text
from app.formats.reasoning_families import MISTRAL
from app.formats.registry import openai_chat
from app.formats.tool_calls import sendable_id, short_id
from app.models.tokens import count_visible
from app.payload.shown_messages import ShownMessages


@dataclass(eq=False)
class CallGroups(ShownMessages):
    """Keeps the calls that are open, and answers each."""

    joins_answers: ClassVar[bool] = True
    """Whether messages of one answer are joined, because results have to follow their calls."""
    linked_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of a call that its result has to have, too."""

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
        self._linked: dict[str, dict[str, Any]] = {}  # by the id to send
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
        form = short_id if MISTRAL in self.view.reasoning_of else self.provider.call_id
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

    @abstractmethod
    def _put_result(self, wire_id: str, text: str = NO_RESULT) -> None:
        """Answer a call with a text, by default with the note that it has no result."""

    def _finish_group(self) -> None:  # most formats need nothing
        """Add what follows all results of a call group."""


def replaced_id(call_id: str, wire_id: str) -> dict[str, str]:
    """Map a call's id, as in the log and as in its chat item, to another id to send."""
    if wire_id == call_id:
        return {}
    return {call_id: wire_id, sendable_id(call_id): wire_id}
