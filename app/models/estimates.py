"""Token estimates without a tokenizer: by bytes or by characters.

`text_bytes_4`, `text_chars_4` and `text_chars_2_5` estimate one text and serve as a `CountText`.
`bytes_4`, `chars_4` and `chars_2_5` estimate messages: content text by the rule in the name,
everything else as a build counts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from app.formats.message import Message, Text
from app.models.tokens import MESSAGE_OVERHEAD, CountText, count_message


def text_bytes_4(text: str) -> int:
    """Estimate a text as its UTF-8 bytes / 4, rounded down."""
    return _size_bytes(text) // 4


def text_chars_4(text: str) -> int:
    """Estimate a text as its characters / 4, rounded down."""
    return len(text) // 4


def text_chars_2_5(text: str) -> int:
    """Estimate a text as its characters x 2 / 5, rounded down."""
    return len(text) * 2 // 5


def bytes_4(messages: Iterable[Message]) -> int:
    """Estimate by UTF-8 bytes of content / 4, rounded down per message."""
    return sum(
        sum(map(_size_bytes, _texts(message))) // 4 + _count_apart(message, text_bytes_4)
        for message in messages
    )


def chars_4(messages: Sequence[Message]) -> int:
    """Estimate by all characters of content / 4, rounded down once."""
    text = sum(sum(map(len, _texts(message))) for message in messages) // 4
    return text + sum(_count_apart(message, text_chars_4) for message in messages)


def chars_2_5(messages: Iterable[Message]) -> int:
    """Estimate by characters of content x 2 / 5, rounded down per message."""
    return sum(
        sum(map(len, _texts(message))) * 2 // 5 + _count_apart(message, text_chars_2_5)
        for message in messages
    )


def _count_apart(message: Message, count: CountText) -> int:
    """Count everything but content text: calls, media, reasoning, ids and a name; no overhead."""
    apart = tuple(part for part in message.parts if not isinstance(part, Text))
    return count_message(replace(message, parts=apart), count).total - MESSAGE_OVERHEAD


def _texts(message: Message) -> list[str]:
    return [part.text for part in message.parts if isinstance(part, Text)]


def _size_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
