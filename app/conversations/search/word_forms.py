"""The forms of a word that a question finds: inflections of English, endings of other languages.

1. The index has words as they were written, so a question asks for the forms of its words.
2. A long word is found by its stem as a prefix: what is left without an English ending, but never
   more than three quarters of the word, which cuts endings of other languages as well.
3. A short stem would find too many other words as a prefix: `car` is the beginning of `care`. It is
   found by its inflected forms instead.
4. Irregular English forms find each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from app.conversations.search.words import Term, prefix_term

_MIN_CUT = 6  # characters of a word that may have an ending of any language
_MIN_STEM_PREFIX = 4  # characters of a stem that is searched as a prefix (rule 3)
_MIN_STEM = 3
_MIN_DERIVED = 5  # characters of a stem whose ending makes another word
_VOWELS = frozenset("aeiouy")
_INFLECTIONS = ("ings", "ing", "ed")
_DERIVATIONS = ("ations", "ation", "ments", "ment", "ions", "ion", "ers", "er", "ly")

_IRREGULAR = """
be was were been|bear bore born|beat beaten|become became|begin began begun|bend bent|bind bound
bite bit bitten|bleed bled|blow blew blown|break broke broken|breed bred|bring brought|build built
burn burnt|buy bought|catch caught|choose chose chosen|cling clung|come came|creep crept|deal dealt
dig dug|do did done|draw drew drawn|dream dreamt|drink drank drunk|drive drove driven|eat ate eaten
fall fell fallen|feed fed|feel felt|fight fought|find found|flee fled|fly flew flown|forbid forbade
forget forgot forgotten|forgive forgave forgiven|freeze froze frozen|get got gotten|give gave given
go goes went gone|grow grew grown|hang hung|have had has|hear heard|hide hid hidden|hold held
keep kept|kneel knelt|know knew known|lay laid|lead led|learn learnt|leave left|lend lent|lie lay
light lit|lose lost|make made|mean meant|meet met|pay paid|ride rode ridden|ring rang rung
rise rose risen|run ran|say said|see saw seen|seek sought|sell sold|send sent|shake shook shaken
shine shone|shoot shot|show shown|shrink shrank|sing sang sung|sink sank sunk|sit sat|sleep slept
slide slid|speak spoke spoken|spend spent|spin spun|spring sprang|stand stood|steal stole stolen
stick stuck|sting stung|strike struck|swear swore sworn|sweep swept|swim swam swum|swing swung
take took taken|teach taught|tear tore torn|tell told|think thought|throw threw thrown
understand understood|wake woke woken|wear wore worn|win won|wind wound|write wrote written
analysis analyses|child children|crisis crises|foot feet|goose geese|half halves|index indices
knife knives|leaf leaves|life lives|loaf loaves|man men|matrix matrices|mouse mice|person people
shelf shelves|thief thieves|tooth teeth|vertex vertices|wife wives|wolf wolves|woman women
"""


def _groups() -> Mapping[str, tuple[str, ...]]:
    groups = [tuple(group.split()) for group in _IRREGULAR.replace("\n", "|").split("|") if group]
    return {form: group for group in groups for form in group}


_GROUP_OF: Final = _groups()


def forms(word: str) -> tuple[Term, ...]:
    """Return the terms that find a word in normal form, and its other forms."""
    if not word.isalpha():
        return (prefix_term(word),)
    if not word.isascii():
        return (widened(word),)
    group = _GROUP_OF.get(word)
    if group is not None:
        return _exact({**dict.fromkeys(group), **_inflected(group[0])})
    bases = _bases(word)
    stem = min((_without_derivation(word), *map(_unchanged, bases), widened(word).lexeme), key=len)
    if len(stem) >= _MIN_STEM_PREFIX:
        return (Term(stem, is_prefix=True),)
    return _exact({word: None} | {form: None for base in bases for form in _inflected(base)})


def widened(word: str) -> Term:
    """Return a prefix that finds more than the forms of a word: without an ending's length."""
    plain = word.removesuffix("s") if len(word) > _MIN_STEM and not word.endswith("ss") else word
    if word.isalpha() and len(plain) >= _MIN_CUT:
        plain = plain[: len(plain) - len(plain) // 4]
    return prefix_term(plain)


def _exact(found: Iterable[str]) -> tuple[Term, ...]:
    """Return terms for these forms, and for joined words that begin with the shortest.

    A joined word is indexed as a whole: `car's` as `car_s`.
    """
    words = tuple(found)
    joined = Term(f"{min(words, key=len)}_", is_prefix=True)
    return (*(Term(word, is_prefix=False) for word in words), joined)


def _bases(word: str) -> tuple[str, ...]:
    """Return what an English word may be an inflection of, itself if of none."""
    if word.endswith(("ies", "ied")) and len(word) > _MIN_STEM + 1:
        return (f"{word[:-3]}y",)
    for ending in _INFLECTIONS:
        stem = word.removesuffix(ending)
        if stem != word and len(stem) >= _MIN_STEM and not _VOWELS.isdisjoint(stem):
            if stem[-1] == stem[-2] and stem[-1] not in "lsz":
                return (stem[:-1],)
            return (stem, f"{stem}e")
    if word.endswith("es") and len(word) > _MIN_STEM + 1:
        return (word[:-1], word[:-2])
    if word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > _MIN_STEM:
        return (word[:-1],)
    return (word,)


def _unchanged(base: str) -> str:
    """Return the part of a base that all its forms begin with, "" for too short a part.

    *Dance* and *dancing* begin with *danc*; *part* is too short for *parties*.
    """
    if base.endswith("y") and base[-2:-1] not in _VOWELS:
        return base[:-1] if len(base) > _MIN_STEM_PREFIX + 1 else ""
    return base.removesuffix("e")


def _inflected(base: str) -> dict[str, None]:
    """Return the regular forms of an English base, the base first."""
    if base.endswith("e"):
        found = [base, f"{base}s", f"{base}d", f"{base[:-1]}ing"]
    elif base.endswith("y") and base[-2:-1] not in _VOWELS:
        found = [base, f"{base[:-1]}ies", f"{base[:-1]}ied", f"{base}ing"]
    else:
        found = [base, f"{base}s", f"{base}ed", f"{base}ing"]
        if base.endswith(("s", "x", "z", "ch", "sh", "o")):
            found.append(f"{base}es")
        if [letter in _VOWELS for letter in base[-3:]] == [False, True, False]:
            found += [f"{base}{base[-1]}ed", f"{base}{base[-1]}ing"]
    return dict.fromkeys(found)


def _without_derivation(word: str) -> str:
    for ending in _DERIVATIONS:
        stem = word.removesuffix(ending)
        if stem != word and len(stem) >= _MIN_DERIVED:
            return stem
    return word
