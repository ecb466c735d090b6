"""Whether arguments are strict JSON."""

from __future__ import annotations

import json

from hypothesis import example, given
from hypothesis import strategies as st

from app.common import json_text
from app.common.errors import ValidationError
from app.formats import json_fields
from app.formats.tools import is_json

_NUMBERS = st.integers() | st.floats() | st.integers(10**300, 10**320)
_VALUES = st.recursive(
    st.none() | st.booleans() | _NUMBERS | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
_DOCUMENTS = st.one_of(
    st.builds(json.dumps, _VALUES, ensure_ascii=st.booleans()),
    st.builds(lambda text, cut: text[:cut], st.builds(json.dumps, _VALUES), st.integers(0, 40)),
    st.text('{}[]",:\\u0dD8123eE+-. \n\x00\ufeff'),
)


@given(_DOCUMENTS)
@example("[" * 100 + "]" * 100)
@example("[" * 101 + "]" * 101)
@example("1e400")
@example("[NaN]")
@example('"\\ud800"')
@example("\ufeff{}")
@example("9" * 5000)
def test_the_fast_parser_accepts_what_the_exact_one_does(text: str) -> None:
    """A text is strict JSON exactly if the standard library and the bounds accept it."""
    try:
        json_fields.json_at(json_text.loads_exact(text), "")
    except (ValueError, ValidationError):
        assert not is_json(text)
    else:
        assert is_json(text)
