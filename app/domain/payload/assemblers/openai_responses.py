"""Payload items for OpenAI Responses.

1. One row is one item or more. An item never changes, so all of them are stable.
2. Reasoning and compaction items are replayed byte for byte while their prefix is unchanged.
3. A result has the type of its call in this payload, whatever format it came in.
4. Cache breakpoints are at the last part of user and developer messages: the two newest, because
   OpenAI finds a cached prefix only at breakpoints that are still there, and about every
   `BREAKPOINT_INTERVAL`th item.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from app.domain.common import json_text
from app.domain.common.messages import NO_RESULT, FormatName, Message, Role, Text
from app.domain.conversations.log.row import LogRow
from app.domain.conversations.view import View
from app.domain.formats import openai_responses
from app.domain.models.tokens import (
    MESSAGE_OVERHEAD,
    CountText,
    count_message,
    count_replayed,
    counts_as_stored,
    reasoning_of,
)
from app.domain.payload.assembler import (
    ALL_TOOLS,
    MAX_BREAKPOINTS,
    NO_NAMES,
    Assembler,
    BreakpointPlace,
    PayloadItems,
)
from app.domain.payload.assemblers.merging import BREAKPOINT_INTERVAL
from app.domain.prompt.sections import NO_TAIL, Tail

BREAKPOINT_JSON: Final = b',"prompt_cache_breakpoint":{"mode":"explicit"}'
_FORMAT = FormatName.OPENAI_RESPONSES
_CACHEABLE = ("input_text", "input_image", "input_file")
_CLOSING = len("}]}")


class ResponsesAssembler(Assembler):
    """Items for OpenAI Responses."""

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
        self._hash = hashlib.sha256()
        self._is_model = False  # who made the last item
        self._calls: dict[str, str] = {}
        self._found: list[BreakpointPlace] = []
        self._lasting: list[BreakpointPlace] = []
        self._history: list[tuple[int, int]] = []

    @property
    def stable(self) -> int:
        """All items put so far: an item never grows."""
        return len(self._items)

    def _put(self, items: Sequence[dict[str, Any]], tokens: int, *, is_model: bool = False) -> None:
        """Add items; those of the model cost one overhead with the model's before them."""
        self.tokens += tokens - (MESSAGE_OVERHEAD if is_model and self._is_model else 0)
        self._is_model = is_model
        for item in items:
            wire = json_text.dump_payload(item)
            self._items.append(wire)
            self._hash.update(wire)
            content = item.get("content")
            if not is_model and isinstance(content, list) and content[-1]["type"] in _CACHEABLE:
                self._add_breakpoint(len(wire) - _CLOSING)

    def _add_breakpoint(self, offset: int) -> None:
        place = BreakpointPlace(len(self._items) - 1, offset, self.tokens + self.summary_tokens)
        self._found.append(place)
        if place.item >= BREAKPOINT_INTERVAL + (self._lasting[-1].item if self._lasting else 0):
            self._lasting.append(place)

    def _put_row(self, row: LogRow, ids: Mapping[str, str]) -> None:
        stored, is_plain = self._message(row), self._is_plain(row)
        message = self._in_format(row, stored, FormatName.OPENAI_RESPONSES)
        replays = row.seq > self.view.reasoning_after
        shown = openai_responses.for_payload(message, ids, keep_reasoning=replays)
        self._note_labels(shown, FormatName.OPENAI_RESPONSES)
        answers = self._calls.get(shown.tool_call_id or "")
        items = openai_responses.render(shown, keep_reasoning=replays, call_type=answers)
        if row.role is Role.ASSISTANT:
            self._calls = openai_responses.call_types(items)
        tokens = row.tokens
        if answers not in (None, openai_responses.FUNCTION):
            tokens = self._counted(items[0])
        elif ids or row.has_media or is_plain or not counts_as_stored(message, shown, _FORMAT):
            tokens = count_message(shown, self.count, _FORMAT).visible
        tokens += count_replayed(row.reasoning_tokens, stored, reasoning_of(shown), self.count)
        self._put(items, tokens, is_model=row.role is Role.ASSISTANT)

    def _counted(self, item: dict[str, Any]) -> int:
        """Count a result as it reads: some types have no place for texts."""
        (message,) = openai_responses.parse(item, "")
        return count_message(message, self.count, _FORMAT).visible

    def _put_note(self, text: str, *, as_system: bool = False) -> None:
        self._started = True
        self._put([_says((text,), as_system=as_system)], MESSAGE_OVERHEAD + self.count(text))

    def _put_result(self, wire_id: str, text: str = NO_RESULT) -> None:
        item = self._result_item(wire_id, text)
        self._put([item], self._counted(item))

    def _result_item(self, wire_id: str, text: str) -> dict[str, Any]:
        message = Message(Role.TOOL, (Text(text),), tool_call_id=wire_id)
        (item,) = openai_responses.render(message, call_type=self._calls.get(wire_id))
        return item

    def _after_row(self) -> None:
        self._history.append((len(self._found), len(self._lasting)))

    def _breakpoints_at(self, place: int) -> tuple[BreakpointPlace, ...]:
        return self._breakpoint_places(*self._history[place])

    def _breakpoint_places(self, found: int, lasting: int) -> tuple[BreakpointPlace, ...]:
        newest = self._found[max(0, found - 2) : found]
        recent = self._lasting[max(0, lasting - MAX_BREAKPOINTS) : lasting]
        return tuple(sorted({*newest, *recent}, reverse=True)[:MAX_BREAKPOINTS])

    def items(self, tail: Tail = NO_TAIL) -> PayloadItems:
        """Return the items; open calls are closed after the stable ones."""
        wire, tokens = list(self._items), self.tokens
        for wire_id in self._open.values():
            item = self._result_item(wire_id, NO_RESULT)
            wire.append(json_text.dump_payload(item))
            tokens += self._counted(item)
        tail_tokens = 0
        if tail.texts:
            wire.append(json_text.dump_payload(_says(tail.texts, as_system=tail.as_system)))
            tail_tokens = MESSAGE_OVERHEAD + sum(map(self.count, tail.texts))
        return PayloadItems(
            wire=wire,
            stable=len(self._items),
            tokens=tokens,
            summary_tokens=self.summary_tokens,
            prefix_digest=self._hash.hexdigest(),
            rendered_through=self.rendered_through,
            has_calls=self.has_calls,
            breakpoints=self._breakpoint_places(len(self._found), len(self._lasting)),
            mentions=tuple(sorted(self.mentions)),
            references=tuple(sorted(self.references)),
            tail=1 if tail.texts else 0,
            opening_tokens=self.opening_tokens,
            tail_tokens=tail_tokens,
            not_carried=tuple(self._not_carried),
        )


def _says(texts: Sequence[str], *, as_system: bool) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text} for text in texts]
    return {"type": "message", "role": "developer" if as_system else "user", "content": content}
