"""What a search finds and shows: the words of texts, terms to look for, ranking and excerpts.

1. A word is a run of letters, digits and their marks in normal form: compatibility forms and case
   are unified, accents are removed. Joined words, such as `app/words.py`, are found by their parts,
   and camelCase also from each hump on.
2. A word of a query finds words that begin with it; one shorter than MIN_PREFIX only itself.
3. English words are indexed with their stems, by which a question finds their other forms. A long
   word that has no English ending is found by its beginning: it may have another language's.
4. Scripts without spaces between words are indexed by pairs of neighbouring characters. A query in
   such a script needs all its pairs; a single character finds every pair that begins with it.
5. A message has at most MAX_LEXEMES different lexemes, each of at most MAX_LEXEME_BYTES bytes.
   Longer words are compared by their beginnings.
6. A search reads texts, names and arguments of tool calls, and results as the log stores them. It
   does not read reasoning, which payloads never repeat once its prefix is gone, nor the calls and
   results of `recall`, which only repeat other messages. JSON is read with its escapes decoded.
7. `recall`: a message has the words of the messages around it as well, each with a share that falls
   with the distance: an answer seldom repeats the words of its question. Of a word that several of
   them have, the highest share counts. A word weighs the more, the fewer messages have it, and the
   less, the longer the message is.
8. The text of the best messages decides the rest: one that asks, or that has no time where the
   question asks for one, ranks lower.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from heapq import nlargest
from itertools import chain, islice, pairwise
from math import log
from typing import Final
from unicodedata import normalize

from app.blobs.preview import RECALL
from app.common import json_text
from app.common.errors import ValidationError
from app.common.texts import FUNCTION_WORDS, stems
from app.formats.message import File, Message, Role, Text, ToolCall

MIN_PREFIX: Final = 3
MAX_LEXEME_BYTES: Final = 52
MAX_LEXEMES: Final = 16_384
MAX_TERMS: Final = 64
_WORD_CHARS = 256  # of a word that are compared
MAX_WORDS: Final = 24
"""Words of a question; of more it has the longest."""
_MAX_HUMPS = 10  # a word with more is encoded data, not a name
_MIN_CUT = 6  # characters of a word that is found by its beginning (rule 3)
# Pieces that end between words where possible: one pass over 10 MB would block the interpreter.
_PIECES = re.compile(r".{1,32768}(?:\W|\Z)|.{1,32768}", re.S)
_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3130-\u318f"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uac00-\ud7ff\uf900-\ufaff"
    "\U00020000-\U000323af"
)
"""Thai, Lao, Myanmar, Khmer, Kana, Han; and Hangul, where particles are attached to words."""
SPACELESS: Final = re.compile(f"[{_SPACELESS}]")
_ASCII_WORD = re.compile("[A-Za-z0-9]+")
_HUMPS = re.compile("[A-Z]+(?![a-z])|[A-Z]?[^A-Z]+")
_NO_ACCENTS = frozenset((*range(10), *range(37, 200)))
"""Combining classes: vowel signs and voicing marks distinguish words."""
_INVISIBLE = re.compile("[\u00ad\u200c\u200d\u2060\ufe00-\ufe0f\ufeff\U000e0100-\U000e01ef]+")
MAX_RANKED: Final = 40
"""Messages that are ranked by their text, on all pages together."""
EXCERPT_CHARS: Final = 300
"""Characters of an excerpt."""
_SHARES = {0: 1.0, 1: 0.7, 2: 0.5, 3: 0.3, 4: 0.2, -1: 0.6, -2: 0.4, -3: 0.2}
"""The share of a message's words that those after and before it have, by distance (rule 7)."""
_ASKS, _NO_TIME = 0.85, 0.67
_USUAL_LEXEMES = 128  # of an ordinary message
_LONGER = 0.5  # how much less a message counts that is e times as long
_MIN_SHARE = 0.35  # of the best score, for a message that is shown
_QUESTION_MARKS = ("?", "？", "؟")  # noqa: RUF001 - full width
_ASKS_TIME = re.compile(
    r"\W*(?:when|how (?:long|old)|(?:what|which) (?:year|month|week|day|date|time))\b", re.I
)
_TELLS_TIME = re.compile(
    r"(?i)\b(?:yesterday|today|tomorrow|ago|weekend|recently|since|last|next|\d{4}|\d{1,2}:\d\d"
    r"|(?:day|week|month|year|hour)s?|(?:mon|tues|wednes|thurs|fri|satur|sun)day"
    r"|january|february|march|april|may|june|july|august|(?:septem|octo|novem|decem)ber)\b"
)
_ESCAPES = re.compile(r'(?:\\u[0-9a-fA-F]{4})+|\\["\\/bfnrt]')
_CHARS_BEFORE_MATCH = 60  # characters of an excerpt before its first match
_MAX_READ_CHARS = 1 << 20  # characters of a message that an excerpt is chosen from
_MAX_MATCHES = 2_000  # matches among them


