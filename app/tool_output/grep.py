"""Grep: the lines of a blob that match a pattern, with lines around them [tool-output.grep].

1. A pattern is matched against one line at a time: a match never contains a newline, `^` and `$`
   match at the ends of a line, and one carriage return before a newline is left out.
2. RE2 needs time proportional to the text for every pattern; a pattern that needs too much time
   for each byte is refused [tool-output.grep-linear]. RE2 releases the GIL.
3. Blocks of lines are searched at once, because `^` and `$` match at the ends of lines there too. A
   pattern that can tell a block from a line, as with `\\A`, is refused.
4. A line of more than MAX_WHOLE_LINE_BYTES is searched in parts of that size: a match across two of
   them is not found. It is one line of the result.
5. Patterns and blobs are UTF-8. Memory holds the current line and the result.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Any

import re2

from app.blobs.chunks import MAX_CHARACTER_BYTES, decode_lossy, split_character
from app.common.answer_schemas import answer
from app.common.errors import ValidationError

MAX_WHOLE_LINE_BYTES = 262_144
"""The largest line that is searched as a whole (rule 4)."""
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
_TELLS_BLOCKS = re.compile(r"(?<!\\)(?:\\\\)*\\[AzC]|\(\?\w*-\w*m")  # such as \A or (?-m): rule 3


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
        self._max_before, self._max_after = before, after
        self._limit, self._max_line = limit, max_line_length
        self._before: deque[str] = deque(maxlen=before)
        self._line = 1
        self._pending = b""  # of the last line
        self._cut: bytes | None = None  # the start of a line that is searched in parts
        self._matches: list[MatchedLine] = []
        self._open: list[MatchedLine] = []  # matches that lack lines after them
        self._truncated = False
        self._room = MAX_RESULT_CHARACTERS

    @property
    def is_done(self) -> bool:
        """Whether more bytes cannot change the result."""
        return self._truncated and not self._open

    def feed(self, piece: bytes) -> None:
        """Add bytes, and search the lines that end in them."""
        for start in range(0, len(piece), _BLOCK_BYTES):
            if self.is_done:
                return
            block = self._pending + piece[start : start + _BLOCK_BYTES]
            lines, newline, self._pending = block.rpartition(b"\n")
            if newline:
                self._search(lines.replace(b"\r\n", b"\n").removesuffix(b"\r"))
            if len(self._pending) > MAX_WHOLE_LINE_BYTES + _REACH:
                split = split_character(self._pending, MAX_WHOLE_LINE_BYTES)
                end = split[0] if split else MAX_WHOLE_LINE_BYTES
                self._search(self._pending, end)
                # The byte before a part, on which `^` and `\b` depend.
                self._pending = self._pending[end - 1 :]

    def finish(self) -> GrepResult:
        """Search the last line, and return the result."""
        if self._pending and not self.is_done:
            self._search(self._pending.removesuffix(b"\r"))
        return GrepResult(self._matches, self._truncated)

    def _search(self, block: bytes, part_end: int | None = None) -> None:
        """Search a block of lines, without the newline of the last one, or a part of a line."""
        end = len(block) if part_end is None else part_end
        first = 0 if self._cut is None else 1  # the first line began in a part before
        lines = block[first:end].split(b"\n")
        heads = lines if self._cut is None else [self._cut, *lines[1:]]
        self._add_after(self._excerpts(lines[first : first + self._max_after]))
        at, counted, number = first, 0, 0
        while at <= end and not self._truncated:
            match = self._pattern.search(block, at, end)
            if match is None:
                break
            start = block.rfind(b"\n", at, match.start()) + 1 or at
            number += block.count(b"\n", counted, start)
            counted = start
            at = start + len(lines[number]) + 1
            if self._matches and self._matches[-1].line == self._line + number:
                continue  # it matches in a part before
            text = _excerpt_around(
                lines[number], match.start() - start, match.end() - start, self._max_line
            )
            before = self._excerpts(heads[max(0, number - self._max_before) : number])
            after = self._excerpts(lines[number + 1 : number + 1 + self._max_after])
            self._add(self._line + number, text, [*self._before, *before], after)
        if part_end is not None:
            self._cut = heads[0][: (self._max_line + 1) * MAX_CHARACTER_BYTES]
            return
        self._cut = None
        self._before.extend(self._excerpts(heads[max(0, len(lines) - self._max_before) :]))
        self._line += len(lines)

    def _add(self, line: int, text: str, before: list[str], after: list[str]) -> None:
        if len(self._matches) >= self._limit or self._room <= 0:
            self._truncated = True
            return
        match = MatchedLine(line, text, before[max(0, len(before) - self._max_before) :], after)
        self._matches.append(match)
        self._room -= sum(map(len, (text, *match.before, *after)))
        if len(after) < self._max_after:
            self._open.append(match)

    def _add_after(self, lines: list[str]) -> None:
        for match in self._open:
            more = lines[: self._max_after - len(match.after)]
            match.after += more
            self._room -= sum(map(len, more))
        self._open = [match for match in self._open if len(match.after) < self._max_after]
        if self._open and self._room <= 0:  # the result is full: no match gets more lines
            self._truncated = True
            self._open.clear()

    def _excerpts(self, lines: list[bytes]) -> list[str]:
        return [_excerpt(line, self._max_line) for line in lines]


def _compile(pattern: str, ignore_case: bool) -> Any:
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        detail = f"A pattern has at most {MAX_PATTERN_CHARACTERS} characters"
        raise ValidationError.at(_POINTER, detail)
    if _TELLS_BLOCKS.search(pattern):
        raise ValidationError.at(
            _POINTER, "A pattern has ^ and $ for the ends of a line, and no \\C"
        )
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


def _excerpt(line: bytes, limit: int) -> str:
    """Return the first characters of a line."""
    text = decode_lossy(line[: (limit + 1) * MAX_CHARACTER_BYTES])
    return text[:limit] + ELLIPSIS if len(text) > limit else text


def _excerpt_around(line: bytes, match_start: int, match_end: int, limit: int) -> str:
    """Return the first characters of a line, or those around its match."""
    reach = limit * MAX_CHARACTER_BYTES
    first, last = max(0, match_start - reach), min(len(line), match_start + reach)
    before, text = decode_lossy(line[first:match_start]), decode_lossy(line[first:last])
    reaches_start, reaches_end = first == 0, last == len(line)
    start = 0
    if not reaches_start or len(before) + len(decode_lossy(line[match_start:match_end])) > limit:
        start = max(0, len(before) - limit // 4)
        if reaches_end:
            start = max(0, min(start, len(text) - limit))
    end = start + limit
    left = "" if reaches_start and start == 0 else ELLIPSIS
    right = "" if reaches_end and end >= len(text) else ELLIPSIS
    return left + text[start:end] + right
