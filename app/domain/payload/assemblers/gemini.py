"""Payload contents for Gemini: neighbours of one role share a content.

1. The responses of a call group are together, in the order of its calls. They are added with the
   last one, or when the group ends.
2. A response is an object, unlike in other formats, so it is counted here.
3. Signatures and signed thoughts are replayed byte for byte while their prefix is unchanged.
4. Gemini caches by prefix alone, so there are no breakpoints.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from app.domain.common import json_text
from app.domain.common.messages import NO_RESULT, FormatName, Message, Role, Text
from app.domain.conversations.log.row import LogRow
from app.domain.conversations.view import View
from app.domain.formats import gemini
from app.domain.models.tokens import (
    MESSAGE_OVERHEAD,
    CountText,
    count_message,
    count_rendered,
    count_replayed,
    counts_as_stored,
)
from app.domain.payload.assembler import ALL_TOOLS, NO_NAMES
from app.domain.payload.assemblers.merging import Block, MergingAssembler
from app.domain.prompt.sections import NO_TAIL, Tail


class GeminiAssembler(MergingAssembler):
    """Contents for Gemini."""

    user = "user"

    def __init__(
        self,
        view: View,
        count: CountText,
        tools: Collection[str] = ALL_TOOLS,
        opening: Tail = NO_TAIL,
        defined: Collection[str] = NO_NAMES,
    ) -> None:
        super().__init__(view, count, tools, opening, defined)
        self._asked: dict[str, Mapping[str, Any]] = {}
        self._known_as: dict[str, str] = {}
        self._results: dict[str, tuple[bytes, int]] = {}
        self._media: dict[str, list[bytes]] = {}

    def _head(self, role: str) -> bytes:
        return b'{"role":"%s","parts":[' % role.encode()

    def _text_block(self, text: str) -> bytes:
        return json_text.dump_payload({"text": text})

    def _add_breakpoint(self) -> None:
        """Do nothing (rule 4)."""

    def _result_block(self, wire_id: str, text: str) -> tuple[bytes, int]:
        known, asked = self._known_as.get(wire_id, wire_id), self._asked.get(wire_id)
        message = Message(Role.TOOL, (Text(text),), known, _name_of(asked))
        _, (part,) = gemini.render(message, call=asked)
        tokens = count_message(message, self.count, FormatName.GEMINI).visible
        return json_text.dump_payload(part), tokens - MESSAGE_OVERHEAD

    def _put_row(self, row: LogRow, ids: Mapping[str, str]) -> None:
        stored, is_plain = self._message(row), self._is_plain(row)
        message = self._in_format(row, stored, FormatName.GEMINI)
        replays = row.seq > self.view.reasoning_after
        shown = gemini.for_payload(message, ids, keep_reasoning=replays)
        self._note_labels(shown, FormatName.GEMINI)
        role, parts = gemini.render(shown, keep_reasoning=replays)
        calls = [self._open[call_id] for call_id in row.call_ids]
        if calls:
            self._asked = dict(zip(calls, gemini.function_calls(parts), strict=True))
            known = (call.id for call in shown.calls)
            self._known_as = dict(zip(calls, known, strict=True))
        tokens = row.tokens
        if (
            ids
            or row.has_media
            or is_plain
            or not counts_as_stored(message, shown, FormatName.GEMINI)
        ):
            tokens = count_message(shown, self.count, FormatName.GEMINI).visible
        if replays:
            tokens += count_replayed(row.reasoning_tokens, stored, shown, self.count)
        blocks = [Block(json_text.dump_payload(part), cacheable=False) for part in parts]
        self._put(role, blocks, tokens - MESSAGE_OVERHEAD)

    def _add_result(self, row: LogRow, wire_id: str) -> None:
        """Keep a result until its group is complete (rule 1)."""
        if self._trimmed(row):
            self._put_result(wire_id, self._placeholder(row))
        else:
            self._keep_result(row, wire_id)
        if not self._open:
            self._flush_media()

    def _keep_result(self, row: LogRow, wire_id: str) -> None:
        message, known = self._message(row), self._known_as.get(wire_id, wire_id)
        asked, ids = self._asked.get(wire_id), {message.tool_call_id or "": known}
        self._note_labels(gemini.adapt(message, ids), FormatName.GEMINI)
        _, (part, *media) = gemini.render(message, ids, call=asked)
        named = replace(message, name=_name_of(asked) or message.name)
        tokens = count_rendered(FormatName.GEMINI, named, self.count, ids)
        self._results[wire_id] = json_text.dump_payload(part), tokens - MESSAGE_OVERHEAD
        self._media[wire_id] = [json_text.dump_payload(item) for item in media]

    def _put_result(self, wire_id: str, text: str = NO_RESULT) -> None:
        self._results[wire_id] = self._result_block(wire_id, text)

    def _flush_media(self) -> None:
        for block, tokens in self._closing():
            self._put(self.user, [Block(block, cacheable=False)], tokens)
        self._asked, self._known_as = {}, {}
        self._results, self._media = {}, {}

    def _closing(self) -> list[tuple[bytes, int]]:
        if not (self._results or self._open):
            return []
        found = [
            self._results.get(wire_id) or self._result_block(wire_id, NO_RESULT)
            for wire_id in self._asked
        ]
        media = [block for wire_id in self._asked for block in self._media.get(wire_id, ())]
        return found + [(block, 0) for block in media]  # the results' counts hold them


def _name_of(asked: Mapping[str, Any] | None) -> str | None:
    """Return the name that a response to a call is sent with."""
    return asked["name"] if asked is not None else None
