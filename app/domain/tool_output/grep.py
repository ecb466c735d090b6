"""Grep: the lines of a blob that match a pattern, and those around them (F5).

1. A pattern is matched against one line at a time: no match reaches over a newline, `^` and `$`
   are the ends of a line, and one carriage return before a newline belongs to no line.
2. RE2 takes time in proportion to the text, whatever the pattern; one that would take too much
   for each byte is refused. It lets other threads run meanwhile.
3. Whole blocks of lines are searched at once, as `^` and `$` stand for the ends of lines there
   too. Patterns with something that tells a block from a line are matched line by line.
4. A line of more than LONGEST_LINE bytes is searched in windows of that size, each OVERLAP bytes
   into the one before: there, a match longer than the overlap may go unfound.
5. Text is UTF-8, in patterns and in blobs. No pattern but `\\C` matches a byte that is in no
   character.
6. What is kept is the line under way, and what is shown.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import re2

from app.domain.common.errors import ValidationError
from app.domain.tool_output.blobs import MAX_CHARACTER_BYTES, character_across, show

LONGEST_LINE = 262_144
"""Bytes of a line up to which it is searched as a whole (rule 4)."""
OVERLAP = 65_536
"""Bytes that two windows of a longer line share."""
MAX_PATTERN_CHARACTERS = 1000
MAX_RESULT_CHARACTERS = 1_000_000
"""The text of matches and their neighbours from which on no more are taken."""
MAX_INSTRUCTIONS = 10_000
"""A pattern whose program is longer may take seconds for a few hundred kilobytes (rule 2)."""
CUT = "…"
"""Stands where a line goes on that is shown in part."""

_BLOCK_BYTES = 65_536
_REACH = MAX_CHARACTER_BYTES - 1  # bytes behind a place that say whether it is in a character
_NOT_BY_BLOCK = re.compile(r"\\[AzC]|\(\?\w*-\w*m")


@dataclass(frozen=True, slots=True)
class GrepMatch:
    """A line that matches, counted from 1, and its neighbours, as far as there are any."""

    line: int
    text: str
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GrepResult:
    """The first matches in order; `truncated` if there are more."""

    matches: tuple[GrepMatch, ...]
    truncated: bool


@dataclass(slots=True)
class _Found:
    """A match whose following lines are still to come."""

    line: int
    text: str
    before: tuple[str, ...]
    after: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Hit:
    """A line at [start, end) of a block, `lines` after the block's first, and its match."""

    lines: int
    start: int
    end: int
    match_start: int
    match_end: int


