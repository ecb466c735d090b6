"""Grep: the lines of a blob that match a pattern, with lines around them [tool-output.grep].

1. A pattern is matched against one line at a time: a match never contains a newline, `^` and `$`
   match at the ends of a line, and one carriage return before a newline is left out.
2. RE2 needs time proportional to the text for every pattern; a pattern that needs too much time
   for each byte is refused [tool-output.grep-linear]. RE2 releases the GIL.
3. Blocks of lines are searched at once, because `^` and `$` match at the ends of lines there too.
   A pattern that can tell a block from a line is matched line by line.
4. A line of more than MAX_WHOLE_LINE_BYTES is searched in segments of that size, which overlap by
   OVERLAP_BYTES: there, a match longer than the overlap may not be found.
5. Patterns and blobs are UTF-8. Only the pattern `\\C` matches a byte outside a character.
6. Memory holds the current line and the result.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import re2

from app.blobs.blobs import MAX_CHARACTER_BYTES, decode_lossy, split_character
from app.common.answers import answer
from app.common.errors import ValidationError

MAX_WHOLE_LINE_BYTES = 262_144
"""The largest line that is searched as a whole (rule 4)."""
OVERLAP_BYTES = 65_536
"""Bytes that two segments of a longer line share."""
MAX_PATTERN_CHARACTERS = 1000
MAX_RESULT_CHARACTERS = 1_000_000
"""The size of a result at which the search ends."""
MAX_INSTRUCTIONS = 10_000
"""A longer RE2 program may need seconds for a few hundred kilobytes (rule 2)."""
ELLIPSIS = "…"
"""Marks the end of a line that is cut."""

_POINTER = "/query/pattern"
_BLOCK_BYTES = 65_536
_REACH = MAX_CHARACTER_BYTES - 1  # bytes after a position that show if it splits a character
_NEEDS_SINGLE_LINES = re.compile(r"\\[AzC]|\(\?\w*-\w*m")  # such as \A or (?-m): rule 3


@answer()
@dataclass(slots=True)
class MatchedLine:
    """A matching line and the lines around it."""

    line: int
    """Line number, from 1."""
    text: str
    """The line; of a long line the part around the match."""
    before: list[str]
    """Lines before it, as many as requested."""
    after: list[str]
    """Lines after it, as many as requested."""


@answer()
@dataclass(frozen=True, slots=True)
class GrepResult:
    """The first matching lines, in order."""

    matches: list[MatchedLine]
    """The matches, at most `limit`."""
    truncated: bool
    """Whether there are more matches."""


_LineMatch = tuple[int, int, int, int, int]
"""The lines of a block before the matching one, its start and end, those of its match."""


class Grep:
    """Searches a stream of bytes, in constant memory.

    Raises ValidationError for a pattern that RE2 does not support, such as look-around
    and backreferences, and for one that is too long or needs too much time.
    """

    def __init__(
        self,
        pattern: str,
        *,
        ignore_case: bool = False,
        before: int = 0,
        after: int = 0,
        limit: int,
        max_line_length: int,
    ) -> None:
        self._pattern = _compile(pattern, ignore_case)
        self._find_matches = (
            _matches_by_line if _NEEDS_SINGLE_LINES.search(pattern) else _matches_in_block
        )
        self._before: deque[str] = deque(maxlen=before)
        self._max_before = before
        self._max_after = after
        self._limit = limit
        self._max_line_length = max_line_length
        self._line = 1
        self._pending = bytearray()
        self._long: _LongLine | None = None
        self._matches: list[MatchedLine] = []
        self._open: list[MatchedLine] = []  # matches that lack lines after them
        self._truncated = False
        self._remaining_characters = MAX_RESULT_CHARACTERS

    @property
    def _is_full(self) -> bool:
        return len(self._matches) >= self._limit or self._remaining_characters <= 0

    @property
    def is_done(self) -> bool:
        """Whether more bytes cannot change the result."""
        return self._truncated and not self._open

    def feed(self, piece: bytes) -> None:
        """Add bytes, and search the lines that end in them."""
        for start in range(0, len(piece), _BLOCK_BYTES):
            if self.is_done:
                return
            self._feed(piece[start : start + _BLOCK_BYTES])

    def finish(self) -> GrepResult:
        """Search the last line, and return the result."""
        if self._long is not None:
            self._end_long_line(self._long, b"")
        elif self._pending and not self.is_done:
            self._search(bytes(self._pending.removesuffix(b"\r")))
        return GrepResult(self._matches, self._truncated)

    def _feed(self, piece: bytes) -> None:
        if len(self._pending) + _line_end(piece, 0) > MAX_WHOLE_LINE_BYTES and self._long is None:
            self._long = _LongLine(self._pattern, self._max_line_length)
            self._long.feed(bytes(self._pending))
            self._pending.clear()
        if self._long is not None:
            end = piece.find(b"\n")
            if end < 0:
                self._long.feed(piece)
                return
            self._end_long_line(self._long, piece[:end])
            piece = piece[end + 1 :]
        end = piece.rfind(b"\n")
        if end < 0:
            self._pending += piece
            return
        block = bytes(self._pending) + piece[: end + 1]
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n")
        self._pending[:] = piece[end + 1 :]
        self._search(block[:-1])

    def _search(self, block: bytes) -> None:
        """Search a block of lines, without the newline of the last one."""
        if self._open:
            self._add_after([*self._lines_from(block, 0)])
        if not self._truncated:
            for lines, start, end, first, last in self._find_matches(self._pattern, block):
                if self._is_full:
                    self._truncated = True
                    break
                text = _excerpt_around(block[start:end], first, last, self._max_line_length)
                before = (*self._before, *self._lines_before(block, start))
                self._add(self._line + lines, text, before, self._lines_from(block, end + 1))
        self._line += block.count(b"\n") + 1
        self._before.extend(self._lines_before(block, len(block) + 1))

    def _add(self, line: int, text: str, before: Iterable[str], after: Iterable[str] = ()) -> None:
        match = MatchedLine(line, text, [*deque(before, self._max_before)], [*after])
        self._matches.append(match)
        self._remaining_characters -= sum(map(len, (text, *match.before, *match.after)))
        if len(match.after) < self._max_after:
            self._open.append(match)

    def _add_after(self, lines: list[str]) -> None:
        for match in self._open:
            more = lines[: self._max_after - len(match.after)]
            match.after += more
            self._remaining_characters -= sum(map(len, more))
            if self._remaining_characters <= 0:  # the result is full: no match gets more lines
                self._truncated = True
                self._open.clear()
                return
        self._open = [match for match in self._open if len(match.after) < self._max_after]

    def _end_long_line(self, line: _LongLine, last: bytes) -> None:
        line.finish(last)
        self._long = None
        self._add_after([line.excerpt])
        if line.text is not None and not self._truncated:
            if self._is_full:
                self._truncated = True
            else:
                self._add(self._line, line.text, self._before)
        self._before.append(line.excerpt)
        self._line += 1

    def _lines_before(self, block: bytes, position: int) -> list[str]:
        """Return the lines before the line at a position, as many as each match has."""
        lines: list[str] = []
        while len(lines) < self._max_before and position > 0:
            end = position - 1
            position = block.rfind(b"\n", 0, end) + 1
            lines.append(_excerpt(block[position:end], self._max_line_length))
        return lines[::-1]

    def _lines_from(self, block: bytes, position: int) -> Iterator[str]:
        """Yield the lines from a line's start on, as many as each match has."""
        for _ in range(self._max_after):
            if position > len(block):
                return
            end = _line_end(block, position)
            yield _excerpt(block[position:end], self._max_line_length)
            position = end + 1


