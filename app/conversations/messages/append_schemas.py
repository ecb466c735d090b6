"""Schemas of the answer to an append, which a build with `append` has as well."""

from __future__ import annotations

from typing import Literal

from app.blobs.blobs import ToolOutputRef
from app.conversations.budget_schemas import READING, Reading
from app.formats.message import Role
from app.http.fields import ResponseSchema, examples


class AppendedMessage(ResponseSchema):
    """The position of a message in the log."""

    id: str
    """The caller's id, or one that the service created."""
    seq: int
    """Its position, from 1 without gaps."""
    turn: int
    """Number of user messages up to it."""
    role: Role
    """Role of the message."""
    token_count: int
    """Its tokens, including reasoning."""
    output_ref: ToolOutputRef | None
    """Reference to read a tool result by; null for other messages."""


class Appended(Reading):
    """The stored batch, and the use of the context window."""

    model_config = examples(
        {
            "messages": [
                {
                    "id": "0199a1b2-5d6e-7f80-9a1b-2c3d4e5f6071",
                    "seq": 1,
                    "turn": 1,
                    "role": "user",
                    "token_count": 12,
                    "output_ref": None,
                }
            ],
            "head_seq": 1,
            **READING,
            "warnings": [],
            "system_section": "system",
        }
    )

    messages: list[AppendedMessage]
    """The messages of the batch, in order."""
    head_seq: int
    """Seq of the newest message."""
    warnings: list[Literal["tool_output_inline"]]
    """`tool_output_inline`: the blob store failed, so the whole results are in their messages."""
    system_section: str | None
    """The section that has the text of the system messages at the beginning of the batch; they
    are not stored as messages. Null where it had none, or the log keeps them."""
