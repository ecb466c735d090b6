"""The entries of a ledger by the words of their subjects: what a newer statement replaces.

1. A statement replaces an older one with another value for the same subject if its words say that
   something changes, or if both name the same subject in full.
2. Without being sure of that, a statement may change the older one with which it shares most: rare
   words, values of one shape, an old value. Other words directly beside a shared one speak against
   it. The older one is shown with it then, and may still be found: a later statement that it fits
   better takes it over.
3. Words count by how few statements have them. A question replaces and changes nothing.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, islice

from app.compaction.summaries.statements.classification import is_question
from app.compaction.summaries.statements.outlines import MEASURES, Outline, outline_of
from app.compaction.summaries.statements.statement import Author, Kind, Statement
from app.compaction.summaries.statements.subjects import Subject, subject_of
from app.compaction.summaries.statements.words import UNSPACED, WORD, read_sentence

MAX_CACHED = 4096
"""Of how many statements a process remembers what they name, about 700 bytes each."""
MAX_CANDIDATES = 40
MAX_LIKELY = 20
UPDATE_SCORE = 0.5
MIN_VALUE_CHARS = 4
"""Shorter values, such as units, name no particular older statement."""
CONFLICT_SCORE = 0.8
"""What a statement needs that names something beside the subject of the older one."""
SAME_SUBJECT_SCORE = 0.85
OLD_VALUE_BONUS = 0.25
EQUAL_SCORES = 0.05
"""Scores as close as this to the best one count as the best."""
LINK_SCORE = -1.5
"""What a statement needs to stand beside an older one that it may change.

The score is the logarithm of the odds. Its weights were fitted to the pairs and sessions of the
benchmark that are for tuning: those of statements with a value of the same shape, and of others.
"""
SURER_LINK_SCORE = -0.5
SUREST_LINK_SCORE = 0.3
"""What it needs beside an instruction or a remark, and what a request needs beside an instruction.
"""
USUAL_WEIGHT = 0.7
"""Shared words count as far as they weigh more than this; the rarest weigh 1."""


@dataclass(frozen=True, slots=True)
class _Weights:
    shared: float
    share: float
    names_value: float
    differs_before: float
    differs_after: float
    framed_alike: float
    own_run: float
    bias: float


_SAME_SHAPE = _Weights(1.9, 1.1, 1.4, -4.1, -2.3, -1.5, -1.3, 0.3)
_OTHER = _Weights(5.5, -2.0, 2.7, -1.3, -0.9, -1.0, -0.7, -2.6)
MAX_COMPARED_CHARS = 1_000
"""A longer text, such as an item of a model's summary, is compared with nothing."""
MAX_EARLIER = 3
MAX_EARLIER_CHARS = 240

COMPARED = frozenset(
    {
        *(Kind.STANDING, Kind.CONSTRAINT, Kind.PREFERENCE, Kind.GOAL, Kind.FACT, Kind.DECISION),
        *(Kind.OPEN, Kind.FINDING, Kind.REMARK, Kind.REQUEST),
    }
)
"""Kinds of which newer statements may replace older ones."""
_REPLACEABLE = COMPARED - {Kind.FINDING}
_INSTRUCTIONS = frozenset({Kind.STANDING, Kind.CONSTRAINT})
_MINOR = frozenset({Kind.REQUEST, Kind.REMARK})


_Stems = tuple[str, ...]
_Remembered = tuple[
    _Stems, _Stems, _Stems, bool, bool, _Stems, _Stems, tuple[tuple[str, _Stems], ...]
]
"""The fields of a subject and an outline, except for the text."""


@dataclass(slots=True)
class Entry:
    """A statement in the ledger; `in_first` is set where the first request has it.

    `number` counts the entries in the order of their last mention.
    """

    statement: Statement
    subject: Subject | None = None
    outline: Outline | None = None
    in_first: bool = False
    number: int = 0

    def mark_earlier(self) -> None:
        """Note that something newer, which is shown elsewhere, may change it."""
        self.statement = replace(self.statement, is_earlier=True)


