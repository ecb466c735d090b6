"""The stateless rule, on the pure functions. [stateless.operations, compaction.state]"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.common.errors import ValidationError
from app.context.stateless import (
    Ends,
    assemble,
    estimate_tokens,
    needs_compression,
    plan_build,
    require_messages,
)
from app.conversations.compaction_receipt import ContextState

POLICY = Ends(compression_threshold=0.7)


def conversation(count: int, tokens_each: int = 10) -> list[dict[str, Any]]:
    """Return messages that are estimated at `tokens_each` tokens each."""
    roles = ("user", "assistant")
    return [
        {"role": roles[i % 2], "content": f"{i:04d}".ljust(tokens_each * 4, ".")}
        for i in range(count)
    ]


def state(start: int = 5, end: int = 15, strategy: str = "sandwich") -> ContextState:
    """Return a cached state for this range."""
    return ContextState(strategy, "so far", (start, end), "2026-01-01T00:00:00Z")


def test_cx_t1_under_threshold_returns_full_history() -> None:
    """At or under the threshold nothing is compressed. [stateless.rule]"""
    messages = conversation(20)
    assert plan_build(messages, None, 1000, POLICY) is None
    assert plan_build(messages, None, 286, POLICY) is None  # floor(200.2) = 200


def test_cx_t2_over_threshold_triggers_compression() -> None:
    """Over floor(max x threshold) the middle must be compressed. [stateless.rule]"""
    messages = conversation(20)
    assert needs_compression(messages, 285, POLICY)  # floor(199.5) = 199
    assert plan_build(messages, None, 285, POLICY) == range(5, 15)


def test_cx_t3_top_5_messages_always_preserved() -> None:
    """The first five messages stand unchanged before the summary. [stateless.rule]"""
    messages = conversation(20)
    assert assemble(messages, "s", POLICY)[:5] == messages[:5]


def test_cx_t4_bottom_5_messages_always_preserved() -> None:
    """The last five messages stand unchanged after the summary. [stateless.rule]"""
    messages = conversation(20)
    assert assemble(messages, "s", POLICY)[6:] == messages[-5:]


def test_cx_t5_cached_summary_reused_when_valid() -> None:
    """A state for exactly the middle saves the model call. [stateless.cached-state]"""
    assert plan_build(conversation(20), state(), 100, POLICY) == "so far"


def test_cx_t6_cache_invalidated_when_middle_grows() -> None:
    """One message more and the middle is compressed again, as a whole. [stateless.cached-state]"""
    assert plan_build(conversation(21), state(), 100, POLICY) == range(5, 16)


def test_cx_t7_summary_prepended_as_system_message() -> None:
    """The summary is one system message in the documented words. [stateless.summary]"""
    built = assemble(conversation(20), "tea", POLICY)
    assert built[5] == {"role": "system", "content": "[Earlier conversation summary: tea]"}
    assert len(built) == 11


def test_cx_t8_token_estimation_reasonable_accuracy() -> None:
    """Prose comes out within a third of its real token count. [stateless.rule]"""
    text = "The quick brown fox jumps over the lazy dog near the quiet river bank. " * 30
    real = 450  # fifteen tokens a sentence in o200k_base
    assert abs(estimate_tokens([{"role": "user", "content": text}]) - real) <= real / 3


def test_cx_nt1_build_context_with_zero_limit() -> None:
    """A limit that is not positive is refused in the documented words. [stateless.errors]"""
    for limit in (0, -1):
        with pytest.raises(ValidationError, match=r"^Context limit must be positive$"):
            plan_build(conversation(20), None, limit, POLICY)


def test_cx_nt2_compress_with_empty_messages() -> None:
    """Nothing to compress is refused in the documented words. [stateless.errors]"""
    with pytest.raises(ValidationError, match=r"^Conversation has no messages$"):
        require_messages([])
    with pytest.raises(ValidationError, match=r"^Conversation has no messages$"):
        plan_build([], None, 100, POLICY)


def test_too_few_messages_are_never_compressed() -> None:
    """With no middle the full history goes out, however large. [strategy.sandwich]"""
    assert plan_build(conversation(10, 1000), None, 10, POLICY) is None
    assert plan_build(conversation(11, 1000), None, 10, POLICY) == range(5, 6)


def test_a_state_of_another_strategy_is_not_used() -> None:
    """The state is cleared when the strategy changes."""
    other = state(strategy="tree_summary")
    assert plan_build(conversation(20), other, 100, POLICY) == range(5, 15)


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


def test_no_preserved_bottom_keeps_nothing_after_the_summary() -> None:
    """A preserved range may be empty. [strategy.sandwich]"""
    policy = Ends(preserve_top=0, preserve_bottom=0)
    assert [m["role"] for m in assemble(conversation(3), "s", policy)] == ["system"]


@given(
    count=st.integers(1, 60),
    top=st.integers(0, 10),
    bottom=st.integers(0, 10),
    limit=st.integers(1, 1000),
    threshold=st.floats(0, 1),
)
def test_plans_follow_the_letter(
    count: int, top: int, bottom: int, limit: int, threshold: float
) -> None:
    """Compress iff over the threshold with a middle; the new state is then reused."""
    policy = Ends(top, bottom, threshold)
    messages = conversation(count)
    plan = plan_build(messages, None, limit, policy)
    if not (count * 10 > int(limit * threshold) and count > top + bottom):
        assert plan is None
        return
    assert plan == range(top, count - bottom)
    made = ContextState("sandwich", "s", (top, count - bottom), "2026-01-01T00:00:00Z")
    assert plan_build(messages, made, limit, policy) == "s"
    built = assemble(messages, "s", policy)
    assert [m for m in built if m["role"] != "system"] == [
        *messages[:top],
        *messages[count - bottom :],
    ]