class _LongLine:
    """A line that is searched in segments (rule 4); `text` is set when it matches."""

    def __init__(self, pattern: Any, max_line_length: int) -> None:
        self.excerpt = ""
        self.text: str | None = None
        self._pattern = pattern
        self._max_line_length = max_line_length
        self._data = bytearray()
        self._margin = 0  # the byte before the segment, which `^` and `\b` depend on

    def feed(self, piece: bytes) -> None:
        self._data += piece
        if self.text is not None:
            self._data.clear()
        while self.text is None and len(self._data) - self._margin > MAX_WHOLE_LINE_BYTES + _REACH:
            data = bytes(self._data)
            self._match(data, _character_start(data, self._margin + MAX_WHOLE_LINE_BYTES))
            passed = _character_start(data, self._margin + MAX_WHOLE_LINE_BYTES - OVERLAP_BYTES)
            self._margin = 1
            del self._data[: passed - self._margin]

    def finish(self, last: bytes) -> None:
        self.feed(last)
        if self.text is None:
            data = bytes(self._data.removesuffix(b"\r"))
            self._match(data, len(data))

    def _match(self, data: bytes, end: int) -> None:
        margin, limit = self._margin, self._max_line_length
        segment, continues = data[margin:end], end < len(data)
        self.excerpt = self.excerpt or _excerpt(segment, limit, continues)
        match = self._pattern.search(data, margin, end)
        if match is not None:
            start, stop = match.start() - margin, match.end() - margin
            self.text = _excerpt_around(segment, start, stop, limit, (margin > 0, continues))


