"""Shortening: shows the beginning and the end of an oversized user or assistant text.

1. It is used only in a payload that would not fit otherwise, and only for texts: tool calls,
   reasoning, images and files do not change. The log keeps the whole message.
2. A note between beginning and end names how much is shown and how to read the rest by the ref of
   the message. A payload without tools has the note without their names.
3. A message is oversized when it does not fit beside a summary of everything else. The newest user
   message, which always stays, keeps a larger share of the window than others, and is oversized
   already when it takes more than that and what follows it does not fit.
4. Where nothing else can be dropped, the largest texts are shortened first, all to one size.

See [decision 0003].
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from app.blobs.blobs import encode
from app.blobs.preview import GREP, READ_BYTES, READ_LINES
from app.blobs.stored_output import message_ref
from app.common import json_text
from app.conversations.messages.row import LogRow
from app.conversations.turns import Entry, newest_user_message
from app.conversations.view import ShortenedMessage
from app.formats import LOG_PROVIDER, labels
from app.formats.message import File, Image, Message, Part, Reasoning, Role, Text, ToolCall
from app.models.tokens import CountText, count_message
from app.prompt.resolved_settings import ResolvedSettings

MESSAGES_SHORTENED = "messages_shortened"
"""The step of a build that shortened messages, and the reason why an epoch ended."""
READER_TOOLS = (READ_LINES, GREP, READ_BYTES)
"""The tools that read the rest of a shortened message."""
MIN_SHORTENED_TOKENS = 128
"""The minimum cost of a shortened message: its note alone takes about half of it."""
MAX_AT_ONCE = 8
"""The maximum of oversized messages in a view; more would not fit together."""

_SHARE, _NEWEST_SHARE = 0.25, 0.5
_BYTES_PER_TOKEN = 4
_MAX_TRIES = 16
_SHRINK = 0.9


@dataclass(frozen=True, slots=True)
class ShortenedPreview:
    """A shortened message with its note; `mentions` are the tools that the note names."""

    message: Message
    mentions: tuple[str, ...] = ()


def readable_text(message: Message) -> bytes:
    """Return the text that a read of a user or assistant message by its ref returns.

    An image or document is shown as one line; calls and reasoning are left out.
    """
    return b"\n".join(encode(text) for _, text in _lines(message.parts))


# --- what to shorten --------------------------------------------------------------------------


def limits_of_oversized(entries: Sequence[Entry], history_tokens: int) -> dict[int, int]:
    """Return the tokens that each oversized message may take, by seq.

    `history_tokens` are available to all messages. Of more than `MAX_AT_ONCE` only the newest are
    shortened: the others cannot stay anyway.
    """
    if history_tokens < MIN_SHORTENED_TOKENS:
        return {}
    newest, newest_limit = newest_user_message(entries), history_tokens
    if newest is not None:
        tokens_from_newest = sum(item.tokens for item in entries if item.seq >= newest.seq)
        if tokens_from_newest > history_tokens:
            newest_limit = max(MIN_SHORTENED_TOKENS, int(history_tokens * _NEWEST_SHARE))
    limits: dict[int, int] = {}
    for item in entries:
        limit, share = history_tokens, _SHARE
        if item is newest:
            limit, share = newest_limit, _NEWEST_SHARE
        if item.role is not Role.TOOL and item.tokens > limit:
            limits[item.seq] = max(MIN_SHORTENED_TOKENS, int(history_tokens * share))
    return dict(list(limits.items())[-MAX_AT_ONCE:])


def limits_of_largest(
    entries: Sequence[Entry], history_tokens: int, shortenable: Collection[int] | None = None
) -> dict[int, int]:
    """Return one limit for the largest texts, by seq, so that all fit into `history_tokens`.

    Only the seqs in `shortenable` are shortened, or any for None. The result is empty if even the
    shortest texts do not fit, or if all fit as they are.
    """
    texts = [
        item
        for item in entries
        if item.role is not Role.TOOL and (shortenable is None or item.seq in shortenable)
    ]
    texts.sort(key=lambda item: item.tokens)
    other_tokens = sum(item.tokens for item in entries) - sum(item.tokens for item in texts)
    remaining_tokens = history_tokens - other_tokens
    for index, item in enumerate(texts):
        limit = remaining_tokens // (len(texts) - index)
        if item.tokens > limit:
            larger_texts = texts[index:]
            fits = limit >= MIN_SHORTENED_TOKENS and len(larger_texts) <= MAX_AT_ONCE
            return {text.seq: limit for text in larger_texts} if fits else {}
        remaining_tokens -= item.tokens
    return {}


def largest_text(entries: Sequence[Entry]) -> Entry | None:
    """Return the largest user or assistant message."""
    texts = (item for item in entries if item.role is not Role.TOOL)
    return max(texts, key=lambda item: item.tokens, default=None)


# --- how it is shown --------------------------------------------------------------------------


def shortened_to(
    message: Message, seq: int, ref: str, max_tokens: int, max_bytes: int, count: CountText
) -> ShortenedMessage | None:
    """Return how much of a clean message to show so that it costs at most `max_tokens`.

    At most `max_bytes` of its texts are shown. None if nothing would be left out, or if the message
    is too large without any text.
    """
    total = sum(len(encode(text)) for _, text in _texts(message.parts))
    shown = min(max_bytes, total - 1, _BYTES_PER_TOKEN * max_tokens)
    for _ in range(_MAX_TRIES):
        if shown < 0:
            break
        short = ShortenedMessage(seq, shown - shown // 2, shown // 2, 0)
        preview = shortened_preview(message, short, ref).message
        tokens = count_message(LOG_PROVIDER.adapt(preview), count).visible
        if tokens <= max_tokens:
            return replace(short, tokens=tokens)
        shrunk = math.floor(shown * _SHRINK * max_tokens / tokens)
        shown = shrunk if shrunk < shown else -1
    return None


def shortened_messages(
    rows: Sequence[LogRow], max_tokens: Mapping[int, int], resolved: ResolvedSettings
) -> list[ShortenedMessage]:
    """Return messages shortened to their maximum of tokens, which `max_tokens` has by seq.

    A message that is large for another reason than its texts is left out.
    """
    max_bytes = resolved.policy.tool_output.max_message_bytes
    shortened = (
        shortened_to(
            row.message(),
            row.seq,
            message_ref(row.id, row.seq),
            max_tokens[row.seq],
            max_bytes,
            resolved.count,
        )
        for row in rows
    )
    return [message for message in shortened if message is not None]


def reader_tool_tokens(resolved: ResolvedSettings, included: Sequence[str] = ()) -> int:
    """Return the tokens of the tools that read a cut message, without those in `included`."""
    missing = (name for name in resolved.agent_tools(READER_TOOLS) if name not in included)
    return resolved.agent_tool_tokens(tuple(missing))


def shortened_preview(
    message: Message, short: ShortenedMessage, ref: str, *, named: bool = True
) -> ShortenedPreview:
    """Return a message without the middle of its texts; the note names tools if `named`."""
    texts = {index: encode(text) for index, text in _texts(message.parts)}
    total = sum(map(len, texts.values()))
    tail_at = total - short.tail_bytes
    if short.head_bytes >= tail_at:
        return ShortenedPreview(message)
    note, mentions = _note(message, texts, short, ref, named=named)
    parts: list[Part] = []
    at, is_noted = 0, False
    for index, part in enumerate(message.parts):
        data = texts.get(index)
        end = at + len(data) if data is not None else at
        if data is None or end <= short.head_bytes or at >= tail_at:
            parts.append(part)
        else:
            head = data[: max(0, short.head_bytes - at)]
            tail = data[max(0, tail_at - at) :] if end > tail_at else b""
            shown = _joined(_decoded(head), "" if is_noted else note, _decoded(tail))
            is_noted = True
            if shown:
                parts.append(replace(part, text=shown) if isinstance(part, File) else Text(shown))
        at = end
    return ShortenedPreview(replace(message, parts=tuple(parts)), mentions if named else ())


def _note(
    message: Message, texts: Mapping[int, bytes], short: ShortenedMessage, ref: str, *, named: bool
) -> tuple[str, tuple[str, ...]]:
    head = _text_before_cut(message, texts, short.head_bytes)
    whole = readable_text(message)
    shown = f"{short.head_bytes + short.tail_bytes:,} of {len(whole):,} bytes shown"
    if not named:
        return f'[Message cut: {shown}; ref="{ref}".]', ()
    if whole.find(b"\n", len(head)) >= 0:
        reader, offset = READ_LINES, head.count(b"\n")
    else:  # the rest is a single line, which may be longer than a read by lines returns
        reader, offset = READ_BYTES, len(head)
    how = f'Read the rest with {reader} ref_id="{ref}" offset={offset}'
    return f"[Message cut: {shown}. {how}, or search it with {GREP}.]", (reader, GREP)


def _text_before_cut(message: Message, texts: Mapping[int, bytes], head_bytes: int) -> bytes:
    """Return the beginning of the readable text, up to the cut."""
    lines: list[bytes] = []
    at = 0
    for index, text in _lines(message.parts):
        data = texts.get(index)
        if data is not None and at + len(data) > head_bytes:
            lines.append(encode(_decoded(data[: head_bytes - at])))
            break
        lines.append(encode(text))
        at += len(data) if data is not None else 0
    return b"\n".join(lines)


def _joined(*pieces: str) -> str:
    """Join the pieces that are not empty, each on lines of its own."""
    text = ""
    for piece in filter(None, pieces):
        gap = "\n" if text and not text.endswith("\n") else ""
        text += gap + piece
    return text


def _decoded(data: bytes) -> str:
    """Return a slice of UTF-8 as text, without the characters that it splits at its ends."""
    return data.decode("utf-8", "ignore")


def _texts(parts: Sequence[Part]) -> Iterator[tuple[int, str]]:
    """Yield the texts that can be cut, with their indices among the parts."""
    for index, part in enumerate(parts):
        if isinstance(part, Text | File) and part.text:
            yield index, part.text


def _lines(parts: Sequence[Part]) -> Iterator[tuple[int, str]]:
    """Yield the line or text of each part in a message that is read by its ref."""
    for index, part in enumerate(parts):
        match part:
            case Text(text=str(text)) | File(text=str(text)):
                yield index, text
            case Image():
                yield index, labels.image_label(part)
            case File():
                yield index, labels.file_label(part)
            case ToolCall() | Reasoning():
                pass
            case _:
                yield index, json_text.dumps(part.block)