def words_of(text: str) -> Iterator[str]:
    """Yield the words of a text in order, as written; runs of a spaceless script as one."""
    return chain.from_iterable(_words_of_pieces(text))


def _words_of_pieces(text: str) -> Iterator[list[str]]:
    for piece in _PIECES.findall(text):
        plain = piece if piece.isascii() else _INVISIBLE.sub("", normalize("NFKC", piece))
        yield (_ASCII_WORD if plain.isascii() else _any_word()).findall(plain)


@cache
def _any_word() -> re.Pattern[str]:
    """Return the pattern for any text; the combining marks take milliseconds to list."""
    codes = map(chr, range(0x300, 0x1F000))
    marks = "".join(code for code in codes if unicodedata.category(code)[0] == "M")
    letter = rf"[^\W_{_SPACELESS}]"
    return re.compile(f"[{_SPACELESS}]+|{letter}+(?:[{marks}]+{letter}*)*")


def normalised(word: str) -> str:
    """Return a word in normal form: without case and accents (rule 1)."""
    if word.isascii():
        return word.lower()
    apart = normalize("NFD", word.casefold())
    plain = (each for each in apart if unicodedata.combining(each) in _NO_ACCENTS)
    return normalize("NFC", "".join(plain))


def lexemes(text: str) -> tuple[str, ...]:
    """Return the different lexemes of a text in order of first occurrence."""
    unique: dict[str, None] = {}
    for word in chain.from_iterable(map(dict.fromkeys, _words_of_pieces(text))):
        plain = word[:_WORD_CHARS]
        found = pairs_of(normalised(word)) if _is_spaceless(word) else _lexemes_of(plain)
        unique |= dict.fromkeys(found)
        if len(unique) >= MAX_LEXEMES:
            break
    return tuple(islice(unique, MAX_LEXEMES))


def _is_spaceless(word: str) -> bool:
    return not word.isascii() and SPACELESS.match(word) is not None


def pairs_of(run: str) -> Iterable[str]:
    """Return the pairs of neighbouring characters of a run, and its last character (rule 4)."""
    return (*map("".join, pairwise(run)), *run[-1:])


@lru_cache(maxsize=4096)
def _lexemes_of(word: str) -> tuple[str, ...]:
    humps = [] if word[1:].islower() or word.isupper() else _HUMPS.findall(word)[1:]
    starts = [word]
    for hump in humps if len(humps) < _MAX_HUMPS else ():
        starts.append(starts[-1][starts[-1].index(hump, 1) :])
    found = [_cut(normalised(start)) for start in starts]
    found += stems([lexeme for lexeme in found if lexeme.isascii() and lexeme.isalpha()])
    return tuple(filter(None, dict.fromkeys(found)))  # a word of accents alone has no lexeme


def _cut(lexeme: str) -> str:
    return lexeme.encode()[:MAX_LEXEME_BYTES].decode(errors="ignore")


def _terms_of(text: str) -> Iterator[str]:
    """Yield what a message with all words of a text has: lexemes, or their beginnings with `*`."""
    for word in words_of(text):
        plain = normalised(word[:_WORD_CHARS])
        if _is_spaceless(word):
            yield from map("".join, pairwise(plain)) if len(plain) > 1 else (f"{plain}*",)
        elif plain:
            yield f"{_cut(plain)}*" if len(plain) >= MIN_PREFIX else plain


def operand(term: str) -> str:
    """Return a term as an operand of a tsquery; a lexeme has nothing to escape."""
    return f"'{term[:-1]}':*" if term.endswith("*") else f"'{term}'"


def places_of(terms: Iterable[str], block: str) -> dict[str, set[int]]:
    """Return the places in a block, the text of a tsvector, where each of these terms is."""
    found: dict[str, set[int]] = {}
    for term in terms:
        lexeme = term.replace("*", "[^']*")
        places = re.findall(f"'{lexeme}':([0-9,]+)", block)
        found[term] = {int(place) for each in places for place in each.split(",")}
    return found


def query_terms(text: str) -> tuple[str, ...]:
    """Return the terms of a query, all of which a message must have.

    Raises ValidationError at `/query/query` for a query without a word or with too many.
    """
    terms = tuple(dict.fromkeys(_terms_of(text)))
    if not 0 < len(terms) <= MAX_TERMS:
        detail = f"A query has at most {MAX_TERMS} words" if terms else "A query must have a word"
        raise ValidationError.at("/query/query", detail)
    return terms


