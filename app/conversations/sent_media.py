"""Images and documents of a payload, and which of them are left out. [payload.media-limits]

1. The oldest are left out first: all media up to a place in the log, the cut. A label with a ref
   stands for each. So a payload changes once, at its start, and not with every new image.
2. A cut leaves a quarter of each limit free, so that the next one comes late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from app.conversations.view import MediaCut
from app.formats import labels
from app.formats.message import File, Image, Message, Opaque, Part, Role, Text
from app.models.media import MediaLimits, pixel_size

MEDIA_LEFT_OUT: Final = "media_left_out"
"""`degraded`: a label stands for old media, which would be too many or too large."""
_FREE_SHARE: Final = 0.75
_OPAQUE_MEDIA: Final = ("image_generation_call", "inline_data", "input_audio", "input_image")
MEDIA_WORDS: Final = (
    *(b'"image_url"', b'"input_image"', b'"image"', b'"images"', b'"image_generation_call"'),
    *(b'"file"', b'"input_file"', b'"document"', b'"resource"', b'"input_audio"', b'"audio"'),
    *(b'"inlineData"', b'"inline_data"', b'"fileData"', b'"file_data"'),
)
"""One of these is in every stored message with media; in a text the quotes are escaped."""


class SentMedia(NamedTuple):
    """A part with media in a payload: the seq of its message, its bytes and its longer side."""

    seq: int
    is_image: bool
    bytes: int
    pixels: int


def media_in(seq: int, message: Message) -> list[SentMedia]:
    """List the media of a message, in their order."""
    return [_sent(seq, part) for part in message.parts if _is_media(message, part)]


def without_media(message: Message, count: int, ref: str) -> Message:
    """Return a message with labels for its first `count` media (rule 1)."""
    parts: list[Part] = []
    for part in message.parts:
        if count <= 0 or not _is_media(message, part):
            # Of a result the original with the text may hold the media as well.
            is_result = isinstance(part, Text) and message.role is Role.TOOL
            parts.append(Text(part.text) if isinstance(part, Text) and is_result else part)
            continue
        count -= 1
        assert isinstance(part, Image | File | Opaque)
        parts.append(Text(f"{labels.label_for(part).text[:-1]}; left out; ref={ref}]"))
    return replace(message, parts=tuple(parts))


def cut_for(sent: Sequence[SentMedia], payload_bytes: int, limits: MediaLimits) -> MediaCut | None:
    """Return which media to leave out, None where a payload is inside the limits."""
    if _fits(sent, payload_bytes, limits, 1.0) or not sent:
        return None
    dropped = 0
    while dropped < len(sent) and not _fits(sent[dropped:], payload_bytes, limits, _FREE_SHARE):
        payload_bytes -= sent[dropped].bytes
        dropped += 1
    return _cut_after(sent, dropped)


def cut_after_refusal(
    sent: Sequence[SentMedia], keep: int | None, through_seq: int | None
) -> MediaCut | None:
    """Return the cut after a provider refused media, None where none are sent.

    At most half of them and at most `keep` stay. Without that number one of them is bad: all up to
    `through_seq`, where it is known, are left out.
    """
    if not sent:
        return None
    if keep is not None:
        return _cut_after(sent, len(sent) - min(keep, len(sent) // 2))
    last = max((i for i, media in enumerate(sent, 1) if media.seq == through_seq), default=0)
    return _cut_after(sent, last or len(sent))


def _cut_after(sent: Sequence[SentMedia], dropped: int) -> MediaCut:
    seq = sent[dropped - 1].seq
    return MediaCut(seq, sum(media.seq == seq for media in sent[:dropped]))


def _fits(sent: Sequence[SentMedia], payload_bytes: int, limits: MediaLimits, share: float) -> bool:
    images = [media for media in sent if media.is_image]
    is_large = any(image.pixels > limits.many_pixels for image in images)
    has_too_many = limits.many is not None and len(images) > limits.many * share and is_large
    within = len(sent) <= limits.media * share and payload_bytes <= limits.bytes * share
    return within and not has_too_many


def _is_media(message: Message, part: Part) -> bool:
    if isinstance(part, Opaque):
        return labels.kind_of(part.block) in _OPAQUE_MEDIA
    is_readable = isinstance(part, File) and part.text is not None
    return isinstance(part, Image | File) and not is_readable and message.role is not Role.ASSISTANT


def _sent(seq: int, part: Part) -> SentMedia:
    if isinstance(part, Image | File):
        size = pixel_size(part.data) if isinstance(part, Image) and part.data else None
        return SentMedia(seq, isinstance(part, Image), len(part.data or ""), max(size or (0,)))
    held = len(str(part.block)) if isinstance(part, Opaque) else 0
    return SentMedia(seq, is_image=False, bytes=held, pixels=0)