class Grep:
    """Searches what it is fed piece by piece, in constant memory.

    Raises ValidationError at `pointer` for a pattern that RE2 cannot match in linear time, such as
    look-around and back-references, and for one that is too long or takes too much time.
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
        pointer: str = "/query/pattern",
    ) -> None:
        self._pattern = _compiled(pattern, ignore_case, pointer)
        self._hits = _hits_by_line if _NOT_BY_BLOCK.search(pattern) else _hits_in_block
        self._before: deque[str] = deque(maxlen=before)
        self._after = after
        self._limit = limit
        self._max_line_length = max_line_length
        self._line = 1
        self._rest = bytearray()
        self._long: _LongLine | None = None
        self._found: list[_Found] = []
        self._open: list[_Found] = []
        self._truncated = False
        self._room = MAX_RESULT_CHARACTERS

    @property
    def _is_full(self) -> bool:
        return len(self._found) >= self._limit or self._room <= 0

    @property
    def is_done(self) -> bool:
        """Whether nothing fed from here on can change the result."""
        return self._truncated and not self._open

    def feed(self, piece: bytes) -> None:
        """Take in the bytes that follow, and search the lines that end in them."""
        for start in range(0, len(piece), _BLOCK_BYTES):
            if self.is_done:
                return
            self._feed(piece[start : start + _BLOCK_BYTES])

    def finish(self) -> GrepResult:
        """Search the last line, and return what was found."""
        if self._long is not None:
            self._end_long_line(self._long, b"")
        elif self._rest and not self.is_done:
            self._search(bytes(self._rest.removesuffix(b"\r")))
        matches = (
            GrepMatch(found.line, found.text, found.before, tuple(found.after))
            for found in self._found
        )
        return GrepResult(tuple(matches), self._truncated)

    def _feed(self, piece: bytes) -> None:
        if len(self._rest) + _line_end(piece, 0) > LONGEST_LINE and self._long is None:
            self._long = _LongLine(self._pattern, self._max_line_length)
            self._long.feed(bytes(self._rest))
            self._rest.clear()
        if self._long is not None:
            end = piece.find(b"\n")
            if end < 0:
                self._long.feed(piece)
                return
            self._end_long_line(self._long, piece[:end])
            piece = piece[end + 1 :]
        end = piece.rfind(b"\n")
        if end < 0:
            self._rest += piece
            return
        block = bytes(self._rest) + piece[: end + 1]
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n")
        self._rest[:] = piece[end + 1 :]
        self._search(block[:-1])

    def _search(self, block: bytes) -> None:
        """Search lines, of which the last one lacks its newline."""
        self._continue_open(block)
        if not self._truncated:
            for hit in self._hits(self._pattern, block):
                if self._is_full:
                    self._truncated = True
                    break
                self._add(block, hit)
        self._line += block.count(b"\n") + 1
        most = self._before.maxlen or 0
        self._before.extend(reversed([*self._lines_before(block, len(block) + 1, most)]))

    def _add(self, block: bytes, hit: _Hit) -> None:
        most = self._before.maxlen or 0
        before = [*self._lines_before(block, hit.start, most)]
        missing = most - len(before)
        if missing:
            before += [*reversed(self._before)][:missing]
        line = block[hit.start : hit.end]
        text = _around(
            line, hit.match_start - hit.start, hit.match_end - hit.start, self._max_line_length
        )
        found = _Found(self._line + hit.lines, text, tuple(reversed(before)))
        found.after += self._lines_from(block, hit.end + 1, self._after)
        self._keep(found)

    def _keep(self, found: _Found) -> None:
        self._found.append(found)
        self._room -= sum(map(len, (found.text, *found.before, *found.after)))
        if len(found.after) < self._after:
            self._open.append(found)

    def _continue_open(self, block: bytes) -> None:
        if self._open:
            self._give_open([*self._lines_from(block, 0, self._after)])

    def _give_open(self, lines: list[str]) -> None:
        for found in self._open:
            more = lines[: self._after - len(found.after)]
            found.after += more
            self._room -= sum(map(len, more))
            if self._room <= 0:  # what is still open ends here as well
                self._truncated = True
                self._open.clear()
                return
        self._open = [found for found in self._open if len(found.after) < self._after]

    def _end_long_line(self, line: _LongLine, last: bytes) -> None:
        line.finish(last)
        self._long = None
        self._give_open([line.opening])
        if line.text is not None and not self._truncated:
            if self._is_full:
                self._truncated = True
            else:
                self._keep(_Found(self._line, line.text, tuple(self._before)))
        self._before.append(line.opening)
        self._line += 1

    def _lines_before(self, block: bytes, position: int, most: int) -> Iterator[str]:
        """Yield up to so many lines that end before a line's beginning, the nearest first."""
        while most > 0 and position > 0:
            end = position - 1
            position = block.rfind(b"\n", 0, end) + 1
            yield _opening(block[position:end], self._max_line_length)
            most -= 1

    def _lines_from(self, block: bytes, position: int, most: int) -> Iterator[str]:
        """Yield up to so many lines from a line's beginning on."""
        while most > 0 and position <= len(block):
            end = _line_end(block, position)
            yield _opening(block[position:end], self._max_line_length)
            position = end + 1
            most -= 1


class _LongLine:
    """A line that is searched in windows (rule 4); `text` is set once it is known to match."""

    def __init__(self, pattern: Any, max_line_length: int) -> None:
        self.opening = ""
        self.text: str | None = None
        self._pattern = pattern
        self._max_line_length = max_line_length
        self._data = bytearray()
        self._margin = 0  # the byte before the window, which `^` and `\b` look at

    def feed(self, piece: bytes) -> None:
        self._data += piece
        if self.text is not None:
            self._data.clear()
        while self.text is None and len(self._data) - self._margin > LONGEST_LINE + _REACH:
            data = bytes(self._data)
            self._match(data, _cut_at(data, self._margin + LONGEST_LINE))
            passed = _cut_at(data, self._margin + LONGEST_LINE - OVERLAP)
            self._margin = 1
            del self._data[: passed - self._margin]

    def finish(self, last: bytes) -> None:
        self.feed(last)
        if self.text is None:
            data = bytes(self._data.removesuffix(b"\r"))
            self._match(data, len(data))

    def _match(self, data: bytes, end: int) -> None:
        margin, most = self._margin, self._max_line_length
        window, goes_on = data[margin:end], end < len(data)
        self.opening = self.opening or _opening(window, most, goes_on)
        match = self._pattern.search(data, margin, end)
        if match is not None:
            start, stop = match.start() - margin, match.end() - margin
            self.text = _around(window, start, stop, most, (margin > 0, goes_on))


