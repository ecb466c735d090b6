"""What `recall` ranks and shows: the texts of messages, their order, and excerpts.

1. A search reads texts, names and arguments of tool calls, and results as the log stores them. It
   does not read reasoning, which payloads never repeat once its prefix is gone, nor the calls and
   results of `recall`, which only repeat other messages. JSON is read with its escapes decoded.
2. A message has the words of the messages around it as well, each with a share that falls with the
   distance: an answer seldom repeats the words of its question. Of a word that several of them
   have, the highest share counts. A word weighs the more, the fewer messages have it.
3. A long message has more words by chance, so it counts less, for its neighbours too.
4. The text of the best messages decides the rest: one that asks, or that has no time where the
   question asks for one, ranks lower.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from heapq import nlargest
from itertools import islice
from math import log
from typing import Final

from app.blobs.preview import RECALL
from app.common import json_text
from app.conversations.search.words import SPACELESS, normalised, text_pieces
from app.formats.message import File, Message, Part, Role, Text, ToolCall

MAX_RANKED: Final = 40
"""Messages that are ranked by their text, on all pages together."""
EXCERPT_CHARS: Final = 300
"""Characters of an excerpt."""
_SHARES = {0: 1.0, 1: 0.7, 2: 0.5, 3: 0.3, 4: 0.2, -1: 0.6, -2: 0.4, -3: 0.2}
"""The share of a message's words that those after and before it have, by distance (rule 2)."""
_ASKS, _NO_TIME = 0.85, 0.67
_USUAL_LEXEMES = 128  # of an ordinary message
_LONGER = 0.5  # how much less a message counts that is e times as long
_MIN_SHARE = 0.35  # of the best score, for a message that is shown
_QUESTION_MARKS = ("?", "？", "؟")  # noqa: RUF001 - full width
_ASKS_TIME = re.compile(
    r"\W*(?:when|how (?:long|old)|(?:what|which) (?:year|month|week|day|date|time))\b", re.I
)
_TELLS_TIME = re.compile(
    r"\b(?:yesterday|today|tonight|tomorrow|ago|weekend|morning|recently|since|last|next|\d{4}"
    r"|(?:day|week|month|year|hour)s?|(?:mon|tues|wednes|thurs|fri|satur|sun)day|\d{1,2}:\d\d"
    r"|january|february|march|april|may|june|july|august|(?:septem|octo|novem|decem)ber)\b",
    re.I,
)
_ESCAPES = re.compile(r'(?:\\u[0-9a-fA-F]{4})+|\\["\\/bfnrt]')
_CHARS_BEFORE_MATCH = 60  # characters of an excerpt before its first match
_MAX_READ_CHARS = 1 << 20  # characters of a message that an excerpt is chosen from
_MAX_MATCHES = 2_000  # matches among them


def text_of(message: Message, tool_name: str | None = None) -> tuple[str, ...]:
    """Return the texts of a message that a search reads (rule 1).

    `tool_name` is the tool that made a result, where the message does not name it.
    """
    name = tool_name or message.name
    if message.role is Role.TOOL and name == RECALL:
        return ()
    texts = (name or "", *(text for part in message.parts for text in _part_texts(part)))
    return tuple(_unescaped(text) for text in texts if text)


def _part_texts(part: Part) -> tuple[str, ...]:
    match part:
        case Text():
            return (part.text,)
        case ToolCall():
            return (part.name,) if part.name == RECALL else (part.name, part.arguments)
        case File():
            return (part.name or "", part.text or "")
        case _:
            return ()


def _unescaped(text: str) -> str:
    """Return JSON with its escapes decoded, and other text unchanged."""
    if not text[:256].lstrip().startswith(("{", "[")) or "\\" not in text:
        return text
    return "".join(
        _ESCAPES.sub(lambda escape: str(json_text.loads_exact(f'"{escape[0]}"')), piece)
        for piece in text_pieces(text)
    )


