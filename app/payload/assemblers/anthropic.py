"""Payload items for Anthropic Messages: neighbours of one role share a message.

1. Thinking is replayed byte for byte while its prefix is unchanged, and never after that. A
   compaction block opens the first message, which is the assistant's.
2. A call that Anthropic runs may have its result in a later message. Until then nothing follows it
   but results of the client; where something else came, a label stands for it. So it does for a
   result whose call is not shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.common import json_text
from app.conversations.messages.row import LogRow
from app.conversations.view import WHOLE
from app.formats import adapting, labels
from app.formats.anthropic import Anthropic
from app.formats.message import Message, Opaque, Part, Role, Text
from app.formats.provider_calls import call_of, result_of
from app.models.tokens import MESSAGE_OVERHEAD, count_replayed, count_visible, reasoning_of
from app.payload.assemblers.merging import Block, MergingAssembler
from app.prompt.sections import DynamicTexts

_THINKING = ("thinking", "redacted_thinking")
_TOOL_USE = b'{"type":"tool_use"'


class AnthropicAssembler(MergingAssembler):
    """Items for Anthropic Messages."""

    provider: Anthropic
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
        return adapting.with_parts(message, parts)

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
        names = [_referenced_tool(part) for part in message.parts]
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


def _referenced_tool(part: Part) -> str:
    """Return the name of the tool that a part refers to, empty where it is no reference."""
    if not isinstance(part, Opaque) or part.block.get("type") != "tool_reference":
        return ""
    return str(part.block.get("tool_name", ""))
