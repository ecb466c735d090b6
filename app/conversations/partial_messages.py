"""Messages of which a payload shows a part: texts without their middle, labels for old media.

1. Texts are shortened only in a payload that would not fit otherwise; tool calls, reasoning, images
   and files do not change. The log keeps the whole message. See [decision 0003].
2. A note between beginning and end names how much is shown and how to read the rest by the ref of
   the message. A payload without tools has the note without their names.
3. A message is oversized when it does not fit beside a summary of everything else. The newest user
   message, which always stays, keeps a larger share of the context window than others, and is
   oversized already when it takes more than that and what follows it does not fit.
4. Where nothing else can be dropped, the largest texts are shortened first, all to one size.
5. The oldest media are left out first: all up to a place in the log, the cut. It leaves a quarter
   of each limit free, so that the next cut comes late. [payload.media-limits]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final, NamedTuple, TypeGuard

from app.blobs.chunks import encode
from app.blobs.preview import GREP, READ_BYTES, READ_LINES
from app.blobs.stored_output import message_ref
from app.common import json_text
from app.conversations.messages.row import LogRow
from app.conversations.turns import Entry, newest_user_message
from app.conversations.view import MediaCut, ShortenedMessage
from app.formats import LOG_PROVIDER, media
from app.formats.message import File, Image, Message, Opaque, Part, Reasoning, Role, Text, ToolCall
from app.models.tokens import CountText, MediaLimits, count_message, pixel_size
from app.prompt.resolved_settings import ResolvedSettings

MESSAGES_SHORTENED: Final = "messages_shortened"
"""In `degraded`: long messages are shortened. Also the reason why an epoch ended."""
MEDIA_LEFT_OUT: Final = "media_left_out"
"""`degraded`: a label stands for old media, which would be too many or too large."""
READER_TOOLS = (READ_LINES, GREP, READ_BYTES)
"""The tools that read the rest of a shortened message."""
MIN_SHORTENED_TOKENS = 128
"""The minimum cost of a shortened message: its note alone takes about half of it."""
MAX_AT_ONCE = 8
"""The maximum of oversized messages in a view; more would not fit together."""
_SHARE, _NEWEST_SHARE = 0.25, 0.5
_BYTES_PER_TOKEN, _SHRINK = 4, 0.9
_FREE_SHARE: Final = 0.75
_OPAQUE_MEDIA: Final = ("image_generation_call", "inline_data", "input_audio", "input_image")
MEDIA_WORDS: Final = (
    *(b'"image_url"', b'"input_image"', b'"image"', b'"images"', b'"image_generation_call"'),
    *(
        b'"file"',
        b'"input_file"',
        b'"document"',
        b'"resource"',
        b'"input_audio"',
        b'"audio"',
        b'"video"',
    ),
    *(b'"inlineData"', b'"inline_data"', b'"fileData"', b'"file_data"', b'"video"'),
)
"""One of these is in every stored message with media; in a text the quotes are escaped."""


# --- which texts to shorten -------------------------------------------------------------------


def limits_of_oversized(entries: Sequence[Entry], history_tokens: int) -> dict[int, int]:
    """Return the tokens that each oversized message may take, by seq (rule 3).

    `history_tokens` are available to all messages. Of more than `MAX_AT_ONCE` only the newest are
    shortened: the others cannot stay anyway.
    """
    if history_tokens < MIN_SHORTENED_TOKENS:
        return {}
    newest, limits = newest_user_message(entries), dict[int, int]()
    for item in entries:
        share = _NEWEST_SHARE if item is newest else _SHARE
        limit = max(MIN_SHORTENED_TOKENS, int(history_tokens * share))
        turn = sum(each.tokens for each in entries if each.seq >= item.seq) if item is newest else 0
        is_oversized = item.tokens > (limit if turn > history_tokens else history_tokens)
        if item.role is not Role.TOOL and is_oversized:
            limits[item.seq] = limit
    return dict(list(limits.items())[-MAX_AT_ONCE:])


def limits_of_largest(entries: Sequence[Entry], history_tokens: int) -> dict[int, int]:
    """Return one limit for the largest texts, by seq, so that all fit into `history_tokens`.

    The result is empty if even the shortest texts do not fit, or if all fit as they are.
    """
    texts = [item for item in entries if item.role is not Role.TOOL]
    texts.sort(key=lambda item: item.tokens)
    left = history_tokens - sum(item.tokens for item in entries if item not in texts)
    for index, item in enumerate(texts):
        limit = left // (len(texts) - index)
        if item.tokens > limit:
            fits = limit >= MIN_SHORTENED_TOKENS and len(texts) - index <= MAX_AT_ONCE
            return {text.seq: limit for text in texts[index:]} if fits else {}
        left -= item.tokens
    return {}


def largest_text(entries: Sequence[Entry]) -> Entry | None:
    """Return the largest user or assistant message."""
    texts = (item for item in entries if item.role is not Role.TOOL)
    return max(texts, key=lambda item: item.tokens, default=None)


def reader_tool_tokens(resolved: ResolvedSettings, included: Sequence[str] = ()) -> int:
    """Return the tokens of the tools that read a cut message, without those in `included`."""
    missing = (name for name in resolved.agent_tools(READER_TOOLS) if name not in included)
    return resolved.agent_tool_tokens(tuple(missing))


# --- how a shortened text is shown ------------------------------------------------------------


def shortened_messages(
    rows: Sequence[LogRow], max_tokens: Mapping[int, int], resolved: ResolvedSettings
) -> list[ShortenedMessage]:
    """Return messages shortened to their maximum of tokens, which `max_tokens` has by seq.

    A message that is large for another reason than its texts is left out.
    """
    max_bytes, count = resolved.policy.tool_output.max_message_bytes, resolved.count
    shortened = (shortened_to(row, max_tokens[row.seq], max_bytes, count) for row in rows)
    return [message for message in shortened if message is not None]


def shortened_to(
    row: LogRow, max_tokens: int, max_bytes: int, count: CountText
) -> ShortenedMessage | None:
    """Return how much of a message to show so that it costs at most `max_tokens`.

    At most `max_bytes` of its texts are shown. None if nothing would be left out, or if the message
    is too large without any text.
    """
    message = row.message()
    total = sum(len(_bytes(part)) for part in message.parts)
    shown = min(max_bytes, total - 1, _BYTES_PER_TOKEN * max_tokens)
    while shown >= 0:
        short = ShortenedMessage(row.seq, shown - shown // 2, shown // 2, 0)
        preview, _ = shortened_preview(message, short, message_ref(row.id, row.seq))
        tokens = count_message(LOG_PROVIDER.adapt(preview), count).visible
        if tokens <= max_tokens:
            return replace(short, tokens=tokens)
        shown = min(int(shown * _SHRINK * max_tokens / tokens), shown - 1)
    return None


def shortened_preview(
    message: Message, short: ShortenedMessage, ref: str, mentionable: Collection[str] = READER_TOOLS
) -> tuple[Message, tuple[str, ...]]:
    """Return a message without the middle of its texts, and the tools that its note is to name.

    It names none of them unless all are `mentionable`.
    """
    texts = list(map(_bytes, message.parts))
    whole = b"".join(texts)
    tail_at = len(whole) - short.tail_bytes
    if short.head_bytes >= tail_at:
        return message, ()
    note, mentions = _note(whole, short, ref, mentionable)
    parts: list[Part] = []
    for part, data, end in zip(message.parts, texts, accumulate(map(len, texts)), strict=True):
        at = end - len(data)
        if not data or end <= short.head_bytes or at >= tail_at:
            parts.append(part)
            continue
        head, tail = data[: max(0, short.head_bytes - at)], data[max(0, tail_at - at) :]
        pieces = (head.decode("utf-8", "ignore"), note, tail.decode("utf-8", "ignore"))
        shown, note = "", ""
        for piece in filter(None, pieces):  # each on lines of its own
            shown += f"\n{piece}" if shown and not shown.endswith("\n") else piece
        if shown:
            parts.append(replace(part, text=shown) if isinstance(part, File) else Text(shown))
    return replace(message, parts=tuple(parts)), mentions


def _note(
    whole: bytes, short: ShortenedMessage, ref: str, mentionable: Collection[str]
) -> tuple[str, tuple[str, ...]]:
    """Return the note and the tools that it is to name.

    Its offset is that in the texts alone: with labels between them, a read begins a little earlier.
    """
    shown = f"{short.head_bytes + short.tail_bytes:,} of {len(whole):,} bytes shown"
    head = whole[: short.head_bytes]
    if b"\n" in whole[len(head) :]:
        reader, offset = READ_LINES, head.count(b"\n")
    else:  # the rest is a single line, which may be longer than a read by lines returns
        reader, offset = READ_BYTES, len(head)
    if not {reader, GREP} <= {*mentionable}:
        return f'[Message cut: {shown}; ref="{ref}".]', (reader, GREP)
    how = f'Read the rest with {reader} ref_id="{ref}" offset={offset}'
    return f"[Message cut: {shown}. {how}, or search it with {GREP}.]", (reader, GREP)


def _bytes(part: Part) -> bytes:
    """Return the text of a part that can be cut."""
    return encode(part.text or "") if isinstance(part, Text | File) else b""


def readable_text(message: Message) -> bytes:
    """Return the text that a read of a user or assistant message by its ref returns.

    An image or document is shown as one line; calls and reasoning are left out.
    """
    lines: list[str] = []
    for part in message.parts:
        match part:
            case Text(text=str(text)) | File(text=str(text)):
                lines.append(text)
            case Image() | File():
                lines.append(media.label_for(part).text)
            case Opaque():
                lines.append(json_text.dumps(part.block))
            case ToolCall() | Reasoning():
                pass
    return b"\n".join(map(encode, lines))


# --- media ------------------------------------------------------------------------------------


class SentMedia(NamedTuple):
    """A part with media in a payload: the seq of its message, its bytes and its longer side."""

    seq: int
    is_image: bool
    bytes: int
    pixels: int


def media_in(seq: int, message: Message) -> list[SentMedia]:
    """List the media of a message, in their order."""
    found = []
    for part in message.parts:
        if not _is_media(part, message):
            continue
        data = (str(part.block) if isinstance(part, Opaque) else part.data) or ""
        size = pixel_size(data) if isinstance(part, Image) and data else None
        found.append(SentMedia(seq, isinstance(part, Image), len(data), max(size or (0,))))
    return found


def without_media(message: Message, count: int, ref: str) -> Message:
    """Return a message with labels for its first `count` media (rule 5)."""
    parts: list[Part] = []
    for part in message.parts:
        if count > 0 and _is_media(part, message):
            count -= 1
            parts.append(Text(f"{media.label_for(part).text[:-1]}; left out; ref={ref}]"))
        else:
            # Of a result the original with the text may hold the media as well.
            is_result = isinstance(part, Text) and message.role is Role.TOOL
            parts.append(Text(part.text) if isinstance(part, Text) and is_result else part)
    return replace(message, parts=tuple(parts))


def cut_for(sent: Sequence[SentMedia], payload_bytes: int, limits: MediaLimits) -> MediaCut | None:
    """Return which media to leave out, None where a payload is inside the limits."""
    if _fits(sent, payload_bytes, limits, 1.0) or not sent:
        return None
    dropped = 0
    while dropped < len(sent) and not _fits(sent[dropped:], payload_bytes, limits, _FREE_SHARE):
        payload_bytes -= sent[dropped].bytes
        dropped += 1
    return cut_after(sent, dropped)


def cut_after(sent: Sequence[SentMedia], dropped: int) -> MediaCut:
    """Return the cut that leaves out the first so many media."""
    seq = sent[dropped - 1].seq
    return MediaCut(seq, sum(media.seq == seq for media in sent[:dropped]))


def _fits(sent: Sequence[SentMedia], payload_bytes: int, limits: MediaLimits, share: float) -> bool:
    images = [media for media in sent if media.is_image]
    is_large = any(image.pixels > limits.many_pixels for image in images)
    has_too_many = limits.many is not None and len(images) > limits.many * share and is_large
    within = len(sent) <= limits.media * share and payload_bytes <= limits.bytes * share
    return within and not has_too_many


def _is_media(part: Part, message: Message) -> TypeGuard[Image | File | Opaque]:
    if isinstance(part, Opaque):
        return media.kind_of(part.block) in _OPAQUE_MEDIA
    is_readable = isinstance(part, File) and part.text is not None
    return isinstance(part, Image | File) and not is_readable and message.role is not Role.ASSISTANT
