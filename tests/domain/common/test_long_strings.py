"""JSON with long strings is parsed as any other. [log.identical-strings]"""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.domain.common import json_text
from app.domain.common.long_strings import MIN_SLICE_BYTES, loads_by_slices

raw_pieces = st.sampled_from(
    [
        *("a", "é", "漢", "😀", " ", "\\\\", '\\"', "\\n", "\\/", "\\u0041", "\\ud83d\\ude00"),
        *("\\ud83d", "\\ude00", "\\uD83D", "\\uDE00", "\\", '"', "\n", "\\u12", "\\x", "ud83d"),
    ]
)
"""Parts of a string as it is written, of which some make it invalid."""
raw_strings = st.lists(
    st.tuples(raw_pieces, st.integers(1, 40)).map(lambda each: each[0] * each[1]), max_size=8
).map("".join)
keys = st.sampled_from(["a", "b", "k" * 80, "\\u0061", "\\n" * 60])
templates = st.sampled_from(['["%s"]', '{"a":"%s"}', '{"%s":1}', '"%s"', '[["%s"],{"b":"%s"}]'])


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """Make JSON with long strings as values and keys, keys that occur twice, and invalid ones."""
    members = ",".join(
        f'"{draw(keys)}":"{draw(raw_strings)}"' for _ in range(draw(st.integers(0, 4)))
    )
    template = draw(templates)
    inner = template.replace("%s", draw(raw_strings))
    text = f"[{{{members}}},{inner},1.5,null]"
    if draw(st.booleans()):
        text = inner
    raw = text.encode()
    if draw(st.integers(0, 5)) == 0 and raw:  # cut or damaged somewhere
        at = draw(st.integers(0, len(raw) - 1))
        raw = raw[:at] + draw(st.sampled_from([b"", b"\xff", b"\x80", b'"', b"\\"])) + raw[at + 1 :]
    return raw


def outcome(parse: Any, text: bytes) -> Any:
    """Return the value as text with its order of keys, or that it is refused."""
    try:
        value = parse(text)
    except orjson.JSONDecodeError:
        return None
    return json.dumps(value[0] if isinstance(value, tuple) else value)


@given(texts(), st.integers(MIN_SLICE_BYTES, 80))
@example(b'["' + b"\\ud83d\\ude00" * 40 + b'"]', 33)
@example(b'{"a":"' + b"x" * 200 + b'","a":1}', 32)
def test_slices_change_nothing(text: bytes, slice_bytes: int) -> None:
    """A text with long strings has the value that the parser gives it, or is refused as well."""
    expected = outcome(lambda raw: (orjson.loads(raw),), text)
    try:
        found = loads_by_slices(text, slice_bytes)
    except orjson.JSONDecodeError:
        # A text that is refused is parsed again, so valid ones may be refused by mistake only
        # where that costs time, never another value.
        assert expected is None
        return
    if found is not None:
        assert json.dumps(found[0]) == expected


@pytest.mark.parametrize(
    "unit",
    ["a", "\n", '"', "\\", "é", "漢字", "😀", "\x01", "a\\\"\\\\'"],
)
def test_long_messages_are_parsed_as_they_were_written(unit: str) -> None:
    """Strings of megabytes as value and key come back, plain and escaped."""
    text = unit * (3_000_000 // len(unit.encode()))
    value = {"messages": [{"role": "user", "content": text}, {text: ["b", text]}]}
    assert json_text.loads(orjson.dumps(value)) == value
    assert json_text.loads(json.dumps(value).encode()) == value
    assert loads_by_slices(orjson.dumps(value)) == (value,)


def test_errors_are_those_of_the_parser() -> None:
    """A long text that is no JSON is refused with the same words as ever."""
    text = b'{"a":"' + b"x" * 3_000_000 + b'",}'
    with pytest.raises(orjson.JSONDecodeError) as expected:
        orjson.loads(text)
    with pytest.raises(ValueError) as error:
        json_text.loads(text)
    assert str(error.value) == str(expected.value)


def test_a_lone_surrogate_in_a_long_text_is_kept() -> None:
    """What orjson refuses and the log accepts is accepted in a long text, too."""
    text = "x" * 2_000_000 + "\ud800"
    assert json_text.loads(json.dumps([text]).encode()) == [text]
