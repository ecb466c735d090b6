"""What a statement is about and what it says of it: the words that a newer one may replace."""

# ruff: noqa: RUF001 - characters of several scripts are meant

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from app.compaction.summaries.statements.languages.marker import Marker
from app.compaction.summaries.statements.words import (
    ACKNOWLEDGING,
    STEM_CHARS,
    Sentence,
    is_common,
    stems,
)

_QUOTED = re.compile(r"[`\"“«「『]([^`\"”»」』]{1,80})[`\"”»」』]")
_STRONG_WORDS = frozenset(  # a table of words
    """
    is are was were equals ist sind lautet beträgt est sont es son é são это será sera
    """.split()  # noqa: SIM905
)
STRONG = re.compile(
    rf"\b(?:{'|'.join(_STRONG_WORDS)})\b|\b(?:it|that|here|there)['’]s\b|="
    r"|は|是|为|為|改成|改为|(?<=[\uac00-\ud7af])[은는](?=\s)",
    re.IGNORECASE,
)
_OTHER_STRONG = re.compile("['’=]")
"""In a text with spaces and without one of these, `STRONG` finds its words only."""
_RUN = re.compile(r"\w+")
_COLON = re.compile(r"(?<=[\w)]): |：")
_WEAK = re.compile(
    r"\b(?:to|at|uses?|has|have|runs on|prefers?|likes?|want|need|by|from|auf|zu|à|utilise"
    r"|préfère|a|usa|prefiero"
    r"|prefiro|para|на|в|использует|предпочитаю)\b|が|を|に|[이가을를](?=\s)",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r"[;!?]|\.\s|[。；]")
