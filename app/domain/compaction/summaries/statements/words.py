"""Words, phrases and markers of a sentence.

1. A sentence is read once: its words are looked up in the phrases of the languages whose common
   words it has most of. Texts of Japanese, Chinese and Korean are searched for phrases anywhere.
2. Stems are the beginnings of words, so that inflected forms of any language are equal. Text
   without spaces is cut into pairs of characters.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from app.domain.compaction.summaries.statements.languages import (
    de,
    en,
    es,
    fr,
    pt,
    ru,
    unspaced,
)
from app.domain.compaction.summaries.statements.languages.marker import Marker, Phrases

STEM_CHARS = 6
_PREFIX_CHARS = 3
"""So many characters of a word with `*` are exact in the index."""

WORD = re.compile(r"[^\W_](?:[\w]|[./:@'\u2019+#&-](?=\w))*%?|[$€£¥]\d[\d.,]*\w?")
UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uff66-\uff9f]+")
_HANGUL = re.compile("[\uac00-\ud7af]")
_HIRAGANA = re.compile("(?=([\u3040-\u309f]{2}))")
_UNSPACED_WORD = re.compile(rf"{UNSPACED.pattern}|[A-Za-z0-9](?:[\w./:@-]*[A-Za-z0-9])?", re.ASCII)
MAX_CACHED_WORDS = 4096
"""Of how many words a process remembers the written form and the stem: statements share them."""
_EDGES = " \t\r\n.!?~,\u3002\uff01\uff1f\u3001\uff0c"
"""What surrounds a sentence: blanks, and the stops and commas of Latin and CJK text."""
_CYRILLIC = re.compile("[\u0400-\u04ff]")
_CLAUSE_END = re.compile(r"[,;:(\u2013\u2014!?.]|\s-\s")

_Phrase = tuple[tuple[str, ...], Marker, bool]


class PhraseIndex:
    """The phrases of one language by their first word."""

    def __init__(self, phrases: Phrases) -> None:
        self.stops = frozenset(phrases.get(Marker.STOP, "").split("|"))
        self.fillers = frozenset(phrases.get(Marker.FILLER, "").split("|"))
        self.acknowledgements = frozenset(phrases.get(Marker.ACKNOWLEDGEMENT, "").split("|"))
        self._by_word: dict[str, list[_Phrase]] = defaultdict(list)
        self._by_prefix: dict[str, list[_Phrase]] = defaultdict(list)
        for marker, text in phrases.items():
            if marker in (Marker.STOP, Marker.FILLER, Marker.ACKNOWLEDGEMENT):
                continue
            for phrase in text.split("|"):
                words = tuple(phrase.removeprefix("^").split())
                item = (words, marker, phrase.startswith("^"))
                if words[0].endswith("*"):
                    self._by_prefix[words[0][:_PREFIX_CHARS]].append(item)
                else:
                    self._by_word[words[0]].append(item)

    def markers(
        self, words: Sequence[str], starts: Sequence[bool]
    ) -> Iterator[tuple[Marker, int, int]]:
        """Yield the markers of a sentence with the indices of their first word and behind the last.

        `starts` says of each word whether a clause begins with it.
        """
        for at, word in enumerate(words):
            found = self._by_word.get(word, ())
            by_prefix = self._by_prefix.get(word[:_PREFIX_CHARS], ())
            for phrase, marker, anchored in (*found, *by_prefix):
                if anchored and not starts[at]:
                    continue
                if _matches(phrase, words, at):
                    yield marker, at, at + len(phrase)


def _matches(phrase: Sequence[str], words: Sequence[str], at: int) -> bool:
    if at + len(phrase) > len(words):
        return False
    for offset, expected in enumerate(phrase):
        word = words[at + offset]
        if expected.endswith("*"):
            if not word.startswith(expected[:-1]):
                return False
        elif word != expected:
            return False
    return True


_LATIN: Mapping[str, PhraseIndex] = {
    name: PhraseIndex(module.PHRASES)
    for name, module in (("en", en), ("de", de), ("fr", fr), ("es", es), ("pt", pt))
}
_RUSSIAN = PhraseIndex(ru.PHRASES)
STOPS = frozenset().union(*(index.stops for index in _LATIN.values()), _RUSSIAN.stops)
"""The common words of all languages that have spaces."""
ACKNOWLEDGING = frozenset().union(
    *(index.acknowledgements for index in _LATIN.values()), _RUSSIAN.acknowledgements
)
"""The words of acknowledgements in these languages."""
_UPDATE_WORDS = frozenset(
    word
    for module in (en, de, fr, es, pt, ru)
    for phrase in module.PHRASES[Marker.UPDATE].split("|")
    for word in (phrase.split() if len(phrase.split()) == 1 else ())
)
_UNSPACED_PHRASES: Mapping[Marker, re.Pattern[str]] = {
    marker: re.compile("|".join(map(re.escape, sorted(text.split("|"), key=len, reverse=True))))
    for marker, text in unspaced.PHRASES.items()
}


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence as it is read: its words in lower case, and its markers.

    `spans` are the places of the words. `copula` is the place in the text behind which its value
    is expected, None without one.
    """

    text: str
    words: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    markers: frozenset[Marker]
    is_unspaced: bool
    copula: int | None

    def has(self, *markers: Marker) -> bool:
        """Whether any of these markers is in it."""
        return not self.markers.isdisjoint(markers)