def question_terms(text: str) -> list[str]:
    """Return the terms of a question's words in all their forms (rule 3).

    Function words are left out, unless the question has no others.
    """
    words = [*words_of(text)]
    terms: dict[str, None] = {}
    for word in [word for word in words if normalised(word) not in FUNCTION_WORDS] or words:
        plain = normalised(word[:_WORD_CHARS])
        if _is_spaceless(word) or not plain.isalpha():
            terms |= dict.fromkeys(_terms_of(word))
            continue
        (stem,) = stems([plain]) if plain.isascii() else [plain]
        is_cut = stem == plain and len(plain) >= _MIN_CUT
        terms[f"{_cut(plain[: len(plain) - len(plain) // 4])}*" if is_cut else _cut(stem)] = None
    return sorted(terms, key=len, reverse=True)[:MAX_WORDS]


# --- what is searched, ranked and shown ---


def text_of(message: Message, tool_name: str | None = None) -> str:
    """Return the texts of a message that a search reads, below each other (rule 6).

    `tool_name` is the tool that made a result, where the message does not name it.
    """
    texts = [tool_name or message.name or ""]
    if message.role is Role.TOOL and texts == [RECALL]:
        return ""
    for part in message.parts:
        match part:
            case Text():
                texts.append(part.text)
            case ToolCall():
                texts += (part.name, part.arguments if part.name != RECALL else "")
            case File():
                texts += (part.name or "", part.text or "")
    return "\n".join(_unescaped(text) for text in texts if text)


def _unescaped(text: str) -> str:
    """Return JSON with its escapes decoded, and other text unchanged."""
    if not text[:256].lstrip().startswith(("{", "[")) or "\\" not in text:
        return text
    return "".join(
        _ESCAPES.sub(lambda escape: str(json_text.loads_exact(f'"{escape[0]}"')), piece)
        for piece in _PIECES.findall(text)
    )


def scores_of(
    postings: Mapping[str, Sequence[int]], sizes: Mapping[int, int], head_seq: int, count: int
) -> tuple[dict[str, float], dict[int, float]]:
    """Return the weights of terms in `count` messages, and the scores of the best (rule 7).

    `postings` are the seqs that have each term, and `sizes` the numbers of lexemes of these.
    """
    weights: dict[str, float] = {}
    scores: dict[int, float] = {}
    for term, seqs in postings.items():
        having = min(len(seqs), count)
        weights[term] = log(1 + (count - having + 0.5) / (having + 0.5))
        strongest: dict[int, float] = {}
        for seq in seqs:
            own = weights[term] / (1 + _LONGER * log(max(1.0, sizes[seq] / _USUAL_LEXEMES)))
            for distance, share in _SHARES.items():
                at = seq + distance
                if 0 < at <= head_seq and own * share > strongest.get(at, 0.0):
                    strongest[at] = own * share
        for at, value in strongest.items():
            scores[at] = scores.get(at, 0.0) + value
    return weights, {seq: scores[seq] for seq in _best_first(scores)}


def ranked(question: str, scores: Mapping[int, float], texts: Mapping[int, str]) -> list[int]:
    """Return the messages worth showing, best first, by their texts as well (rule 8)."""
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
    start, most = 0, 0.0
    if len(text) > max_chars and weights:
        near = deque[tuple[int, str]]()
        for at, term in _matches(text[:_MAX_READ_CHARS], weights):
            near.append((at, term))
            while at - near[0][0] > max_chars - 2 * _CHARS_BEFORE_MATCH:
                near.popleft()
            if (weight := sum(weights[term] for term in {term for _, term in near})) > most:
                start, most = max(0, near[0][0] - _CHARS_BEFORE_MATCH), weight
    end = start + max_chars
    shown = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{shown}{'…' if end < len(text) else ''}"


def _matches(text: str, terms: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield where words begin with a term, and the term."""
    plain = text.lower() if text.isascii() else "".join(map(_plain_character, text))
    by_beginning = {term.removesuffix("*"): term for term in terms}
    starts = (
        beginning if SPACELESS.match(beginning) else rf"(?<![^\W_]){beginning}"
        for beginning in sorted(by_beginning, key=len, reverse=True)
    )
    for match in islice(re.finditer("|".join(starts), plain), _MAX_MATCHES):
        yield match.start(), by_beginning[match[0]]


@lru_cache(maxsize=4096)
def _plain_character(character: str) -> str:
    """Return a character in normal form if that is one character: positions stay the same."""
    folded = normalised(normalize("NFKC", character))
    return folded if len(folded) == 1 else character
