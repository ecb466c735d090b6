"""Messages as a transcript reads them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from app.blobs.blobs import ToolOutputRef
from app.blobs.stored_output import StoredOutput, inline_output, stored_output_from
from app.common.ids import MessageId
from app.conversations.messages.row import parse_stored
from app.formats.message import FormatName, Role


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
