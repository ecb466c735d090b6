"""Transcripts are shortened to a share of what they are made from. [summary.capped-input]"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.compaction.summaries.transcript import (
    LABEL_TOKENS,
    cut_middle,
    shortened_groups,
    summary_groups,
    transcript_groups,
)
from app.formats.message import Message, Role, Text, ToolCall


def count(text: str) -> int:
    """Return a quarter of the length."""
    return (len(text) + 3) // 4


def said(role: Role, size: int) -> Message:
    """Return a message of numbered words, of so many tokens."""
    words = " ".join(f"w{number}" for number in range(size))
    return Message(role, (Text(words[: size * 4]),))


def called(size: int, arguments_size: int = 5) -> list[Message]:
    """Return a call with its result."""
    arguments = '{"path": "' + "a" * arguments_size * 4 + '"}'
    call = Message(Role.ASSISTANT, (ToolCall("c", "read", arguments),))
    return [call, Message(Role.TOOL, said(Role.TOOL, size).parts, tool_call_id="c")]


def texts_of(messages: list[Message], max_tokens: int) -> list[str]:
    """Return the texts that are sent of messages."""
    groups = shortened_groups(transcript_groups(messages), max_tokens, count)
    return [item.text for group in groups for item in group]


def test_results_are_shortened_before_what_users_say() -> None:
    """A long result keeps its beginning and its end; a request stays whole."""
    request, answer = said(Role.USER, 300), said(Role.ASSISTANT, 100)
    texts = texts_of([request, *called(4000), answer], 1000)
    assert texts[0] == f"User:\n{request.text}"
    assert texts[2] == f"Assistant:\n{answer.text}"
    result = texts[1]
    assert result.startswith('Result of read with {"path": "aaaaaaaaaaaaaaaaaaaa"}:\nw0 w1 ')
    assert "characters left out …]" in result
    assert result.endswith(said(Role.TOOL, 4000).text[-100:])
    assert sum(map(count, texts)) <= 1000


def test_long_arguments_are_shortened() -> None:
    """So are the arguments of a call, such as the text of a file that it writes."""
    (text,) = texts_of(called(20, arguments_size=3000), 200)
    assert count(text) <= 200
    assert text.startswith('Result of read with {"path": "aaaa')


def test_summaries_are_never_shortened() -> None:
    """The summaries that are merged are sent whole."""
    text = "It was said. " * 500
    ((item,),) = shortened_groups(summary_groups([text]), 10, count)
    assert item.text == f"Summary of part 1:\n{text}"


SIZES = st.lists(st.tuples(st.sampled_from(["user", "assistant", "call"]), st.integers(0, 3000)))


@given(SIZES, st.integers(0, 4000))
def test_a_transcript_is_within_its_limit_or_as_short_as_it_may_get(
    sizes: list[tuple[str, int]], max_tokens: int
) -> None:
    """No limit is exceeded unless every text has its minimum; sources keep their length."""
    messages: list[Message] = []
    for kind, size in sizes:
        messages += called(size, size // 4) if kind == "call" else [said(Role(kind), size)]
    groups = transcript_groups(messages)
    short = [item for group in shortened_groups(groups, max_tokens, count) for item in group]
    whole = [part.full_text for group in groups for part in group]
    assert [item.source_chars for item in short] == list(map(len, whole))
    for item, text in zip(short, whole, strict=True):
        assert count(item.text) <= max(count(text), 40)
    if sum(count(item.text) + 1 for item in short) > max_tokens + LABEL_TOKENS * len(short):
        least = [item.text for group in shortened_groups(groups, 0, count) for item in group]
        assert [item.text for item in short] == least


@given(st.text(min_size=1), st.integers(1, 200), st.integers(1, 300))
def test_a_cut_text_is_within_its_limit(text: str, times: int, max_tokens: int) -> None:
    """However little room there is; a text that fits may be cut as well."""
    cut = cut_middle(text * times, max_tokens, count)
    assert count(cut) <= max(max_tokens, 2)
