"""Payload items for OpenAI Chat Completions.

1. One row is one message. Media of results follow in a user message.
2. Reasoning is replayed unchanged, to a model of the family that made it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

from app.domain.common import json_text
from app.domain.common.messages import FormatName, Message, Role, Text
from app.domain.conversations.log.row import LogRow
from app.domain.conversations.turns import MAX_PLACEHOLDER_TOKENS
from app.domain.conversations.view import View
from app.domain.formats import openai_chat
from app.domain.formats.openai_chat.reasoning_fields import (
    call_stand_in_fields,
    is_replayed,
    message_fields,
    stand_in_fields,
)
from app.domain.models.tokens import MESSAGE_OVERHEAD, count_json, count_rendered, count_visible
from app.domain.payload.assemblers.separate import SeparateAssembler


class _Result(NamedTuple):
    """A shown result, and the place of its item; a plain one is shown as it is stored."""

    row: LogRow
    place: int
    is_plain: bool


class ChatAssembler(SeparateAssembler):
    """Items for OpenAI Chat Completions."""

    format = FormatName.OPENAI_CHAT

    def __post_init__(self) -> None:
        super().__post_init__()
        self._media: list[tuple[Message, str]] = []
        self._results: dict[int, _Result] = {}

    def _put_item(self, item: dict[str, Any], tokens: int) -> None:
        self._append(json_text.dump_payload(item))
        self.tokens += tokens

    def _add_result(self, row: LogRow, wire_id: str) -> None:
        super()._add_result(row, wire_id)
        if row.has_media and not self._is_cleared(row):
            self._media.append((row.message(), wire_id))
        if not self._open_calls:
            self._finish_group()

    def with_cleared(self, view: View) -> Self | None:
        """Put placeholders in the place of results, each of which is an item of its own."""
        before = self.view
        is_reduced = before.shortened or before.sent_item is not None or self.has_reasoning
        shows_again = any(
            before.clears_result(seq) and not view.clears_result(seq)
            for seq in view.uncleared_results
        )
        if (
            is_reduced
            or shows_again
            or view.results_cleared_through < before.results_cleared_through
        ):
            return None
        cleared = [
            result
            for result in self._results.values()
            if result.row.tokens > MAX_PLACEHOLDER_TOKENS and view.clears_result(result.row.seq)
        ]
        if not all(result.is_plain for result in cleared):
            return None
        copied = self._copy()
        copied.view = view
        if cleared:
            copied._clear(cleared)
        return copied

    def _clear(self, results: Sequence[_Result]) -> None:
        """Show placeholders in the place of results, and mention what is mentioned then."""
        self.mentions.clear()
        items: dict[int, bytes] = {}
        for result in results:
            row = result.row
            item, tokens = self._result_item(row.call_ids[0], self._placeholder(row))
            items[result.place] = json_text.dump_payload(item)
            self.tokens += tokens - row.tokens
            del self._results[row.seq]
        self._replace_items(items)
        for result in self._results.values():
            self._is_rewritten(result.row)  # adds its mentions

    def _put_row(self, row: LogRow, ids: Mapping[str, str]) -> None:
        is_plain = not (ids or row.has_media or row.reasoning_tokens or self._is_rewritten(row))
        if row.role is Role.TOOL:
            kept = row if is_plain else replace(row, text=b"")
            self._results[row.seq] = _Result(kept, self.stable_items, is_plain)
        if is_plain:
            self._append(row.text)
            self.tokens += row.tokens
            return
        message = self._message(row)
        self._record_labels(openai_chat.adapt(message, ids))
        replays, accepts = row.seq > self.view.reasoning_after, self.view.reasoning_of
        item = openai_chat.render(message, ids, accepts=accepts, keep_reasoning=replays)
        tokens = count_rendered(self.format, message, self.count, ids)
        if row.reasoning_tokens and is_replayed(message, accepts):
            tokens += (
                self._reasoning_tokens(row, message) if replays else self._stand_in_tokens(message)
            )
        self._record_cost(row, tokens)
        self._put_item(item, tokens)

    def _reasoning_tokens(self, row: LogRow, message: Message) -> int:
        """Return the tokens of the fields that carry a message's reasoning."""
        if row.format is self.format:
            return row.reasoning_tokens
        return count_json(message_fields(message), self.count)

    def _stand_in_tokens(self, message: Message) -> int:
        stand_ins = [stand_in_fields(message), *map(call_stand_in_fields, message.calls)]
        return sum(count_json(fields, self.count) for fields in stand_ins if fields)

    def _note_item(self, texts: Sequence[str], as_system: bool) -> tuple[dict[str, Any], int]:
        text = "\n\n".join(texts)
        item = {"role": "system" if as_system else "user", "content": text}
        return item, MESSAGE_OVERHEAD + self.count(text)

    def _result_item(self, wire_id: str, text: str) -> tuple[dict[str, Any], int]:
        message = Message(Role.TOOL, (Text(text),), tool_call_id=wire_id)
        return openai_chat.render(message), count_visible(message, self.count)

    def _finish_group(self) -> None:
        for item in self._media_items():
            self._append(item)
        self._media.clear()

    def _media_items(self) -> list[bytes]:
        items = (
            openai_chat.render_media(message, {message.tool_call_id or "": wire_id})
            for message, wire_id in self._media
        )
        return [json_text.dump_payload(item) for item in items if item is not None]
