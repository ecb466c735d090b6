"""Blobs: whole tool outputs, stored byte for byte in chunks [tool-output.byte-exact].

1. A blob's id is made from its content: equal bytes in a conversation are one blob.
2. Text is stored as UTF-8 that allows lone surrogates, so that every string is restored exactly.
3. A line ends at a newline; non-empty text after the last newline is a line.
4. Every chunk has the number of bytes and newlines before it, so that the cost of a slice does not
   depend on its position [tool-output.slice-cost].
5. When bytes are decoded as text, each byte outside a UTF-8 character becomes one U+FFFD. The text
   of a part therefore does not depend on where the part was cut.
"""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from app.common.answer_schemas import answer

CHUNK_BYTES = 65_536
"""Bytes of a chunk before compression; only a blob's last chunk is shorter."""
_SLICE = 1 << 18
"""Characters that are encoded in less than a millisecond."""
TEXT = "text/plain; charset=utf-8"
"""The media type of an output that was a string."""


@answer()
@dataclass(frozen=True, slots=True)
class ToolOutputRef:
    """Reference to a tool result: the id of its blob, or of its message if it has no blob."""

    id: str
    """Id of its blob, or of its message if it has no blob."""
    byte_size: int
    """Size of the whole output in bytes."""
    line_count: int
    """Number of lines; text after the last newline is a line."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a blob, with the number of bytes and newlines before it.

    `data` are its bytes; as stored they are compressed, or a range of the blob's object.
    """

    number: int
    start: int
    newlines: int
    size: int
    data: bytes | None
    object_start: int | None = None
    object_size: int | None = None


@dataclass(frozen=True, slots=True)
class Blob:
    """A stored blob; `content_id` is the key of its chunks.

    `object_key` is the key of the object with its chunks, None if the rows hold them. A blob that
    is not `attached` to a message may be collected; `collected_at` is the time at which it was.
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
        """The reference in messages and responses."""
        return ToolOutputRef(self.id, self.byte_size, self.line_count)


def blob_id(sha256: str) -> str:
    """Return the id of the blob whose bytes have this hash."""
    return f"blob_{sha256[:24]}"


def count_lines(data: bytes) -> int:
    """Return the number of lines of an output (rule 3)."""
    return data.count(b"\n") + (data[-1:] not in (b"", b"\n"))


def encode(text: str) -> bytes:
    """Return the stored bytes of a text; `decode` returns the identical text (rule 2)."""
    if len(text) <= _SLICE or text.isascii():
        return text.encode("utf-8", "surrogatepass")
    slices = (text[start : start + _SLICE] for start in range(0, len(text), _SLICE))
    return b"".join(piece.encode("utf-8", "surrogatepass") for piece in slices)


def decode(data: bytes) -> str:
    """Return the text of bytes that `encode` returned."""
    return data.decode("utf-8", "surrogatepass")


# The characters of three bytes include surrogates (rule 2).
_LONG_CHARACTER = (
    rb"[\xC2-\xDF][\x80-\xBF]|\xE0[\xA0-\xBF][\x80-\xBF]|[\xE1-\xEF][\x80-\xBF]{2}"
    rb"|\xF0[\x90-\xBF][\x80-\xBF]{2}|[\xF1-\xF3][\x80-\xBF]{3}|\xF4[\x80-\x8F][\x80-\xBF]{2}"
)
_LONG = re.compile(_LONG_CHARACTER)
_CHARACTER = re.compile(_LONG_CHARACTER + rb"|.", re.DOTALL)
_SURROGATE = re.compile(rb"\xED[\xA0-\xBF][\x80-\xBF]")

MAX_CHARACTER_BYTES = 4
"""The length of the longest UTF-8 character."""


def decode_lossy(data: bytes) -> str:
    """Decode any bytes as text; valid UTF-8 as `decode` does (rule 5)."""
    return data.decode("utf-8", _LOSSY)


def prefix_size(data: bytes, characters: int) -> int:
    """Return the size in bytes of the first characters of the data, as `decode_lossy` counts."""
    try:
        return len(encode(decode(data)[:characters]))
    except UnicodeDecodeError:
        ends = (character.end() for character in _CHARACTER.finditer(data))
        return next(islice(ends, characters - 1, None), len(data)) if characters > 0 else 0


def whole_characters(data: bytes, limit: int) -> bytes:
    """Return the first bytes of the data, at most so many, that split no character."""
    split = split_character(data, limit) if limit < len(data) else None
    return data[: split[0] if split else limit]


def split_character(data: bytes, position: int) -> tuple[int, int] | None:
    """Return the start and end of the character that a cut at `position` splits, else None.

    The data must have three bytes on both sides of the position, unless it begins or ends there.
    """
    for start in range(max(0, position - MAX_CHARACTER_BYTES + 1), position):
        match = _LONG.match(data, start)
        if match is not None and match.end() > position:
            return match.span()
    return None


def _decode_invalid(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    surrogate = _SURROGATE.match(error.object, error.start)
    if surrogate is not None:
        return decode(surrogate[0]), surrogate.end()
    return "\ufffd", error.start + 1


_LOSSY = "context-service.lossy"
codecs.register_error(_LOSSY, _decode_invalid)


class Chunker:
    """Cuts a stream of bytes into chunks, and counts and hashes it, in constant memory."""

    def __init__(self) -> None:
        self.byte_size = 0
        self._number = 0
        self._newlines = 0
        self._last = b""
        self._pending = bytearray()
        self._hash = hashlib.sha256()

    def feed(self, piece: bytes) -> Iterator[Chunk]:
        """Add bytes, and yield every full chunk; consume all of them before the next call."""
        self.byte_size += len(piece)
        self._hash.update(piece)
        self._last = piece[-1:] or self._last
        self._pending += piece
        while len(self._pending) >= CHUNK_BYTES:
            yield self._next_chunk(CHUNK_BYTES)

    def finish(self) -> Iterator[Chunk]:
        """Yield the last chunk, if bytes are left."""
        if self._pending:
            yield self._next_chunk(len(self._pending))

    def blob(self, media_type: str, tool_name: str | None, tool_call_id: str | None) -> Blob:
        """Return the blob of all bytes, without a content id, after `finish`."""
        sha256 = self._hash.hexdigest()
        lines = self._newlines + (self._last not in (b"", b"\n"))
        ref = blob_id(sha256)
        return Blob(ref, "", self.byte_size, lines, sha256, media_type, tool_name, tool_call_id)

    def _next_chunk(self, size: int) -> Chunk:
        data = bytes(self._pending[:size])
        del self._pending[:size]
        chunk = Chunk(self._number, self._number * CHUNK_BYTES, self._newlines, size, data)
        self._number += 1
        self._newlines += data.count(b"\n")
        return chunk
