"""Messages as a transcript reads them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from app.domain.common.messages import FormatName, Role
from app.domain.conversations.log import parse_stored
from app.domain.tool_output.blobs import ToolOutputRef
from app.domain.tool_output.offloading import Output, inline_output, output_from


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as the transcript shows it; `body` is the message as it came (A1).

    Of an offloaded result `body` has the view, and `stored_output` says where the rest is.
    """

    id: str
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
        """The bytes of the body as JSON."""
        return len(self.body) if self.body.isascii() else len(self.body.encode())

    @property
    def output(self) -> Output | None:
        """What the row says of a tool result; a small one's is worked out."""
        if self.stored_output is not None:
            return output_from(self.stored_output)
        if self.role != Role.TOOL:
            return None
        return inline_output(parse_stored(self.body.encode(), FormatName(self.format)))

    @property
    def output_ref(self) -> ToolOutputRef | None:
        """What a tool result is called for by (F1)."""
        output = self.output
        return output.ref_in(self.id, self.seq) if output is not None else None
