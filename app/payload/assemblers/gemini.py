"""Payload contents for Gemini: neighbours of one role share a content.

1. The responses of a call group are together, in the order of its calls. They are added with the
   last one, or when the group ends.
2. A response is an object, unlike in other formats, so it is counted here.
3. Signatures and signed thoughts are replayed byte for byte while their prefix is unchanged.
4. Gemini caches by prefix alone, so there are no breakpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.common import json_text
from app.conversations.messages.row import LogRow
from app.formats.gemini import Gemini, function_calls
from app.formats.message import NO_RESULT, Message, Role, Text
from app.models.tokens import MESSAGE_OVERHEAD, count_rendered, count_replayed, count_visible
from app.payload.assemblers.merging import USER, Block, MergingAssembler


class GeminiAssembler(MergingAssembler):
    """Contents for Gemini."""

    provider: Gemini
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
