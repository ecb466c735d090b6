"""Counting: every part counts, once, and the same before and after rendering.

[tokens.counted-once, tokens.counters, budget.of-the-payload, tokens.pure-estimates]
"""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.formats import LOG_PROVIDER, PROVIDERS, ToolDefinition
from app.formats.media import clean
from app.formats.message import (
    OPENAI_FORMATS,
    File,
    FormatName,
    Image,
    Message,
    Opaque,
    Reasoning,
    Role,
    Text,
    ToolCall,
)
from app.models.tokens import (
    CALL_OVERHEAD,
    ESTIMATES,
    FILE_TOKENS,
    IMAGE_TOKENS,
    MESSAGE_OVERHEAD,
    TOOL_OVERHEAD,
    count_message,
    count_payload_messages,
    count_visible,
    counts_as_stored,
    estimate_messages,
    estimate_tool_defs_tokens,
    media_overhead,
)
from tests.domain.compaction import strategies_messages as generated


def words(text: str) -> int:
    """Count like a tokenizer in the one way that matters: not additive, strict on encoding."""
    text.encode()
    return len(text) + 3 * text.count(" ") + text.count("\n")


CASES = [
    (Message(Role.USER, (Text("hello"),)), 5, 0),
    (Message(Role.USER, (Text("hello"), Text("you"))), 8, 0),
    (Message(Role.USER, (Text("hello"),), name="ann"), 8, 0),
    (Message(Role.TOOL, (Text("ok"),), "c1", name="f"), 4, 0),
    (Message(Role.TOOL, (Text("ok"),), "c1", is_error=True), 4, 0),
    (Message(Role.ASSISTANT, (Reasoning("hmm"), Text("ok"))), 2, 3),
    (Message(Role.ASSISTANT, (ToolCall("c1", "f", '{ "a": 1 }'),)), CALL_OVERHEAD + 26 - 4, 0),
    (Message(Role.ASSISTANT, (ToolCall("c1", "f", "{ a"),)), CALL_OVERHEAD + 2 + 1 + 6, 0),
    (Message(Role.USER, (Image(url="https://x.test/a"),)), IMAGE_TOKENS, 0),
    (Message(Role.USER, (File("application/pdf", "JVBE"),)), FILE_TOKENS, 0),
    (Message(Role.USER, (File(text="body", name="n"),)), 5, 0),
    (Message(Role.USER, (Opaque({"a": 1}, FormatName.ANTHROPIC),)), 7, 0),
]


@pytest.mark.parametrize(("message", "visible", "reasoning"), CASES)
def test_every_part_counts(message: Message, visible: int, reasoning: int) -> None:
    """A message costs its overhead and each of its parts, reasoning apart. [tokens.counted-once]"""
    tokens = count_message(message, words)
    assert (tokens.visible, tokens.reasoning) == (MESSAGE_OVERHEAD + visible, reasoning)
    assert tokens.total == MESSAGE_OVERHEAD + visible + reasoning


GIF = base64.b64encode(b"GIF89a" + bytes([144, 1, 44, 1]) + b"\0" * 20).decode()
JPEG = base64.b64encode(
    b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\0\0\x01\0\x01\0\0"
    b"\xff\xc0\x00\x11\x08\x01\x2c\x01\x90\x03\x01\x22\0\x02\x11\x01\x03\x11\x01" + b"\0" * 20
).decode()


@pytest.mark.parametrize(
    ("data", "tokens"),
    [
        (generated.png(400, 300), 160),
        (generated.png(1, 1), 85),
        (generated.png(8000, 8000), 1600),
        (GIF, 160),
        (JPEG, 160),
        (generated.png(0, 0), IMAGE_TOKENS),
        ("iVBORw0KGgo", IMAGE_TOKENS),
        ("iVBORw0KGgoé", IMAGE_TOKENS),
        ("iVBORw0KGgo" + "*" * 50, IMAGE_TOKENS),
        ("PHN2Zz4=", IMAGE_TOKENS),
        ("", IMAGE_TOKENS),
    ],
)
def test_images_count_by_their_pixels(data: str, tokens: int) -> None:
    """An image costs its area where its header tells it, else a flat value. [tokens.media]"""
    message = Message(Role.USER, (Image("image/png", data),))
    assert count_message(message, words).visible == MESSAGE_OVERHEAD + tokens