@lru_cache(maxsize=32)  # a statement is read when it is classified, and when it is compared
def read_sentence(text: str) -> Sentence:
    """Return a sentence with its words and markers."""
    matches = list(WORD.finditer(text))
    words = tuple(_plain(match[0]) for match in matches)
    spans = tuple(match.span() for match in matches)
    found: set[Marker] = set()
    copulas: list[int] = []
    is_unspaced = UNSPACED.search(text) is not None
    if is_unspaced:
        for marker, pattern in _UNSPACED_PHRASES.items():
            match = pattern.search(text)
            if match is not None:
                found.add(marker)
                if marker is Marker.COPULA:
                    copulas.append(match.end())
        _add_unspaced_habit(text, found)
    for index in _languages(text, words):
        starts = _clause_starts(text, spans, words, index.fillers)
        matched = list(index.markers(words, starts))
        standing = [
            (at, end) for marker, at, end in matched if marker is Marker.STANDING and end > at + 1
        ]
        for marker, at, end in matched:
            # The `now` of `from now on` says of no update.
            if marker is Marker.UPDATE and any(a <= at and end <= b for a, b in standing):
                continue
            found.add(marker)
            if marker is Marker.COPULA and at:
                copulas.append(spans[at][1])
    colon = text.find(": ")
    if colon > 0:
        copulas.append(colon + 1)
    equals = text.find("=")
    if equals > 0:
        copulas.append(equals + 1)
    return Sentence(text, words, spans, frozenset(found), is_unspaced, min(copulas, default=None))


def is_acknowledgement(text: str, words: Sequence[str]) -> bool:
    """Whether a message or sentence states nothing: `ok, thanks`, `好的`."""
    stripped = text.strip(_EDGES)
    if not stripped or stripped in unspaced.ACKNOWLEDGEMENTS:
        return True
    if len(words) > 12 or UNSPACED.search(text):
        return False
    indexes = (*_LATIN.values(), _RUSSIAN)
    return any(all(word in index.acknowledgements for word in words) for index in indexes)


def _add_unspaced_habit(text: str, found: set[Marker]) -> None:
    stripped = text.strip(_EDGES)
    ends = stripped.endswith(unspaced.HABIT_ENDINGS)
    if ends or stripped.startswith(unspaced.HABIT_OPENINGS):
        found.add(Marker.HABIT)


def _languages(text: str, words: Sequence[str]) -> Sequence[PhraseIndex]:
    """Return the phrases of the likeliest languages: several where their common words tie."""
    if _CYRILLIC.search(text):
        return (_RUSSIAN, _LATIN["en"])
    counts = {name: sum(word in index.stops for word in words) for name, index in _LATIN.items()}
    most = max(counts.values())
    return [_LATIN[name] for name, count in counts.items() if count == most]


def _clause_starts(
    text: str, spans: Sequence[tuple[int, int]], words: Sequence[str], fillers: frozenset[str]
) -> list[bool]:
    starts: list[bool] = []
    end = 0
    begins = True
    for word, (start, next_end) in zip(words, spans, strict=True):
        begins = begins or _CLAUSE_END.search(text, end, start) is not None
        starts.append(begins)
        begins = begins and word in fillers
        end = next_end
    return starts


def is_common(word: str) -> bool:
    """Whether a word names no subject: a common word, or one that says that something changes."""
    return word in STOPS or word in _UPDATE_WORDS


def stems(sentence: Sentence, start: int, end: int) -> Iterator[str]:
    """Yield the stems of the words between two places of a sentence, common words left out."""
    if sentence.is_unspaced:
        for match in _UNSPACED_WORD.finditer(sentence.text, start, end):
            run = match[0].lower()
            if UNSPACED.match(run):
                yield from (run[at : at + 2] for at in range(max(1, len(run) - 1)))
            elif not is_common(run):
                yield run
        return
    for word, (first, last) in zip(sentence.words, sentence.spans, strict=True):
        if first >= start and last <= end and (stem := stem_of(word)) is not None:
            yield stem


def unspaced_frame(sentence: Sentence) -> frozenset[str]:
    """Return the stems of text without spaces that name nothing: in phrases, or of hiragana alone.

    Of a word in Hangul, all but its beginning is one.
    """
    if not sentence.is_unspaced:
        return frozenset()
    found: set[str] = set()
    for pattern in _UNSPACED_PHRASES.values():
        for match in pattern.finditer(sentence.text):
            found.update(stems(sentence, *match.span()))
    starts: set[str] = set()
    for match in UNSPACED.finditer(sentence.text):
        run = match[0]
        if _HANGUL.match(run):
            starts.add(run[:2])
            found.update(run[at : at + 2] for at in range(1, len(run) - 1))
        else:
            found.update(pair[1] for pair in _HIRAGANA.finditer(run))
    return frozenset(found - starts)


@lru_cache(MAX_CACHED_WORDS)
def _plain(word: str) -> str:
    return word.lower().replace("\u2019", "'")


@lru_cache(MAX_CACHED_WORDS)
def stem_of(word: str) -> str | None:
    """Return the stem of a word in lower case, None of one that names no subject."""
    if is_common(word):
        return None
    stem = word.removesuffix("'s")
    stem = stem.rpartition("'")[2].strip(".:/#&+-@")
    if not stem or stem in STOPS:
        return None
    return stem if any(map(str.isdigit, stem)) else stem[:STEM_CHARS]
