"""The maximum text of a message.

Text is what tokens are counted of: texts, documents as text, arguments and reasoning. Media are
bounded by the size of the body alone.
"""

from __future__ import annotations

from app.common.errors import PayloadTooLarge, Problem
from app.formats.message import File, Message, Part, Reasoning, Text, ToolCall

MAX_TEXT_BYTES = 4 * 2**20
_MAX_CHAR_BYTES = 4


def require_short_text(message: Message, pointer: str) -> None:
    """Raise PayloadTooLarge for a message with more text than `MAX_TEXT_BYTES`."""
    texts = [_text_of(part) for part in message.parts]
    if sum(map(len, texts)) * _MAX_CHAR_BYTES <= MAX_TEXT_BYTES:
        return
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    if size > MAX_TEXT_BYTES:
        raise PayloadTooLarge(
            f"A message has at most {MAX_TEXT_BYTES:,} bytes of text: upload a larger tool output"
            " with `POST /v1/conversations/{conversation_id}/blobs`, and refer to it by"
            " `output_ref`",
            {"limit": MAX_TEXT_BYTES, "found": size},
            (Problem(pointer, f"has {size:,} bytes of text"),),
        )


def _text_of(part: Part) -> str:
    match part:
        case Text() | Reasoning():
            return part.text
        case File():
            return part.text or ""
        case ToolCall():
            return part.arguments
    return ""
