"""Shortened messages: which part of an oversized text is shown, within which limit.

[tool-output.shorten-oversized]
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.common import json_text
from app.conversations.messages.row import LogRow
from app.conversations.partial_messages import (
    MIN_SHORTENED_TOKENS,
    READER_TOOLS,
    limits_of_oversized,
    shortened_preview,
    shortened_to,
)
from app.conversations.turns import entry, newest_user_message
from app.conversations.view import ShortenedMessage
from app.formats.media import clean
from app.formats.message import LOG_FORMAT, Image, Message, Part, Reasoning, Role, Text, ToolCall

UNICODE = st.text(
    st.characters(codec="utf-8") | st.sampled_from("a\n\t \u0301\u200d\U0001f468漢"), max_size=3000
)
PARTS = st.lists(
    UNICODE.map(Text)
    | st.just(Image(url="https://example.com/a.png"))
    | st.just(ToolCall("c", "shell", "{}"))
    | st.just(Reasoning("why")),
    min_size=1,
    max_size=4,
)


def by_bytes(text: str) -> int:
    """Count every byte as a token, the largest count of any counter."""
    return len(text.encode())


def by_words(text: str) -> int:
    """Count as a tokenizer does, roughly."""
    return (len(text.encode()) + 3) // 4


@given(PARTS, st.integers(0, 4000), st.integers(0, 4000), st.booleans())
def test_a_preview_is_a_beginning_a_note_and_an_end(
    parts: list[Part], head: int, tail: int, named: bool
) -> None:
    """The beginning and the end of the texts are shown; other parts stay as they are."""
    message = clean(Message(Role.USER, tuple(parts)))
    short = ShortenedMessage(1, head, tail, 0)
    preview, mentions = shortened_preview(message, short, "m1", READER_TOOLS if named else ())
    whole = "".join(part.text for part in message.parts if isinstance(part, Text)).encode()
    assert [part for part in preview.parts if not isinstance(part, Text)] == [
        part for part in message.parts if not isinstance(part, Text)
    ]
    if head + tail >= len(whole):
        assert preview is message and not mentions
        return
    shown = "".join(part.text for part in preview.parts if isinstance(part, Text))
    before, _, rest = shown.partition("[Message cut: ")
    wanted = whole[:head].decode(errors="ignore")
    assert before in (wanted, wanted + "\n")
    if tail:
        assert rest.partition(".]")[2].endswith(whole[-tail:].decode(errors="ignore"))
    assert mentions and ("tool_output_cache" in rest) == named
    assert 'ref="m1"' in shown or 'ref_id="m1"' in shown


@given(UNICODE, st.integers(MIN_SHORTENED_TOKENS, 2000), st.integers(1, 5000), st.booleans())
def test_a_shortened_message_is_within_its_limit(
    text: str, max_tokens: int, max_bytes: int, is_large: bool
) -> None:
    """The stored cost is that of the preview, and within the limit."""
    count = by_bytes if is_large else by_words
    body = json_text.dumps({"role": "assistant", "content": text or "empty"}).encode()
    row = LogRow("m1", 7, Role.ASSISTANT, 0, 0, (), False, LOG_FORMAT, body)
    short = shortened_to(row, max_tokens, max_bytes, count)
    if short is not None:
        assert short.seq == 7 and short.tokens <= max_tokens
        assert short.head_bytes + short.tail_bytes <= max_bytes
        assert shortened_preview(row.message(), short, "m1")[0] != row.message()


SIZES = st.lists(st.tuples(st.sampled_from([*Role]), st.integers(1, 5000)), max_size=20)


@given(SIZES, st.integers(0, 4000))
def test_only_what_cannot_fit_is_oversized(sizes: list[tuple[Role, int]], left: int) -> None:
    """A message larger than the remaining budget is oversized; results never are.

    So is the newest user message beside which the rest of its turn does not fit.
    """
    entries = [entry(seq, role, tokens) for seq, (role, tokens) in enumerate(sizes, 1)]
    newest = newest_user_message(entries)
    turn = sum(item.tokens for item in entries if newest and item.seq >= newest.seq)
    costs = limits_of_oversized(entries, left)
    assert len(costs) <= 8
    for item in entries:
        if item.seq in costs:
            assert item.role is not Role.TOOL and item.tokens > costs[item.seq] <= left
            assert item.tokens > left or (item is newest and turn > left)
