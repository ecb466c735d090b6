"""Cuts the text of a transcript into chunks that fit a summariser's context window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.compaction.summaries.transcript_limits import SourceText, cut_middle
from app.models.tokens import Tokenizer

_SEPARATOR_TOKENS = 2

TextGroup = tuple[SourceText, ...]
"""The texts of one call group, which stay together where they fit."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a transcript; `source_chars` is the length of what it was made from."""

    text: str = ""
    source_chars: int = 0


def take_chunk(
    groups: Sequence[TextGroup], max_tokens: int, tokenizer: Tokenizer
) -> tuple[Chunk, list[TextGroup]]:
    """Return the first groups that fit into `max_tokens`, joined, and the other groups.

    A first group that is too large alone is cut between its texts, a first text in its middle.
    """
    chunk: list[SourceText] = []
    remaining_tokens = max_tokens
    for index, group in enumerate(groups):
        tokens = [tokenizer.count(item.text) + _SEPARATOR_TOKENS for item in group]
        if sum(tokens) <= remaining_tokens:
            chunk += group
            remaining_tokens -= sum(tokens)
            continue
        rest = list(groups[index:])
        if not chunk:
            taken = 0
            while taken < len(group) and tokens[taken] <= remaining_tokens:
                remaining_tokens -= tokens[taken]
                taken += 1
            chunk += group[:taken]
            if not taken:
                cut = cut_middle(group[0].text, max_tokens, tokenizer.count)
                chunk, taken = [SourceText(cut, group[0].source_chars)], 1
            rest = [group[taken:], *rest[1:]] if taken < len(group) else rest[1:]
        return _chunk_of(chunk), rest
    return _chunk_of(chunk), []


def _chunk_of(texts: Sequence[SourceText]) -> Chunk:
    joined = "\n\n".join(item.text for item in texts)
    return Chunk(joined, sum(item.source_chars for item in texts))
