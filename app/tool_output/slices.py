"""Slices of a blob, by lines or by bytes [tool-output.read-lines] [tool-output.read-bytes].

1. An offset is the number of lines or bytes to skip; printed line numbers begin at 1.
2. A line ends at a newline; one carriage return before it is left out.
3. A line longer than `max_line_length` characters is cut; it names the byte at which it continues.
4. No slice splits a character: a start inside a character moves to the next one, an end inside one
   moves back, unless the slice would be empty. Read from 0 along `next_offset`, the texts add up to
   the whole output.
5. Bytes before a slice are not read, and skipped bytes are not kept. A slice at or past the end is
   empty.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.blobs.blobs import MAX_CHARACTER_BYTES, decode_lossy, encode, prefix_size, split_character
from app.common.answers import answer

_REACH = MAX_CHARACTER_BYTES - 1
"""The largest distance from a position to the start or end of its character."""


@answer()
@dataclass(frozen=True, slots=True)
class OutputLines:
    """Numbered lines of an output."""

    text: str
    """The lines, each with its number and a tab before it."""
    first_line: int
    """Number of the first line, from 1."""
    line_count: int
    """Number of lines in `text`."""
    total_lines: int
    """Number of lines of the whole output."""
    next_offset: int | None
    """The next `offset`; null at the end."""


@answer()
@dataclass(frozen=True, slots=True)
class OutputBytes:
    """A slice of an output's bytes as text. No character is split."""

    text: str
    """The bytes, decoded as UTF-8."""
    offset: int
    """Offset of the first byte, at a character."""
    byte_count: int
    """Number of bytes in `text`."""
    total_bytes: int
    """Size of the whole output in bytes."""
    next_offset: int | None
    """The next `offset`; null at the end."""


def bytes_to_fetch(offset: int, limit: int, total: int) -> tuple[int, int]:
    """Return the half-open range of bytes that `byte_slice` needs."""
    if offset >= total:
        return total, total
    return max(0, offset - _REACH), min(total, offset + max(limit, 1) + 2 * _REACH)


def byte_slice(data: bytes, start: int, *, offset: int, limit: int, total: int) -> OutputBytes:
    """Return the slice of up to `limit` bytes at `offset` of a blob with `total` bytes (rule 4).

    `data` begins at `start` in the blob and covers the range of `bytes_to_fetch`.
    """
    if offset >= total:
        return OutputBytes("", offset, 0, total, None)
    split = split_character(data, offset - start)
    first = split[1] if split else offset - start
    last = min(first + max(limit, 1), total - start)
    split = split_character(data, last)
    if split is not None:
        last = split[0] if split[0] > first else split[1]
    next_offset = start + last if start + last < total else None
    piece = data[first:last]
    return OutputBytes(decode_lossy(piece), start + first, len(piece), total, next_offset)


class LineReader:
    """Reads the lines of a slice from the chunks of a blob.

    The first chunk begins at byte `start` of the blob, after `newlines` newlines, which must not
    exceed `offset`. The slice ends after `limit` lines, or before the line that would exceed
    `max_bytes`; it has at least one line.
    """

    def __init__(
        self,
        offset: int,
        limit: int,
        *,
        max_line_length: int,
        max_bytes: int,
        total_lines: int,
        start: int = 0,
        newlines: int = 0,
    ) -> None:
        self._offset = offset
        self._limit = limit
        self._max_line_length = max_line_length
        self._remaining_bytes = max_bytes
        self._total_lines = total_lines
        self._lines: list[str] = []
        self._line = bytearray()
        self._line_start = start
        self._position = start
        self._to_skip = offset - newlines
        self._is_skipping = False
        self.is_done = offset >= total_lines or limit < 1

    @property
    def next_line(self) -> int | None:
        """The next line that is needed if the bytes before it are not, else None.

        `go_to` can then skip the chunks before that line (rule 5).
        """
        is_skipping = self._is_skipping or self._to_skip > 0
        return self._offset + len(self._lines) if is_skipping and not self.is_done else None

    def go_to(self, start: int, newlines: int) -> None:
        """Continue with a chunk that begins at `start`, after `newlines` newlines.

        The chunk must be after the last one, and begin at or before `next_line`.
        """
        self._position = start
        self._is_skipping = False
        self._to_skip = self._offset + len(self._lines) - newlines

    def feed(self, piece: bytes) -> None:
        """Read the next chunk."""
        at = self._skip(piece)
        while at < len(piece) and not self.is_done:
            end = piece.find(b"\n", at)
            if not self._line and not self._is_skipping:
                self._line_start = self._position + at
            self._buffer(piece[at : end if end >= 0 else len(piece)])
            if end < 0:
                break
            self._end_line()
            at = end + 1
        self._position += len(piece)

    def finish(self) -> OutputLines:
        """Return the slice, after the last chunk or once `is_done`."""
        if not self.is_done and self._line:
            self._end_line()
        count = len(self._lines)
        next_offset = self._offset + count
        return OutputLines(
            "\n".join(self._lines),
            self._offset + 1,
            count,
            self._total_lines,
            next_offset if next_offset < self._total_lines else None,
        )

    def _skip(self, piece: bytes) -> int:
        """Return the position in the piece from which on lines are needed."""
        if not self._to_skip:
            return 0
        newlines = piece.count(b"\n")
        if newlines < self._to_skip:
            self._to_skip -= newlines
            return len(piece)
        rest = piece.split(b"\n", self._to_skip)[-1]
        self._to_skip = 0
        return len(piece) - len(rest)

    def _buffer(self, part: bytes) -> None:
        if self._is_skipping:
            return
        # A line of this size is cut, even if it ends here.
        limit = (self._max_line_length + 2) * MAX_CHARACTER_BYTES
        self._line += part[: limit - len(self._line)]
        if len(self._line) >= limit:
            self._add_line(bytes(self._line))
            self._is_skipping = True

    def _end_line(self) -> None:
        if not self._is_skipping:
            self._add_line(bytes(self._line.removesuffix(b"\r")))
        self._is_skipping = False

    def _add_line(self, line: bytes) -> None:
        self._line.clear()
        text = decode_lossy(line)
        if len(text) > self._max_line_length:
            text = text[: self._max_line_length]
            next_byte = self._line_start + prefix_size(line, self._max_line_length)
            text += f" … [line goes on at byte {next_byte}]"
        numbered = f"{self._offset + len(self._lines) + 1:6}\t{text}"
        self._remaining_bytes -= len(encode(numbered))
        if self._remaining_bytes < 0 and self._lines:
            self.is_done = True
            return
        self._lines.append(numbered)
        self._remaining_bytes -= 1  # the newline before the next line
        self.is_done = len(self._lines) >= self._limit
