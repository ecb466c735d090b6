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
from app.domain.prompt.sections import NO_TAIL, Tail


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
        """Return the items that carry the media of results; the rows' counts include them."""
        return []

    def _put_note(self, text: str, *, as_system: bool = False) -> None:
        self._started = True
        self._put_item(*self._note_item((text,), as_system))

    def _put_result(self, wire_id: str, text: str = NO_RESULT) -> None:
        self._put_item(*self._result_item(wire_id, text))

    def items(self, tail: Tail = NO_TAIL) -> PayloadItems:
        """Return the items; open calls are closed after the stable ones."""
        wire, tokens = list(self._items), self.tokens
        for wire_id in self._open.values():
            item, cost = self._result_item(wire_id, NO_RESULT)
            wire.append(json_text.dump_payload(item))
            tokens += cost
        wire += self._media_items()
        tail_tokens = 0
        if tail.texts:
            item, tail_tokens = self._note_item(tail.texts, tail.as_system)
            wire.append(json_text.dump_payload(item))
        return self._payload_items(wire, tokens, tail, tail_tokens)
