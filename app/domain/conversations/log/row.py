"""Rows of the log, as a build reads them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.domain.common import json_text
from app.domain.common.messages import FormatName, Message, Reasoning, Role, clean
from app.domain.formats import FORMATS
from app.domain.tool_output.stored_output import StoredOutput, stored_output_from


@dataclass(slots=True, eq=False)
class LogRow:
    """One stored message as a build reads it: `text` is JSON in `format`.

    `tokens` is its cost in a payload without reasoning, `reasoning_tokens` the cost of replayed
    reasoning. `stored_output` is the JSON of a tool result's `StoredOutput`. `text` may be empty
    where the build shows a placeholder. `lead` is reasoning that came before, in messages of its
    own.
    """

    id: str
    seq: int
    role: Role
    tokens: int
    reasoning_tokens: int
    call_ids: tuple[str, ...]
    has_media: bool
    format: FormatName
    text: bytes
    stored_output: str | None = None
    lead: tuple[Reasoning, ...] = ()

    @property
    def output(self) -> StoredOutput | None:
        """The stored output of a tool result; None for a small one and for other messages."""
        return stored_output_from(self.stored_output) if self.stored_output is not None else None

    def message(self) -> Message:
        """Return the neutral message, without characters that providers refuse."""
        message = clean(parse_stored(self.text, self.format))
        if self.format is FormatName.GEMINI and message.tool_call_id not in (None, *self.call_ids):
            return replace(message, tool_call_id=self.call_ids[0])  # stored by its position
        return replace(message, parts=(*self.lead, *message.parts)) if self.lead else message


def parse_stored(body: bytes, format: FormatName) -> Message:
    """Parse one stored body back into the neutral message it was stored for."""
    raw = json_text.loads(body)
    return FORMATS[format].parse(raw, "")[0]
