"""Slices of a blob: some of its lines, or some of its bytes (F4, decision 28).

1. Offsets count what is skipped, from 0; printed line numbers begin at 1.
2. A line ends at a newline, and one carriage return before it is not shown.
3. A line longer than `max_line_length` characters is cut, and says at which byte it goes on.
4. No slice splits a character: a start inside one moves on to the next, an end inside one moves
   back, unless nothing would be left. Read from 0, following `next_offset`, the texts add up to
   the whole.
5. What lies before a slice is never read, what is skipped in it never kept: a slice costs what it
   shows. A slice at or past the end is empty.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.tool_output.blobs import (
    MAX_CHARACTER_BYTES,
    character_across,
    encode,
    prefix_size,
    show,
)

_REACH = MAX_CHARACTER_BYTES - 1
"""How far from a place the character that it lies in may begin or end."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Numbered lines; `next_offset` is the `offset` of the next slice, None at the end."""

    text: str
    first_line: int
    line_count: int
    total_lines: int
    next_offset: int | None


@dataclass(frozen=True, slots=True)
class Bytes:
    """A text of `byte_count` bytes from `offset` on, which may be later than asked (rule 4)."""

    text: str
    offset: int
    byte_count: int
    total_bytes: int
    next_offset: int | None


def bytes_to_fetch(offset: int, limit: int, total: int) -> tuple[int, int]:
    """Return the half-open range of bytes that `byte_slice` needs for a slice."""
    if offset >= total:
        return total, total
    return max(0, offset - _REACH), min(total, offset + max(limit, 1) + 2 * _REACH)


def byte_slice(data: bytes, start: int, *, offset: int, limit: int, total: int) -> Bytes:
    """Return the slice of up to `limit` bytes at `offset`, the blob having `total` (rule 4).

    `data` stands at `start` in the blob and has at least the bytes that `bytes_to_fetch` names.
    """
    if offset >= total:
        return Bytes("", offset, 0, total, None)
    across = character_across(data, offset - start)
    first = across[1] if across else offset - start
    last = min(first + max(limit, 1), total - start)
    across = character_across(data, last)
    if across is not None:
        last = across[0] if across[0] > first else across[1]
    shown = data[first:last]
    following = start + last if start + last < total else None
    return Bytes(show(shown), start + first, len(shown), total, following)


class LineReader:
    """Takes the lines of a slice out of the chunks it is fed, from the one it begins in on.

    The first piece stands at byte `start` of the blob, behind `newlines` newlines; that must not
    be more than `offset`. The slice ends after `limit` lines, or before the line that would take
    its text over `max_bytes`; it has one line at least.
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
        self._room = max_bytes
        self._total_lines = total_lines
        self._shown: list[str] = []
        self._line = bytearray()
        self._line_start = start
        self._position = start
        self._to_skip = offset - newlines
        self._is_skipping = False
        self.is_done = offset >= total_lines or limit < 1

    @property
    def next_line(self) -> int | None:
        """The line it waits for while it needs nothing before, else None (rule 5).

        Where that line begins far off, `go_to` saves reading what lies between.
        """
        waits = self._is_skipping or self._to_skip > 0
        return self._offset + len(self._shown) if waits and not self.is_done else None

    def go_to(self, start: int, newlines: int) -> None:
        """Go on with a piece that stands at `start`, behind `newlines` newlines.

        Only for a piece at or before the beginning of `next_line`, and not before the last one.
        """
        self._position = start
        self._is_skipping = False
        self._to_skip = self._offset + len(self._shown) - newlines

    def feed(self, piece: bytes) -> None:
        """Take in the bytes that follow."""
        at = self._skip(piece)
        while at < len(piece) and not self.is_done:
            end = piece.find(b"\n", at)
            if not self._line and not self._is_skipping:
                self._line_start = self._position + at
            self._hold(piece[at : end if end >= 0 else len(piece)])
            if end < 0:
                break
            self._end_line()
            at = end + 1
        self._position += len(piece)

    def finish(self) -> Lines:
        """Return the slice, after the last piece or as soon as it is done."""
        if not self.is_done and self._line:
            self._end_line()
        count = len(self._shown)
        following = self._offset + count
        return Lines(
            "\n".join(self._shown),
            self._offset + 1,
            count,
            self._total_lines,
            following if following < self._total_lines else None,
        )

    def _skip(self, piece: bytes) -> int:
        """Return where in the piece the slice's first line begins, or goes on."""
        if not self._to_skip:
            return 0
        newlines = piece.count(b"\n")
        if newlines < self._to_skip:
            self._to_skip -= newlines
            return len(piece)
        rest = piece.split(b"\n", self._to_skip)[-1]
        self._to_skip = 0
        return len(piece) - len(rest)

    def _hold(self, part: bytes) -> None:
        if self._is_skipping:
            return
        # With so many bytes the line is cut, whatever follows and be it its end.
        enough = (self._max_line_length + 2) * MAX_CHARACTER_BYTES
        self._line += part[: enough - len(self._line)]
        if len(self._line) >= enough:
            self._show(bytes(self._line))
            self._is_skipping = True

    def _end_line(self) -> None:
        if not self._is_skipping:
            self._show(bytes(self._line.removesuffix(b"\r")))
        self._is_skipping = False

    def _show(self, line: bytes) -> None:
        self._line.clear()
        text = show(line)
        if len(text) > self._max_line_length:
            text = text[: self._max_line_length]
            onward = self._line_start + prefix_size(line, self._max_line_length)
            text += f" … [line goes on at byte {onward}]"
        numbered = f"{self._offset + len(self._shown) + 1:6}\t{text}"
        self._room -= len(encode(numbered))
        if self._room < 0 and self._shown:
            self.is_done = True
            return
        self._shown.append(numbered)
        self._room -= 1  # the newline before the next one
        self.is_done = len(self._shown) >= self._limit