def entry_of(statement: Statement, *, in_first: bool = False) -> Entry:
    """Return the entry of a statement, with its subject if it can be compared."""
    text = statement.text
    if statement.kind not in COMPARED or "\n" in text or len(text) > MAX_COMPARED_CHARS:
        return Entry(statement, in_first=in_first)
    subject, outline = _read(text)
    return Entry(statement, subject, outline, in_first)


def _read(text: str) -> tuple[Subject, Outline]:
    """Return what a statement names."""
    topic, exact, both, updates, ends_in_value, words, values, shapes = _remembered(text)
    subject = Subject(frozenset(topic), frozenset(exact), frozenset(both), updates, ends_in_value)
    found = {shape: frozenset(values) for shape, values in shapes}
    return subject, Outline(frozenset(words), frozenset(values), found, text)


@lru_cache(MAX_CACHED)
def _remembered(text: str) -> _Remembered:
    """Return what a statement names; the next summary has most of the statements of this one.

    Tuples take a fifth of the memory of sets.
    """
    sentence = read_sentence(text)
    subject = subject_of(sentence)
    outline = outline_of(sentence, subject)
    return (
        (*subject.topic,),
        (*subject.exact,),
        (*subject.all,),
        subject.updates,
        subject.ends_in_value,
        (*outline.words,),
        (*outline.values,),
        tuple((shape, (*values,)) for shape, values in outline.shapes.items()),
    )


def key_of(text: str) -> str:
    """Return a text without case and punctuation; two statements with the same one are equal."""
    return "\0".join(WORD.findall(text)).lower() or text.strip()


