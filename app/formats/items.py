"""Formats of items, such as OpenAI's Responses and the steps of Gemini Interactions.

1. Consecutive items that the model made are one neutral message, because their calls are one group.
   `group_items` joins such neighbours of a batch to `{"role": "assistant", "output": [items]}`,
   which these formats accept as a message.
2. Every other item is one message.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from app.formats.base import Provider
from app.formats.json_fields import Fields, Raw, Wire
from app.formats.message import Message, Part, Role
from app.formats.tools import with_own_ids

LOG_FIELDS: Final = (
    *("timestamp", "seq", "turn", "token_count", "format", "created_at", "redacted_at"),
    *("conversation_id", "agent_id", "output_ref", "content_truncated", "content_collected"),
    *("visibility", "pinned", "restored_at", "restored_from", "given"),
)
"""Fields that the service adds to an item when the log is read: clients may send them back."""


class ItemProvider(Provider):
    """A format whose messages are items."""

    blocks_key = "output"

    @abstractmethod
    def is_output(self, raw: Raw) -> bool:
        """Whether an item is the result of a call that the client ran."""

    @abstractmethod
    def is_call(self, raw: Raw) -> bool:
        """Whether an item is a call that the client runs."""

    @abstractmethod
    def is_made_by_model(self, raw: Raw) -> bool:
        """Whether the model made an item."""

    @abstractmethod
    def _parse_item(self, item: Fields) -> Part:
        """Read an item that the model made."""

    def _parse_group(self, group: Fields) -> Message:
        """Read several items as one message (rule 1)."""
        items = list(group.objects("output"))
        for each in items:
            if is_item_group(each.raw) or self.is_output(each.raw):
                raise each.error("type", "only items that the model made are allowed here")
        return self._said(map(self._parse_item, items))

    def _said(self, parts: Iterable[Part]) -> Message:
        return Message(Role.ASSISTANT, with_own_ids(parts))

    def results(self, raw: Raw) -> list[tuple[str, Any]]:
        """List the item itself where it is a tool's result."""
        return [("", raw)] if self.is_output(raw) else []

    def calls(self, raw: Raw) -> list[Wire]:
        """List the calls of the client among the items of a message."""
        items: list[Any] = raw["output"] if is_item_group(raw) else [raw]
        return [item for item in items if self.is_call(item)]

    def group_items(self, raws: Sequence[Any]) -> list[tuple[int, Any]]:
        """Join items of the model that follow each other (rule 1)."""
        groups: list[tuple[int, Any]] = []
        run: list[Any] = []
        for index, raw in enumerate(raws):
            is_item = isinstance(raw, Mapping) and not is_item_group(raw)
            run = [*run, raw] if is_item and self.is_made_by_model(raw) else []
            if len(run) > 1:
                groups[-1] = (index + 1 - len(run), {"role": "assistant", "output": run})
            else:
                groups.append((index, raw))
        return groups

    def own_fields(self, raw: Raw) -> Raw:
        """Return the item, of several the fields of the first one too."""
        return {**raw["output"][0], **raw} if is_item_group(raw) and raw["output"] else raw

    def enveloped(self, raw: Wire) -> Wire:
        """Wrap an item of the model: payloads leave out the fields of an envelope."""
        (parsed,) = self.parse(raw, "")
        if parsed.role is not Role.ASSISTANT:
            return raw
        if not is_item_group(raw):
            raw = {"role": "assistant", "output": [raw]}
        first, *others = raw["output"] or [{}]
        if "timestamp" not in first:
            return raw
        bare = {key: value for key, value in first.items() if key != "timestamp"}
        return {"timestamp": first["timestamp"]} | raw | {"output": [bare, *others]}

    def wire(self, message: Message) -> Wire:
        """Return a whole message, of the assistant one with all items."""
        items = self.render(message)
        is_said = message.role is Role.ASSISTANT
        return {"role": "assistant", "output": items} if is_said else items[0]


def is_item_group(raw: Raw) -> bool:
    """Return whether a message is several items of the model, in its `output`."""
    is_bare = raw.get("type") is None and raw.get("role") == "assistant"
    return is_bare and isinstance(raw.get("output"), list)
