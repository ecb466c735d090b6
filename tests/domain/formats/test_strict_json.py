"""Whether arguments are strict JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.common import json_text
from app.common.errors import ValidationError
from app.common.json_text import MAX_MESSAGE_VALUES
from app.formats import LOG_PROVIDER, json_fields
from app.formats.message import Message, Role, ToolCall
from app.formats.tools import (
    arguments_object,
    is_json,
    object_arguments,
    sent_as_object,
    wrapped_arguments,
)

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


@pytest.mark.parametrize(
    "text",
    [
        '{"a":[' + ",".join(["[]"] * MAX_MESSAGE_VALUES) + "]}",
        "{" + ",".join(f'"{number}":0' for number in range(MAX_MESSAGE_VALUES + 1)) + "}",
        '{"a":' * 101 + "0" + "}" * 101,
        '{"a":"' + "x" * 2**22 + '"}',
    ],
)
def test_arguments_over_a_bound_are_not_parsed(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever sends them sends their text, as that of arguments that are no JSON. [api.limits]"""

    def parsed(*_: object) -> None:
        raise AssertionError("the text was parsed")

    monkeypatch.setattr(json_text, "loads_exact", parsed)
    monkeypatch.setattr("app.formats.tools.orjson.loads", parsed)
    call = ToolCall("c1", "f", text)
    assert arguments_object(text) is None and sent_as_object(text) == text
    assert json.loads(object_arguments(text)) == {"arguments": text}
    (sent,) = LOG_PROVIDER.adapt(Message(Role.ASSISTANT, (call,))).calls
    assert sent.arguments == wrapped_arguments(text)
