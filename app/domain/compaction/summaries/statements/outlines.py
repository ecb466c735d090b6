"""What a statement names: its words, the shapes of its values, and which words stand together.

Two statements about one thing share words and have values of one shape: `port 8080` and `port
9090`. Two about different things in the same words differ in the word beside a shared one:
`request timeout` and `connect timeout`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from app.domain.compaction.summaries.statements.subjects import NUMBER_WORDS, Subject
from app.domain.compaction.summaries.statements.words import (
    Sentence,
    stem_of,
    stems,
    unspaced_frame,
)

MAX_RUN = 3
QUANTITY, PLAIN = "quantity", "number"
_NUMBER = r"(?<![A-Za-z0-9_.])\d[\d.,]*"
_UPPER, _LOWER = "A-ZÀ-ÖØ-ÞА-ЯЁ", "a-zß-öø-ÿа-яё"
_VALUE = re.compile(
    r"(?P<path>(?<![\w/])~?/[\w.@+-]+(?:/[\w.@+-]*)+"
    r"|(?<![\w-])[\w-]{1,80}\.(?:py|ya?ml|toml|json|md|conf|txt|csv|ods|xlsx?)\b)"
    r"|(?P<mail>(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+)"
    r"|(?P<date>\b\d{4}-\d\d(?:-\d\d)?\b|\b\d{1,2}[./]\d{1,2}[./]\d{4}\b)"
    r"|(?P<time>\b\d{1,2}:\d\d\b|\b\d{1,2} ?[ap]m\b)"
    r"|(?P<version>\bv?\d+(?:\.\d+){2,}\b)"
    r"|(?P<host>(?<![\w-])[a-z][\w-]{0,62}(?:\.[a-z][\w-]{0,62})+\b)"
    r"|(?P<code>\b[A-Z]{2,}-\d+\b|#[\w-]+)"
    rf"|(?P<quantity>[$€£¥]\s?\d[\d.,]*[A-Za-z]?|{_NUMBER}(?:\s?(?:[%€£¥]|[A-Za-z]+))?)"
    rf"|(?P<name>(?<=[^\s.!?:] )[{_UPPER}][\w-]*[{_LOWER}][\w-]*(?: [{_UPPER}][\w-]+)*"
    rf"|^[{_UPPER}][\w-]*[{_LOWER}][\w-]* [{_UPPER}][\w-]+)"
)
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

    `shapes` are the values as they stand, by what they look like. `before` and `after` are the
    words that stand directly beside a word. `said` are all of its words, `stems` those of them.
    """

    words: frozenset[str]
    values: frozenset[str]
    shapes: Mapping[str, frozenset[str]]
    before: Mapping[str, str]
    after: Mapping[str, str]
    runs: tuple[tuple[str, ...], ...]
    said: tuple[str, ...]
    stems: tuple[str | None, ...]

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
        before = any(
            _differ(self.before.get(stem), other.before.get(stem), shared) for stem in shared
        )
        after = any(_differ(self.after.get(stem), other.after.get(stem), shared) for stem in shared)
        return before, after

    def own_run(self, shared: frozenset[str]) -> int:
        """Return how many words at most stand together that are not shared."""
        longest = 0
        for run in self.runs:
            length = 0
            for stem in run:
                length = 0 if stem in shared else length + 1
                longest = max(longest, length)
        return min(longest, MAX_RUN)

    def is_framed_alike(self, other: Outline, shared: frozenset[str]) -> bool:
        """Whether all that two statements share is how they begin or end: `I checked it: …`."""
        frame = _common_start(self.said, other.said, self.stems)
        frame |= _common_start(self.said[::-1], other.said[::-1], self.stems[::-1])
        return shared <= frame


def _common_start(
    one: Sequence[str], other: Sequence[str], stems_of_one: Sequence[str | None]
) -> set[str]:
    """Return the stems of the words by which both begin, if these are at least two."""
    found: list[str | None] = []
    for word, other_word, stem in zip(one, other, stems_of_one, strict=False):
        if word != other_word:
            break
        found.append(stem)
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


def _left(stems: frozenset[str], others: Set[str]) -> frozenset[str]:
    """Return the stems that are not among the others; all of them are the same object, no copy."""
    return stems if stems.isdisjoint(others) else stems - others


def outline_of(sentence: Sentence, subject: Subject) -> Outline:
    """Return the outline of a sentence."""
    shapes: dict[str, set[str]] = defaultdict(set)
    values: set[str] = set()
    said = [] if sentence.is_unspaced else [stem_of(word) for word in sentence.words]
    capitals = [
        sentence.text[start].isupper()
        for stem, (start, _) in zip(said[1:], sentence.spans[1:], strict=False)
        if stem is not None
    ]
    names_are_nouns = 2 * sum(capitals) > len(capitals)  # as in German
    for match in _VALUE.finditer(sentence.text):
        if match.lastgroup == "name" and names_are_nouns:
            continue
        shape, value = match.lastgroup or "", match[0].strip(" .,").lower()
        if shape == QUANTITY:
            shape = _family(value)
        shapes[shape].add(value)
        values.update(stems(sentence, *match.span()))
    for word, stem in zip(sentence.words, said, strict=False):
        if word in NUMBER_WORDS:
            shapes[PLAIN].add(word)
            values.add(stem or word)
    content = _left(subject.all, {stem for stem in subject.all if any(map(str.isdigit, stem))})
    words = _left(content, values | unspaced_frame(sentence)) or content
    before: dict[str, str] = {}
    after: dict[str, str] = {}
    runs: list[tuple[str, ...]] = []
    run: list[str] = []
    last_end = -2
    for stem, (start, end) in zip(said, sentence.spans, strict=False):
        if stem is not None and stem in words:
            if run and start - last_end <= 1:
                before.setdefault(stem, run[-1])
                after.setdefault(run[-1], stem)
            elif run:
                runs.append(tuple(run))
                run = []
            run.append(stem)
            last_end = end
    if run:
        runs.append(tuple(run))
    return Outline(
        words,
        frozenset(values & subject.all),
        {shape: frozenset(found) for shape, found in shapes.items()},
        before,
        after,
        tuple(runs),
        sentence.words if said else (),
        tuple(said),
    )