def weights_of(postings: Mapping[str, Sequence[int]], messages: int) -> dict[str, float]:
    """Return what each term weighs by the messages that have it, of so many (rule 2)."""
    counts = {term: min(len(seqs), messages) for term, seqs in postings.items()}
    return {
        term: log(1 + (messages - count + 0.5) / (count + 0.5)) for term, count in counts.items()
    }


def scores_of(
    postings: Mapping[str, Sequence[int]],
    weights: Mapping[str, float],
    sizes: Mapping[int, int],
    head_seq: int,
) -> dict[int, float]:
    """Return the scores of the best messages by the seqs that have each term.

    `sizes` are the numbers of lexemes of these messages (rule 3).
    """
    scores: dict[int, float] = {}
    for term, seqs in postings.items():
        strongest: dict[int, float] = {}
        for seq in seqs:
            longer = max(1.0, sizes[seq] / _USUAL_LEXEMES)
            own = weights[term] / (1 + _LONGER * log(longer))
            for distance, share in _SHARES.items():
                at = seq + distance
                if 0 < at <= head_seq and own * share > strongest.get(at, 0.0):
                    strongest[at] = own * share
        for at, value in strongest.items():
            scores[at] = scores.get(at, 0.0) + value
    return {seq: scores[seq] for seq in _best_first(scores)}


def ranked(question: str, scores: Mapping[int, float], texts: Mapping[int, str]) -> list[int]:
    """Return the messages worth showing, best first, by their texts as well (rule 4)."""
    asks_time = _ASKS_TIME.match(question) is not None
    fitting = dict(scores)
    for seq, text in texts.items():
        if text.rstrip().endswith(_QUESTION_MARKS):
            fitting[seq] *= _ASKS
        if asks_time and not _TELLS_TIME.search(text):
            fitting[seq] *= _NO_TIME
    best = _best_first(fitting)
    return [seq for seq in best if fitting[seq] >= _MIN_SHARE * fitting[best[0]]]


def _best_first(scores: Mapping[int, float]) -> list[int]:
    """Return the seqs with the highest scores; among equals the newest first."""
    return nlargest(MAX_RANKED, scores, key=lambda seq: (round(scores[seq], 6), seq))


def excerpt(text: str, weights: Mapping[str, float], max_chars: int = EXCERPT_CHARS) -> str:
    """Return about so many characters around the terms of the highest weight together, in a line.

    A term is found at the beginnings of words.
    """
    start = 0
    if len(text) > max_chars and (matches := _matches(text[:_MAX_READ_CHARS], tuple(weights))):
        ends = [at + max_chars - 2 * _CHARS_BEFORE_MATCH for at, _ in matches]

        def weight_from(first: int) -> float:
            past = bisect_left(matches, (ends[first], ""), first)
            return sum(weights[term] for term in {term for _, term in matches[first:past]})

        best = max(range(len(matches)), key=weight_from)
        start = max(0, matches[best][0] - _CHARS_BEFORE_MATCH)
    end = start + max_chars
    shown = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{shown}{'…' if end < len(text) else ''}"


def _matches(text: str, terms: tuple[str, ...]) -> list[tuple[int, str]]:
    """Return where words begin with a term, and the term."""
    plain = text.lower() if text.isascii() else "".join(map(_plain_character, text))
    by_beginning = {term.removesuffix("*"): term for term in terms}
    starts = (
        beginning if SPACELESS.match(beginning) else rf"(?<![^\W_]){beginning}"
        for beginning in sorted(by_beginning, key=len, reverse=True)
    )
    found = re.finditer("|".join(starts), plain)
    return [(match.start(), by_beginning[match[0]]) for match in islice(found, _MAX_MATCHES)]


@lru_cache(maxsize=4096)
def _plain_character(character: str) -> str:
    """Return a character in normal form if that is one character: positions stay the same."""
    folded = normalised(unicodedata.normalize("NFKC", character))
    return folded if len(folded) == 1 else character
