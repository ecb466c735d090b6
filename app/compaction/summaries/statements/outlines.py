"""What a statement names: its words, the shapes of its values, and which words stand together.

Two statements about one thing share words and have values of one shape: `port 8080` and `port
9090`. Two about different things in the same words differ in the word beside a shared one:
`request timeout` and `connect timeout`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache

from app.compaction.summaries.statements.subjects import NUMBER_WORDS, Subject, has_digit
from app.compaction.summaries.statements.words import (
    Sentence,
    Word,
    read_sentence,
    stems,
    unspaced_frame,
)

MAX_RUN = 3
QUANTITY, PLAIN = "quantity", "number"
_NUMBER = r"(?<![A-Za-z0-9_.])\d[\d.,]*"
_UPPER, _LOWER = "A-ZÀ-ÖØ-ÞА-ЯЁ", "a-zß-öø-ÿа-яё"
_VALUES = {
    "path": r"(?<![\w/])~?/[\w.@+-]+(?:/[\w.@+-]*)+"
    r"|(?<![\w-])[\w-]{1,80}\.(?:py|ya?ml|toml|json|md|conf|txt|csv|ods|xlsx?)\b",
    "mail": r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+",
    "date": r"\b\d{4}-\d\d(?:-\d\d)?\b|\b\d{1,2}[./]\d{1,2}[./]\d{4}\b",
    "time": r"\b\d{1,2}:\d\d\b|\b\d{1,2} ?[ap]m\b",
    "version": r"\bv?\d+(?:\.\d+){2,}\b",
    "host": r"(?<![\w-])[a-z][\w-]{0,62}(?:\.[a-z][\w-]{0,62})+\b",
    "code": r"\b[A-Z]{2,}-\d+\b|#[\w-]+",
    QUANTITY: rf"[$€£¥]\s?\d[\d.,]*[A-Za-z]?|{_NUMBER}(?:\s?(?:[%€£¥]|[A-Za-z]+))?",
    "name": rf"(?<=[^\s.!?:] )[{_UPPER}][\w-]*[{_LOWER}][\w-]*(?: [{_UPPER}][\w-]+)*"
    rf"|^[{_UPPER}][\w-]*[{_LOWER}][\w-]* [{_UPPER}][\w-]+",
}
"""The shapes of values; the first one that fits counts."""
_SIGNS = re.compile(rf"(?P<digit>\d)|(?P<capital>[{_UPPER}])(?<= .)|\.(?=\w)|/(?=[\w.@+-])|[@#]")
MAX_PATTERNS = 2**6
SIGNS = {
    **{shape: {"digit"} for shape in ("date", "time", "version", QUANTITY)},
    **{"path": {".", "/"}, "mail": {"@"}, "host": {"."}, "code": {"digit", "#"}},
    "name": {"capital"},
}
"""The signs of which a text has at least one if it has a value of a shape."""
_UNITS = {
    unit: family
    for family, units in {
        "time": "ms s h sec secs min mins millis second minute hour day days week weeks month year",
        "size": "b kb mb gb tb ki mi gi kib mib gib byte bytes kiloby megaby gigaby k m g",
        "money": "eur usd chf gbp euro euros dollar",
    }.items()
    for unit in units.split()
}
_QUANTITIES = {PLAIN, "percent", *_UNITS.values()}
MEASURES = frozenset({*_QUANTITIES, "date", "time", "version"})
"""The shapes of values of which only one can hold."""


@dataclass(frozen=True, slots=True)
class Outline:
    """The stems of a statement: `words` without those of its `values`.

    `shapes` are the values as they stand, by what they look like.
    """

    words: frozenset[str]
    values: frozenset[str]
    shapes: Mapping[str, frozenset[str]]
    text: str

    def has_other_value(self, other: Outline, shapes: Set[str] | None = None) -> bool:
        """Whether it has another value of a shape that the other statement has as well.

        With `shapes` only values of those count.
        """
        return any(
            values - others
            for shape, values in self.shapes.items()
            if shapes is None or shape in shapes
            for other_shape, others in other.shapes.items()
            if shape == other_shape
            or (PLAIN in (shape, other_shape) and {shape, other_shape} <= _QUANTITIES)
        )

    def differs_beside(self, other: Outline, shared: frozenset[str]) -> tuple[bool, bool]:
        """Return whether other words stand directly before, and after, a word that both share."""
        mine, others = _order_of(self), _order_of(other)
        before = any(
            _differ(mine.before.get(stem), others.before.get(stem), shared) for stem in shared
        )
        after = any(
            _differ(mine.after.get(stem), others.after.get(stem), shared) for stem in shared
        )
        return before, after

    def own_run(self, shared: frozenset[str]) -> int:
        """Return how many words at most stand together that are not shared."""
        longest = 0
        for run in _order_of(self).runs:
            length = 0
            for stem in run:
                length = 0 if stem in shared else length + 1
                longest = max(longest, length)
        return min(longest, MAX_RUN)

    def is_framed_alike(self, other: Outline, shared: frozenset[str]) -> bool:
        """Whether all that two statements share is how they begin or end: `I checked it: …`."""
        mine, others = read_sentence(self.text), read_sentence(other.text)
        if mine.is_unspaced or others.is_unspaced:
            return not shared
        frame = _common_start(mine.words, others.words)
        return shared <= frame | _common_start(mine.words[::-1], others.words[::-1])


@dataclass(frozen=True, slots=True)
class _Order:
    """Which words stand together: `before` and `after` are those directly beside a word."""

    before: dict[str, str]
    after: dict[str, str]
    runs: list[list[str]]


def _order_of(outline: Outline) -> _Order:
    """Return what stands together; this is seldom asked, and not kept."""
    sentence, words = read_sentence(outline.text), outline.words
    order = _Order({}, {}, [])
    run: list[str] = []
    last_end = -2
    if sentence.is_unspaced:
        return order
    for word, (start, end) in zip(sentence.words, sentence.spans, strict=True):
        if word.stem is not None and word.stem in words:
            if run and start - last_end <= 1:
                order.before.setdefault(word.stem, run[-1])
                order.after.setdefault(run[-1], word.stem)
            else:
                order.runs.append(run := [])
            run.append(word.stem)
            last_end = end
    return order


def _common_start(one: Sequence[Word], other: Sequence[Word]) -> set[str]:
    """Return the stems of the words by which both begin, if these are at least two."""
    found: list[str | None] = []
    for word, other_word in zip(one, other, strict=False):
        if word.text != other_word.text:
            break
        found.append(word.stem)
    return {stem for stem in found if stem is not None} if len(found) > 1 else set()


def _differ(one: str | None, other: str | None, shared: frozenset[str]) -> bool:
    return (
        one is not None
        and other is not None
        and one != other
        and one not in shared
        and other not in shared
    )


def _family(value: str) -> str:
    """Return what a quantity measures."""
    unit = value.lstrip("$€£¥0123456789., ")
    if unit == "%":
        return "percent"
    if value[0] in "$€£¥" or unit[:1] in tuple("€£¥"):
        return "money"
    return _UNITS.get(unit[:6], PLAIN)


def values_in(text: str) -> Iterator[re.Match[str]]:
    """Yield the values of a text; the last group of a match names its shape."""
    signs = {match.lastgroup or match[0] for match in _SIGNS.finditer(text)}
    return pattern_of(frozenset(signs)).finditer(text) if signs else iter(())


@lru_cache(MAX_PATTERNS)
def pattern_of(signs: frozenset[str]) -> re.Pattern[str]:
    """Return the pattern of the values that a text with these signs may have."""
    shapes = [shape for shape in _VALUES if not signs.isdisjoint(SIGNS[shape])]
    return re.compile("|".join(f"(?P<{shape}>{_VALUES[shape]})" for shape in shapes))


def outline_of(sentence: Sentence, subject: Subject) -> Outline:
    """Return the outline of a sentence."""
    shapes: dict[str, set[str]] = defaultdict(set)
    values: set[str] = set()
    for match in values_in(sentence.text):
        if match.lastgroup == "name" and _names_are_nouns(sentence):
            continue
        shape, value = match.lastgroup or "", match[0].strip(" .,").lower()
        if shape == QUANTITY:
            shape = _family(value)
        shapes[shape].add(value)
        values.update(stems(sentence, *match.span()))
    for word in () if sentence.is_unspaced else sentence.words:
        if word.text in NUMBER_WORDS:
            shapes[PLAIN].add(word.text)
            values.add(word.stem or word.text)
    content = frozenset([stem for stem in subject.all if not has_digit(stem)])
    return Outline(
        content - values - unspaced_frame(sentence) or content,
        frozenset(values & subject.all),
        {shape: frozenset(found) for shape, found in shapes.items()},
        sentence.text,
    )


def _names_are_nouns(sentence: Sentence) -> bool:
    """Whether most words have a capital letter, as in German."""
    capitals = [
        sentence.text[start].isupper()
        for word, (start, _) in zip(sentence.words[1:], sentence.spans[1:], strict=True)
        if word.stem is not None and not sentence.is_unspaced
    ]
    return 2 * sum(capitals) > len(capitals)
