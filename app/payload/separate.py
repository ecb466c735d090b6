"""Payload items for formats in which every message is an item of its own or several.

An item never changes, so all of them are stable.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from app.common import json_text
from app.conversations.messages.row import LogRow
from app.conversations.sent_media import media_in
from app.formats.message import NO_RESULT, Message, Role, Text
from app.formats.openai_chat import OpenAIChat
from app.formats.openai_responses import OpenAIResponses
from app.formats.openai_responses.parsing import FUNCTION, call_types
from app.formats.reasoning_families import DEMANDING
from app.formats.reasoning_fields import (
    BLANK_REASONING,
    call_stand_in_fields,
    is_replayed,
    message_fields,
    text_of,
)
from app.models.tokens import (
    MESSAGE_OVERHEAD,
    count_json,
    count_rendered,
    count_replayed,
    count_visible,
    reasoning_of,
)
from app.payload.assembler import BREAKPOINT_INTERVAL, Assembler
from app.payload.payload_items import BreakpointPosition
from app.payload.shown_messages import may_have_media
from app.prompt.sections import DynamicTexts

_CACHEABLE = ("input_text", "input_image", "input_file")
_AFTER_LAST_PART_BYTES = len("}]}")


class SeparateAssembler(Assembler):
    """Renders each row into items of its own."""

    takes_system_notes = True

    @abstractmethod
    def _put_item(self, item: dict[str, Any], tokens: int) -> None:
        """Add an item that is not the model's."""

    @abstractmethod
    def _note_item(self, texts: Sequence[str], as_system: bool) -> tuple[dict[str, Any], int]:
        """Return an item with these texts, and its tokens."""

    @abstractmethod
    def _result_item(self, wire_id: str, text: str) -> tuple[dict[str, Any], int]:
        """Return an item that answers a call with a text, and its tokens."""

    def _put_note(self, text: str, *, as_system: bool = False) -> None:
        self._has_first_message = True
        self._put_item(*self._note_item((text,), as_system))

    def _put_result(self, wire_id: str, text: str = NO_RESULT) -> None:
        self._put_item(*self._result_item(wire_id, text))

    def _with_tail(self, tail: DynamicTexts) -> tuple[list[bytes], int, int, int]:
        wire_items = list(self._stable_items)
        if not tail.texts:
            return wire_items, self.tokens, 0, 0
        item, tail_tokens = self._note_item(tail.texts, tail.as_system)
        return [*wire_items, json_text.dump_payload(item)], self.tokens, 1, tail_tokens


class ChatAssembler(SeparateAssembler):
    """Payload items for OpenAI Chat Completions.

    1. One row is one message. Media of results follow in a user message.
    2. Reasoning is replayed unchanged, to a model of the family that made it. A model that refuses
       a tool loop without it gets a blank where a message has none.
    """

    provider: OpenAIChat
    provider_type = OpenAIChat
    ends_with_reasoning = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._media: list[tuple[Message, str]] = []

    def _put_item(self, item: dict[str, Any], tokens: int) -> None:
        self._append(json_text.dump_payload(item))
        self.tokens += tokens

    def _add_result(self, row: LogRow, wire_id: str) -> None:
        super()._add_result(row, wire_id)
        if row.has_media and not self._is_cleared(row):
            shown = len(self.media)
            self._media.append((self._message(row), wire_id))
            del self.media[shown:]  # counted with the result
        if not self._open_calls:
            self._finish_group()

    def _put_row(self, row: LogRow, ids: Mapping[str, str]) -> None:
        is_demanded = (  # by a model that refuses this message without reasoning (rule 2)
            row.role is Role.ASSISTANT
            and DEMANDING in self.view.reasoning_of
            and (self.has_calls or bool(row.call_ids or self.defined_tools))
        )
        is_changed = is_demanded or row.has_media or self._is_rewritten(row)
        is_item = self.provider.is_stored and not (ids or is_changed)
        if is_item and not row.reasoning_tokens:
            if may_have_media(row):
                self.media += media_in(row.seq, row.message())
            self._append(row.text)
            self.tokens += row.tokens
            return
        message = self._message(row)
        self._record_content(self.provider.adapt(message, ids))
        replays, accepts = row.seq > self.view.reasoning_after, self.view.reasoning_of
        item = self.provider.render(message, ids, accepts=accepts, keep_reasoning=replays)
        tokens, reasoning = count_rendered(self.format, message, self.count, ids), 0
        if row.reasoning_tokens and is_replayed(message, accepts):
            if not replays:
                stand_ins = filter(None, map(call_stand_in_fields, message.calls))
                reasoning = sum(count_json(fields, self.count) for fields in stand_ins)
            elif row.format is self.format:
                reasoning = row.reasoning_tokens
            else:
                reasoning = count_json(message_fields(message), self.count)
        if is_demanded and "reasoning_content" not in item:
            text = text_of(item) or BLANK_REASONING
            item["reasoning_content"] = text
            reasoning += count_json({"reasoning_content": text}, self.count)
        tokens = self._record_cost(row, tokens, reasoning)
        self._put_item(item, tokens)

    def _note_item(self, texts: Sequence[str], as_system: bool) -> tuple[dict[str, Any], int]:
        text = "\n\n".join(texts)
        item = {"role": "system" if as_system else "user", "content": text}
        return item, MESSAGE_OVERHEAD + self.count(text)

    def _result_item(self, wire_id: str, text: str) -> tuple[dict[str, Any], int]:
        message = Message(Role.TOOL, (Text(text),), tool_call_id=wire_id)
        return self.provider.render(message), count_visible(message, self.count)

    def _finish_group(self) -> None:
        for message, wire_id in self._media:
            item = self.provider.render_media(message, {message.tool_call_id or "": wire_id})
            if item is not None:
                self._append(json_text.dump_payload(item))
        self._media.clear()


class ResponsesAssembler(SeparateAssembler):
    """Payload items for OpenAI Responses.

    1. One row is one item or more.
    2. Reasoning is replayed byte for byte while its prefix is unchanged, a compaction item as long
       as payloads begin with it.
    3. A result has the type of its call in this payload, whatever format it came in. That of an
       asynchronous call is where it came; until then the call has none.
    4. Cache breakpoints are at the last part of user and developer messages: the two newest,
       because OpenAI finds a cached prefix only at breakpoints that are still there, and about
       every `BREAKPOINT_INTERVAL`th item.
    """

    provider: OpenAIResponses
    provider_type = OpenAIResponses
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
