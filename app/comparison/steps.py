"""The steps of a replay: what is appended before each build, and what a payload consists of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any

from app.comparison.conversation import Appended
from app.domain.common import json_text
from app.domain.common.messages import FormatName, Message
from app.domain.formats import FORMATS
from app.domain.formats.registry import group_items

_ITEM_FIELDS = ("messages", "input", "contents")
_PER_CALL = frozenset({"model", "max_tokens", "max_completion_tokens", "max_output_tokens"})
_MARK = "cache_control"


def neutral(appended: Sequence[Appended]) -> list[Message]:
    """Return messages of any format as neutral ones, as an append parses them."""
    found: list[Message] = []
    for format, raws in by_format(appended):
        for index, raw in group_items(format, raws):
            found.extend(FORMATS[format].parse(raw, f"/messages/{index}"))
    return found


def by_format(appended: Sequence[Appended]) -> Iterator[tuple[FormatName, list[Mapping[str, Any]]]]:
    """Yield the messages of each format in turn."""
    for format, messages in groupby(appended, key=lambda message: message.format):
        yield format, [message.raw for message in messages]


def segments(messages: Sequence[Appended]) -> Iterator[list[Appended]]:
    """Yield the messages that are appended before each build: up to where a model answers."""
    segment: list[Appended] = []
    for message in messages:
        if message.is_answer and segment and not segment[-1].is_answer:
            yield segment
            segment = []
        segment.append(message)
    yield segment


def rounds_of(found: Sequence[list[Appended]], rounds: int) -> list[list[list[Appended]]]:
    """Cut segments into at most so many rounds of about the same size."""
    sizes = [sum(len(json_text.dumps(item.raw)) for item in segment) for segment in found]
    starts = [end - size for end, size in zip(accumulate(sizes), sizes, strict=True)]
    numbered = zip(starts, found, strict=True)
    parts = groupby(numbered, key=lambda item: item[0] * rounds // sum(sizes))
    return [[segment for _, segment in part] for _, part in parts]


def pieces_of(payload: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield a payload as a prefix cache reads it: tools and system first, then item by item."""
    for key in sorted(set(payload) - _PER_CALL - set(_ITEM_FIELDS), reverse=True):
        yield json_text.dumps(_unmarked(payload[key])).encode()
    for key in _ITEM_FIELDS:
        for item in payload.get(key) or ():
            yield json_text.dumps(_unmarked(item)).encode()


def _unmarked(value: Any) -> Any:
    """Return a part of a payload without the marks of cache breakpoints, which move."""
    if isinstance(value, dict):
        return {key: _unmarked(item) for key, item in value.items() if key != _MARK}
    return [_unmarked(item) for item in value] if isinstance(value, list) else value