@given(
    state=st.sampled_from([b"\x89PNG\r\n\x1a\n", b"GIF89a", b"\xff\xd8\xff", b"RIFF"]),
    rest=st.binary(),
)
def test_no_image_crashes_the_count(state: bytes, rest: bytes) -> None:
    """Whatever follows an image's first bytes, it has a count. [tokens.media]"""
    data = base64.b64encode(state + rest).decode()
    tokens = count_message(Message(Role.USER, (Image(data=data),)), words).visible
    assert MESSAGE_OVERHEAD + 85 <= tokens <= MESSAGE_OVERHEAD + 1600


@pytest.mark.parametrize("format", FormatName)
@given(message=generated.messages(), replays=st.booleans())
def test_a_payload_counts_as_its_message(
    format: FormatName, message: Message, replays: bool
) -> None:
    """Counting the rendered messages from scratch gives the count of the message.

    Replayed reasoning is counted as well. [budget.of-the-payload]
    """
    provider = PROVIDERS[format]
    shown = provider.for_payload(clean(message), replays=replays)
    if not (pieces := provider.render(shown)):
        return  # reasoning alone
    payload = pieces if format in OPENAI_FORMATS else [provider.wire(shown)]
    own = tuple(part for part in shown.parts if part.format is format)
    reasoning = count_message(replace(shown, parts=own), words, format).reasoning
    visible = count_message(shown, words, format).visible + media_overhead(format, shown, words)
    assert count_payload_messages(format, payload, words) == visible + reasoning


@given(message=generated.messages())
def test_formats_count_alike(message: Message) -> None:
    """What a format says as chat does costs the stored count, and so needs no other.

    [tokens.what-counts]
    """
    ready = clean(message)
    assert min(estimate_messages([message], counter) for counter in ESTIMATES) >= 0
    stored = count_message(ready, words).visible + media_overhead(
        FormatName.OPENAI_CHAT, ready, words
    )
    for format_name, module in PROVIDERS.items():
        sent = module.adapt(ready)
        if counts_as_stored(ready, sent, format_name) and not LOG_PROVIDER.apart(ready):
            tokens = count_visible(sent, words, format_name)
            assert tokens + media_overhead(format_name, sent, words) == stored


def test_tool_definitions_count() -> None:
    """A tool costs its name, its description and its schema without spaces."""
    tool = ToolDefinition("f", "does", {"type": "object"})
    schema = words('{"type":"object"}')
    assert estimate_tool_defs_tokens([tool, tool], words) == 2 * (TOOL_OVERHEAD + 5 + schema)
    assert estimate_tool_defs_tokens([], words) == 0


HEURISTICS = [
    (["abcd"], 1, 1, 1),
    (["abc", "abc"], 0, 1, 2),
    (["日本語", "日本語"], 4, 1, 2),
    (["👩" * 5], 5, 1, 2),
    (["", "a" * 8], 2, 2, 3),
    ([], 0, 0, 0),
]


@pytest.mark.parametrize(("contents", "by_bytes", "by_chars", "by_runes"), HEURISTICS)
def test_heuristics(contents: list[str], by_bytes: int, by_chars: int, by_runes: int) -> None:
    """The seeds' three rules of thumb floor where the seeds floor. [tokens.counters]"""
    messages = [Message(Role.USER, (Text(content),)) for content in contents]
    counts = [estimate_messages(messages, counter) for counter in ESTIMATES]
    assert counts == [by_bytes, by_chars, by_runes]
