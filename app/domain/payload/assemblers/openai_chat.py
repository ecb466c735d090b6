"""Payload items for OpenAI Chat Completions.

1. One row is one message. Media of results follow in a user message.
2. A message never changes, so all of them are stable.
3. Reasoning is replayed unchanged, to a model of the family that made it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

from app.domain.common import json_text
from app.domain.common.messages import NO_RESULT, FormatName, Message, Role, Text
from app.domain.conversations.log.row import LogRow
from app.domain.conversations.view import View
from app.domain.formats import openai_chat
from app.domain.formats.openai_chat.reasoning_fields import (
    call_stand_in_fields,
    is_replayed,
    message_fields,
    stand_in_fields,
)
from app.domain.models.tokens import (
    MESSAGE_OVERHEAD,
    CountText,
    count_json,
    count_message,
    count_rendered,
)
from app.domain.payload.assembler import ALL_TOOLS, NO_NAMES, Assembler, PayloadItems
from app.domain.prompt.sections import NO_TAIL, Tail


class ChatAssembler(Assembler):
    """Items for OpenAI Chat Completions."""

    takes_system_notes = True

    def __init__(
        self,
        view: View,
        count: CountText,
        tools: Collection[str] = ALL_TOOLS,
        opening: Tail = NO_TAIL,
        defined: Collection[str] = NO_NAMES,
    ) -> None:
        super().__init__(view, count, tools, opening, defined)
        self._items: list[bytes] = []
        self._media: list[tuple[Message, str]] = []
        self._hash = hashlib.sha256()

    def _put(self, item: bytes, tokens: int) -> None:
        self._items.append(item)
        self._hash.update(item)
        self.tokens += tokens

    @property
    def stable(self) -> int:
        """All items: a chat message never grows."""
        return len(self._items)

    def _add_result(self, row: LogRow, wire_id: str) -> None:
        super()._add_result(row, wire_id)
        if row.has_media and not self._trimmed(row):
            self._media.append((row.message(), wire_id))
        if not self._open:
            self._flush_media()

    def _put_row(self, row: LogRow, ids: Mapping[str, str]) -> None:
        if not (ids or row.has_media or row.reasoning_tokens or self._is_plain(row)):
            self._put(row.text, row.tokens)
            return
        message = self._message(row)
        shown = openai_chat.adapt(message, ids)
        self._note_labels(shown, FormatName.OPENAI_CHAT)
        keeps, accepts = row.seq > self.view.reasoning_after, self.view.reasoning_of
        item = openai_chat.render(message, ids, accepts=accepts, keep_reasoning=keeps)
        tokens = count_rendered(FormatName.OPENAI_CHAT, message, self.count, ids)
        if row.reasoning_tokens and is_replayed(message, accepts):
            tokens += self._reasoning_tokens(row, message) if keeps else self._left_tokens(message)
        self._put(json_text.dump_payload(item), tokens)

    def _reasoning_tokens(self, row: LogRow, message: Message) -> int:
        """Return the tokens of the fields that carry a message's reasoning."""
        if row.format is FormatName.OPENAI_CHAT:
            return row.reasoning_tokens
        return count_json(message_fields(message), self.count)

    def _left_tokens(self, message: Message) -> int:
        left = [stand_in_fields(message), *map(call_stand_in_fields, message.calls)]
        return sum(count_json(fields, self.count) for fields in left if fields)

    def _put_note(self, text: str, *, as_system: bool = False) -> None:
        self._started = True
        item = {"role": "system" if as_system else "user", "content": text}
        self._put(json_text.dump_payload(item), MESSAGE_OVERHEAD + self.count(text))

    def _put_result(self, wire_id: str, text: str = NO_RESULT) -> None:
        item, tokens = self._result_item(wire_id, text)
        self._put(item, tokens)

    def _result_item(self, wire_id: str, text: str) -> tuple[bytes, int]:
        message = Message(Role.TOOL, (Text(text),), tool_call_id=wire_id)
        item = openai_chat.render(message)
        return json_text.dump_payload(item), count_message(message, self.count).visible

    def _flush_media(self) -> None:
        for item in self._media_items():
            self._put(item, 0)
        self._media.clear()

    def _media_items(self) -> list[bytes]:
        """Return the user messages that carry the media of results; the rows' counts hold them."""
        found = []
        for message, wire_id in self._media:
            item = openai_chat.render_media(message, {message.tool_call_id or "": wire_id})
            if item is not None:
                found.append(json_text.dump_payload(item))
        return found

    def items(self, tail: Tail = NO_TAIL) -> PayloadItems:
        """Return the messages; open calls are closed after the stable ones."""
        wire, tokens = list(self._items), self.tokens
        for wire_id in self._open.values():
            item, cost = self._result_item(wire_id, NO_RESULT)
            wire.append(item)
            tokens += cost
        wire.extend(self._media_items())
        tail_tokens = 0
        if tail.texts:
            text = "\n\n".join(tail.texts)
            role = "system" if tail.as_system else "user"
            wire.append(json_text.dump_payload({"role": role, "content": text}))
            tail_tokens = MESSAGE_OVERHEAD + self.count(text)
        return PayloadItems(
            wire=wire,
            stable=len(self._items),
            tokens=tokens,
            summary_tokens=self.summary_tokens,
            prefix_digest=self._hash.hexdigest(),
            rendered_through=self.rendered_through,
            has_calls=self.has_calls,
            mentions=tuple(sorted(self.mentions)),
            tail=1 if tail.texts else 0,
            opening_tokens=self.opening_tokens,
            tail_tokens=tail_tokens,
            not_carried=tuple(self._not_carried),
        )
