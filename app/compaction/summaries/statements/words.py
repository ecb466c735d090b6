"""Words, phrases and markers of a sentence.

1. A sentence is read once: its words are looked up in the phrases of the languages whose common
   words it has most of. Texts of Japanese, Chinese and Korean are searched for phrases anywhere.
2. Stems are the beginnings of words, so that inflected forms of any language are equal. Text
   without spaces is cut into pairs of characters.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from operator import itemgetter

from app.compaction.summaries.statements.languages import de, en, es, fr, pt, ru, unspaced
from app.compaction.summaries.statements.languages.marker import Marker, Phrases

STEM_CHARS = 6
MAX_KNOWN_WORDS = 4096
"""Of how many words a process remembers what is known of them, about 400 bytes each."""
MAX_KNOWN_CHARS = 40
"""Longer words, such as hashes, are not remembered."""
_PREFIX_CHARS = 3
"""So many characters of a word with `*` are exact in the index."""

WORD = re.compile(r"[^\W_]\w*(?:[./:@'\u2019+#&-]\w+)*%?|[$€£¥]\d[\d.,]*\w?")
UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uff66-\uff9f]+")
_HANGUL = re.compile("[\uac00-\ud7af]")
_HIRAGANA = re.compile("(?=([\u3040-\u309f]{2}))")
_UNSPACED_WORD = re.compile(rf"{UNSPACED.pattern}|[A-Za-z0-9](?:[\w./:@-]*[A-Za-z0-9])?", re.ASCII)
_EDGES = " \t\r\n.!?~,\u3002\uff01\uff1f\u3001\uff0c"
"""What surrounds a sentence: blanks, and the stops and commas of Latin and CJK text."""
_CYRILLIC = re.compile("[\u0400-\u04ff]")
_start_of, _end_of = itemgetter(0), itemgetter(1)
_CLAUSE_END = re.compile(r"[,;:(\u2013\u2014!?.]|\s-\s")

_Phrase = tuple[tuple[str, ...], Marker, bool]
"""Words behind the first one, what they say, and whether a clause has to begin with the phrase."""
_Phrases = tuple[Sequence[_Phrase], Mapping[str, Sequence[_Phrase]]]
"""Phrases that begin with a word, and those of which the second word is known, by that."""


class PhraseIndex:
    """The phrases of one language by their first word."""

    def __init__(self, phrases: Phrases) -> None:
        self.stops = frozenset(phrases.get(Marker.STOP, "").split("|"))
        self.fillers = frozenset(phrases.get(Marker.FILLER, "").split("|"))
        self.acknowledgements = frozenset(phrases.get(Marker.ACKNOWLEDGEMENT, "").split("|"))
        self._by_word: dict[str, list[_Phrase]] = defaultdict(list)
        self._by_prefix: dict[str, list[tuple[str, _Phrase]]] = defaultdict(list)
        for marker, text in phrases.items():
            if marker in (Marker.STOP, Marker.FILLER, Marker.ACKNOWLEDGEMENT):
                continue
            for phrase in text.split("|"):
                first, *others = phrase.removeprefix("^").split()
                item = (tuple(others), marker, phrase.startswith("^"))
                if first.endswith("*"):
                    self._by_prefix[first[:_PREFIX_CHARS]].append((first[:-1], item))
                else:
                    self._by_word[first].append(item)

    def beginning_with(self, word: str) -> _Phrases | None:
        """Return the phrases that begin with a word, None without one."""
        by_prefix = self._by_prefix.get(word[:_PREFIX_CHARS], ())
        found = [phrase for prefix, phrase in by_prefix if word.startswith(prefix)]
        found += self._by_word.get(word, ())
        longer: dict[str, list[_Phrase]] = defaultdict(list)
        for phrase in found:
            if phrase[0] and not phrase[0][0].endswith("*"):
                longer[phrase[0][0]].append(phrase)
        others = [phrase for phrase in found if not phrase[0] or phrase[0][0].endswith("*")]
        return (others, longer) if found else None


def _follow(phrase: Sequence[str], words: Sequence[str], at: int) -> bool:
    """Whether these words, of which `*` ends some, stand from a place on."""
    found = words[at : at + len(phrase)]
    return found == phrase or (
        len(found) == len(phrase)
        and all(
            word.startswith(expected[:-1]) if expected.endswith("*") else word == expected
            for word, expected in zip(found, phrase, strict=True)
        )
    )


_LANGUAGES = tuple(PhraseIndex(module.PHRASES) for module in (en, de, fr, es, pt, ru))
_ENGLISH, _RUSSIAN = 0, 5
_LATIN = range(_RUSSIAN)
STOPS = frozenset().union(*(index.stops for index in _LANGUAGES))
"""The common words of all languages that have spaces."""
_UNSPACED_ACKNOWLEDGEMENTS = frozenset(unspaced.ACKNOWLEDGEMENTS.split("|"))
_UNSPACED_HABIT_ENDINGS = tuple(unspaced.HABIT_ENDINGS.split("|"))
ACKNOWLEDGING = frozenset().union(*(index.acknowledgements for index in _LANGUAGES))
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
class Word:
    """A word of a sentence: `text` in lower case, and its stem, None where it names no subject.

    `common_in` are the languages of Latin letters in which it is a common word. `phrases` begin
    with it, by language.
    """

    text: str
    stem: str | None
    common_in: tuple[int, ...]
    phrases: Mapping[int, _Phrases]


_NO_PHRASES: Mapping[int, _Phrases] = {}


def _word_of(text: str) -> Word:
    """Return what is known of a word as it stands in a text."""
    word = text.lower().replace("\u2019", "'")
    common_in = tuple(language for language in _LATIN if word in _LANGUAGES[language].stops)
    found = ((language, index.beginning_with(word)) for language, index in enumerate(_LANGUAGES))
    phrases = {language: phrases for language, phrases in found if phrases is not None}
    return Word(word, _stem_of(word), common_in, phrases or _NO_PHRASES)


_known_word = lru_cache(MAX_KNOWN_WORDS)(_word_of)


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence as it is read: its words, and its markers.

    `spans` are the places of the words. `copula` is the place in the text behind which its value
    is expected, None without one.
    """

    text: str
    words: tuple[Word, ...]
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
    words = tuple([_read_word(match[0]) for match in matches])
    spans = tuple([match.span() for match in matches])
    found: set[Marker] = set()
    copulas: list[int] = []
    is_unspaced = not text.isascii() and UNSPACED.search(text) is not None
    if is_unspaced:
        for marker, pattern in _UNSPACED_PHRASES.items():
            match = pattern.search(text)
            if match is not None:
                found.add(marker)
                if marker is Marker.COPULA:
                    copulas.append(match.end())
        _add_unspaced_habit(text, found)
    for language in _languages_of(text, words):
        matched = list(_markers(text, spans, words, language))
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


