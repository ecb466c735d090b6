"""Payload items for formats in which neighbours of one role share an item.

1. An item is closed when a message of the other role comes. The open one may grow, so it is never
   stable; its content stays where it is. Nor is an item stable that has a call of the provider
   without a result, or comes after one.
2. Cache breakpoints are at the last block from the log, and at every `BREAKPOINT_INTERVAL`th block
   before. The latter never move, so that an earlier payload differs only near its end.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from app.common import json_text
from app.conversations.messages.row import LogRow
from app.conversations.view import WHOLE
from app.formats import labels
from app.formats.anthropic import Anthropic
from app.formats.gemini import Gemini, function_calls
from app.formats.message import NO_RESULT, Message, Opaque, Part, Role, Text
from app.formats.provider_calls import call_of, result_of
from app.models.tokens import (
    MESSAGE_OVERHEAD,
    count_rendered,
    count_replayed,
    count_visible,
    reasoning_of,
)
from app.payload.assembler import BREAKPOINT_INTERVAL, CONTINUE_NOTE, Assembler
from app.payload.payload_items import BreakpointPosition
from app.prompt.sections import DynamicTexts

_ITEM_END = b"]}"
USER = "user"
"""The role that users and tool results share."""
_THINKING = ("thinking", "redacted_thinking")
_TOOL_USE = b'{"type":"tool_use"'


class Block(NamedTuple):
    """One content block or part of an item as JSON; a `cacheable` one may have a breakpoint."""

    json: bytes
    cacheable: bool = True


class MergingAssembler(Assembler):
    """Renders rows into items of alternating roles."""

    open_items = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._role = ""
        self._blocks: list[bytes] = []
        self._closed: list[tuple[str, list[bytes]]] = []  # items that are not stable yet
        self._open_item_bytes = 0  # without `_ITEM_END`
        self._blocks_since_fixed = 0

    @abstractmethod
    def _item_start(self, role: str) -> bytes:
        """Return the JSON of an item up to its first block."""

    @abstractmethod
    def _text_block(self, text: str) -> bytes:
        """Return a block of text."""

    @abstractmethod
    def _result_block(self, wire_id: str, text: str) -> tuple[bytes, int]:
        """Return a block that answers a call with a text, and its tokens."""

    def _put(self, role: str, blocks: Sequence[Block], tokens: int) -> None:
        """Add blocks; `tokens` counts them without the overhead of an item."""
        if role != self._role:
            self._close_item()
            self._role = role
            self._open_item_bytes = len(self._item_start(role))
            self.tokens += MESSAGE_OVERHEAD
        self.tokens += tokens
        for block in blocks:
            self._open_item_bytes += len(block.json) + (1 if self._blocks else 0)
            self._blocks.append(block.json)
            self._blocks_since_fixed += 1
            if block.cacheable:
                self._add_breakpoint()

    def _add_message(self, row: LogRow) -> None:
        super()._add_message(row)
        if self._answer and self._role == USER:  # the answer comes next
            self._close_item()
            self._role = ""

    def _add_breakpoint(self) -> None:
        """Record the position behind the last block; every `BREAKPOINT_INTERVAL`th is fixed."""
        position = BreakpointPosition(
            self._item_count, self._open_item_bytes - 1, self.tokens + self.summary_tokens
        )
        self._positions.append(position)
        if self._blocks_since_fixed >= BREAKPOINT_INTERVAL:
            self._blocks_since_fixed = 0
            self._fixed_positions.append(position)

    def _close_item(self) -> None:
        if self._blocks:
            self._closed.append((self._role, self._blocks))
            self._blocks = []
        if not self._is_paused:
            for role, blocks in self._closed:
                self._append(self._item(role, blocks))
            self._closed.clear()

    @property
    def _item_count(self) -> int:
        return self.stable_items + len(self._closed)

    @property
    def _is_paused(self) -> bool:
        """Whether a call of the provider waits: it goes on with its answer."""
        return False

    def _item(self, role: str, blocks: Sequence[bytes]) -> bytes:
        return self._item_start(role) + b",".join(blocks) + _ITEM_END

    def _put_note(self, text: str, *, as_system: bool = False) -> None:
        self._has_first_message = True
        self._put(USER, [Block(self._text_block(text))], self.count(text))

    def _put_result(self, wire_id: str, text: str = NO_RESULT) -> None:
        block, tokens = self._result_block(wire_id, text)
        self._put(USER, [Block(block)], tokens)

    def _with_tail(self, tail: DynamicTexts) -> tuple[list[bytes], int, int, int]:
        """Return the items; the last one is the user's, as these providers require.

        Nothing follows a call of the provider that waits but results of the client.
        """
        closed = [self._item(role, blocks) for role, blocks in self._closed]
        wire_items, tokens = [*self._stable_items, *closed], self.tokens
        role, blocks = self._role, list(self._blocks)

        def append(text: str) -> int:
            """Add a text that is not stable to an item of the user; return the added tokens."""
            nonlocal role, blocks
            overhead = 0
            if role != USER:
                if blocks:
                    wire_items.append(self._item(role, blocks))
                role, blocks, overhead = USER, [], MESSAGE_OVERHEAD
            blocks.append(self._text_block(text))
            return self.count(text) + overhead

        if self._is_paused:
            return [*wire_items, self._item(role, blocks)], tokens, 0, 0
        if role != USER:
            tokens += append(CONTINUE_NOTE)
        tail_item = self._tail_item(tail)
        if tail_item is None:
            tail_tokens = sum(map(append, tail.texts))
            wire_items.append(self._item(role, blocks))
        else:
            tail_tokens = MESSAGE_OVERHEAD + sum(map(self.count, tail.texts))
            wire_items += [self._item(role, blocks), tail_item]
        return wire_items, tokens, 1 if tail.texts else 0, tail_tokens

    def _tail_item(self, tail: DynamicTexts) -> bytes | None:
        """Return the tail as an item of its own, None where it joins the last one."""
        return None


class AnthropicAssembler(MergingAssembler):
    """Payload items for Anthropic Messages: neighbours of one role share a message.

    1. Thinking is replayed byte for byte while its prefix is unchanged, and never after that. A
       compaction block opens the first message, which is the assistant's.
    2. A call that Anthropic runs may have its result in a later message. Until then nothing follows
       it but results of the client; where something else came, a label stands for it. So it does
       for a result whose call is not shown.
    """

    provider: Anthropic
    provider_type = Anthropic
    linked_fields = ("toolset_name",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._provider_calls: dict[str, Mapping[str, Any]] = {}  # those that wait, by id
        self._provider_calls_after = self._provider_calls  # behind the next message
        self._left_out: set[str] = set()  # calls that labels stand for

    @property
    def _is_paused(self) -> bool:
        return bool(self._provider_calls)

    @property
    def _waits(self) -> bool:
        return super()._waits or self._is_paused

    def _end_group(self) -> None:
        self._close_calls()
        if self._provider_calls:
            calls, self._provider_calls = self._provider_calls, {}
            self._left_out |= calls.keys()
            for call in calls.values():
                self._replace(call)
            self._close_calls()

    def _replace(self, call: Mapping[str, Any]) -> None:
        """Replace a call in an item that is not stable by a label (rule 2).

        Behind a call of the client there is no place for one: there it is left out.
        """
        label = labels.label_for(Opaque(call, self.format))
        old, new = json_text.dump_payload(dict(call)), self._text_block(label.text)
        open_items = [*self._closed, (self._role, self._blocks)]
        at, blocks = next((i, b) for i, (_, b) in enumerate(open_items) if old in b)
        item_index, block_index = self.stable_items + at, blocks.index(old)
        before = blocks[:block_index]
        start = len(self._item_start("assistant")) + len(b",".join(before))
        has_place = not any(block.startswith(_TOOL_USE) for block in before)
        blocks[block_index : block_index + 1] = [new] if has_place else []
        grown = (len(new) if has_place else -1) - len(old)
        if at == len(self._closed):
            self._open_item_bytes += grown
        for positions in (self._positions, self._fixed_positions):
            positions[:] = [
                position._replace(byte_offset=position.byte_offset + grown)
                if position.item_index == item_index and position.byte_offset > start
                else position
                for position in positions
            ]
        left = (label,) if has_place else ()
        sent = (Message(Role.ASSISTANT, parts) for parts in ((Opaque(call, self.format),), left))
        tokens_before, tokens = (count_visible(message, self.count) for message in sent)
        self.tokens += tokens - tokens_before
        self._record_content(Message(Role.ASSISTANT, (label,)))

    def _with_known_calls(self, message: Message) -> Message:
        """Return a message with labels for results of calls that are not shown (rule 2)."""
        self._provider_calls_after = dict(self._provider_calls)
        hides = self.view.spans != WHOLE
        parts: list[Part] = []
        for part in message.parts:
            known = part
            if isinstance(part, Opaque):
                if call := call_of(part.block):
                    self._provider_calls_after[call] = part.block
                result = result_of(part.block)
                is_known = self._provider_calls_after.pop(result, None) is not None
                if result and not is_known and (result in self._left_out or hides):
                    known = labels.label_for(part)
            parts.append(known)
        return message.with_parts(parts)

    def _item_start(self, role: str) -> bytes:
        return b'{"role":"%s","content":[' % role.encode()

    def _text_block(self, text: str) -> bytes:
        return json_text.dump_payload({"type": "text", "text": text})

    def _result_block(self, wire_id: str, text: str) -> tuple[bytes, int]:
        message = self._with_linked(Message(Role.TOOL, (Text(text),), tool_call_id=wire_id))
        _, (block,) = self.provider.render(message)
        tokens = count_visible(message, self.count, self.format) - MESSAGE_OVERHEAD
        return json_text.dump_payload(block), tokens

    def _put_row(self, row: LogRow, ids: Mapping[str, str]) -> None:
        original = self._message(row)
        stored = self._with_known_calls(self._with_defined_references(original))
        message = self._with_converted_reasoning(row, stored)
        replays = row.seq > self.view.reasoning_after
        adapted = self._with_linked(self.provider.adapt(message, ids))
        role, blocks = self.provider.render(adapted, keep_reasoning=replays)
        for block in blocks if row.call_ids else ():
            self._link(block.get("id", ""), block)
        # With ids the message is counted again: the comparison with the stored one sees no new id.
        is_changed = bool(ids) or stored is not original
        tokens = self._visible_tokens(row, message, adapted, is_changed=is_changed)
        reasoning = 0
        if replays and row.reasoning_tokens:
            sent = filter(self.provider.is_sent, reasoning_of(adapted).parts)
            shown = replace(message, parts=tuple(sent))
            reasoning = count_replayed(row.reasoning_tokens, stored, shown, self.count)
        self._record_content(adapted)
        tokens = self._record_cost(row, tokens, reasoning)
        wire_blocks = [Block(json_text.dump_payload(b), b["type"] not in _THINKING) for b in blocks]
        self._put(role, wire_blocks, tokens - MESSAGE_OVERHEAD)
        self._provider_calls = self._provider_calls_after

    def _put_compaction(self, block: Mapping[str, Any], tokens: int) -> None:
        wire_block = [Block(json_text.dump_payload(block), cacheable=False)]
        self._put("assistant", wire_block, tokens - MESSAGE_OVERHEAD)

    def _with_defined_references(self, message: Message) -> Message:
        """Keep the references of a search result to defined tools; show other tools by name."""
        names = [
            str(part.block.get("tool_name", ""))
            if isinstance(part, Opaque) and part.block.get("type") == "tool_reference"
            else ""
            for part in message.parts
        ]
        if not any(names):
            return message
        self.references.update(name for name in names if name in self.defined_tools)
        parts = (
            Text(f"[tool: {name}]") if name and name not in self.defined_tools else part
            for part, name in zip(message.parts, names, strict=True)
        )
        return replace(message, parts=tuple(parts))

    def _tail_item(self, tail: DynamicTexts) -> bytes | None:
        if not (tail.texts and tail.as_system):
            return None
        return self._item("system", [self._text_block(text) for text in tail.texts])


class GeminiAssembler(MergingAssembler):
    """Payload contents for Gemini: neighbours of one role share a content.

    1. The responses of a call group are together, in the order of its calls. They are added with
       the last one, or when the group ends.
    2. A response is an object, unlike in other formats, so it is counted here.
    3. Signatures and signed thoughts are replayed byte for byte while their prefix is unchanged.
    4. Gemini caches by prefix alone, so there are no breakpoints.
    """

    provider: Gemini
    provider_type = Gemini
    ends_with_reasoning = True

    def __post_init__(self) -> None:
        super().__post_init__()
        # By the ids to send: the rendered calls of the open group, their ids before rendering, and
        # the results so far.
        self._calls: dict[str, Mapping[str, Any]] = {}
        self._adapted_ids: dict[str, str] = {}
        self._results: dict[str, tuple[bytes, int]] = {}
        self._media: dict[str, list[bytes]] = {}

    def _item_start(self, role: str) -> bytes:
        return b'{"role":"%s","parts":[' % role.encode()

    def _text_block(self, text: str) -> bytes:
        return json_text.dump_payload({"text": text})

    def _add_breakpoint(self) -> None:
        """Do nothing (rule 4)."""

    def _result_block(self, wire_id: str, text: str) -> tuple[bytes, int]:
        call_id, call = self._adapted_ids.get(wire_id, wire_id), self._calls.get(wire_id)
        message = Message(Role.TOOL, (Text(text),), call_id, _name_of(call))
        _, (part,) = self.provider.render(message, call=call)
        tokens = count_visible(message, self.count, self.format)
        return json_text.dump_payload(part), tokens - MESSAGE_OVERHEAD

    def _put_row(self, row: LogRow, ids: Mapping[str, str]) -> None:
        stored = self._message(row)
        message = self._with_converted_reasoning(row, stored)
        replays = row.seq > self.view.reasoning_after
        shown = self.provider.for_payload(message, ids, keep_reasoning=replays)
        self._record_content(shown)
        role, parts = self.provider.render(shown, keep_reasoning=replays)
        if wire_ids := [self._open_calls[call_id] for call_id in row.call_ids]:
            self._calls = dict(zip(wire_ids, function_calls(parts), strict=True))
            adapted_ids = (call.id for call in shown.calls)
            self._adapted_ids = dict(zip(wire_ids, adapted_ids, strict=True))
        tokens = self._visible_tokens(row, message, shown, is_changed=bool(ids))
        stored_reasoning = row.reasoning_tokens if replays else 0
        reasoning = count_replayed(stored_reasoning, stored, shown, self.count)
        tokens = self._record_cost(row, tokens, reasoning)
        blocks = [Block(json_text.dump_payload(part), cacheable=False) for part in parts]
        self._put(role, blocks, tokens - MESSAGE_OVERHEAD)

    def _add_result(self, row: LogRow, wire_id: str) -> None:
        """Hold a result back until its group is complete (rule 1)."""
        if self._is_cleared(row):
            self._put_result(wire_id, self._placeholder(row))
        else:
            self._hold_result(row, wire_id)
        if not self._open_calls:
            self._finish_group()

    def _hold_result(self, row: LogRow, wire_id: str) -> None:
        message, call = self._message(row), self._calls.get(wire_id)
        ids = {message.tool_call_id or "": self._adapted_ids.get(wire_id, wire_id)}
        self._record_content(self.provider.adapt(message, ids))
        _, (part, *media) = self.provider.render(message, ids, call=call)
        named = replace(message, name=_name_of(call) or message.name)
        tokens = count_rendered(self.format, named, self.count, ids)
        self._record_cost(row, tokens)
        self._results[wire_id] = json_text.dump_payload(part), tokens - MESSAGE_OVERHEAD
        self._media[wire_id] = [json_text.dump_payload(item) for item in media]

    def _put_result(self, wire_id: str, text: str = NO_RESULT) -> None:
        self._results[wire_id] = self._result_block(wire_id, text)

    def _finish_group(self) -> None:
        results = [self._results[wire_id] for wire_id in self._calls]
        media = [block for wire_id in self._calls for block in self._media.get(wire_id, ())]
        # The results' counts include the media.
        for block, tokens in (*results, *((block, 0) for block in media)):
            self._put(USER, [Block(block, cacheable=False)], tokens)
        self._calls, self._adapted_ids = {}, {}
        self._results, self._media = {}, {}


def _name_of(call: Mapping[str, Any] | None) -> str | None:
    """Return the name that a response to a call is sent with."""
    return call["name"] if call is not None else None
