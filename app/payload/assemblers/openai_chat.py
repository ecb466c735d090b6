"""Payload items for OpenAI Chat Completions.

1. One row is one message. Media of results follow in a user message.
2. Reasoning is replayed unchanged, to a model of the family that made it. A model that refuses a
   tool loop without it gets a blank where a message has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.common import json_text
from app.conversations.messages.row import LogRow
from app.conversations.sent_media import media_in
from app.formats.message import Message, Role, Text
from app.formats.openai_chat import OpenAIChat
from app.formats.reasoning_families import DEMANDING
from app.formats.reasoning_fields import (
    BLANK_REASONING,
    call_stand_in_fields,
    is_replayed,
    message_fields,
    text_of,
)
from app.models.tokens import MESSAGE_OVERHEAD, count_json, count_rendered, count_visible
from app.payload.assemblers.separate import SeparateAssembler
from app.payload.shown_messages import may_have_media


class ChatAssembler(SeparateAssembler):
    """Items for OpenAI Chat Completions."""

    provider: OpenAIChat
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
            self._media.append((self._shown_media(row), wire_id))
        if not self._open_calls:
            self._finish_group()

    def _shown_media(self, row: LogRow) -> Message:
        """Return a result with the media that are shown of it."""
        shown = len(self.media)
        message = self._message(row)
        del self.media[shown:]  # counted with the result
        return message

    def _put_row(self, row: LogRow, ids: Mapping[str, str]) -> None:
        is_demanded = self._is_reasoning_demanded(row)
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
            reasoning = (
                self._reasoning_tokens(row, message) if replays else self._stand_in_tokens(message)
            )
        if is_demanded and "reasoning_content" not in item:
            text = text_of(item) or BLANK_REASONING
            item["reasoning_content"] = text
            reasoning += count_json({"reasoning_content": text}, self.count)
        tokens = self._record_cost(row, tokens, reasoning)
        self._put_item(item, tokens)

    def _is_reasoning_demanded(self, row: LogRow) -> bool:
        """Whether the model refuses this message without reasoning (rule 2)."""
        if row.role is not Role.ASSISTANT or DEMANDING not in self.view.reasoning_of:
            return False
        return self.has_calls or bool(row.call_ids or self.defined_tools)

    def _reasoning_tokens(self, row: LogRow, message: Message) -> int:
        """Return the tokens of the fields that carry a message's reasoning."""
        if row.format is self.format:
            return row.reasoning_tokens
        return count_json(message_fields(message), self.count)

    def _stand_in_tokens(self, message: Message) -> int:
        stand_ins = map(call_stand_in_fields, message.calls)
        return sum(count_json(fields, self.count) for fields in stand_ins if fields)

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