def _read_word(text: str) -> Word:
    return _known_word(text) if len(text) <= MAX_KNOWN_CHARS else _word_of(text)


def _markers(
    text: str, spans: Sequence[tuple[int, int]], words: Sequence[Word], language: int
) -> Iterator[tuple[Marker, int, int]]:
    """Yield the markers of a sentence with the indices of their first word and behind the last."""
    starts: list[bool] = []
    texts = tuple([word.text for word in words])
    for at, word in enumerate(words, 1):
        if language not in word.phrases:
            continue
        phrases, longer = word.phrases[language]
        following = longer.get(texts[at], ()) if longer and at < len(texts) else ()
        for others, marker, anchored in (*phrases, *following):
            if others and not _follow(others, texts, at):
                continue
            if anchored:
                starts = starts or _clause_starts(text, spans, texts, _LANGUAGES[language].fillers)
                if not starts[at - 1]:
                    continue
            yield marker, at - 1, at + len(others)


def is_acknowledgement(text: str, words: Sequence[Word]) -> bool:
    """Whether a message or sentence states nothing: `ok, thanks`, `好的`."""
    stripped = text.strip(_EDGES)
    if not stripped or stripped in _UNSPACED_ACKNOWLEDGEMENTS:
        return True
    if len(words) > 12 or UNSPACED.search(text):
        return False
    return any(all(word.text in index.acknowledgements for word in words) for index in _LANGUAGES)


def _add_unspaced_habit(text: str, found: set[Marker]) -> None:
    stripped = text.strip(_EDGES)
    ends = stripped.endswith(_UNSPACED_HABIT_ENDINGS)
    if ends or stripped.startswith(unspaced.HABIT_OPENINGS):
        found.add(Marker.HABIT)


def _languages_of(text: str, words: Sequence[Word]) -> Iterable[int]:
    """Return the likeliest languages: several where their common words tie."""
    if not text.isascii() and _CYRILLIC.search(text):
        return _RUSSIAN, _ENGLISH
    counts = Counter(chain.from_iterable([word.common_in for word in words]))
    most = max(counts.values(), default=0)
    return [language for language in _LATIN if counts[language] == most]


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


def stems(sentence: Sentence, start: int, end: int) -> list[str]:
    """Return the stems of the words between two places of a sentence, common words left out."""
    if not sentence.is_unspaced:
        spans = sentence.spans
        first = bisect_left(spans, start, key=_start_of)
        last = bisect_right(spans, end, first, key=_end_of)
        return [word.stem for word in sentence.words[first:last] if word.stem is not None]
    found: list[str] = []
    for match in _UNSPACED_WORD.finditer(sentence.text, start, end):
        run = match[0].lower()
        if UNSPACED.match(run):
            found += (run[at : at + 2] for at in range(max(1, len(run) - 1)))
        elif not is_common(run):
            found.append(run)
    return found


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


def _stem_of(word: str) -> str | None:
    if is_common(word):
        return None
    stem = word.removesuffix("'s")
    stem = stem.rpartition("'")[2].strip(".:/#&+-@")
    if not stem or stem in STOPS:
        return None
    return stem if any(map(str.isdigit, stem)) else stem[:STEM_CHARS]
