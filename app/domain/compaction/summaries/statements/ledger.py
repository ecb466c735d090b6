"""The ledger of statements: collects them, once each, and lets newer ones replace older ones.

1. The same statement in other words of case or punctuation is one, in the most important of its
   sections, and as recent as its last mention.
2. A statement with another value for the same subject replaces the older one if its words say
   that something changes, or if both name the same subject in full. What replaces a standing
   instruction or a constraint takes its place. A question replaces nothing.
3. A statement that only may change an older one takes it up: both are shown in one line.
4. An assistant's statement never replaces a user's.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest

from app.domain.common.messages import File, Message, Role, Text
from app.domain.compaction.summaries.statements.classification import (
    classify_assistant,
    classify_user,
    is_question,
)
from app.domain.compaction.summaries.statements.noise import is_output, is_resumption, without_noise
from app.domain.compaction.summaries.statements.statement import (
    STATE_KINDS,
    Author,
    Kind,
    Statement,
)
from app.domain.compaction.summaries.statements.subjects import Subject, subject_of
from app.domain.compaction.summaries.statements.words import UNSPACED, WORD, read_sentence
from app.domain.compaction.summaries.statements.work.state import WorkState

MAX_ENTRIES = 6000
"""Of more statements the oldest remarks are dropped."""
MAX_CANDIDATES = 40
MAX_REPLACED = 60
MAX_FIRST_CHARS = 12_000
UPDATE_SCORE = 0.5
MIN_VALUE_CHARS = 4
"""Shorter values, such as units, name no particular older statement."""
CONFLICT_SCORE = 0.8
"""What a statement needs that names something beside the subject of the older one."""
SAME_SUBJECT_SCORE = 0.85
OLD_VALUE_BONUS = 0.25
LINK_SCORE = 0.28
"""What a statement whose words say that something changes shares with one that it may change."""
VALUE_LINK_SCORE = 0.34
TOPIC_LINK_SCORE = 0.5
"""The same without such words, where both have a value, and where not."""
MAX_EARLIER = 3
MAX_EARLIER_CHARS = 240

_MARKS = re.compile(r"^(?:assistant: )+|(?: \(\u00d7\d{1,6}\))+$")
"""What a summary adds to a statement: a message that has it cannot pass for another statement."""
_PRECEDENCE = {kind: place for place, kind in enumerate(Kind)}
_COMPARED = frozenset(
    {
        *(Kind.STANDING, Kind.CONSTRAINT, Kind.PREFERENCE, Kind.GOAL, Kind.FACT, Kind.DECISION),
        *(Kind.OPEN, Kind.FINDING, Kind.REMARK, Kind.REQUEST),
    }
)
_REPLACEABLE = _COMPARED - {Kind.FINDING}
_INSTRUCTIONS = frozenset({Kind.STANDING, Kind.CONSTRAINT})
_INHERITED = frozenset({Kind.STANDING, Kind.CONSTRAINT, Kind.PREFERENCE, Kind.GOAL, Kind.FACT})


@dataclass(slots=True)
class Entry:
    """A statement in the ledger; `in_first` is set where the first request has it."""

    statement: Statement
    subject: Subject | None
    in_first: bool = False


@dataclass(slots=True)
class StatementLedger:
    """The statements of a conversation so far, in the order of their last mention."""

    first_request: str | None = None
    state: WorkState = field(default_factory=WorkState)
    superseded: Counter[Kind] = field(default_factory=Counter)
    forgotten: Counter[Kind] = field(default_factory=Counter)
    _entries: dict[str, Entry] = field(default_factory=dict)
    _by_stem: dict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))
    _replaced: dict[str, None] = field(default_factory=dict)
    _opens: bool = False

    def expect_first_request(self) -> None:
        """Take the next request of a user as the first of the conversation."""
        self._opens = self.first_request is None

    def add_message(self, message: Message) -> None:
        """Collect what a message states, and what its calls did."""
        self.state.add(message)
        if message.role is Role.TOOL:
            return
        for part in message.parts:
            text = part.text if isinstance(part, Text | File) else None
            if not text or text.isspace():
                continue
            if message.role is Role.USER:
                if not is_output(text):
                    self._add_user_text(without_noise(text))
            else:
                for statement in classify_assistant(text):
                    self.add(statement)

    def _add_user_text(self, text: str) -> None:
        is_first = False
        if self._opens and text and not is_output(text) and not is_resumption(text):
            self._opens = False
            self.first_request = text[:MAX_FIRST_CHARS]
            is_first = len(text) <= MAX_FIRST_CHARS
        for statement in classify_user(text):
            self.add(statement, in_first=is_first)

    def replace_by(self, message: Message) -> None:
        """Remove what a message that stays shown replaces; it is not collected itself."""
        if message.role is not Role.USER:
            return
        for part in message.parts:
            if isinstance(part, Text) and part.text:
                for statement in classify_user(without_noise(part.text)):
                    if statement.kind in _COMPARED and "\n" not in statement.text:
                        self._replace_older(statement, subject_of(read_sentence(statement.text)))

    def add_earlier(
        self,
        kind: Kind,
        text: str,
        author: Author,
        mentions: int,
        earlier: tuple[str, ...] = (),
        *,
        replaces: bool = False,
    ) -> None:
        """Take up a statement of an earlier summary, as what it was there.

        With `replaces` it may replace statements of a still earlier summary.
        """
        if kind in STATE_KINDS:
            self.state.restore(kind, text)
        elif kind is Kind.FIRST_REQUEST:
            # What had no room in a summary may have more of it than the summary.
            self.first_request = max(self.first_request or "", text, key=len)
            for statement in classify_user(text):
                self.add(statement, in_first=True, replaces=replaces)
        elif kind is Kind.REPLACED:
            self._note_replaced(text)
        else:
            statement = Statement(kind, text, author, mentions, earlier=earlier)
            self.add(statement, replaces=replaces)

    # --- one by one -----------------------------------------------------------------------

    def add(self, statement: Statement, *, in_first: bool = False, replaces: bool = True) -> None:
        """Add a statement: to the same one, in the place of an older one, or as a new one."""
        text = _MARKS.sub("", statement.text)
        key = _key(text)
        if not key:
            return
        statement = replace(statement, text=text)
        known = self._entries.get(key)
        if known is not None:
            self._remove(key)
            statement = self._with_earlier(
                _merged(known.statement, statement, repeats=replaces), known.statement.earlier
            )
            in_first = in_first and known.in_first
        subject = None
        if statement.kind in _COMPARED and "\n" not in statement.text:
            subject = subject_of(read_sentence(statement.text))
            if replaces:
                statement = self._link(self._replace_older(statement, subject), subject)
        self._insert(key, Entry(statement, subject, in_first))
        if len(self._entries) > MAX_ENTRIES:
            self._forget()

    def _insert(self, key: str, entry: Entry) -> None:
        self._entries[key] = entry
        if entry.subject is not None:
            for stem in entry.subject.all:
                self._by_stem[stem][key] = None

    def _remove(self, key: str) -> Entry:
        entry = self._entries.pop(key)
        if entry.subject is not None:
            for stem in entry.subject.all:
                self._by_stem[stem].pop(key, None)
        return entry

    def _forget(self) -> None:
        """Drop the oldest of the least important statements."""
        oldest = max(
            list(self._entries)[: MAX_ENTRIES // 4],
            key=lambda key: _PRECEDENCE[self._entries[key].statement.kind],
        )
        self.forgotten[self._remove(oldest).statement.kind] += 1

    # --- replacement ----------------------------------------------------------------------

    def _replace_older(self, statement: Statement, subject: Subject) -> Statement:
        """Remove what a statement replaces; return it, in the section of what it replaces."""
        if not (subject.updates or subject.exact):
            return statement
        scores = {
            key: score
            for key in self._candidates(subject)
            if (score := self._score(statement, subject, self._entries[key])) > 0
        }
        best = max(scores.values(), default=0.0)
        for key, score in scores.items():
            if score < best - 0.05:
                continue
            old = self._remove(key).statement
            self.superseded[old.kind] += 1
            self._note_replaced(old.text)
            statement = self._with_earlier(statement, old.earlier)
            if old.kind in _INHERITED and _PRECEDENCE[old.kind] < _PRECEDENCE[statement.kind]:
                statement = replace(statement, kind=old.kind)
        return statement

    def _link(self, statement: Statement, subject: Subject) -> Statement:
        """Take up the older statement that this one most likely changes, to be shown with it."""
        if not (subject.updates or subject.exact or statement.is_salient):
            return statement
        scores = {
            key: score
            for key in self._candidates(subject)
            if (score := self._relation(statement, subject, self._entries[key])) > 0
        }
        if not scores:
            return statement
        key = max(scores, key=lambda key: scores[key])
        old = self._remove(key).statement
        kind = min(old.kind, statement.kind, key=lambda kind: _PRECEDENCE[kind])
        return self._with_earlier(replace(statement, kind=kind), (old.text, *old.earlier))

    def _with_earlier(self, statement: Statement, texts: Sequence[str]) -> Statement:
        """Return a statement with older ones beside it; those without room there stand apart."""
        found = [
            text for text in dict.fromkeys((*statement.earlier, *texts)) if text != statement.text
        ]
        for text in found[MAX_EARLIER:]:
            self._enter(Statement(statement.kind, text, statement.author))
        return replace(statement, earlier=tuple(found[:MAX_EARLIER]))

    def _enter(self, statement: Statement) -> None:
        """Add a statement as it is, unless the same one is there."""
        key = _key(statement.text)
        if key in self._entries:
            return
        self._insert(key, Entry(statement, subject_of(read_sentence(statement.text))))

    def _relation(self, statement: Statement, new: Subject, entry: Entry) -> float:
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

    def _note_replaced(self, text: str) -> None:
        self._replaced.pop(text, None)
        self._replaced[text] = None
        if len(self._replaced) > MAX_REPLACED:
            del self._replaced[next(iter(self._replaced))]

    def _candidates(self, subject: Subject) -> list[str]:
        """Return the statements that share a rare word of the subject, the newest of them."""
        shared = [stem for stem in subject.all if self._by_stem.get(stem)]
        found: Counter[str] = Counter()
        for stem in nsmallest(5, shared, key=lambda stem: (len(self._by_stem[stem]), stem)):
            found.update(list(self._by_stem[stem])[-MAX_CANDIDATES:])
        return [key for key, _ in found.most_common(MAX_CANDIDATES)]

    def _score(self, statement: Statement, new: Subject, entry: Entry) -> float:
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

    def _names_value(self, new: Subject, old: Subject) -> bool:
        """Whether a statement names the value of an older one, as in `from 30 to 45`."""
        shared = old.exact & new.exact
        return any(self._is_rare(stem) and len(stem) >= MIN_VALUE_CHARS for stem in shared)

    def _weight(self, stems: frozenset[str]) -> float:
        total = len(self._entries) + 1
        return sum(math.log(1 + total / (1 + len(self._by_stem.get(stem, ())))) for stem in stems)

    def _is_rare(self, stem: str) -> bool:
        return len(self._by_stem.get(stem, ())) <= max(2, len(self._entries) // 50)

    def keep_only(self, held: StatementLedger) -> int:
        """Remove the statements that another ledger does not hold; return how many."""
        keys = set(held._entries)
        keys.update(
            _key(text) for entry in held._entries.values() for text in entry.statement.earlier
        )
        removed = [key for key in self._entries if key not in keys]
        for key in removed:
            self._remove(key)
        return len(removed)

    # --- results --------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """Return what holds, oldest mention first: what was stated, then the state of the work."""
        found = list(self._entries.values())
        found += (
            Entry(statement, None)
            for statement in self.state.statements()
            if statement.kind in STATE_KINDS or _key(statement.text) not in self._entries
        )
        found += (Entry(Statement(Kind.REPLACED, text), None) for text in self._replaced)
        return found


def statements_of(
    messages: Sequence[Message], earlier: Sequence[Statement] = ()
) -> list[Statement]:
    """Return what messages state, oldest mention first, replaced statements left out.

    `earlier` are statements from before the messages.
    """
    ledger = StatementLedger()
    for statement in earlier:
        ledger.add_earlier(statement.kind, statement.text, statement.author, statement.mentions)
    for message in messages:
        ledger.add_message(message)
    return list(_holding(ledger.entries()))


def _holding(entries: Sequence[Entry]) -> Iterator[Statement]:
    for entry in entries:
        if entry.statement.kind is not Kind.REPLACED:
            yield entry.statement


def _is_small_number(stem: str) -> bool:
    return stem[0].isdigit() and len(stem) < MIN_VALUE_CHARS


def _key(text: str) -> str:
    """Return a text without case and punctuation; two statements with the same one are equal."""
    key = "\0".join(match[0].lower() for match in WORD.finditer(text))
    return key or text.strip()


def _merged(old: Statement, new: Statement, *, repeats: bool) -> Statement:
    """Return one statement for two of the same text; with `repeats` the new one counts as well."""
    first, second = sorted((old, new), key=lambda item: _PRECEDENCE[item.kind])
    author = Author.USER if Author.USER in (old.author, new.author) else new.author
    return replace(
        first,
        author=author,
        mentions=old.mentions + new.mentions if repeats else max(old.mentions, new.mentions),
        updates=first.updates or second.updates,
        is_salient=first.is_salient or second.is_salient,
        earlier=new.earlier,
    )
