"""Words: the parts of a text that a search can find.

1. A word is a run of letters, digits and their marks in normal form: compatibility forms and case
   are unified, and accents are removed. Words with the same normal form are the same word.
2. Words joined by one or two of `-._/'` are indexed as a whole and from each part to the end, as
   are the humps of camelCase: `app/words.py` is indexed as `app_words_py`, `words_py` and `py`. A
   word of a query matches every word that begins with it, and so every part and every sequence of
   neighbouring parts. Words shorter than MIN_PREFIX characters match exactly.
3. Scripts without spaces between words are indexed by pairs of neighbouring characters. A query in
   such a script needs all its pairs; a single character matches every pair that begins with it.
4. A message has at most MAX_LEXEMES different lexemes in the index, each of at most
   MAX_LEXEME_BYTES bytes. Longer words are compared by their beginnings.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain, islice, pairwise
from typing import Final

MIN_PREFIX: Final = 3
MAX_LEXEME_BYTES: Final = 52
MAX_LEXEMES: Final = 16_384
_MAX_HUMPS = 10  # a word with more is encoded data, not a name
_PIECE_CHARS = 32_768  # at a time: one pass over 10 MB would block the interpreter too long
_LOOK_AHEAD_CHARS = 4096
_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3130-\u318f"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uac00-\ud7ff\uf900-\ufaff"
    "\U00020000-\U000323af"
)
"""Thai, Lao, Myanmar, Khmer, Kana, Han; and Hangul, where particles are attached to words."""
_LETTER = rf"[^\W_{_SPACELESS}]"
SPACELESS = re.compile(f"[{_SPACELESS}]")
_JOINTS = re.compile("[-._/'\u2019]{1,2}")
_ASCII_TOKEN = re.compile(r"[A-Za-z0-9]+(?:[-._/']{1,2}[A-Za-z0-9]+){0,30}")
_HUMPS = re.compile("[A-Z]+(?![a-z])|[A-Z]?[^A-Z]+")
_GAP = re.compile(r"\W")
_INVISIBLE = re.compile("[\u00ad\u200c\u200d\u2060\ufe00-\ufe0f\ufeff\U000e0100-\U000e01ef]+")


@dataclass(frozen=True, slots=True)
class Term:
    """A lexeme of a query: an exact one, or a prefix (rule 2)."""

    lexeme: str
    is_prefix: bool

    def matches(self, lexeme: str) -> bool:
        """Whether a lexeme of a message matches."""
        return lexeme.startswith(self.lexeme) if self.is_prefix else lexeme == self.lexeme


def lexemes(*texts: str) -> tuple[str, ...]:
    """Return the different lexemes of texts in order of first occurrence."""
    unique: dict[str, None] = {}
    for text in texts:
        for piece in text_pieces(text):
            tokens = dict.fromkeys(word_tokens(piece))
            unique.update(dict.fromkeys(chain.from_iterable(map(_lexemes_of, tokens))))
            if len(unique) >= MAX_LEXEMES:
                return tuple(islice(unique, MAX_LEXEMES))
    return tuple(unique)


def simple_words(text: str) -> list[str]:
    """Return the words of a text in order; joined words and spaceless characters are separate."""
    return [word for token in tokens(text) for word in token_words(token)]


def tokens(text: str) -> Iterator[str]:
    """Yield the tokens of a text in order."""
    for piece in text_pieces(text):
        yield from word_tokens(piece)


def text_pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces that end between words where possible."""
    start = 0
    while len(text) - start > _PIECE_CHARS:
        at = start + _PIECE_CHARS
        gap = _GAP.search(text, at, at + _LOOK_AHEAD_CHARS)
        end = gap.start() if gap else at + _LOOK_AHEAD_CHARS
        yield text[start:end]
        start = end
    yield text[start:]


def word_tokens(piece: str) -> list[str]:
    """Return the tokens of a text: joined words, or runs of a spaceless script."""
    if piece.isascii():
        return _ASCII_TOKEN.findall(piece)
    plain = _INVISIBLE.sub("", unicodedata.normalize("NFKC", piece))
    return _all_tokens().findall(plain)


@cache
def _all_tokens() -> re.Pattern[str]:
    """Return the pattern for any text; the combining marks take milliseconds to list."""
    marks = "".join(filter(_is_mark, map(chr, range(0x300, 0x1F000))))
    word = f"{_LETTER}+(?:[{marks}]+{_LETTER}*)*"
    return re.compile(f"[{_SPACELESS}]+|{word}(?:{_JOINTS.pattern}{word}){{0,30}}")


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] == "M"


@lru_cache(maxsize=2048)  # more takes megabytes and is hardly faster
def _lexemes_of(token: str) -> tuple[str, ...]:
    if token.isascii() and token.isalnum() and not _has_humps(token):
        return (token.lower()[:MAX_LEXEME_BYTES],)
    if SPACELESS.match(token):
        run = normalised(token)
        return (*map("".join, pairwise(run)), run[-1:]) if run else ()
    lexemes_of_token: list[str] = []
    rest = ""
    for part in reversed(_JOINTS.split(token)):
        after = f"_{rest}" if rest else ""
        for hump in reversed(_humps(part)):
            after = (normalised(hump) + after)[:MAX_LEXEME_BYTES]
            lexemes_of_token.append(truncated(after))
            if len(hump) < MIN_PREFIX:
                lexemes_of_token.append(normalised(hump))
        rest = after
        if len(part) < MIN_PREFIX:
            lexemes_of_token.append(normalised(part))
    # A word of accents alone has no lexeme.
    return tuple(filter(None, lexemes_of_token))


def _has_humps(part: str) -> bool:
    return not (part.isupper() or part[1:] == part[1:].lower())


def _humps(part: str) -> list[str]:
    if not _has_humps(part):
        return [part]
    humps = _HUMPS.findall(part)
    return humps if len(humps) <= _MAX_HUMPS else [part]


def token_words(token: str) -> Iterable[str]:
    """Return the words of a token in normal form."""
    if SPACELESS.match(token):
        return normalised(token)
    return map(normalised, _JOINTS.split(token))


def normalised(word: str) -> str:
    """Return a word in normal form: without case and accents (rule 1)."""
    if word.isascii():
        return word.lower()
    apart = unicodedata.normalize("NFD", word.casefold())
    return unicodedata.normalize("NFC", "".join(filter(_is_base_character, apart)))


def _is_base_character(character: str) -> bool:
    """Whether a character is not an accent; vowel signs and voicing marks distinguish words."""
    kind = unicodedata.combining(character)
    return not (10 <= kind <= 36 or kind >= 200)


def truncated(lexeme: str) -> str:
    """Return the lexeme, cut to MAX_LEXEME_BYTES."""
    if lexeme.isascii():
        return lexeme
    return lexeme.encode()[:MAX_LEXEME_BYTES].decode(errors="ignore")


def terms_of(text: str) -> tuple[Term, ...]:
    """Return the terms that a message with all words of a text has."""
    return tuple(term for token in tokens(text) for term in token_terms(token))


def token_terms(token: str) -> Iterable[Term]:
    """Return the terms that a message with the token, or a word that begins with it, has."""
    if not SPACELESS.match(token):
        return (prefix_term("_".join(token_words(token))),)
    run = normalised(token)
    if len(run) == 1:
        return (Term(run, is_prefix=True),)
    return (Term(first + second, is_prefix=False) for first, second in pairwise(run))


def prefix_term(word: str) -> Term:
    """Return the term for words that begin with this one; short words match exactly."""
    return Term(truncated(word[:MAX_LEXEME_BYTES]), len(word) >= MIN_PREFIX)
