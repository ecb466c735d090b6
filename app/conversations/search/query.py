"""What a search looks for: queries, whose words are all required, and questions.

1. The words of a question are found in all their forms; English function words are dropped, unless
   it has no others. A joined word is also searched as a whole.
2. The index has words as they were written, so a question asks for the forms of its words: a long
   word is found by its stem as a prefix. A short stem would find too many other words, as `car` is
   the beginning of `care`, so it is found by its inflected forms.
3. Irregular English forms find each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from app.common.errors import ValidationError
from app.common.texts import FUNCTION_WORDS, stems
from app.conversations.search.times import Time, time_in
from app.conversations.search.words import (
    SPACELESS,
    Term,
    prefix_term,
    simple_words,
    terms_of,
    token_terms,
    token_words,
    tokens,
)
from app.prompt.agent_tools import MAX_QUERY_CHARS

MAX_TERMS: Final = 64
MAX_WORDS: Final = 24
"""Words of a question; of more it has the longest."""
_QUERY_PART = re.compile(r'(?P<no>(?<!\S)-(?=[^\s-]))?(?:"(?P<phrase>[^"]*)"|(?P<word>[^\s"]+))')
_STRAIGHT_QUOTES = str.maketrans(dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb", '"'))
_ASKS_TIME = re.compile(
    r"\W*(?:when|how (?:long|old)|(?:what|which) (?:year|month|week|day|date|time))\b"
)
_ASKS_NUMBER = re.compile(r"\W*how (?:many|much|often)\b")
_MIN_PREFIX, _MIN_CUT = 4, 6  # characters of a stem that is a prefix, of a word with any ending
_IRREGULAR = """
begin began begun|break broke broken|bring brought|build built|buy bought|catch caught|choose chose
chosen|come came|do did done|draw drew drawn|drink drank drunk|drive drove driven|eat ate eaten|fall
fell fallen|feel felt|fight fought|find found|fly flew flown|forget forgot forgotten|get got gotten
|give gave given|go goes went gone|grow grew grown|have had has|hear heard|hold held|keep kept|know
knew known|leave left|lend lent|lose lost|make made|mean meant|meet met|pay paid|ride rode ridden
|run ran|say said|see saw seen|sell sold|send sent|shoot shot|sing sang sung|sit sat|sleep slept
|speak spoke spoken|spend spent|stand stood|steal stole stolen|swim swam swum|take took taken|teach
taught|tell told|think thought|throw threw thrown|understand understood|wake woke woken|wear wore
worn|win won|write wrote written|child children|foot feet|man men|person people|woman women
"""
_GROUPS = [tuple(group.split()) for group in _IRREGULAR.split("|")]
_GROUP_OF: Final = {form: group for group in _GROUPS for form in group}

Word = tuple[Term, ...]
"""A word to look for: any of its terms."""


@dataclass(frozen=True, slots=True)
class Query:
    """What a message must have: all `words`, none of the groups in `excluded`, and the phrases.

    A message has a group when it has all words of it. A phrase is a sequence of words.
    """

    words: tuple[Word, ...]
    excluded: tuple[tuple[Term, ...], ...] = ()
    phrases: tuple[tuple[str, ...], ...] = ()
    excluded_phrases: tuple[tuple[str, ...], ...] = ()

    @property
    def needs_text(self) -> bool:
        """Whether a match depends on the order of words, so that the text has to be read."""
        return bool(self.phrases or self.excluded_phrases)

    def matches_phrases(self, texts: Iterable[str]) -> bool:
        """Whether the texts of a message have all phrases, and none of the excluded ones."""
        return has_phrases(texts, self.phrases, self.excluded_phrases)


@dataclass(frozen=True, slots=True)
class Question:
    """What a question looks for; `asks_time` and `asks_number` tell the kind of its answer."""

    words: tuple[Word, ...]
    phrases: tuple[tuple[str, ...], ...] = ()
    time: Time | None = None
    asks_time: bool = False
    asks_number: bool = False


def has_phrases(
    texts: Iterable[str], phrases: Iterable[Iterable[str]], excluded: Iterable[Iterable[str]] = ()
) -> bool:
    """Whether texts have all these sequences of words, and none of the excluded ones."""
    rows = [f" {' '.join(simple_words(text))} " for text in texts]

    def has(phrase: Iterable[str]) -> bool:
        return any(f" {' '.join(phrase)} " in row for row in rows)

    return all(map(has, phrases)) and not any(map(has, excluded))


def query_from(text: str, pointer: str = "/query/q") -> Query:
    """Parse a query: all words are required, `-word` excludes, `"quoted words"` are a phrase.

    Raises ValidationError at `pointer` for a query that is too long or requires no word.
    """
    if len(text) > MAX_QUERY_CHARS:
        raise ValidationError.at(pointer, f"A query has at most {MAX_QUERY_CHARS:,} characters")
    words: dict[Term, None] = {}
    excluded: list[tuple[Term, ...]] = []
    phrases: dict[bool, list[tuple[str, ...]]] = {False: [], True: []}
    for part in _QUERY_PART.finditer(text.translate(_STRAIGHT_QUOTES)):
        is_excluded, terms = bool(part["no"]), terms_of(part["word"] or part["phrase"] or "")
        if not terms:
            continue
        if not is_excluded:
            words |= dict.fromkeys(terms)
        elif part["word"]:
            excluded.append(terms)
        if part["phrase"]:
            phrases[is_excluded].append(tuple(simple_words(part["phrase"])))
    if not words:
        raise ValidationError.at(pointer, "A query must require at least one word")
    if len(words) + sum(map(len, excluded)) > MAX_TERMS:
        raise ValidationError.at(pointer, f"A query has at most {MAX_TERMS} words")
    required = tuple((term,) for term in words)
    return Query(required, tuple(excluded), tuple(phrases[False]), tuple(phrases[True]))


def question_from(text: str) -> Question:
    """Parse a question in natural language; quoted words are a phrase."""
    asked, plain = [*tokens(text)], text.lower()
    found = tuple(_words_of(asked, FUNCTION_WORDS)) or tuple(_words_of(asked, frozenset()))
    longest = sorted(set(found), key=lambda word: (-len(word[0].lexeme), found.index(word)))
    kept = set(longest[:MAX_WORDS])
    quoted = (part["phrase"] for part in _QUERY_PART.finditer(text.translate(_STRAIGHT_QUOTES)))
    phrases = (tuple(simple_words(phrase)) for phrase in quoted if phrase)
    return Question(
        tuple(word for word in dict.fromkeys(found) if word in kept),
        tuple(phrase for phrase in phrases if len(phrase) > 1),
        time_in(plain),
        _ASKS_TIME.match(plain) is not None,
        _ASKS_NUMBER.match(plain) is not None,
    )


def _words_of(asked: Iterable[str], dropped: frozenset[str]) -> Iterator[Word]:
    """Yield the words of tokens but for those that are dropped (rule 1)."""
    for token in asked:
        if SPACELESS.match(token):
            yield from ((term,) for term in token_terms(token))
            continue
        parts = [part for part in token_words(token) if part and part not in dropped]
        yield from map(forms, parts)
        if len(parts) > 1:
            yield tuple(token_terms(token))


def forms(word: str) -> Word:
    """Return the terms that find a word in normal form, and its other forms (rules 2, 3)."""
    if not word.isalpha():
        return (prefix_term(word),)
    group = _GROUP_OF.get(word, ())
    (stem,) = stems([word])
    equal = takewhile(lambda pair: pair[0] == pair[1], zip(word, stem, strict=False))
    shared = word[: sum(1 for _ in equal)]
    if not group and len(shared) >= _MIN_PREFIX:
        # A word without an English ending may have one of another language.
        is_cut = shared == word and len(word) >= _MIN_CUT
        return (prefix_term(word[: len(word) - len(word) // 4] if is_cut else shared),)
    base = group[0] if group else stem
    begun, doubled = base.removesuffix("e"), base + base[-1]
    inflected = [start + ending for start in (begun, doubled) for ending in ("ing", "ed")]
    exact = dict.fromkeys((word, base, *group, f"{base}s", f"{base}es", *inflected))
    # A joined word is indexed as a whole: `car's` as `car_s`.
    joined = Term(f"{min(exact, key=len)}_", is_prefix=True)
    return (*(Term(form, is_prefix=False) for form in exact), joined)
