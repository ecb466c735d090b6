"""How lines of code are counted."""

from __future__ import annotations

import pytest

from release.size import lines_of_code

CASES = {
    "": 0,
    "# a comment\n\n": 0,
    '"""A module."""\n\nx = 1  # with a comment\n': 1,
    'def f():\n    """Return\n    one.\n    """\n    return 1\n': 2,
    'class A:\n    """One."""\n\n    x: int\n    """Another."""\n': 2,
    'x = """\none\n\ntwo\n"""\n': 5,
    "x = (\n    1,\n\n    2,\n)\n": 4,
    "if True:\n    pass\nelse:\n    pass\n": 4,
}


@pytest.mark.parametrize(("text", "lines"), CASES.items())
def test_what_counts_is_code(text: str, lines: int) -> None:
    """Blank lines, comments and docstrings do not; lines of a string that is a value do."""
    assert lines_of_code(text) == lines
