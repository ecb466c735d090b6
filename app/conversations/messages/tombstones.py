"""Tombstones: what stands in the log in place of a redacted message.

1. A tombstone has the role, format and tool calls of its message, so that pairs and payloads stay
   valid: the ids and names of calls stay, their arguments and all other content are gone.
2. It keeps the stored token count, which running totals of later rows contain; so it counts at
   least as much as it takes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.blobs.stored_output import inline_output
from app.common import json_text
from app.conversations.messages.row import LogRow
from app.conversations.turns import MAX_PLACEHOLDER_TOKENS
from app.formats import PROVIDERS
from app.formats.message import LOG_FORMAT, Role, clean
from app.formats.registry import openai_chat

REDACTED = "[redacted]"
"""The text of a tombstone."""
REDACTED_SUMMARY = "(the summary told of a message that was redacted)"
"""The summary of a receipt or a snapshot that used a redacted message."""


@dataclass(frozen=True, slots=True)
class Tombstone:
    """The columns of the log that replace a message; `output` is that of a large tool result."""

    body: str
    fragment: str | None
    output: str | None


def tombstone_of(row: LogRow) -> Tombstone:
    """Return the tombstone of a stored message."""
    provider = PROVIDERS[row.format]
    raw = provider.emptied(row.message(), REDACTED)
    (message,) = provider.parse(raw, "")
    if row.role is Role.TOOL:
        message = replace(message, tool_call_id=row.call_ids[0])
    fragment = None
    if row.format is not LOG_FORMAT or not openai_chat.is_faithful(raw, message):
        fragment = json_text.dump_payload(openai_chat.render(clean(message))).decode()
    # Clearing relies on the output of results that are larger than a placeholder.
    is_clearable = row.role is Role.TOOL and row.tokens > MAX_PLACEHOLDER_TOKENS
    output = inline_output(message).as_json() if is_clearable else None
    return Tombstone(json_text.dumps(raw), fragment, output)
