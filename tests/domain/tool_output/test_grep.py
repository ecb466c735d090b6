"""Grep: the same lines as a search of each line by itself, however large the blob.

[tool-output.grep]
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.blobs.chunks import decode_lossy, encode
from app.common.errors import ValidationError
from app.tool_output.grep import (
    ELLIPSIS,
    MAX_PATTERN_CHARACTERS,
    MAX_WHOLE_LINE_BYTES,
    Grep,
    GrepResult,
    MatchedLine,
)
from tests.domain.tool_output.generated import any_bytes, cut_up

PATTERNS = [
    "a",
    "ab",
    "^a",
    "b$",
    "^$",
    "^",
    "$",
    "a.b",
    "a*",
    "é",
    "a|b",
    "[^a]",
    r"\bab\b",
    r"\s",
]
PATTERNS += [
    "(?s)a.+b",
    "a\nb",
    r"a\s+b",
    "[^a]b",
    r"\W",
    "(?i)AB",
    "",
    "x",
    "a{2}",
    "😀",
    r"\B",
    r"\\A",
]
"""Patterns on which RE2 and `re` agree, as long as each line is searched by itself."""


def grep(
    blob: bytes,
    pattern: str,
    pieces: Sequence[bytes] | None = None,
    *,
    ignore_case: bool = False,
    before: int = 0,
    after: int = 0,
    limit: int = 1000,
    max_line_length: int = 2000,
) -> GrepResult:
    """Search a blob, fed in pieces until nothing can change."""
    search = Grep(
        pattern,
        ignore_case=ignore_case,
        before=before,
        after=after,
        limit=limit,
        max_line_length=max_line_length,
    )
    for piece in [blob] if pieces is None else pieces:
        if search.is_done:
            break
        search.feed(piece)
    return search.finish()


def lines_of(blob: bytes) -> list[str]:
    """Return the lines of a blob as they are shown."""
    lines = [decode_lossy(line.removesuffix(b"\r")) for line in blob.split(b"\n")]
    return lines[:-1] if blob.endswith(b"\n") or not blob else lines


# --- the same as line by line ---------------------------------------------------------------


@given(any_bytes(60), st.sampled_from(PATTERNS), st.booleans(), st.data())
def test_the_result_does_not_depend_on_the_pieces(
    blob: bytes, pattern: str, ignore_case: bool, data: st.DataObject
) -> None:
    """The result for any bytes equals that of a search of each line alone."""
    pieces = cut_up(data, blob)
    result = grep(
        blob, pattern, pieces, before=1, after=2, max_line_length=3, ignore_case=ignore_case
    )
    assert result == grep(
        blob, pattern, before=1, after=2, max_line_length=3, ignore_case=ignore_case
    )
    alone = [
        number
        for number, line in enumerate(blob.split(b"\n")[: len(lines_of(blob))], 1)
        if grep(line + b"\n", pattern, ignore_case=ignore_case).matches
    ]
    assert [match.line for match in result.matches] == alone


# --- long lines -----------------------------------------------------------------------------


def test_a_cut_line_shows_its_match() -> None:
    """An ellipsis marks each cut end, and does not count towards the length."""
    line = "é" * 5000 + "needle" + "ü" * 5000

    def shown(text: str) -> str:
        return grep(encode(text), "needle", max_line_length=40).matches[0].text

    assert shown(line) == ELLIPSIS + "é" * 10 + "needle" + "ü" * 24 + ELLIPSIS
    assert shown(line[5000:]) == "needle" + "ü" * 34 + ELLIPSIS
    assert shown(line[4966:]) == "é" * 34 + "needle" + ELLIPSIS
    assert shown(line[:5006]) == ELLIPSIS + "é" * 34 + "needle"
    assert shown(line[4980:5020]) == "é" * 20 + "needle" + "ü" * 14
    found = grep(encode(f"{line}\nx\n{line}"), "x", before=1, after=1, max_line_length=3)
    assert found.matches == [MatchedLine(2, "x", ["ééé" + ELLIPSIS], ["ééé" + ELLIPSIS])]


@given(st.integers(0, 3 * MAX_WHOLE_LINE_BYTES - 30), st.sampled_from((1000, 65_536, 10**7)))
@settings(max_examples=20, deadline=None)
def test_a_long_line_is_one_line(at: int, size: int) -> None:
    """Rule 4: it matches once, and shows its start beside matches of other lines."""
    words = bytearray(b"\xc3\xa9" * (3 * MAX_WHOLE_LINE_BYTES // 2))
    words[at : at + 8] = b" needle "
    blob = b"first\n" + bytes(words) + b" needle\nlast"
    pieces = [blob[start : start + size] for start in range(0, len(blob), size)]
    found = grep(blob, "needle|last", pieces, before=1, after=1, max_line_length=20)
    if at % MAX_WHOLE_LINE_BYTES < MAX_WHOLE_LINE_BYTES - 30:
        assert "needle" in found.matches[0].text
    assert [match.line for match in found.matches] == [2, 3]
    assert (found.matches[0].before, found.matches[0].after) == (["first"], ["last"])
    assert found.matches[1].before == [decode_lossy(bytes(words))[:20] + ELLIPSIS]


def test_a_long_line_is_searched_in_constant_memory() -> None:
    """Rule 6 for 50 MB without a newline, and for as many lines."""
    piece = b"x" * 65_535
    search = Grep("needle", before=2, after=2, limit=9, max_line_length=100)
    tracemalloc.start()
    try:
        for end in (b"x", b"\n"):
            for _ in range(400):
                search.feed(piece + end)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    search.feed(b"\nneedle")
    assert search.finish().matches[0].line == 402
    assert peak < 4 * 2**20


# --- patterns of others ---------------------------------------------------------------------


@pytest.mark.parametrize("blob", [b"a" * 1_000_000 + b"b", (b"a" * 99 + b"b\n") * 10_000])
def test_patterns_take_linear_time(blob: bytes) -> None:
    """Rule 2; patterns with exponential backtracking end at once."""
    started = time.process_time()
    assert grep(blob, "(a+)+$") == GrepResult([], False)
    assert grep(blob, r"(a|a)*c|(\w+\s?)+=") == GrepResult([], False)
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "RE2 does not support this pattern: missing ): ("),
        ("a)", "RE2 does not support this pattern: unexpected ): a)"),
        (r"(a)\1", r"RE2 does not support this pattern: invalid escape sequence: \1"),
        ("(?=a)", "RE2 does not support this pattern: invalid perl operator: (?="),
        ("*", "RE2 does not support this pattern: no argument for repetition operator: *"),
        ("a{1001}", "RE2 does not support this pattern: invalid repetition size: {1001}"),
        ("\ud800", "RE2 does not support this pattern: it has half of a surrogate pair"),
        (r"(\pL{1,10}){10}", "The pattern is too complex: it repeats too much"),
        *(
            (pattern, "A pattern has ^ and $ for the ends of a line, and no \\C")
            for pattern in (r"\Aa", r"b\z", "(?-m)^a|b$", "(?i-m:^A)", r"a\Cb")
        ),
        ("a" * (MAX_PATTERN_CHARACTERS + 1), "A pattern has at most 1000 characters"),
    ],
)
def test_an_invalid_pattern_is_refused(pattern: str, reason: str) -> None:
    """The error has the pointer of the pattern and the reason [tool-output.grep]."""
    with pytest.raises(ValidationError) as caught:
        Grep(pattern, limit=1, max_line_length=1)
    assert caught.value.detail == reason
    assert caught.value.problems[0].pointer == "/query/pattern"
