"""The stateless rule of builds. [stateless.operations, compaction.state]"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.common.errors import ValidationError
from app.context.stateless import StatelessMessages, estimate_tokens


def planned(count: int, limit: int, tokens_each: int = 10, **ends: Any) -> range | None:
    """Return the plan for so many messages that are estimated at `tokens_each` tokens each."""
    messages = [{"role": "user", "content": "." * 4 * tokens_each} for _ in range(count)]
    return StatelessMessages(messages=messages, context_window=limit, **ends).plan()


def test_cx_t1_under_threshold_returns_full_history() -> None:
    """At or under the threshold nothing is compressed, over it the middle. [stateless.rule]"""
    assert planned(20, 286) is None  # floor(200.2) = 200
    assert planned(20, 285) == range(5, 15)  # floor(199.5) = 199


def test_cx_t8_token_estimation_reasonable_accuracy() -> None:
    """Prose comes out within a third of its real token count. [stateless.rule]"""
    text = "The quick brown fox jumps over the lazy dog near the quiet river bank. " * 30
    real = 450  # fifteen tokens a sentence in o200k_base
    assert abs(estimate_tokens([{"role": "user", "content": text}]) - real) <= real / 3


@pytest.mark.parametrize(
    ("count", "limit", "words"),
    [
        (20, 0, "Context limit must be positive"),
        (20, -1, "Context limit must be positive"),
        (0, 100, "Conversation has no messages"),
    ],
)
def test_cx_nt1_build_context_with_zero_limit(count: int, limit: int, words: str) -> None:
    """Zero limit and empty messages are refused in the documented words. [stateless.errors]"""
    with pytest.raises(ValidationError, match=f"^{words}$"):
        planned(count, limit)


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
