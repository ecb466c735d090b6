"""Shortens the parts of a transcript to a number of tokens, each at its beginning and end.

What users say is shortened last, results of tools are shortened first. [summary.capped-input]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.compaction.summaries.transcript_text import PartGroup, PartKind, TranscriptPart
from app.models.tokens import CountText

LARGEST_RESULT, SMALLEST_RESULT = 8192, 8
"""The limits of a result in tokens: the first that is tried, and the last."""
LABEL_TOKENS = 8
"""The cost of a label and of what separates texts."""
_NOTE_TOKENS = 12
"""Reserved for the note that counts the characters left out."""
_MIN_CUT_TOKENS = 32
_SHARES = {
    PartKind.USER: (8.0, 256),
    PartKind.ASSISTANT: (2.0, 128),
    PartKind.RESULT: (1.0, SMALLEST_RESULT),
    PartKind.VERBATIM: (1.0, SMALLEST_RESULT),
}
"""The limit of each kind of text as a multiple of that of a result, and its minimum."""
_ARGUMENTS_SHARE = (0.5, 12)


@dataclass(frozen=True, slots=True)
class SourceText:
    """A text that is sent, and the length of what it was made from, in characters."""

    text: str
    source_chars: int


def shortened_groups(
    groups: Sequence[PartGroup], max_tokens: int, count: CountText
) -> list[tuple[SourceText, ...]]:
    """Return the texts of all groups within `max_tokens`, or as short as they may get.

    Summaries are never shortened.
    """
    sizes = [
        [(count(part.text), count(part.arguments or "")) for part in group] for group in groups
    ]
    result_tokens = LARGEST_RESULT
    while result_tokens > SMALLEST_RESULT and _total(groups, sizes, result_tokens) > max_tokens:
        result_tokens //= 2
    if result_tokens == LARGEST_RESULT and _total(groups, sizes, None) <= max_tokens:
        return [tuple(map(_whole, group)) for group in groups]
    return [
        tuple(
            _shortened(part, part_sizes, result_tokens, count)
            for part, part_sizes in zip(group, group_sizes, strict=True)
        )
        for group, group_sizes in zip(groups, sizes, strict=True)
    ]


def _total(
    groups: Sequence[PartGroup],
    sizes: Sequence[Sequence[tuple[int, int]]],
    result_tokens: int | None,
) -> int:
    """Return the tokens of all texts with this limit of a result, None for no limits."""
    total = 0
    for group, group_sizes in zip(groups, sizes, strict=True):
        for part, (text, arguments) in zip(group, group_sizes, strict=True):
            most, most_arguments = _limits(part.kind, result_tokens)
            total += LABEL_TOKENS + min(text, most or text)
            total += min(arguments, most_arguments or arguments)
    return total


def _limits(kind: PartKind, result_tokens: int | None) -> tuple[int | None, int | None]:
    """Return the limits of a text and of the arguments in its label, None for none."""
    if result_tokens is None or kind is PartKind.SUMMARY:
        return None, None
    (share, least), (arguments_share, least_arguments) = _SHARES[kind], _ARGUMENTS_SHARE
    return (
        max(least, int(result_tokens * share)),
        max(least_arguments, int(result_tokens * arguments_share)),
    )


def _whole(part: TranscriptPart) -> SourceText:
    text = part.full_text
    return SourceText(text, len(text))


def _shortened(
    part: TranscriptPart, sizes: tuple[int, int], result_tokens: int, count: CountText
) -> SourceText:
    limits, short = _limits(part.kind, result_tokens), part
    if limits[0] is not None and sizes[0] > limits[0]:
        short = replace(short, text=cut_middle(part.text, limits[0], count))
    if limits[1] is not None and part.arguments is not None and sizes[1] > limits[1]:
        short = replace(short, arguments=cut_middle(part.arguments, limits[1], count))
    return SourceText(short.full_text, len(part.full_text))


def _beginning(text: str, max_tokens: int, count: CountText) -> str:
    keep = min(len(text), max_tokens * 8)
    while keep > 1 and (tokens := count(text[:keep]) + 1) > max_tokens:
        keep = min(keep - 1, keep * max_tokens // tokens)
    return f"{text[:keep].rstrip()}…"


def cut_middle(text: str, max_tokens: int, count: CountText) -> str:
    """Return the text with a note in the place of its middle, within `max_tokens`.

    Where there is room for little more than the note, that is the beginning of the text.
    """
    if max_tokens < _MIN_CUT_TOKENS:
        return _beginning(text, max_tokens, count)
    keep = min(len(text), max_tokens * 8)
    while True:
        head, tail = text[: keep // 2], text[len(text) - keep // 2 :]
        tokens = count(head) + count(tail) + _NOTE_TOKENS
        if tokens <= max_tokens or keep < 2:
            break
        excess = (max_tokens - _NOTE_TOKENS) / max(1, tokens - _NOTE_TOKENS)
        keep = min(keep - 1, int(keep * max(0.0, excess) * 0.97))
    left_out = len(text) - len(head) - len(tail)
    return f"{head.rstrip()} [… {left_out:,} characters left out …] {tail.lstrip()}"