def _compiled(pattern: str, ignore_case: bool, pointer: str) -> Any:
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        detail = f"A pattern has at most {MAX_PATTERN_CHARACTERS} characters"
        raise ValidationError.at(pointer, detail)
    options = re2.Options()
    options.log_errors = False
    options.never_nl = True
    options.never_capture = True
    options.case_sensitive = not ignore_case
    try:
        compiled = re2.compile("(?m)" + pattern, options)
    except (re2.error, UnicodeEncodeError) as exc:
        raise ValidationError.at(pointer, f"No pattern that RE2 knows: {_reason(exc)}") from exc
    # The module would keep the last 128 patterns, each with megabytes that its searches filled.
    re2.purge()
    if compiled.programsize > MAX_INSTRUCTIONS:
        raise ValidationError.at(pointer, "The pattern repeats too much to be matched in good time")
    return compiled


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "it has half of a surrogate pair"
    reason = error.args[0]
    text: str = show(reason) if isinstance(reason, bytes) else str(reason)
    return text.replace("(?m)", "", 1)


def _hits_in_block(pattern: Any, block: bytes) -> Iterator[_Hit]:
    """Yield the lines of a block that match, searching all of it at once (rule 3)."""
    at = lines = 0
    while at <= len(block):
        match = pattern.search(block, at)
        if match is None:
            return
        start = block.rfind(b"\n", at, match.start()) + 1 or at
        end = _line_end(block, match.start())
        lines += block.count(b"\n", at, start)
        yield _Hit(lines, start, end, match.start(), match.end())
        at = end + 1
        lines += 1


def _hits_by_line(pattern: Any, block: bytes) -> Iterator[_Hit]:
    """Yield the lines of a block that match, each searched by itself."""
    start = 0
    for lines, line in enumerate(block.split(b"\n")):
        end = start + len(line)
        match = pattern.search(line)
        if match is not None:
            yield _Hit(lines, start, end, start + match.start(), start + match.end())
        start = end + 1


def _line_end(block: bytes, position: int) -> int:
    end = block.find(b"\n", position)
    return end if end >= 0 else len(block)


def _cut_at(data: bytes, position: int) -> int:
    """Return a place to cut at that splits no character, at or before a position."""
    across = character_across(data, position)
    return across[0] if across else position


def _opening(line: bytes, most: int, goes_on: bool = False) -> str:
    """Return the first characters of a line, of which there may be more than is given."""
    text = show(line[: (most + 1) * MAX_CHARACTER_BYTES])
    return text[:most] + CUT if goes_on or len(text) > most else text


def _around(
    line: bytes,
    match_start: int,
    match_end: int,
    most: int,
    goes_on: tuple[bool, bool] = (False, False),
) -> str:
    """Return the first characters of a line, or those around its match if that lies further in.

    `goes_on` says whether more of the line stands before and after what is given.
    """
    reach = most * MAX_CHARACTER_BYTES
    first, last = max(0, match_start - reach), min(len(line), match_start + reach)
    before, text = show(line[first:match_start]), show(line[first:last])
    reaches_start = first == 0 and not goes_on[0]
    reaches_end = last == len(line) and not goes_on[1]
    start = 0
    if not reaches_start or len(before) + len(show(line[match_start:match_end])) > most:
        start = max(0, len(before) - most // 4)
        if reaches_end:
            start = max(0, min(start, len(text) - most))
    end = start + most
    left = "" if reaches_start and start == 0 else CUT
    right = "" if reaches_end and end >= len(text) else CUT
    return left + text[start:end] + right
