"""The stateless rule of builds. [stateless.operations, compaction.state]"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.context.stateless import StatelessMessages, estimate_tokens


def planned(count: int, limit: int, tokens_each: int = 10, **ends: Any) -> range | None:
    """Return the plan for so many messages that are estimated at `tokens_each` tokens each."""
    messages = [{"role": "user", "content": "." * 4 * tokens_each} for _ in range(count)]
    return StatelessMessages(messages=messages, context_window=limit, **ends).plan()


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        ("", 0),
        ("abc", 0),
        ("abcd", 1),
        ("日本語", 2),
        ("\ud800", 0),
        (None, 0),
        ([{"type": "text", "text": "abc"}, {"type": "text", "text": "d"}], 1),
        ([{"type": "image_url", "image_url": {"url": "x" * 400}}], 0),
        (42, 0),
    ],
)
def test_estimates_are_a_quarter_of_the_bytes(content: object, tokens: int) -> None:
    """UTF-8 bytes of the text / 4, floored per message. [tokens.counters]"""
    assert estimate_tokens([{"role": "user", "content": content}]) == tokens


@given(
    count=st.integers(1, 60),
    top=st.integers(0, 10),
    bottom=st.integers(0, 10),
    limit=st.integers(1, 1000),
    threshold=st.floats(0.01, 1),
)
def test_plans_follow_the_letter(
    count: int, top: int, bottom: int, limit: int, threshold: float
) -> None:
    """Compress iff over the threshold with a middle, which the preserved ends leave.

    [strategy.sandwich]
    """
    ends: dict[str, Any] = {
        "preserve_top": top,
        "preserve_bottom": bottom,
        "compression_threshold": threshold,
    }
    is_over = count * 10 > int(limit * threshold) and count > top + bottom
    expected = range(top, count - bottom) if is_over else None
    assert planned(count, limit, **ends) == expected
