"""The texts of a message that a search reads.

1. A search reads texts, names and arguments of tool calls, and results as the log stores them. It
   does not read reasoning, which payloads never repeat once its prefix is gone, nor the calls and
   results of `recall`, which only repeat other messages.
2. JSON is searched by its strings, after its escapes are decoded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from app.blobs.preview import RECALL
from app.common import json_text
from app.conversations.messages.row import StoredMessage, parse_stored
from app.conversations.search.words import text_pieces
from app.formats.message import File, FormatName, Message, Part, Role, Text, ToolCall

_ESCAPES = re.compile(r'(?:\\u[0-9a-fA-F]{4})+|\\["\\/bfnrt]')


@dataclass(frozen=True, slots=True)
class SearchedMessage:
    """A message, and the name of the tool that made the result, where it is known.

    `said_at` is its own time, or that of its receipt.
    """

    message: StoredMessage
    tool_name: str | None = None
    said_at: datetime | None = None

    def texts(self) -> tuple[str, ...]:
        """Return its texts that a search reads."""
        parsed = parse_stored(self.message.body.encode(), FormatName(self.message.format))
        return text_of(parsed, self.tool_name)


def text_of(message: Message, tool_name: str | None = None) -> tuple[str, ...]:
    """Return the texts of a message that a search reads (rule 1).

    `tool_name` is the tool that made a result, where the message does not name it.
    """
    name = tool_name or message.name
    if message.role is Role.TOOL and name == RECALL:
        return ()
    texts = (name or "", *(text for part in message.parts for text in _part_texts(part)))
    return tuple(_unescaped(text) for text in texts if text)


def _part_texts(part: Part) -> tuple[str, ...]:
    match part:
        case Text():
            return (part.text,)
        case ToolCall():
            return (part.name,) if part.name == RECALL else (part.name, part.arguments)
        case File():
            return (part.name or "", part.text or "")
        case _:
            return ()


def _unescaped(text: str) -> str:
    """Return JSON with its escapes decoded, and other text unchanged (rule 2)."""
    if not text[:256].lstrip().startswith(("{", "[")) or "\\" not in text:
        return text
    return "".join(_ESCAPES.sub(_character, piece) for piece in text_pieces(text))


def _character(escape: re.Match[str]) -> str:
    text: str = json_text.loads_exact(f'"{escape[0]}"')
    return text
