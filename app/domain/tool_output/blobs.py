"""Blobs: full tool outputs, kept byte-exact and cut into chunks (F1, F6).

1. A blob is addressed by its content inside a conversation: the same bytes are one blob.
2. Text is stored as UTF-8 in which lone surrogates survive, so that it comes back identical.
3. A line ends at a newline; what follows the last newline is a line if it is not empty.
4. Every chunk knows how many bytes and newlines stand before it: a slice costs what it shows,
   wherever it stands (F4).
5. Where bytes are shown as text, a byte that belongs to no UTF-8 character is a character of its
   own, shown as U+FFFD: what is shown of a part never depends on where the part was cut.
"""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

CHUNK_BYTES = 65_536
"""Bytes of a chunk before it is compressed; only a blob's last one is shorter."""
TEXT = "text/plain; charset=utf-8"
"""The media type of what came as a string."""


@dataclass(frozen=True, slots=True)
class ToolOutputRef:
    """How a tool result is called for: its blob's id, or its message's where it has none."""

    id: str
    byte_size: int
    line_count: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a blob: `start` bytes and `newlines` stand before it."""

    number: int
    start: int
    newlines: int
    data: bytes


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk as its row keeps it: compressed in `data`, or at a place of the blob's object."""

    number: int
    start: int
    newlines: int
    size: int
    data: bytes | None = None
    object_start: int | None = None
    object_size: int | None = None


@dataclass(frozen=True, slots=True)
class Blob:
    """A stored blob; its chunks are found by `content_id`.

    `object_key` names the object that holds them, None where the rows do. One that no message
    was `attached` to may be collected; `collected_at` tells that it was (F7).
    """

    id: str
    content_id: str
    byte_size: int
    line_count: int
    sha256: str
    media_type: str
    tool_name: str | None = None
    tool_call_id: str | None = None
    object_key: str | None = None
    attached: bool = False
    created_at: datetime | None = None
    collected_at: datetime | None = None

    @property
    def ref(self) -> ToolOutputRef:
        """What messages and answers call it by."""
        return ToolOutputRef(self.id, self.byte_size, self.line_count)


def blob_id(sha256: str) -> str:
    """Return the id of the blob whose bytes have this hash (rule 1)."""
    return f"blob_{sha256[:24]}"


def encode(text: str) -> bytes:
    """Return the bytes a text is kept as; `decode` gives the identical text back (rule 2)."""
    return text.encode("utf-8", "surrogatepass")


def decode(data: bytes) -> str:
    """Return the text that `encode` made these bytes of."""
    return data.decode("utf-8", "surrogatepass")


# Surrogates are among the characters of three bytes (rule 2).
_LONG_CHARACTER = (
    rb"[\xC2-\xDF][\x80-\xBF]|\xE0[\xA0-\xBF][\x80-\xBF]|[\xE1-\xEF][\x80-\xBF]{2}"
    rb"|\xF0[\x90-\xBF][\x80-\xBF]{2}|[\xF1-\xF3][\x80-\xBF]{3}|\xF4[\x80-\x8F][\x80-\xBF]{2}"
)
_STRADDLING = re.compile(_LONG_CHARACTER)
_CHARACTER = re.compile(_LONG_CHARACTER + rb"|.", re.DOTALL)
_SURROGATE = re.compile(rb"\xED[\xA0-\xBF][\x80-\xBF]")

MAX_CHARACTER_BYTES = 4
"""No character of UTF-8 is longer."""


def show(data: bytes) -> str:
    """Return bytes as text whatever they are; those of a text as `decode` does (rule 5)."""
    return data.decode("utf-8", _SHOWN)


def prefix_size(data: bytes, characters: int) -> int:
    """Return how many bytes the first characters of what `show` makes of the data stand for."""
    try:
        return len(encode(decode(data)[:characters]))
    except UnicodeDecodeError:
        ends = (character.end() for character in _CHARACTER.finditer(data))
        return next(islice(ends, characters - 1, None), len(data)) if characters > 0 else 0


def character_across(data: bytes, position: int) -> tuple[int, int] | None:
    """Return where the character that a cut at `position` would split begins and ends.

    None where a cut splits nothing. Three bytes on both sides of the position are enough to say.
    """
    for start in range(max(0, position - MAX_CHARACTER_BYTES + 1), position):
        found = _STRADDLING.match(data, start)
        if found is not None and found.end() > position:
            return found.span()
    return None


def _show_invalid(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    surrogate = _SURROGATE.match(error.object, error.start)
    if surrogate is not None:
        return decode(surrogate[0]), surrogate.end()
    return "\ufffd", error.start + 1


_SHOWN = "context-service.shown"
codecs.register_error(_SHOWN, _show_invalid)


class Chunker:
    """Cuts a stream of bytes into chunks, counting and hashing on the way, in constant memory."""

    def __init__(self) -> None:
        self.byte_size = 0
        self._cut = 0
        self._newlines = 0
        self._last = b""
        self._rest = bytearray()
        self._hash = hashlib.sha256()

    def feed(self, piece: bytes) -> Iterator[Chunk]:
        """Take in more bytes, and yield every chunk that is full; exhaust it before the next."""
        self.byte_size += len(piece)
        self._hash.update(piece)
        self._last = piece[-1:] or self._last
        self._rest += piece
        while len(self._rest) >= CHUNK_BYTES:
            yield self._cut_off(CHUNK_BYTES)

    def finish(self) -> Iterator[Chunk]:
        """Yield the last chunk, if there is anything left."""
        if self._rest:
            yield self._cut_off(len(self._rest))

    @property
    def sha256(self) -> str:
        """The hash of all that was fed, in hex."""
        return self._hash.hexdigest()

    @property
    def line_count(self) -> int:
        """The lines of all that was fed, once it is finished (rule 3)."""
        return self._newlines + (self._last not in (b"", b"\n"))

    def _cut_off(self, size: int) -> Chunk:
        data = bytes(self._rest[:size])
        del self._rest[:size]
        chunk = Chunk(self._cut, self._cut * CHUNK_BYTES, self._newlines, data)
        self._cut += 1
        self._newlines += data.count(b"\n")
        return chunk
