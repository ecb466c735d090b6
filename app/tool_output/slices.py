"""Slices of a blob, by lines or by bytes [tool-output.read-lines] [tool-output.read-bytes].

1. An offset is the number of lines or bytes to skip; printed line numbers begin at 1.
2. A line ends at a newline; one carriage return before it is left out.
3. A line longer than `max_line_length` characters is cut; it names the byte at which it continues.
4. No slice splits a character: a start inside a character moves to the next one, an end inside one
   moves back, unless the slice would be empty. Read from 0 along `next_offset`, the texts add up to
   the whole output.
5. Bytes before a slice are not read. A slice of lines ends after a line of more than
   MAX_LINE_BYTES, of which the rest is not read. A slice at or past the end is empty.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.blobs.chunks import MAX_CHARACTER_BYTES, decode_lossy, encode, prefix_size, split_character
from app.common.answer_schemas import answer

MAX_LINE_BYTES = 65_536
_REACH = MAX_CHARACTER_BYTES - 1
"""The largest distance from a position to the start or end of its character."""


@answer()
@dataclass(frozen=True, slots=True)
class OutputLines:
    """Numbered lines of an output."""

    text: str
    """The lines, each with its number and a tab before it."""
    offset: int
    """Lines before the first one."""
    line_count: int
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
    byte_size: int
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
        return OutputBytes("", offset, total, None)
    split = split_character(data, offset - start)
    first = split[1] if split else offset - start
    last = min(first + max(limit, 1), total - start)
    split = split_character(data, last)
    if split is not None:
        last = split[0] if split[0] > first else split[1]
    next_offset = start + last if start + last < total else None
    return OutputBytes(decode_lossy(data[first:last]), start + first, total, next_offset)


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
        line_count: int,
        start: int = 0,
        newlines: int = 0,
    ) -> None:
        self._offset, self._limit, self._line_count = offset, limit, line_count
        self._max_line_length, self._remaining_bytes = max_line_length, max_bytes
        self._lines: list[str] = []
        self._line, self._line_start = b"", start  # the next line as far as it is read
        self._to_skip = offset - newlines
        self.is_done = offset >= line_count or limit < 1

    def feed(self, piece: bytes) -> None:
        """Read the next chunk."""
        if self._to_skip:
            newlines = piece.count(b"\n")
            rest = piece.split(b"\n", self._to_skip)[-1] if newlines >= self._to_skip else b""
            self._to_skip = max(0, self._to_skip - newlines)
            self._line_start += len(piece) - len(rest)
            piece = rest
        *lines, self._line = (self._line + piece).split(b"\n")
        for line in lines:
            self._add(line.removesuffix(b"\r"))
            self._line_start += len(line) + 1
        longest = max(MAX_LINE_BYTES, (self._max_line_length + 2) * MAX_CHARACTER_BYTES)
        if len(self._line) > longest:
            self._add(self._line)
            self.is_done = True

    def finish(self) -> OutputLines:
        """Return the slice, after the last chunk or once `is_done`."""
        if self._line:
            self._add(self._line.removesuffix(b"\r"))
        next_offset = self._offset + len(self._lines)
        return OutputLines(
            "\n".join(self._lines),
            self._offset,
            self._line_count,
            next_offset if next_offset < self._line_count else None,
        )

    def _add(self, line: bytes) -> None:
        if self.is_done:
            return
        most = self._max_line_length
        text = decode_lossy(line[: (most + 2) * MAX_CHARACTER_BYTES])
        if len(text) > most:
            next_byte = self._line_start + prefix_size(line, most)
            text = f"{text[:most]} … [line goes on at byte {next_byte}]"
        numbered = f"{self._offset + len(self._lines) + 1:6}\t{text}"
        self._remaining_bytes -= len(encode(numbered))
        if self._remaining_bytes < 0 and self._lines:
            self.is_done = True
            return
        self._lines.append(numbered)
        self._remaining_bytes -= 1  # the newline before the next line
        self.is_done = len(self._lines) >= self._limit
