"""Counting the structure of JSON text: never wrong by one, whatever the text. [api.limits]"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.common import json_text
from app.common.json_text import StructureLimits, has_more_values, require_within


def exceeded(text: bytes, limits: StructureLimits) -> tuple[str, int, int] | None:
    """Return the limit that a text exceeds, and what was counted."""
    try:
        require_within(text, limits)
    except json_text.ExceedsLimits as error:
        return error.what, error.limit, error.count
    return None


WIDE = StructureLimits(10**9, 10**9, 10**9)

texts = st.text(
    st.one_of(st.sampled_from('\\"[]{},: \n\u00e9\U0001f600\ud800'), st.characters()), max_size=8
)
documents = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), texts),
    lambda items: st.one_of(st.lists(items, max_size=5), st.dictionaries(texts, items, max_size=5)),
    max_leaves=30,
)


def measured(text: str) -> tuple[int, int, int]:
    """Return values, keys and depth by walking what the standard library parses."""

    def walk(value: Any) -> tuple[int, int, int]:
        if isinstance(value, tuple):
            inner, keys = [walk(item) for _, item in value], len(value)
        elif isinstance(value, list):
            inner, keys = [walk(item) for item in value], 0
        else:
            return 1, 0, 0
        return (
            1 + sum(each[0] for each in inner),
            keys + sum(each[1] for each in inner),
            1 + max((each[2] for each in inner), default=0),
        )

    return walk(json.loads(text, object_pairs_hook=tuple))


@given(
    documents,
    st.booleans(),
    st.sampled_from([None, 1]),
    st.sampled_from([",", ", "]),
    st.integers(min_value=1, max_value=9),
)
@example(["\\", '"', '\\"', []], True, None, ",", 1)
@example({"a": {}, "b": [[], {}]}, True, None, ", ", 2)
@example([{"a": [{}]}, {}, {"},{": {}}, {"}, {": [[]]}], True, None, ",", 9)
@example([{"a": [{}]}, {}, {"},{": {}}, {"}, {": [[]]}], True, None, ", ", 9)
def test_values_keys_and_depth_are_counted_exactly(
    document: Any, is_ascii: bool, indent: int | None, comma: str, slice_bytes: int
) -> None:
    """A text is within limits equal to what it has, and over any that is one less."""
    written = json.dumps(document, ensure_ascii=is_ascii, indent=indent, separators=(comma, ":"))
    values, keys, depth = measured(written)
    text = written.encode("utf-8", "surrogatepass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "_SLICE", slice_bytes)
        assert exceeded(text, StructureLimits(values, keys, depth)) is None
        over = exceeded(text, replace(WIDE, values=values - 1))
        assert over is not None and over[0] == "values" and values - 1 < over[2] <= values
        if keys:
            assert exceeded(text, replace(WIDE, keys=keys - 1)) is not None
        if depth:
            found = exceeded(text, replace(WIDE, depth=depth - 1))
            assert found == ("depth", depth - 1, depth)
    parsed = json.loads(written)
    assert values == 1 or has_more_values(parsed, values - 1)
    assert not has_more_values(parsed, values)
