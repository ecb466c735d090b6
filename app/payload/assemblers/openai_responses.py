"""Payload items for OpenAI Responses.

1. One row is one item or more.
2. Reasoning is replayed byte for byte while its prefix is unchanged, a compaction item as long as
   payloads begin with it.
3. A result has the type of its call in this payload, whatever format it came in. That of an
   asynchronous call is where it came; until then the call has none.
4. Cache breakpoints are at the last part of user and developer messages: the two newest, because
   OpenAI finds a cached prefix only at breakpoints that are still there, and about every
   `BREAKPOINT_INTERVAL`th item.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.common import json_text
from app.conversations.messages.row import LogRow
from app.formats.message import Message, Role, Text
from app.formats.openai_responses import OpenAIResponses
from app.formats.openai_responses.parsing import FUNCTION, call_types
from app.models.tokens import MESSAGE_OVERHEAD, count_replayed, count_visible, reasoning_of
from app.payload.assemblers.merging import BREAKPOINT_INTERVAL
from app.payload.assemblers.separate import SeparateAssembler
from app.payload.payload_items import BreakpointPosition

_CACHEABLE = ("input_text", "input_image", "input_file")
_AFTER_LAST_PART_BYTES = len("}]}")


class ResponsesAssembler(SeparateAssembler):
    """Items for OpenAI Responses."""

    provider: OpenAIResponses
    joins_answers = False
    linked_fields = ("caller",)
    newest_breakpoints = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self._last_is_model = False  # whether the model made the last item
        self._call_types: dict[str, str] = {}
        self._running: dict[str, str] = {}  # the ids to send of asynchronous calls, by call id
        self._item_ids: set[str] = set()

    def _put_item(self, item: dict[str, Any], tokens: int) -> None:
        self._put([item], tokens)

    def _put(self, items: Sequence[dict[str, Any]], tokens: int, *, is_model: bool = False) -> None:
        """Add items; those of the model cost one overhead with the model's before them."""
        self.tokens += tokens - (MESSAGE_OVERHEAD if is_model and self._last_is_model else 0)
        self._last_is_model = is_model
        for item in items:
            wire_item = json_text.dump_payload(item)
            self._append(wire_item)
            content = item.get("content")
            if not is_model and isinstance(content, list) and content[-1]["type"] in _CACHEABLE:
                self._add_breakpoint(len(wire_item) - _AFTER_LAST_PART_BYTES)

    def _add_breakpoint(self, byte_offset: int) -> None:
        position = BreakpointPosition(
            self.stable_items - 1, byte_offset, self.tokens + self.summary_tokens
        )
        self._positions.append(position)
        if position.item_index >= BREAKPOINT_INTERVAL + (
            self._fixed_positions[-1].item_index if self._fixed_positions else 0
        ):
            self._fixed_positions.append(position)

    def _put_row(self, row: LogRow, ids: Mapping[str, str]) -> None:
        stored = self._message(row)
        converted = self._with_converted_reasoning(row, stored)
        message = self.provider.without_foreign(converted, self.view.reasoning_of)
        is_own = message is converted
        replays = is_own and row.seq > self.view.reasoning_after
        shown = self.provider.for_payload(message, ids, keep_reasoning=replays)
        shown = self.provider.without_repeated_ids(self._with_linked(shown), self._item_ids)
        self._record_content(shown)
        call_type = self._call_types.get(shown.tool_call_id or "")
        items = self.provider.render(shown, keep_reasoning=replays, call_type=call_type)
        if row.role is Role.ASSISTANT:
            self._call_types |= call_types(items)
            running = {item["call_id"] for item in items if item.get("async") is True}
            for call_id in row.call_ids:
                self._running.pop(call_id, None)
                if (wire_id := self._open_calls.get(call_id, "")) in running:
                    self._running[call_id] = wire_id
            for item in items if row.call_ids else ():
                self._link(item.get("call_id") or "", item)
        if call_type not in (None, FUNCTION):
            tokens = self._parsed_tokens(items[0])
        else:
            is_changed = bool(ids) or not is_own
            tokens = self._visible_tokens(row, message, shown, is_changed=is_changed)
        reasoning = count_replayed(row.reasoning_tokens, stored, reasoning_of(shown), self.count)
        tokens = self._record_cost(row, tokens, reasoning)
        self._put(items, tokens, is_model=row.role is Role.ASSISTANT)

    def _add_tool_row(self, row: LogRow) -> None:
        if (wire_id := self._running.pop(row.call_ids[0], None)) is None:
            super()._add_tool_row(row)
        else:
            self._open_calls.pop(row.call_ids[0], None)
            self._add_result(row, wire_id)

    def _close_calls(self) -> None:
        self._put_answer()
        for call_id in self._running:
            self._open_calls.pop(call_id, None)
        super()._close_calls()

    def _put_compaction(self, block: Mapping[str, Any], tokens: int) -> None:
        self._put([dict(block)], tokens, is_model=True)

    def _parsed_tokens(self, item: dict[str, Any]) -> int:
        """Count a result as it is parsed: some types have no place for texts."""
        (message,) = self.provider.parse(item, "")
        return count_visible(message, self.count, self.format)

    def _note_item(self, texts: Sequence[str], as_system: bool) -> tuple[dict[str, Any], int]:
        role = "developer" if as_system else "user"
        content = [{"type": "input_text", "text": text} for text in texts]
        item = {"type": "message", "role": role, "content": content}
        return item, MESSAGE_OVERHEAD + sum(map(self.count, texts))

    def _result_item(self, wire_id: str, text: str) -> tuple[dict[str, Any], int]:
        message = self._with_linked(Message(Role.TOOL, (Text(text),), tool_call_id=wire_id))
        (item,) = self.provider.render(message, call_type=self._call_types.get(wire_id))
        return item, self._parsed_tokens(item)