@dataclass(slots=True)
class EntryIndex:
    """The entries by key, in the order of their last mention, and the keys by stem.

    Statements that are shown with a newer one have entries apart, and the key of the newer one.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    _earlier: dict[str, Entry] = field(default_factory=dict)
    _holders: dict[str, str] = field(default_factory=dict)
    _by_stem: dict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))
    _removed: dict[str, Entry] = field(default_factory=dict)
    _count: int = 0

    def insert(self, key: str, entry: Entry) -> None:
        """Add an entry as the newest, with the older statements that are shown with it."""
        if key in self._earlier:  # stated again
            del self._holders[key]
            self._remove_stems(key, self._earlier.pop(key))
        self._count += 1
        entry.number = self._count
        self.entries[key] = entry
        self._add_stems(key, entry)
        for text in entry.statement.earlier:
            older = key_of(text)
            if older in self.entries or older in self._earlier:
                continue
            shown = self._removed.get(older)
            if shown is None:
                shown = entry_of(replace(entry.statement, text=text, mentions=1, earlier=()))
            self._earlier[older] = shown
            self._holders[older] = key
            self._add_stems(older, shown)
        self._removed.clear()

    def remove(self, key: str) -> Entry:
        """Remove an entry, and return it; one that is shown with another is taken from that."""
        if key in self._earlier:
            return self._detach(key)
        entry = self._removed[key] = self.entries.pop(key)
        self._remove_stems(key, entry)
        for older in map(key_of, entry.statement.earlier):
            if self._holders.get(older) == key:
                del self._holders[older]
                shown = self._removed[older] = self._earlier.pop(older)
                self._remove_stems(older, shown)
        return entry

    def _detach(self, key: str) -> Entry:
        holder = self.entries[self._holders.pop(key)]
        entry = self._removed[key] = self._earlier.pop(key)
        self._remove_stems(key, entry)
        left = tuple(text for text in holder.statement.earlier if key_of(text) != key)
        holder.statement = replace(holder.statement, earlier=left)
        return entry

    def _add_stems(self, key: str, entry: Entry) -> None:
        if entry.subject is not None:
            for stem in entry.subject.all:
                self._by_stem[stem][key] = None

    def _remove_stems(self, key: str, entry: Entry) -> None:
        if entry.subject is not None:
            for stem in entry.subject.all:
                self._by_stem[stem].pop(key, None)

    def replaced_by(self, new: Entry) -> list[Entry]:
        """Remove what a statement replaces (rule 1), and return it."""
        subject = new.subject
        if subject is None or not (subject.updates or subject.exact):
            return []
        if is_question(new.statement.text):
            return []
        scores = {}
        weight = self._weight(subject.topic)
        for key in self._candidates(subject):
            score = self._certainty(new.statement, subject, self._entry(key), weight)
            if score > 0:
                scores[key] = score
        best = max(scores.values(), default=0.0)
        found = [key for key, score in scores.items() if score >= best - EQUAL_SCORES]
        found.sort(key=lambda key: key in self.entries)  # an entry takes its older ones with it
        return [self.remove(key) for key in found]

    def likely_changed_by(self, new: Entry) -> str | None:
        """Return the key of what a statement most likely changes (rule 2), None for nothing."""
        if new.subject is None or new.outline is None or is_question(new.statement.text):
            return None
        scores: dict[str, float] = {}
        weights = self._weights(new.outline)
        for key in self._candidates(new.subject)[:MAX_LIKELY]:
            score = self._likelihood(new, self._entry(key), weights)
            if score is not None:
                scores[key] = score
        ranked = sorted(scores, key=lambda key: (-round(scores[key], 1), -self._entry(key).number))
        for key in ranked:
            if key in self.entries:
                return key
            holder = self._holders[key]
            if holder in scores:
                return holder
            if scores[key] > self._link_score(holder, key):
                return key
        return None

    def _link_score(self, holder: str, key: str) -> float:
        """Return how likely a statement changes the one that is shown with it."""
        entry = self.entries[holder]
        weights = self._weights(entry.outline) if entry.outline is not None else {}
        return self._likelihood(entry, self._earlier[key], weights) or LINK_SCORE

    def _entry(self, key: str) -> Entry:
        return self.entries.get(key) or self._earlier[key]

    def _candidates(self, subject: Subject) -> list[str]:
        """Return the statements that share a rare word of the subject, the newest of them."""
        shared = [(len(found), stem) for stem in subject.all if (found := self._by_stem.get(stem))]
        newest = (
            [*islice(reversed(self._by_stem[stem]), MAX_CANDIDATES)][::-1]
            for _, stem in sorted(shared)[:5]
        )
        counts = Counter(chain.from_iterable(newest))
        return sorted(counts, key=counts.__getitem__, reverse=True)[:MAX_CANDIDATES]

    def _certainty(
        self, statement: Statement, new: Subject, entry: Entry, new_weight: float
    ) -> float:
        """Return how surely a statement replaces an older one, 0 where it does not.

        `new_weight` is that of the newer one's topic.
        """
        old = entry.subject
        if old is None or new.topic.isdisjoint(old.topic) or not (new.updates or old.exact):
            return 0.0
        if entry.statement.kind not in _REPLACEABLE or new.all == old.all:
            return 0.0
        if statement.author is not Author.USER and entry.statement.author is Author.USER:
            return 0.0
        new_only, old_only = new.topic - old.all, old.topic - new.all
        conflicts = bool(new_only and old_only)
        if entry.statement.kind is Kind.REQUEST and (conflicts or not new.updates):
            return 0.0
        names_old_value = self._names_value(new, old)
        if not names_old_value and any(not UNSPACED.match(stem) for stem in new_only):
            return 0.0  # it may be about a part of the subject only
        shared = (new.topic & old.all) | (old.topic & new.all)
        smaller, larger = sorted((new_weight, self._weight(old.topic)))
        weight = self._weight(shared)
        score = min(1.0, weight / ((larger if conflicts else smaller) or 1.0))
        if new.updates:
            is_specific = len(shared) >= 2 or (
                self._is_rare(next(iter(shared))) and statement.kind is not Kind.STANDING
            )
            threshold = CONFLICT_SCORE if conflicts and not names_old_value else UPDATE_SCORE
            score += OLD_VALUE_BONUS if names_old_value else 0.0
            return score if is_specific and score >= threshold else 0.0
        if not (new.ends_in_value and old.ends_in_value):
            return 0.0  # it may be a list
        differs = bool(new.exact - old.exact and old.exact - new.exact)
        topics = min(len(new.topic), len(old.topic))
        is_same = topics >= 2 and weight / (larger or 1.0) >= SAME_SUBJECT_SCORE
        return score if differs and is_same else 0.0

    def _likelihood(self, new: Entry, old: Entry, weights: Mapping[str, float]) -> float | None:
        """Return how likely a statement changes an older one, None where they belong apart.

        `weights` are those of the newer one's words, 1 for the rarest, and of all of them together.
        """
        statement, older = new.statement, old.statement
        if old.in_first or statement.author is not older.author or older.kind is Kind.FINDING:
            return None
        outline, before = new.outline, old.outline
        if outline is None or before is None or new.subject is None or old.subject is None:
            return None
        shared = outline.words & before.words
        names_value = self._names_value(new.subject, old.subject, before)
        says_more = statement.updates or bool(new.subject.exact - old.subject.exact)
        if not shared and not (names_value and says_more):
            return None
        is_guarded = older.kind in _INSTRUCTIONS
        # Rules for several files or people are no rule and its change.
        is_same_shape = outline.has_other_value(before, MEASURES if is_guarded else None)
        if statement.author is not Author.USER and not is_same_shape:
            return None
        weight = _SAME_SHAPE if is_same_shape else _OTHER
        rare = sum([weights[stem] for stem in shared])
        score = weight.bias + weight.shared * min(1.0, rare - USUAL_WEIGHT * len(shared))
        score += weight.share * rare / (weights[""] or 1.0)
        score += weight.names_value * names_value
        needed = LINK_SCORE
        if older.kind in _INSTRUCTIONS and statement.kind in _MINOR:
            needed = SUREST_LINK_SCORE
        elif older.kind in _INSTRUCTIONS or older.kind is Kind.REMARK:
            needed = SURER_LINK_SCORE
        if score < needed:
            return None  # what follows only speaks against it
        if len(older.text) > MAX_EARLIER_CHARS or new.subject.all == old.subject.all:
            return None
        if is_question(older.text):
            return None
        if len(older.earlier) >= MAX_EARLIER and (is_guarded or not statement.updates):
            return None  # rather a list than changes
        is_list = not (new.subject.ends_in_value and old.subject.ends_in_value)
        has_same_words = is_same_shape and outline.words == before.words
        if is_list and has_same_words and not statement.updates:
            return None
        score += self._against(weight, new, old, shared)
        return score if score >= needed else None

    def _against(self, weight: _Weights, new: Entry, old: Entry, shared: frozenset[str]) -> float:
        """Return what speaks against a change: 0 or less."""
        assert new.outline and old.outline and new.subject and old.subject
        differs_before, differs_after = new.outline.differs_beside(old.outline, shared)
        differs_before = differs_before or _name_others(new.subject, old.subject)
        against = weight.differs_before * differs_before + weight.differs_after * differs_after
        own_run = 0
        if shared:
            own_run = min(new.outline.own_run(shared), old.outline.own_run(shared))
        if own_run and new.outline.is_framed_alike(old.outline, shared):
            against += weight.framed_alike
        return against + weight.own_run * own_run

    def _names_value(self, new: Subject, old: Subject, outline: Outline | None = None) -> bool:
        """Whether a statement names the value of an older one, as in `from 30 to 45`."""
        shared = old.exact & new.exact
        if outline is not None and outline.values:
            shared |= outline.values & new.all
        return any(len(stem) >= MIN_VALUE_CHARS and self._is_rare(stem) for stem in shared)

    def _weights(self, outline: Outline) -> dict[str, float]:
        most = math.log(1 + (len(self.entries) + 1) / 2)
        weights = {stem: self._weight((stem,)) / most for stem in outline.words}
        weights[""] = sum(weights.values())
        return weights

    def _weight(self, stems: Iterable[str]) -> float:
        total = len(self.entries) + len(self._earlier) + 1
        by_stem = self._by_stem
        return sum([math.log(1 + total / (1 + len(by_stem.get(stem, ())))) for stem in stems])

    def _is_rare(self, stem: str) -> bool:
        return len(self._by_stem.get(stem, ())) <= max(2, len(self.entries) // 50)


def _name_others(one: Subject, other: Subject) -> bool:
    """Whether two statements are about numbered things: `host1` and `host2`."""
    return all(
        any(character.isdigit() for stem in mine for character in stem)
        for mine in (one.topic - other.all, other.topic - one.all)
    )
