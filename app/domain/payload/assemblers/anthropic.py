"""Payload items for Anthropic Messages: neighbours of one role share a message.

Thinking is replayed byte for byte while its prefix is unchanged, and never after that. A compaction
block opens the first message, which is the assistant's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.domain.common import json_text
from app.domain.common.messages import FormatName, Message, Opaque, Part, Role, Text
from app.domain.conversations.log.row import LogRow
from app.domain.formats import anthropic
from app.domain.models.tokens import MESSAGE_OVERHEAD, count_replayed, count_visible, reasoning_of
from app.domain.payload.assemblers.merging import Block, MergingAssembler
from app.domain.prompt.sections import DynamicTexts

BREAKPOINT_JSON = b',"cache_control":{"type":"ephemeral"}'
_THINKING = ("thinking", "redacted_thinking")


class AnthropicAssembler(MergingAssembler):
    """Items for Anthropic Messages."""

    format = FormatName.ANTHROPIC
    linked_fields = ("toolset_name",)

    def _item_start(self, role: str) -> bytes:
        return b'{"role":"%s","content":[' % role.encode()

    def _text_block(self, text: str) -> bytes:
        return json_text.dump_payload({"type": "text", "text": text})

    def _result_block(self, wire_id: str, text: str) -> tuple[bytes, int]:
        message = self._with_linked(Message(Role.TOOL, (Text(text),), tool_call_id=wire_id))
        _, (block,) = anthropic.render(message)
        tokens = count_visible(message, self.count, self.format) - MESSAGE_OVERHEAD
        return json_text.dump_payload(block), tokens

    def _put_row(self, row: LogRow, ids: Mapping[str, str]) -> None:
        original = self._message(row)
        stored = self._with_defined_references(original)
        message = self._with_converted_reasoning(row, stored)
        replays = row.seq > self.view.reasoning_after
        adapted = self._with_linked(anthropic.adapt(message, ids))
        role, blocks = anthropic.render(adapted, keep_reasoning=replays)
        for block in blocks if row.call_ids else ():
            self._link(block.get("id", ""), block)
        # With ids the message is counted again: the comparison with the stored one sees no new id.
        is_changed = bool(ids) or stored is not original
        tokens = self._visible_tokens(row, message, adapted, is_changed=is_changed)
        reasoning = 0
        if replays and row.reasoning_tokens:
            sent = filter(anthropic.is_sent, reasoning_of(adapted).parts)
            shown = replace(message, parts=tuple(sent))
            reasoning = count_replayed(row.reasoning_tokens, stored, shown, self.count)
        self._record_content(adapted)
        tokens = self._record_cost(row, tokens, reasoning)
        wire_blocks = [Block(json_text.dump_payload(b), b["type"] not in _THINKING) for b in blocks]
        self._put(role, wire_blocks, tokens - MESSAGE_OVERHEAD)

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