MAX_STEMS = 60
MAX_LABEL_WORDS = 5
_LABEL = re.compile(r"^[^:：]{1,60}[:：]\s*")
_LABEL_WORDS = frozenset(  # tables of words
    """
    hard constraint requirement rule safety decision update correction important
    reminder heads-up fact goal preference mind changed change quick request also
    another objective we i decided agreed going found wrong got regel ziel hinweis
    korrektur entscheidung wichtig règle objectif remarque décision regla objetivo nota
    corrección decisión regra correção decisão правило цель важно поправка решение
    """.split()  # noqa: SIM905
)
_SPEAKING_WORDS = """
    got scratc scrap forget ignore disreg actual
    rememb need know fyi note heads-up set tell mind merken wisse souven recuer lembre
    запомн помни moved move change switch set postpo resche bumped raised lowere update
    increa reduce extend today tonigh tomorr yester week heute morgen gester aujour demain hoy ayer
    mañana hoje amanhã ontem сегодн завтра вчера
"""
_SPEAKING = frozenset(word[:STEM_CHARS] for word in _SPEAKING_WORDS.split())
"""Stems of words by which a statement begins, and that name no subject."""
_NO_SUBJECT = _SPEAKING | ACKNOWLEDGING
_EXACT = re.compile('[\\d`"“«「『]')
NUMBER_WORDS = frozenset(  # tables of words
    """
    zero one two three four five six seven eight nine ten twelve twenty null eins zwei
    drei vier fünf sechs sieben acht neun zehn deux trois quatre cinq sept huit neuf dix
    dos tres cuatro cinco seis siete ocho nueve diez dois três quatro sete oito nove dez
    два три четыре пять шесть семь восемь девять десять
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True)
class Subject:
    """The stems of a statement: `topic` names what it is about, the others its value.

    `exact` are the numbers, names and quoted words of the value, `all` are topic and value.
    With `ends_in_value` the sentence says its value behind a verb, as in `the port is 8080`.
    """

    topic: frozenset[str]
    exact: frozenset[str]
    all: frozenset[str]
    updates: bool
    ends_in_value: bool


def subject_of(sentence: Sentence) -> Subject:
    """Return what a sentence is about: what stands before its verb, values and names left out."""
    text, start, end = sentence.text, _label_end(sentence), len(sentence.text)
    found = dict.fromkeys(stems(sentence, start, end))
    content = [stem for stem in found if stem not in _NO_SUBJECT][:MAX_STEMS]
    split = _split(sentence, start)
    quoted = {stem for match in _QUOTED.finditer(text) for stem in stems(sentence, *match.span(1))}
    exact = {stem for stem in content if stem in NUMBER_WORDS or stem in quoted or has_digit(stem)}
    names = _names(sentence, start)
    ends_in_value = split is not None
    if split is None:
        value = {stem for stem in content if stem in exact or stem in names}
    else:
        head = {stem for stem in stems(sentence, start, split) if stem not in _NO_SUBJECT}
        value = {stem for stem in content if stem not in head or stem in quoted}
        names_value = bool(head & (exact | names)) and len(head - exact) <= 1
        if names_value and value and not value & (exact | names):
            value = {stem for stem in content if stem in head}  # the value is named first
            ends_in_value = False
    topic = {stem for stem in content if stem not in value}
    if not topic:
        topic, value = set(content), set()
    whole = frozenset(topic | value)
    return Subject(
        frozenset(topic) if value else whole,
        frozenset(value & (exact | names)),
        whole,
        sentence.has(Marker.UPDATE),
        ends_in_value,
    )


def may_have_value(sentence: Sentence) -> bool:
    """Whether its subject can have `exact` values, which is found out faster than what they are."""
    text = sentence.text
    if not text.isascii() or _EXACT.search(text):
        return True
    return any(word.stem in NUMBER_WORDS for word in sentence.words) or any(
        text[start].isupper() for start, _ in sentence.spans[1:]
    )


def has_digit(stem: str) -> bool:
    """Whether a digit is among the characters of a stem."""
    return not stem.isalpha() and any(map(str.isdigit, stem))


def _label_end(sentence: Sentence) -> int:
    """Return the end of a label such as `Correction:`, which is no part of the subject."""
    match = _LABEL.match(sentence.text)
    if match is None:
        return 0
    count = sum(end <= match.end() for _, end in sentence.spans)
    words = [word.text for word in sentence.words[:count]]
    known = all(word in _LABEL_WORDS or is_common(word) for word in words)
    if known and count <= MAX_LABEL_WORDS:
        return match.end()
    verb = STRONG.search(sentence.text, match.end())
    names_subject = verb is not None and bool(stems(sentence, match.end(), verb.start()))
    has_verb = STRONG.search(sentence.text, 0, match.end()) is not None
    return match.end() if names_subject and not has_verb else 0


def _split(sentence: Sentence, start: int) -> int | None:
    """Return the place of the verb behind which a sentence says its value, None without one."""
    for places in (strong_verbs, partial(_places, _COLON), partial(_places, _WEAK)):
        for place in places(sentence, start):
            if _CLAUSE.search(sentence.text, start, place):
                break
            if stems(sentence, start, place):
                return place
    return None


def _places(pattern: re.Pattern[str], sentence: Sentence, start: int) -> Iterator[int]:
    return (match.start() for match in pattern.finditer(sentence.text, start))


def strong_verbs(sentence: Sentence, start: int) -> Iterable[int]:
    """Return the places, from one on, of the verbs and signs of `STRONG`."""
    text = sentence.text
    if sentence.is_unspaced or _OTHER_STRONG.search(text):
        return _places(STRONG, sentence, start)
    runs = _RUN.finditer(text, start)
    return [run.start() for run in runs if run[0].lower() in _STRONG_WORDS]


def _names(sentence: Sentence, label_end: int) -> set[str]:
    """Return the stems of the words with a capital letter, except the first."""
    found: set[str] = set()
    starts = [span for span in sentence.spans if span[0] >= label_end]
    for start, end in starts[1:]:
        if sentence.text[start].isupper():
            found.update(stems(sentence, start, end))
    return found
