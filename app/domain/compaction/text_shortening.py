"""Shortening: an oversized user or assistant text is shown as its beginning, a note and its end.

1. It happens only in a payload that would not fit otherwise, and to the texts alone: tool calls,
   reasoning, images and files stay as they are. The log keeps the message as it came.
2. The note says how much is shown and how to read the rest; the ref in it is that of the message.
   It exists a second time without the names of tools, for payloads that have none.
3. A message is oversized when it does not fit beside a summary of everything else. The newest user
   message keeps a larger share of the window than others.
4. Where nothing else is left to give up, the largest texts give way first, all to one size.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from app.domain.common import json_text
from app.domain.common.messages import File, Image, Message, Part, Reasoning, Role, Text, ToolCall
from app.domain.compaction.truncation import newest_request
from app.domain.conversations.turns import Entry
from app.domain.conversations.view import ShortenedMessage
from app.domain.formats import labels, openai_chat
from app.domain.models.tokens import CountText, count_message
from app.domain.tool_output.blobs import encode
from app.domain.tool_output.preview import GREP, READ_BYTES, READ_LINES

SHORTENED = "messages_shortened"
"""The step of a build that showed less of a message, and the reason why an epoch ended."""
READERS = (READ_LINES, GREP, READ_BYTES)
"""The tools that read what a shortened message leaves out."""
MIN_TOKENS = 128
"""The least that a shortened message costs: its note alone takes about half of it."""
MAX_AT_ONCE = 8
"""Oversized messages shortened at once; more of them would not fit beside each other."""

_SHARE, _NEWEST_SHARE = 0.25, 0.5
_FIRST_AT_ONCE = 2
_BYTES_PER_TOKEN = 4
_MAX_TRIES = 16
_SHRINK = 0.9


@dataclass(frozen=True, slots=True)
class Preview:
    """A shortened message with the note it holds; `mentions` are the tools that `note` names."""

    message: Message
    mentions: tuple[str, ...] = ()


def text_of(message: Message) -> bytes:
    """Return what reading a user or assistant message by its ref shows: its texts, joined.

    An image or document stands among them as a line; calls and reasoning are left out.
    """
    return b"\n".join(encode(text) for _, text in _lines(message.parts))


# --- what to shorten --------------------------------------------------------------------------


def oversized(entries: Sequence[Entry], left: int) -> dict[int, int]:
    """Return what each oversized message may cost, by seq, where `left` tokens are for history.

    Of very many only the newest and the first ones are shortened: the others cannot stay anyway.
    """
    if left < MIN_TOKENS:
        return {}
    newest = newest_request(entries)
    found = [item for item in entries if item.role is not Role.TOOL and item.tokens > left]
    if len(found) > MAX_AT_ONCE:
        found = [*found[:_FIRST_AT_ONCE], *found[_FIRST_AT_ONCE - MAX_AT_ONCE :]]
    shares = {item.seq: _NEWEST_SHARE if item is newest else _SHARE for item in found}
    return {seq: max(MIN_TOKENS, int(left * share)) for seq, share in shares.items()}


def leveled(
    entries: Sequence[Entry], left: int, movable: Collection[int] | None = None
) -> dict[int, int]:
    """Return one cost for the largest texts with which all the entries take at most `left`.

    Only the seqs in `movable` may give way, all of them where it is None. Empty where even the
    least they can cost is too much, or where nothing has to give way.
    """
    texts = [
        item
        for item in entries
        if item.role is not Role.TOOL and (movable is None or item.seq in movable)
    ]
    texts.sort(key=lambda item: item.tokens)
    room = left - sum(item.tokens for item in entries) + sum(item.tokens for item in texts)
    for index, item in enumerate(texts):
        most = room // (len(texts) - index)
        if item.tokens > most:
            rest = texts[index:]
            fits = most >= MIN_TOKENS and len(rest) <= MAX_AT_ONCE
            return {other.seq: most for other in rest} if fits else {}
        room -= item.tokens
    return {}


def max_text(entries: Sequence[Entry]) -> Entry | None:
    """Return the largest user or assistant message."""
    texts = (item for item in entries if item.role is not Role.TOOL)
    return max(texts, key=lambda item: item.tokens, default=None)


# --- how it is shown --------------------------------------------------------------------------


def short_for(
    message: Message, seq: int, ref: str, most_tokens: int, most_bytes: int, count: CountText
) -> ShortenedMessage | None:
    """Return how much of a clean message to show so that it costs at most `most_tokens`.

    At most `most_bytes` of its texts are shown. None where that would leave out nothing, or where
    its texts are not what makes it large.
    """
    total = sum(len(encode(text)) for _, text in _texts(message.parts))
    shown = min(most_bytes, total - 1, _BYTES_PER_TOKEN * most_tokens)
    for _ in range(_MAX_TRIES):
        if shown < 0:
            break
        short = ShortenedMessage(seq, shown - shown // 2, shown // 2, 0)
        tokens = _cost(preview_of(message, short, ref).message, count)
        if tokens <= most_tokens:
            return replace(short, tokens=tokens)
        shrunk = math.floor(shown * _SHRINK * most_tokens / tokens)
        shown = shrunk if shrunk < shown else -1
    return None


def preview_of(
    message: Message, short: ShortenedMessage, ref: str, *, named: bool = True
) -> Preview:
    """Return a message with the middle of its texts left out, its tools named or not (rule 2)."""
    texts = {index: encode(text) for index, text in _texts(message.parts)}
    total = sum(map(len, texts.values()))
    tail_at = total - short.tail_bytes
    if short.head_bytes >= tail_at:
        return Preview(message)
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
            shown = _joined(_cut(head), "" if is_noted else note, _cut(tail))
            is_noted = True
            if shown:
                parts.append(replace(part, text=shown) if isinstance(part, File) else Text(shown))
        at = end
    return Preview(replace(message, parts=tuple(parts)), mentions if named else ())


def _note(
    message: Message, texts: Mapping[int, bytes], short: ShortenedMessage, ref: str, *, named: bool
) -> tuple[str, tuple[str, ...]]:
    before = _before_cut(message, texts, short.head_bytes)
    whole = text_of(message)
    shown = f"{short.head_bytes + short.tail_bytes:,} of {len(whole):,} bytes shown"
    if not named:
        return f'[Message cut: {shown}; ref="{ref}".]', ()
    lines = before.count(b"\n")
    if whole.find(b"\n", len(before)) >= 0:
        reader, offset = READ_LINES, lines
    else:
        reader, offset = READ_BYTES, len(before)
    how = f'Read the rest with {reader} ref_id="{ref}" offset={offset}'
    return f"[Message cut: {shown}. {how}, or search it with {GREP}.]", (reader, GREP)


def _before_cut(message: Message, texts: Mapping[int, bytes], head_bytes: int) -> bytes:
    """Return what of the message's whole text stands before the place where it is cut."""
    before: list[bytes] = []
    at = 0
    for index, text in _lines(message.parts):
        data = texts.get(index)
        if data is not None and at + len(data) > head_bytes:
            before.append(encode(_cut(data[: head_bytes - at])))
            break
        before.append(encode(text))
        at += len(data) if data is not None else 0
    return b"\n".join(before)


def _joined(*pieces: str) -> str:
    """Join the pieces that are not empty, each on lines of its own."""
    text = ""
    for piece in filter(None, pieces):
        gap = "\n" if text and not text.endswith("\n") else ""
        text += gap + piece
    return text


def _cut(data: bytes) -> str:
    """Return a slice of UTF-8 as text, without the characters that it splits at its ends."""
    return data.decode("utf-8", "ignore")


def _texts(parts: Sequence[Part]) -> Iterator[tuple[int, str]]:
    """Yield the texts that can be cut with their places among the parts."""
    for index, part in enumerate(parts):
        if isinstance(part, Text | File) and part.text:
            yield index, part.text


def _lines(parts: Sequence[Part]) -> Iterator[tuple[int, str]]:
    """Yield what stands for each part where a message is read by its ref."""
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


def _cost(message: Message, count: CountText) -> int:
    return count_message(openai_chat.adapt(message), count).visible
