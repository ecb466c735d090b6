"""Rows of the log, as a build reads them and as a transcript does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from app.blobs.blobs import ToolOutputRef
from app.blobs.stored_output import StoredOutput, inline_output, stored_output_from
from app.common import json_text
from app.common.ids import MessageId
from app.formats import PROVIDERS
from app.formats.media import clean
from app.formats.message import FormatName, Message, Reasoning, Role


@dataclass(slots=True, eq=False)
class LogRow:
    """One stored message as a build reads it: `text` is JSON in `format`.

    It belongs to the call group before it, if it `joins` that. `tokens` is its cost in a payload
    without reasoning, `reasoning_tokens` the cost of replayed reasoning. `stored_output` is the
    JSON of a tool result's `StoredOutput`. `text` may be empty where the build shows a placeholder.
    `lead` is reasoning that came before, in messages of its own.
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
    joins: bool = False
    lead: tuple[Reasoning, ...] = ()

    @property
    def output(self) -> StoredOutput | None:
        """The stored output of a tool result; None for a small one and for other messages."""
        return stored_output_from(self.stored_output) if self.stored_output is not None else None

    def message(self) -> Message:
        """Return the neutral message, without characters that providers refuse."""
        message = clean(parse_stored(self.text, self.format))
        if message.tool_call_id not in (None, *self.call_ids):
            return replace(message, tool_call_id=self.call_ids[0])  # one of several with its id
        return replace(message, parts=(*self.lead, *message.parts)) if self.lead else message


class JoinedRow(LogRow):
    """Several messages of one answer, which payloads send as one message of the assistant."""

    __slots__ = ("rows",)

    def __init__(self, rows: Sequence[LogRow]) -> None:
        super().__init__(
            id=rows[0].id,
            seq=rows[0].seq,
            role=rows[0].role,
            tokens=sum(row.tokens for row in rows),
            reasoning_tokens=sum(row.reasoning_tokens for row in rows),
            call_ids=tuple(call_id for row in rows for call_id in row.call_ids),
            has_media=True,
            format=rows[0].format,
            text=b"".join(row.text for row in rows),
        )
        self.rows = tuple(rows)


def parse_stored(body: bytes, format: FormatName) -> Message:
    """Parse one stored body back into the neutral message it was stored for."""
    raw = json_text.loads(body)
    return PROVIDERS[format].parse(raw, "")[0]


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message of a transcript; `body` is the message as the caller sent it.

    The body of an offloaded result holds its preview, and `stored_output` refers to its blob.
    """

    id: MessageId
    seq: int
    turn: int
    role: str
    format: str
    token_count: int
    body: str
    created_at: datetime
    stored_output: str | None = None

    @property
    def byte_size(self) -> int:
        """The size of the body as JSON."""
        return len(self.body) if self.body.isascii() else len(self.body.encode())

    @property
    def output(self) -> StoredOutput | None:
        """The output of a tool result; computed for a small one, None for other messages."""
        if self.stored_output is not None:
            return stored_output_from(self.stored_output)
        if self.role != Role.TOOL:
            return None
        return inline_output(parse_stored(self.body.encode(), FormatName(self.format)))

    @property
    def output_ref(self) -> ToolOutputRef | None:
        """The reference by which a tool result is read."""
        output = self.output
        return output.ref_in(self.id, self.seq) if output is not None else None
