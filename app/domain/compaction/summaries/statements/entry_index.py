"""The entries of a ledger by the words of their subjects: what a newer statement replaces.

1. A statement replaces an older one with another value for the same subject if its words say that
   something changes, or if both name the same subject in full.
2. Without being sure of that, a statement may change an older one with which it shares enough.
3. Words count by how few statements have them. A question replaces and changes nothing.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import nsmallest

from app.domain.compaction.summaries.statements.classification import is_question
from app.domain.compaction.summaries.statements.statement import Author, Kind, Statement
from app.domain.compaction.summaries.statements.subjects import Subject
from app.domain.compaction.summaries.statements.words import UNSPACED

MAX_CANDIDATES = 40
UPDATE_SCORE = 0.5
MIN_VALUE_CHARS = 4
"""Shorter values, such as units, name no particular older statement."""
CONFLICT_SCORE = 0.8
"""What a statement needs that names something beside the subject of the older one."""
SAME_SUBJECT_SCORE = 0.85
OLD_VALUE_BONUS = 0.25
EQUAL_SCORES = 0.05
"""Scores as close as this to the best one count as the best."""
LINK_SCORE = 0.28
"""What a statement whose words say that something changes shares with one that it may change."""
VALUE_LINK_SCORE = 0.34
TOPIC_LINK_SCORE = 0.5
"""The same without such words, where both have a value, and where not."""
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


@dataclass(slots=True)
class Entry:
    """A statement in the ledger; `in_first` is set where the first request has it."""

    statement: Statement
    subject: Subject | None
    in_first: bool = False


@dataclass(slots=True)
class EntryIndex:
    """The entries by key, in the order of their last mention, and the keys by stem."""

    entries: dict[str, Entry] = field(default_factory=dict)
    _by_stem: dict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))

    def insert(self, key: str, entry: Entry) -> None:
        """Add an entry as the newest."""
        self.entries[key] = entry
        if entry.subject is not None:
            for stem in entry.subject.all:
                self._by_stem[stem][key] = None

    def remove(self, key: str) -> Entry:
        """Remove an entry, and return it."""
        entry = self.entries.pop(key)
        if entry.subject is not None:
            for stem in entry.subject.all:
                self._by_stem[stem].pop(key, None)
        return entry

    def replaced_by(self, statement: Statement, subject: Subject) -> list[str]:
        """Return the keys of what a statement replaces (rule 1)."""
        if not (subject.updates or subject.exact):
            return []
        scores = self._scores(statement, subject, self._certainty)
        best = max(scores.values(), default=0.0)
        return [key for key, score in scores.items() if score >= best - EQUAL_SCORES]

    def likely_changed_by(self, statement: Statement, subject: Subject) -> str | None:
        """Return the key of what a statement most likely changes (rule 2), None for nothing."""
        if not (subject.updates or subject.exact or statement.is_salient):
            return None
        scores = self._scores(statement, subject, self._likelihood)
        return max(scores, key=lambda key: scores[key], default=None)

    def _scores(
        self,
        statement: Statement,
        subject: Subject,
        score: Callable[[Statement, Subject, Entry], float],
    ) -> dict[str, float]:
        found = {
            key: score(statement, subject, self.entries[key]) for key in self._candidates(subject)
        }
        return {key: value for key, value in found.items() if value > 0}

    def _candidates(self, subject: Subject) -> list[str]:
        """Return the statements that share a rare word of the subject, the newest of them."""
        shared = [stem for stem in subject.all if self._by_stem.get(stem)]
        found: Counter[str] = Counter()
        for stem in nsmallest(5, shared, key=lambda stem: (len(self._by_stem[stem]), stem)):
            found.update(list(self._by_stem[stem])[-MAX_CANDIDATES:])
        return [key for key, _ in found.most_common(MAX_CANDIDATES)]

    def _certainty(self, statement: Statement, new: Subject, entry: Entry) -> float:
        """Return how surely a statement replaces an older one, 0 where it does not."""
        old = entry.subject
        if old is None or entry.statement.kind not in _REPLACEABLE:
            return 0.0
        if statement.author is not Author.USER and entry.statement.author is Author.USER:
            return 0.0
        if not (new.updates or old.exact):
            return 0.0
        shared = (new.topic & old.all) | (old.topic & new.all)
        if not new.topic & old.topic or new.all == old.all or is_question(statement.text):
            return 0.0
        new_only, old_only = new.topic - old.all, old.topic - new.all
        conflicts = bool(new_only and old_only)
        if entry.statement.kind is Kind.REQUEST and (conflicts or not new.updates):
            return 0.0
        smaller, larger = sorted((self._weight(new.topic), self._weight(old.topic)))
        weight = self._weight(shared)
        score = min(1.0, weight / ((larger if conflicts else smaller) or 1.0))
        names_old_value = self._names_value(new, old)
        if not names_old_value and any(not UNSPACED.match(stem) for stem in new_only):
            return 0.0  # it may be about a part of the subject only
        if new.updates:
            is_specific = len(shared) >= 2 or (
                self._is_rare(next(iter(shared))) and statement.kind is not Kind.STANDING
            )
            threshold = CONFLICT_SCORE if conflicts and not names_old_value else UPDATE_SCORE
            score += OLD_VALUE_BONUS if names_old_value else 0.0
            return score if is_specific and score >= threshold else 0.0
        differs = bool(new.exact - old.exact and old.exact - new.exact)
        topics = min(len(new.topic), len(old.topic))
        is_same = topics >= 2 and weight / (larger or 1.0) >= SAME_SUBJECT_SCORE
        return score if differs and is_same else 0.0

    def _likelihood(self, statement: Statement, new: Subject, entry: Entry) -> float:
        """Return how likely a statement changes an older one, 0 where they belong apart."""
        old, older = entry.subject, entry.statement
        if old is None or older.kind not in _REPLACEABLE or entry.in_first:
            return 0.0
        if statement.author is not older.author or is_question(statement.text):
            return 0.0
        if older.kind in _INSTRUCTIONS and statement.kind not in _INSTRUCTIONS:
            return 0.0
        if len(older.text) > MAX_EARLIER_CHARS or len(older.earlier) >= MAX_EARLIER:
            return 0.0
        has_other_value = new.exact - old.exact and old.exact - new.exact
        if statement.author is not Author.USER and not has_other_value:
            return 0.0
        shared = frozenset(stem for stem in new.all & old.all if not _is_small_number(stem))
        if not any(map(self._is_rare, shared)) or not new.all - old.all:
            return 0.0
        least = min(self._weight(new.all), self._weight(old.all))
        score = self._weight(shared) / (least or 1.0)
        frame = 1 if len(new.topic) == len(old.topic) == 2 else 2
        shares_topic = len(new.topic & old.topic) >= frame
        differs = new.topic - old.all and old.topic - new.all
        if shares_topic and differs and not self._names_value(new, old):
            return 0.0  # two subjects in the same words
        if new.updates:
            return score if score >= LINK_SCORE else 0.0
        have_values = new.exact and old.exact
        return score if score >= (VALUE_LINK_SCORE if have_values else TOPIC_LINK_SCORE) else 0.0

    def _names_value(self, new: Subject, old: Subject) -> bool:
        """Whether a statement names the value of an older one, as in `from 30 to 45`."""
        shared = old.exact & new.exact
        return any(self._is_rare(stem) and len(stem) >= MIN_VALUE_CHARS for stem in shared)

    def _weight(self, stems: frozenset[str]) -> float:
        total = len(self.entries) + 1
        return sum(math.log(1 + total / (1 + len(self._by_stem.get(stem, ())))) for stem in stems)

    def _is_rare(self, stem: str) -> bool:
        return len(self._by_stem.get(stem, ())) <= max(2, len(self.entries) // 50)


def _is_small_number(stem: str) -> bool:
    return stem[0].isdigit() and len(stem) < MIN_VALUE_CHARS
