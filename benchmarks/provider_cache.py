"""What two providers' prompt caches would serve of a conversation's payloads, and what that costs.

1. A payload is read in pieces, in the provider's order: tools, system prompt, messages. Cache
   marks are no part of a piece. Tokens are whatever the caller counts over a piece's JSON.
2. OpenAI's cache is implicit: it serves the longest prefix in common with any earlier payload of
   the conversation, from 1 024 tokens in steps of 128. Pieces count whole or not at all.
3. Anthropic writes entries exactly at marks, where the prefix is long enough. A mark finds the
   newest entry at its own block or one of the 19 before it. Up to the best one found is read,
   from there to the last mark is written, the rest is plain input.
4. Entries never expire here: an agent's next call comes within minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import orjson

from app.models.budget import ModelInfo
from app.models.usage import TokenUsage

IMPLICIT_MINIMUM = 1_024
IMPLICIT_STEP = 128
LOOK_BACK = 20
"""Blocks at which a mark looks for an entry, its own being the first."""
_MARK = "cache_control"


class Piece(NamedTuple):
    """One part of a payload as JSON; `is_marked` says that a cache mark stands on it."""

    body: bytes
    tokens: int
    is_marked: bool = False


class Cache(Protocol):
    """A provider's cache of one conversation."""

    def take(self, pieces: Sequence[Piece]) -> TokenUsage:
        """Return what a payload is charged, output left out, and remember the payload."""


class _Prefixes:
    """Numbers prefixes; the same pieces in the same order always have the same number."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, bytes], int] = {}

    def of(self, pieces: Sequence[Piece]) -> tuple[list[int], int]:
        """Return the number of the prefix behind each piece, and how many of these are old."""
        known, found, before = len(self._numbers), [], 0
        for piece in pieces:
            before = self._numbers.setdefault((before, piece.body), len(self._numbers) + 1)
            found.append(before)
        return found, sum(number <= known for number in found)


class ImplicitCache:
    """OpenAI's cache: it needs no marks (rule 2)."""

    def __init__(self) -> None:
        self._prefixes = _Prefixes()

    def take(self, pieces: Sequence[Piece]) -> TokenUsage:
        """Charge the prefix in common, in whole steps, as read."""
        _, old = self._prefixes.of(pieces)
        common = sum(piece.tokens for piece in pieces[:old])
        read = common - common % IMPLICIT_STEP if common >= IMPLICIT_MINIMUM else 0
        whole = sum(piece.tokens for piece in pieces)
        return TokenUsage(input_tokens=whole - read, cache_read_tokens=read)


class MarkedCache:
    """Anthropic's cache: entries stand where marks stood (rule 3)."""

    def __init__(self, minimum_tokens: int) -> None:
        self._minimum_tokens = minimum_tokens
        self._prefixes = _Prefixes()
        self._entries: set[int] = set()

    def take(self, pieces: Sequence[Piece]) -> TokenUsage:
        """Charge what marks find as read, and from there to the last mark as written."""
        numbers, _ = self._prefixes.of(pieces)
        reach = list(accumulate(piece.tokens for piece in pieces))
        marks = [
            place
            for place, piece in enumerate(pieces)
            if piece.is_marked and reach[place] >= self._minimum_tokens
        ]
        found = [place for mark in marks for place in self._entry_behind(mark, numbers)]
        self._entries.update(numbers[mark] for mark in marks)
        read = reach[max(found)] if found else 0
        cached = reach[marks[-1]] if marks else 0
        whole = reach[-1] if reach else 0
        return TokenUsage(
            input_tokens=whole - cached,
            cache_creation_tokens=cached - read,
            cache_read_tokens=read,
        )

    def _entry_behind(self, mark: int, numbers: Sequence[int]) -> list[int]:
        places = range(mark, max(-1, mark - LOOK_BACK), -1)
        return [place for place in places if numbers[place] in self._entries][:1]


def input_cost(usage: TokenUsage, info: ModelInfo) -> float:
    """Return the price in USD of what was sent; without a price of its own, cached is input."""
    if info.input_price is None:
        raise ValueError(f"{info.model} has no price")
    read = info.input_price if info.cache_read_price is None else info.cache_read_price
    write = info.input_price if info.cache_write_price is None else info.cache_write_price
    return (
        usage.input_tokens * info.input_price
        + usage.cache_read_tokens * read
        + usage.cache_creation_tokens * write
    )


def shared_prefix(before: Sequence[bytes], after: Sequence[bytes]) -> int:
    """Return how many items two payloads have in common from their start."""
    pairs = zip(before, after, strict=False)
    return next(
        (at for at, (one, other) in enumerate(pairs) if one != other), min(len(before), len(after))
    )


def items_of(payload: Mapping[str, Any]) -> list[bytes]:
    """Return what OpenAI reads of a Chat payload, in its order, each item as its JSON."""
    tools = payload.get("tools") or []
    return [orjson.dumps(item) for item in (*tools, *payload["messages"])]


def chat_pieces(payload: Mapping[str, Any], count: Callable[[bytes], int]) -> list[Piece]:
    """Return the pieces of an OpenAI Chat payload: a tool or a message each."""
    return [Piece(item, count(item)) for item in items_of(payload)]


def anthropic_pieces(payload: Mapping[str, Any], count: Callable[[bytes], int]) -> list[Piece]:
    """Return the pieces of an Anthropic payload: a tool, or a block of system or message each."""
    pieces = []
    for block, role in _blocks(payload):
        plain: Any = {key: value for key, value in block.items() if key != _MARK}
        if role is not None:
            plain = {"role": role, "content": [plain]}
        body = orjson.dumps(plain)
        pieces.append(Piece(body, count(body), _MARK in block))
    return pieces


def _blocks(payload: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str | None]]:
    """Yield every block; the first of a message comes with its role."""
    for block in (*(payload.get("tools") or ()), *_listed(payload.get("system") or ())):
        yield block, None
    for message in payload["messages"]:
        for place, block in enumerate(_listed(message["content"])):
            yield block, None if place else message["role"]


def _listed(content: Any) -> Sequence[Mapping[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
