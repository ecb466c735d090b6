"""Words: what a search can find in a text, and what a query or a question looks for.

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
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain, islice, pairwise
from typing import Final

from app.common.errors import ValidationError
from app.common.texts import FUNCTION_WORDS, stems
from app.prompt.agent_tools import MAX_QUERY_CHARS

MIN_PREFIX: Final = 3
MAX_LEXEME_BYTES: Final = 52
MAX_LEXEMES: Final = 16_384
MAX_TERMS: Final = 64
MAX_WORDS: Final = 24
"""Words of a question; of more it has the longest."""
_WORD_CHARS = 256  # of a word that are compared
_MAX_HUMPS = 10  # a word with more is encoded data, not a name
_MIN_CUT = 6  # characters of a word that is found by its beginning (rule 3)
_PIECE_CHARS = 32_768  # at a time: one pass over 10 MB would block the interpreter too long
_LOOK_AHEAD_CHARS = 4096
_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3130-\u318f"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uac00-\ud7ff\uf900-\ufaff"
    "\U00020000-\U000323af"
)
"""Thai, Lao, Myanmar, Khmer, Kana, Han; and Hangul, where particles are attached to words."""
SPACELESS: Final = re.compile(f"[{_SPACELESS}]")
_ASCII_WORD = re.compile("[A-Za-z0-9]+")
_HUMPS = re.compile("[A-Z]+(?![a-z])|[A-Z]?[^A-Z]+")
_GAP = re.compile(r"\W")
_INVISIBLE = re.compile("[\u00ad\u200c\u200d\u2060\ufe00-\ufe0f\ufeff\U000e0100-\U000e01ef]+")
_QUERY_PART = re.compile(r'(?P<no>(?<!\S)-(?=[^\s-]))?(?:"(?P<phrase>[^"]*)"|(?P<word>[^\s"]+))')
_STRAIGHT_QUOTES = str.maketrans(dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb", '"'))


def words_of(text: str) -> Iterator[str]:
    """Yield the words of a text in order, as written; runs of a spaceless script as one."""
    for piece in text_pieces(text):
        if piece.isascii():
            yield from _ASCII_WORD.findall(piece)
        else:
            plain = _INVISIBLE.sub("", unicodedata.normalize("NFKC", piece))
            yield from _any_word().findall(plain)


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
    apart = unicodedata.normalize("NFD", word.casefold())
    return unicodedata.normalize("NFC", "".join(filter(_is_base_character, apart)))


def _is_base_character(character: str) -> bool:
    """Whether a character is not an accent; vowel signs and voicing marks distinguish words."""
    kind = unicodedata.combining(character)
    return not (10 <= kind <= 36 or kind >= 200)


def lexemes(*texts: str) -> tuple[str, ...]:
    """Return the different lexemes of texts in order of first occurrence."""
    unique: dict[str, None] = {}
    for word in (word for text in texts for word in words_of(text)):
        found = _pairs(normalised(word)) if _is_spaceless(word) else _lexemes_of(word[:_WORD_CHARS])
        unique |= dict.fromkeys(found)
        if len(unique) >= MAX_LEXEMES:
            break
    return tuple(islice(unique, MAX_LEXEMES))


def _is_spaceless(word: str) -> bool:
    return not word.isascii() and SPACELESS.match(word) is not None


def _pairs(run: str) -> Iterable[str]:
    return (*map("".join, pairwise(run)), *run[-1:])


@lru_cache(maxsize=4096)
def _lexemes_of(word: str) -> tuple[str, ...]:
    humps = [] if word[1:].islower() or word.isupper() else _HUMPS.findall(word)[1:]
    starts = [word]
    for hump in humps if len(humps) < _MAX_HUMPS else ():
        starts.append(starts[-1][starts[-1].index(hump, 1) :])
    found = [_cut(normalised(start)) for start in starts]
    found += stems(list(filter(_is_english, found)))
    return tuple(filter(None, dict.fromkeys(found)))  # a word of accents alone has no lexeme


def _is_english(word: str) -> bool:
    return word.isascii() and word.isalpha()


def _cut(lexeme: str) -> str:
    """Return the lexeme, cut to MAX_LEXEME_BYTES."""
    return lexeme.encode()[:MAX_LEXEME_BYTES].decode(errors="ignore")


def _terms_of(text: str) -> Iterator[str]:
    """Yield what a message with all words of a text has: lexemes, or their beginnings with `*`."""
    for word in words_of(text):
        plain = normalised(word)
        if _is_spaceless(word):
            yield from map("".join, pairwise(plain)) if len(plain) > 1 else (f"{plain}*",)
        elif plain:
            yield f"{_cut(plain)}*" if len(plain) >= MIN_PREFIX else plain


def operand(term: str) -> str:
    """Return a term as an operand of a tsquery; a lexeme has nothing to escape."""
    return f"'{term[:-1]}':*" if term.endswith("*") else f"'{term}'"


def places_of(terms: Sequence[str], block: str) -> dict[str, set[int]]:
    """Return the places in a block, the text of a tsvector, where each of these terms is."""
    found: dict[str, set[int]] = {term: set() for term in terms}
    for lexeme, places in _pattern(tuple(terms)).findall(block):
        for term in terms:
            if lexeme.startswith(term[:-1]) if term.endswith("*") else lexeme == term:
                found[term].update(map(int, places.split(",")))
    return found


@lru_cache(maxsize=16)
def _pattern(terms: tuple[str, ...]) -> re.Pattern[str]:
    lexemes = "|".join(term.replace("*", "[^']*") for term in terms)
    return re.compile(f"'({lexemes})':([0-9,]+)")


@dataclass(frozen=True, slots=True)
class Query:
    """What a message must have: all `terms`, no group in `excluded`, and the phrases.

    A message has a group when it has all terms of it. A phrase is a text of words.
    """

    terms: tuple[str, ...]
    excluded: tuple[tuple[str, ...], ...] = ()
    phrases: tuple[str, ...] = ()
    excluded_phrases: tuple[str, ...] = ()

    @property
    def needs_text(self) -> bool:
        """Whether a match depends on the order of words, so that the text has to be read."""
        return bool(self.phrases or self.excluded_phrases)

    @property
    def condition(self) -> str:
        """What a block must have to be read, as a tsquery: all terms at one place."""
        return " <0> ".join(map(operand, self.terms))

    def places(self, block: str) -> set[int]:
        """Return the places of a block whose messages have the terms."""
        found = places_of((*self.terms, *chain.from_iterable(self.excluded)), block)
        wanted = set[int].intersection(*(found[term] for term in self.terms))
        for group in self.excluded:
            wanted -= set[int].intersection(*(found[term] for term in group))
        return wanted

    def matches(self, texts: Iterable[str]) -> bool:
        """Whether the texts of a message have the phrases, and none of the excluded ones."""
        rows = [f" {_plain(text)} " for text in texts]

        def has(phrase: str) -> bool:
            return any(f" {phrase} " in row for row in rows)

        return all(map(has, self.phrases)) and not any(map(has, self.excluded_phrases))


def query_from(text: str, pointer: str = "/query/q") -> Query:
    """Parse a query: all words are required, `-word` excludes, `"quoted words"` are a phrase.

    Raises ValidationError at `pointer` for a query that is too long or requires no word.
    """
    if len(text) > MAX_QUERY_CHARS:
        raise ValidationError.at(pointer, f"A query has at most {MAX_QUERY_CHARS:,} characters")
    required: list[str] = []
    excluded: list[tuple[str, ...]] = []
    phrases: dict[bool, list[str]] = {False: [], True: []}
    for part in _QUERY_PART.finditer(text.translate(_STRAIGHT_QUOTES)):
        terms = tuple(_terms_of(part["word"] or part["phrase"] or ""))
        if terms and part["phrase"]:
            phrases[bool(part["no"])].append(_plain(part["phrase"]))
        if not part["no"]:
            required += terms
        elif terms and part["word"]:
            excluded.append(terms)
    if not required:
        raise ValidationError.at(pointer, "A query must require at least one word")
    wanted = tuple(dict.fromkeys(required))
    if len(wanted) + sum(map(len, excluded)) > MAX_TERMS:
        raise ValidationError.at(pointer, f"A query has at most {MAX_TERMS} words")
    return Query(wanted, tuple(excluded), tuple(phrases[False]), tuple(phrases[True]))


def _plain(text: str) -> str:
    """Return the words of a text in normal form; characters of spaceless scripts are words."""
    return " ".join(
        " ".join(normalised(word)) if _is_spaceless(word) else normalised(word)
        for word in words_of(text)
    )


def question_terms(text: str) -> list[str]:
    """Return the terms of a question's words in all their forms (rule 3).

    Function words are left out, unless the question has no others.
    """
    words = [*words_of(text)]
    terms: dict[str, None] = {}
    for word in [word for word in words if normalised(word) not in FUNCTION_WORDS] or words:
        plain = normalised(word)
        if _is_spaceless(word) or not plain.isalpha():
            terms |= dict.fromkeys(_terms_of(word))
            continue
        (stem,) = stems([plain]) if plain.isascii() else [plain]
        is_cut = stem == plain and len(plain) >= _MIN_CUT
        terms[f"{_cut(plain[: len(plain) - len(plain) // 4])}*" if is_cut else _cut(stem)] = None
    longest = set(sorted(terms, key=len, reverse=True)[:MAX_WORDS])
    return [term for term in terms if term in longest]
