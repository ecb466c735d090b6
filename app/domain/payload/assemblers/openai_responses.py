"""Payload items for OpenAI Responses.

1. One row is one item or more.
2. Reasoning and compaction items are replayed byte for byte while their prefix is unchanged.
3. A result has the type of its call in this payload, whatever format it came in.
4. Cache breakpoints are at the last part of user and developer messages: the two newest, because
   OpenAI finds a cached prefix only at breakpoints that are still there, and about every
   `BREAKPOINT_INTERVAL`th item.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from app.domain.common import json_text
from app.domain.common.messages import FormatName, Message, Role, Text
from app.domain.conversations.log.row import LogRow
from app.domain.formats import openai_responses
from app.domain.models.tokens import MESSAGE_OVERHEAD, count_replayed, count_visible, reasoning_of
from app.domain.payload.assemblers.merging import BREAKPOINT_INTERVAL
from app.domain.payload.assemblers.separate import SeparateAssembler
from app.domain.payload.payload_items import BreakpointPlace

BREAKPOINT_JSON: Final = b',"prompt_cache_breakpoint":{"mode":"explicit"}'
_CACHEABLE = ("input_text", "input_image", "input_file")
_CLOSING = len("}]}")


class ResponsesAssembler(SeparateAssembler):
    """Items for OpenAI Responses."""

    format = FormatName.OPENAI_RESPONSES
    newest_breakpoints = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self._is_model = False  # who made the last item
        self._calls: dict[str, str] = {}

    def _put_item(self, item: dict[str, Any], tokens: int) -> None:
        self._put([item], tokens)

    def _put(self, items: Sequence[dict[str, Any]], tokens: int, *, is_model: bool = False) -> None:
        """Add items; those of the model cost one overhead with the model's before them."""
        self.tokens += tokens - (MESSAGE_OVERHEAD if is_model and self._is_model else 0)
        self._is_model = is_model
        for item in items:
            wire = json_text.dump_payload(item)
            self._append(wire)
            content = item.get("content")
            if not is_model and isinstance(content, list) and content[-1]["type"] in _CACHEABLE:
                self._add_breakpoint(len(wire) - _CLOSING)

    def _add_breakpoint(self, offset: int) -> None:
        place = BreakpointPlace(self.stable - 1, offset, self.tokens + self.summary_tokens)
        self._places.append(place)
        if place.item >= BREAKPOINT_INTERVAL + (self._lasting[-1].item if self._lasting else 0):
            self._lasting.append(place)

    def _put_row(self, row: LogRow, ids: Mapping[str, str]) -> None:
        stored = self._message(row)
        message = self._in_format(row, stored)
        replays = row.seq > self.view.reasoning_after
        shown = openai_responses.for_payload(message, ids, keep_reasoning=replays)
        self._note_labels(shown)
        call_type = self._calls.get(shown.tool_call_id or "")
        items = openai_responses.render(shown, keep_reasoning=replays, call_type=call_type)
        if row.role is Role.ASSISTANT:
            self._calls = openai_responses.call_types(items)
        if call_type not in (None, openai_responses.FUNCTION):
            tokens = self._parsed_tokens(items[0])
        else:
            tokens = self._visible_tokens(row, message, shown, is_changed=bool(ids))
        tokens += count_replayed(row.reasoning_tokens, stored, reasoning_of(shown), self.count)
        self._put(items, tokens, is_model=row.role is Role.ASSISTANT)

    def _parsed_tokens(self, item: dict[str, Any]) -> int:
        """Count a result as it is parsed: some types have no place for texts."""
        (message,) = openai_responses.parse(item, "")
        return count_visible(message, self.count, self.format)

    def _note_item(self, texts: Sequence[str], as_system: bool) -> tuple[dict[str, Any], int]:
        role = "developer" if as_system else "user"
        content = [{"type": "input_text", "text": text} for text in texts]
        item = {"type": "message", "role": role, "content": content}
        return item, MESSAGE_OVERHEAD + sum(map(self.count, texts))

    def _result_item(self, wire_id: str, text: str) -> tuple[dict[str, Any], int]:
        message = Message(Role.TOOL, (Text(text),), tool_call_id=wire_id)
        (item,) = openai_responses.render(message, call_type=self._calls.get(wire_id))
        return item, self._parsed_tokens(item)
