"""JSON text: what goes in comes out, and nothing a provider refuses leaves. [log.sendable-text]"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from app.common import json_text
from app.common.texts import sendable_json
from tests.domain.compaction.strategies_messages import json_values


def same(one: Any, two: Any) -> bool:
    """Whether two JSON values are equal, integers and floats told apart."""
    return repr(one) == repr(two)


@given(json_values())
def test_values_come_back_identical(value: Any) -> None:
    """Every string, NUL and lone surrogates included, survives the round trip."""
    assert same(json_text.loads(json_text.dumps(value)), value)


@given(json_values())
def test_payload_text_is_the_sendable_value(value: Any) -> None:
    """A payload says the value with lone surrogates replaced, in valid UTF-8."""
    sent = json.loads(json_text.dump_payload(value).decode("utf-8"))
    without_nul = json.loads(json.dumps(sent).replace("\\u0000", "\\ufffd"))
    assert without_nul == sendable_json(value) or _has_colliding_keys(value)


def _has_colliding_keys(value: Any) -> bool:
    match value:
        case dict():
            keys = {str(sendable_json(key)) for key in value}
            return len(keys) < len(value) or any(map(_has_colliding_keys, value.values()))
        case list():
            return any(map(_has_colliding_keys, value))
        case _:
            return False


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1,]",
        "NaN",
        "Infinity",
        "1e999",
        "'a'",
        "[" * 5000,
        '{"a":NaN,"b":"\\ud800"}',
        '["\\ud800",1e999]',
        "[" * 100_000 + '"\\ud800"',
        b"\xff",
        '"\ud800"',
    ],
)
def test_invalid_json_is_a_value_error(text: str | bytes) -> None:
    """NaN, infinities, huge numbers and broken text are refused, never a crash. [api.limits]"""
    with pytest.raises(ValueError, match=r".*"):
        json_text.loads(text)
