"""What providers take in one request beside tokens: bytes, images, and pixels of many images.

Source: Anthropic's, OpenAI's and Google's pages on vision and on request sizes. Other providers
publish no such limits, or none that all of their models share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from app.formats import PROVIDERS
from app.formats.message import FormatName
from app.formats.reasoning_families import ANTHROPIC, GEMINI, OPENAI

_MB: Final = 1_000_000
_LARGE_WINDOW: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """The limits of a request; `many` is the number of images above which none is larger than
    `many_pixels` a side.
    """

    bytes: int
    media: int
    many: int | None = None
    many_pixels: int = 0


_BY_FAMILY: Final[Mapping[str, MediaLimits]] = {
    ANTHROPIC: MediaLimits(32 * _MB, 100, 20, 2000),
    OPENAI: MediaLimits(50 * _MB, 500),
    GEMINI: MediaLimits(20 * _MB, 3000),
}
_ANTHROPIC_LARGE_WINDOW: Final = 600
_HOSTS: Final = (("bedrock", 20 * _MB), ("vertex", 30 * _MB))
"""Hosts of Anthropic's models that take smaller requests."""


def media_limits(model: str, format: FormatName, window: int | None) -> MediaLimits | None:
    """Return the limits of a model's family, None where they are unknown."""
    limits = _BY_FAMILY.get(next(iter(PROVIDERS[format].accepted_families(model)), ""))
    if limits is None or limits.many is None:
        return limits
    max_bytes = next((size for host, size in _HOSTS if host in model.lower()), limits.bytes)
    is_large = window is not None and window >= _LARGE_WINDOW
    return replace(
        limits, bytes=max_bytes, media=_ANTHROPIC_LARGE_WINDOW if is_large else limits.media
    )