def _compile(pattern: str, ignore_case: bool) -> Any:
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        detail = f"A pattern has at most {MAX_PATTERN_CHARACTERS} characters"
        raise ValidationError.at(_POINTER, detail)
    options = re2.Options()
    options.log_errors = False
    options.never_nl = True
    options.never_capture = True
    options.case_sensitive = not ignore_case
    try:
        compiled = re2.compile("(?m)" + pattern, options)
    except (re2.error, UnicodeEncodeError) as exc:
        raise ValidationError.at(
            _POINTER, f"RE2 does not support this pattern: {_reason(exc)}"
        ) from exc
    # The module caches 128 patterns, each with megabytes of search state.
    re2.purge()
    if compiled.programsize > MAX_INSTRUCTIONS:
        raise ValidationError.at(_POINTER, "The pattern is too complex: it repeats too much")
    return compiled


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "it has half of a surrogate pair"
    reason = error.args[0]
    text: str = decode_lossy(reason) if isinstance(reason, bytes) else str(reason)
    return text.replace("(?m)", "", 1)


def _matches_in_block(pattern: Any, block: bytes) -> Iterator[_LineMatch]:
    """Yield the matching lines of a block, searched as a whole (rule 3)."""
    at = lines = 0
    while at <= len(block):
        match = pattern.search(block, at)
        if match is None:
            return
        start = block.rfind(b"\n", at, match.start()) + 1 or at
        end = _line_end(block, match.start())
        lines += block.count(b"\n", at, start)
        yield lines, start, end, match.start() - start, match.end() - start
        at = end + 1
        lines += 1


def _matches_by_line(pattern: Any, block: bytes) -> Iterator[_LineMatch]:
    """Yield the matching lines of a block, searched line by line."""
    start = 0
    for lines, line in enumerate(block.split(b"\n")):
        end = start + len(line)
        match = pattern.search(line)
        if match is not None:
            yield lines, start, end, match.start(), match.end()
        start = end + 1


def _line_end(block: bytes, position: int) -> int:
    end = block.find(b"\n", position)
    return end if end >= 0 else len(block)


def _character_start(data: bytes, position: int) -> int:
    """Return the last position, at or before the given one, that splits no character."""
    split = split_character(data, position)
    return split[0] if split else position


def _excerpt(line: bytes, limit: int, continues: bool = False) -> str:
    """Return the first characters of a line; `continues` if the data is not the whole line."""
    text = decode_lossy(line[: (limit + 1) * MAX_CHARACTER_BYTES])
    return text[:limit] + ELLIPSIS if continues or len(text) > limit else text


def _excerpt_around(
    line: bytes,
    match_start: int,
    match_end: int,
    limit: int,
    continues: tuple[bool, bool] = (False, False),
) -> str:
    """Return the first characters of a line, or those around its match.

    `continues` is true for each end of the data beyond which the line has more text.
    """
    reach = limit * MAX_CHARACTER_BYTES
    first, last = max(0, match_start - reach), min(len(line), match_start + reach)
    before, text = decode_lossy(line[first:match_start]), decode_lossy(line[first:last])
    reaches_start = first == 0 and not continues[0]
    reaches_end = last == len(line) and not continues[1]
    start = 0
    if not reaches_start or len(before) + len(decode_lossy(line[match_start:match_end])) > limit:
        start = max(0, len(before) - limit // 4)
        if reaches_end:
            start = max(0, min(start, len(text) - limit))
    end = start + limit
    left = "" if reaches_start and start == 0 else ELLIPSIS
    right = "" if reaches_end and end >= len(text) else ELLIPSIS
    return left + text[start:end] + right
