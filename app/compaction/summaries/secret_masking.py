"""Masks secrets in text that is sent to a summariser. [summary.secrets-masked]

1. All patterns search the same text, and their matches are masked together: their order does not
   matter. A mask is not searched, so that masking again changes nothing.
2. RE2 matches in linear time. A filter on the literals that the patterns need selects those that
   can match at all; it never leaves one out that does.
3. The name of a pattern's group selects the check of its value in `secret_values`. A group of
   another name, or without one, is always a secret. Without groups the whole match is the secret.
4. Terminals colour names and values. A text with colours is searched without them as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import re2

from app.common.sendable import sendable
from app.compaction.summaries.secret_values import VALUE_CHECKS
from app.conversations.view import Span, union

MASK = "[secret masked]"

_QUOTES = b"\"'`\\"
_LEAD = re.compile(rb"[+-]?( *)")
_NUMBERED_LEAD = re.compile(rb"(?:[ \t]*[0-9]+(?:\xe2\x86\x92|[:|\t]))?[+-]?( *)")
"""What stands before a line of YAML, with line numbers or without."""
_NUMBERED = re.compile(rb"(?:\\[nr]|\")?[ \t]*[0-9]")
"""The beginning of a match in a text with line numbers."""
_BLOCK = "block"
_CALLED = "call"
_COLOUR = re.compile(
    rb"(?:\x1b|\\{1,7}(?:u001[bB]|x1[bB]|033|e))\[(?:[0-9;]|\\{1,7}u003[bB])*[A-Za-z]"
)
"""A terminal's code, also as JSON and shells escape it."""
_MASKED = re.compile(re.escape(MASK.encode()))


@dataclass(frozen=True, slots=True)
class SecretPattern:
    """A compiled pattern, and the names of its groups by their numbers."""

    regex: Any
    names: dict[int, str]

    def spans(self, text: bytes) -> Iterator[Span]:
        """Yield the ranges of secrets, in bytes."""
        start_at = 0
        while match := self.regex.search(text, start_at):
            group = next((n for n in range(1, self.regex.groups + 1) if match.start(n) >= 0), 0)
            start, end = self._secret(text, match, group)
            start_at = max(match.start() + 1, end)
            if start < end:
                yield Span(start, end)
            elif not self._is_quoted(group):
                start_at = max(start_at, match.end(group))

    def _is_quoted(self, group: int) -> bool:
        """Whether the group may contain other assignments, between other quotes."""
        return self.names.get(group, "").startswith("maybe_quoted")

    def _secret(self, text: bytes, match: Any, group: int) -> tuple[int, int]:
        """Return the part of a match that is masked, an empty one where it is no secret."""
        start, end = match.span(group)
        name = self.names.get(group, "")
        if name == _BLOCK:
            return match.end(), _end_of_block(text, match)
        check = VALUE_CHECKS.get(name)
        if check is None:
            return start, end
        if self._is_quoted(group):
            inside = match[group].strip(_QUOTES)
            start += match[group].find(inside)
            end = start + len(inside)
        is_called = _CALLED in self.names.values() and match[_CALLED] is not None
        return (start, start) if is_called or not check(text[start:end].decode()) else (start, end)


def _end_of_block(text: bytes, match: Any) -> int:
    """Return where the lines end that are indented deeper than the name above them (YAML).

    Inside a JSON string the lines end in `\\n`, and the last one with the string's quote.
    """
    indent = len(match[_BLOCK])
    lead = _NUMBERED_LEAD if _NUMBERED.match(match[0]) else _LEAD
    line_end: bytes = match["block_line"]
    position: int = match.end()
    end = position
    slashes = line_end.rpartition(b"r")[2].count(b"\\")
    quote = re.compile(rb'(?<!\\)\\{0,%d}"' % (slashes - 1)) if slashes else None
    while position < len(text):
        after = text.find(line_end, position)
        after = len(text) if after < 0 else after
        closed = quote.search(text, position, after) if quote else None
        last = closed.start() if closed else after
        if text[position:last].strip():
            margin = lead.match(text, position, last)
            if margin is None or len(margin[1]) <= indent:
                break
            end = last
        if closed:
            break
        position = after + len(line_end)
    return end


@dataclass(frozen=True, slots=True)
class SecretPatterns:
    """Compiled patterns, and a filter that returns which of them a text can match."""

    patterns: tuple[SecretPattern, ...]
    filter: Any

    def spans(self, text: bytes) -> tuple[Span, ...]:
        """Return the ranges of secrets in the text, in bytes, in order and not touching."""
        possible = self.filter.Match(text, True) or () if self.patterns else ()
        return union(span for position in possible for span in self.patterns[position].spans(text))

    def spans_between_colours(self, text: bytes) -> Iterator[Span]:
        """Yield the ranges that are secrets in the text without its colours (rule 4)."""
        colours = [match.span() for match in _COLOUR.finditer(text)]
        if not colours:
            return
        starts = 0, *(end for _, end in colours)
        ends = *(start for start, _ in colours), len(text)
        places = [*chain.from_iterable(map(range, starts, ends))]
        for span in self.spans(_COLOUR.sub(b"", text)):
            yield Span(places[span.start], places[span.end - 1] + 1)


def compile_patterns(patterns: Sequence[str]) -> SecretPatterns:
    """Compile the secret patterns; the first group that matches is the secret.

    Raises ValueError for what RE2 cannot match in linear time, such as look-around and
    back-references, and for a pattern that matches the empty text.
    """
    return _compiled(tuple(patterns))


@lru_cache(maxsize=8)
def _compiled(patterns: tuple[str, ...]) -> SecretPatterns:
    options = re2.Options()
    options.log_errors = False
    compiled = []
    needed = re2.Filter()
    for pattern in patterns:
        try:
            regex = re2.compile(pattern, options)
            needed.Add(pattern, options)
        except (re2.error, UnicodeEncodeError) as exc:
            raise ValueError(f"has a pattern that RE2 does not know, {pattern!r}: {exc}") from exc
        if regex.search("") is not None:
            raise ValueError(f"has a pattern that matches the empty text, {pattern!r}")
        names = {position: name for name, position in regex.groupindex.items()}
        compiled.append(SecretPattern(regex, names))
    if compiled:
        needed.Compile()
    return SecretPatterns(tuple(compiled), needed)


def mask_secrets(text: str, patterns: SecretPatterns) -> str:
    """Replace every secret in the text by a mask, and characters that no provider accepts."""
    text = sendable(text)
    data = text.encode()
    spans = union((*patterns.spans(data), *patterns.spans_between_colours(data)))
    if not spans:
        return text
    masks = (Span(*match.span()) for match in _MASKED.finditer(data))
    spans = union((*spans, *masks))
    starts = (0, *(span.end for span in spans))
    ends = (*(span.start for span in spans), len(data))
    kept = (data[start:end].decode() for start, end in zip(starts, ends, strict=True))
    return MASK.join(kept)
