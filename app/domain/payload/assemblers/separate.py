"""Payload items for formats in which every message is an item of its own or several.

An item never changes, so all of them are stable.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from app.domain.common import json_text
from app.domain.common.messages import NO_RESULT
from app.domain.payload.assembler import Assembler
from app.domain.payload.payload_items import PayloadItems
from app.domain.prompt.sections import NO_DYNAMIC_TEXTS, DynamicTexts


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

    def _media_items(self) -> list[bytes]:
        """Return the items with the media of results, which the counts of the rows include."""
        return []

    def _put_note(self, text: str, *, as_system: bool = False) -> None:
        self._has_first_message = True
        self._put_item(*self._note_item((text,), as_system))

    def _put_result(self, wire_id: str, text: str = NO_RESULT) -> None:
        self._put_item(*self._result_item(wire_id, text))

    def items(self, tail: DynamicTexts = NO_DYNAMIC_TEXTS) -> PayloadItems:
        """Return the items; open calls are closed after the stable ones."""
        wire_items, tokens = list(self._stable_items), self.tokens
        for wire_id in self._open_calls.values():
            item, item_tokens = self._result_item(wire_id, NO_RESULT)
            wire_items.append(json_text.dump_payload(item))
            tokens += item_tokens
        wire_items += self._media_items()
        tail_tokens = 0
        if tail.texts:
            item, tail_tokens = self._note_item(tail.texts, tail.as_system)
            wire_items.append(json_text.dump_payload(item))
        return self._payload_items(wire_items, tokens, tail, tail_tokens)
