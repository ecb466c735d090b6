"""Payload items for formats in which every message is an item of its own or several.

An item never changes, so all of them are stable.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from app.common import json_text
from app.formats.message import NO_RESULT
from app.payload.assembler import Assembler
from app.prompt.sections import DynamicTexts


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
