"""Chooses the statements of a summary: the most important ones that fit a number of tokens."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from app.compaction.summaries.statements.entry_index import Entry
from app.compaction.summaries.statements.ledger import StatementLedger
from app.compaction.summaries.statements.segments import Form, segments
from app.compaction.summaries.statements.statement import AGELESS, Author, Kind, Statement
from app.compaction.summaries.statements.summary_text import (
    HEADING,
    NOTHING,
    Closing,
    section_lines,
    statement_line,
)
from app.conversations.view import SectionCount
from app.models.tokens import CountText

WEIGHTS: dict[Kind, float] = {
    Kind.STANDING: 100,
    Kind.FIRST_REQUEST: 98,
    Kind.CONSTRAINT: 95,
    Kind.TODO: 90,
    Kind.PREFERENCE: 85,
    Kind.GOAL: 82,
    Kind.FACT: 78,
    Kind.DECISION: 72,
    Kind.OPEN: 66,
    Kind.EARLIER: 64,
    Kind.ERROR: 58,
    Kind.EDITED: 56,
    Kind.CHECK: 54,
    Kind.REQUEST: 52,
    Kind.FINDING: 40,
    Kind.REMARK: 34,
    Kind.REFERENCE: 28,
    Kind.READ: 22,
    Kind.CALL: 16,
    Kind.REPLACED: 10,
}
RETAINED = frozenset({Kind.STANDING, Kind.CONSTRAINT, Kind.DECISION, Kind.REFERENCE, Kind.EARLIER})
"""The sections that are kept beside a summary where its policy asks for retained text."""
ASSISTANT_FACTOR = {Kind.FACT: 0.75, Kind.DECISION: 0.9}
USUAL_ASSISTANT_FACTOR = 0.6
DONE_FACTOR = 0.3
EARLIER_FACTOR, KEPT_EARLIER_FACTOR = 0.6, 0.95
"""Of a statement that something newer may change; the second of instructions."""
RECENCY_WEIGHT = 14.0
"""What the newest statement of a section that ages has over its oldest."""
SALIENCE_WEIGHT = 8.0
MENTION_WEIGHT = 3.0
MAX_MENTION_WEIGHT = 9.0
USUAL_TOKENS = 30
LENGTH_POWER = 0.3
MAX_STATEMENTS = {
    (Kind.REMARK, Author.USER): 60,
    (Kind.REMARK, Author.ASSISTANT): 10,
    (Kind.FINDING, Author.ASSISTANT): 40,
    (Kind.DECISION, Author.ASSISTANT): 60,
    (Kind.OPEN, Author.ASSISTANT): 10,
    (Kind.READ, Author.TOOL): 30,
    (Kind.EDITED, Author.TOOL): 80,
    (Kind.REFERENCE, Author.TOOL): 12,
    (Kind.CALL, Author.TOOL): 8,
    (Kind.ERROR, Author.TOOL): 8,
    (Kind.CHECK, Author.TOOL): 8,
    (Kind.REPLACED, Author.USER): 15,
}
"""How many of the newest of some kinds are kept at most, however much room there is."""
FIRST_SHARE = 0.45
"""A first request of up to this share of a summary is in it whole."""
FIRST_CUT_SHARE = 0.3
"""The share that the beginning of a longer one takes."""
MAX_MISSES = 300
REMEMBERED = AGELESS | {Kind.FIRST_REQUEST, Kind.DECISION, Kind.OPEN}
"""Kinds of which the next summary knows what had no room in this one."""
MAX_UNLISTED = 400
MAX_UNLISTED_CHARS = 24_000
_SECTION_TOKENS = 3


@dataclass(frozen=True, slots=True)
class FittedSummary:
    """A summary and what became of the statements of each section.

    `unlisted` has the most important statements without room, in the form of a summary.
    """

    text: str
    sections: tuple[SectionCount, ...] = ()
    unlisted: str = ""


def fit(
    ledger: StatementLedger,
    max_tokens: int,
    count: CountText,
    closing: Closing,
    kinds: AbstractSet[Kind] = frozenset(Kind),
) -> FittedSummary:
    """Return the summary of a ledger within `max_tokens`, of these kinds of statements.

    Where not even its frame fits, that is its closing line, or a line that says that there is more.
    """
    entries = [entry for entry in ledger.entries() if entry.statement.kind in kinds]
    ending = closing.text
    frame = count(HEADING) + count(ending) + 4
    remaining = max_tokens - frame
    chosen = _Choice(remaining, count)
    wants_first = Kind.FIRST_REQUEST in kinds
    first = _first_request(ledger, remaining, count) if wants_first else None
    if first is not None:
        chosen.take(first)
    shown_first = first.text if first is not None else ""
    ranked = sorted(
        _ranked(entries, shown_first if first is not None else "", ledger.first_request),
        key=lambda item: -item[0],
    )
    for _, place, statement in ranked:
        if chosen.misses > MAX_MISSES:
            break
        chosen.try_take(statement, place)
    while True:
        text = _rendered(chosen.shown, ledger.state.root, ending)
        excess = count(text) - max_tokens
        if excess <= 0 or not chosen.drop_last(excess):
            break
    if not chosen.kept:
        text = ending or NOTHING
    counts = tuple(_section_counts(ledger, entries, chosen, kinds))
    return FittedSummary(text, counts, _unlisted(ledger, entries, ranked, chosen, kinds))


def _unlisted(
    ledger: StatementLedger,
    entries: Sequence[Entry],
    ranked: Sequence[tuple[float, int, Statement]],
    chosen: _Choice,
    kinds: AbstractSet[Kind],
) -> str:
    """Return the statements that were not chosen and may have room in a later summary.

    One that was chosen without the older ones beside it is among them, with these.
    """
    kept = dict(chosen.shown)
    texts = {statement.text for statement in kept.values()}
    left: list[tuple[int, Statement]] = []
    if (first := ledger.first_request) and Kind.FIRST_REQUEST in kinds and first not in texts:
        left.append((-1, Statement(Kind.FIRST_REQUEST, first)))
    size = 0
    for place in dict.fromkeys(place for _, place, _ in ranked):
        statement = entries[place].statement
        if kept.get(place) == statement or statement.kind not in REMEMBERED:
            continue
        size += len(statement.text)
        if size > MAX_UNLISTED_CHARS or len(left) >= MAX_UNLISTED:
            break
        left.append((place, statement))
    return _rendered(left, None, "") if left else ""


class _Choice:
    """The statements chosen so far, by place in the ledger; of the same place the last counts."""

    def __init__(self, tokens: int, count: CountText) -> None:
        self.remaining = tokens
        self.misses = 0
        self.kept: list[tuple[int, Statement]] = []
        self._count = count
        self._sections: set[Kind] = set()
        self._alone: set[tuple[int, Statement]] = set()

    @property
    def shown(self) -> list[tuple[int, Statement]]:
        """The statements as they are shown."""
        return list(dict(self.kept).items())

    def take(self, statement: Statement, place: int = -1) -> None:
        """Choose a statement, however many tokens it takes."""
        self.remaining -= self._cost(statement)
        self._sections.add(statement.kind)
        self.kept.append((place, statement))

    def try_take(self, statement: Statement, place: int) -> None:
        """Choose a statement if it fits; one with older ones only if it was chosen alone."""
        alone = replace(statement, earlier=()) if statement.earlier else statement
        if statement.earlier:
            if (place, alone) not in self._alone:
                return
            self.remaining += self._cost(alone)
        if self.remaining <= 0 or self._cost(statement) > self.remaining:
            self.misses += 1
            self.remaining -= self._cost(alone) if statement.earlier else 0
            return
        self.take(statement, place)
        self._alone.add((place, alone))

    def drop_last(self, tokens: int) -> bool:
        """Drop the least important statements that take so many tokens; false without any."""
        if not self.kept:
            return False
        while tokens > 0 and self.kept:
            _, statement = self.kept.pop()
            tokens -= self._count(statement_line(statement)) + 1
        return True

    def _cost(self, statement: Statement) -> int:
        if statement.kind in (Kind.EDITED, Kind.READ):
            cost = self._count(f", {statement.text}")
        else:
            cost = self._count(statement_line(statement)) + 1
        if statement.kind not in self._sections:
            cost += self._count(statement.kind.value) + _SECTION_TOKENS
        return cost


def _ranked(
    entries: Sequence[Entry], shown_first: str, first_request: str | None
) -> Iterator[tuple[float, int, Statement]]:
    """Yield each statement that the first request does not show, with its score and place.

    One with older ones beside it is yielded without and with them.
    """
    is_whole = bool(shown_first) and shown_first == first_request
    totals = Counter(entry.statement.kind for entry in entries)
    left = Counter((entry.statement.kind, entry.statement.author) for entry in entries)
    seen: Counter[Kind] = Counter()
    for place, entry in enumerate(entries):
        statement = entry.statement
        seen[statement.kind] += 1
        group = statement.kind, statement.author
        left[group] -= 1
        if left[group] >= MAX_STATEMENTS.get(group, len(entries)):
            continue
        is_shown = is_whole or (shown_first and statement.text in shown_first)
        if entry.in_first and is_shown and statement.kind is not Kind.STANDING:
            continue
        recency = seen[statement.kind] / totals[statement.kind]
        score = _score(statement, recency)
        yield score, place, replace(statement, earlier=()) if statement.earlier else statement
        if statement.earlier:
            is_kept = statement.kind in (Kind.STANDING, Kind.CONSTRAINT)
            yield score * (KEPT_EARLIER_FACTOR if is_kept else EARLIER_FACTOR), place, statement


def _score(statement: Statement, recency: float) -> float:
    score = WEIGHTS[statement.kind]
    if statement.author is Author.ASSISTANT:
        score *= ASSISTANT_FACTOR.get(statement.kind, USUAL_ASSISTANT_FACTOR)
    if statement.kind is Kind.TODO and statement.text.startswith("[x]"):
        score *= DONE_FACTOR
    if statement.is_earlier:
        score *= EARLIER_FACTOR
    if statement.kind not in AGELESS or statement.author is Author.ASSISTANT:
        score += RECENCY_WEIGHT * recency
    else:
        score += recency  # only decides between equals
    score += SALIENCE_WEIGHT if statement.is_salient else 0.0
    if statement.author is Author.USER:
        score += min(MENTION_WEIGHT * (statement.mentions - 1), MAX_MENTION_WEIGHT)
    tokens = _expected_tokens(statement.text)
    return score * math.pow(USUAL_TOKENS / max(USUAL_TOKENS, tokens), LENGTH_POWER)


def _expected_tokens(text: str) -> float:
    wide = 0 if text.isascii() else sum(character > "\u2e80" for character in text[:400])
    return (len(text) - wide) / 4 + wide * 0.8


def _first_request(ledger: StatementLedger, tokens: int, count: CountText) -> Statement | None:
    """Return the first request, whole if it takes its share at most, else its first sentences."""
    text = ledger.first_request
    if not text or tokens <= 0:
        return None
    statement = Statement(Kind.FIRST_REQUEST, text)
    if count(statement_line(statement)) <= FIRST_SHARE * tokens:
        return statement
    limit, kept = FIRST_CUT_SHARE * tokens, list[str]()
    for segment in segments(text):
        cost = count(segment.text) + 1
        if cost > limit:
            break
        limit -= cost
        kept.append(f"\n{segment.text}\n" if segment.form is Form.BLOCK else segment.text)
    return replace(statement, text=" ".join(kept).strip()) if kept else None


def _rendered(chosen: Sequence[tuple[int, Statement]], root: str | None, ending: str) -> str:
    by_kind: dict[Kind, list[tuple[int, Statement]]] = defaultdict(list)
    for item in chosen:
        by_kind[item[1].kind].append(item)
    parts = [HEADING]
    for kind in Kind:
        if found := by_kind.get(kind):
            statements = [statement for _, statement in sorted(found, key=lambda item: item[0])]
            parts.append(section_lines(kind, statements, root))
    if ending:
        parts.append(ending)
    return "\n\n".join(parts)


def _counted(statements: Iterable[Statement]) -> Counter[Kind]:
    """Count statements by kind, with the older ones that are shown with them."""
    counts: Counter[Kind] = Counter()
    for statement in statements:
        counts[statement.kind] += 1 + len(statement.earlier)
    return counts


def _section_counts(
    ledger: StatementLedger,
    entries: Sequence[Entry],
    chosen: _Choice,
    kinds: AbstractSet[Kind],
) -> Iterator[SectionCount]:
    listed = _counted(entry.statement for entry in entries)
    kept = _counted(statement for _, statement in chosen.shown)
    if ledger.first_request and Kind.FIRST_REQUEST in kinds:
        listed[Kind.FIRST_REQUEST] = 1
    for kind in Kind:
        superseded = ledger.superseded[kind]
        found = listed[kind] + superseded + ledger.forgotten[kind]
        if found and kind in kinds and kind is not Kind.REPLACED:
            dropped = found - superseded - kept[kind]
            yield SectionCount(kind.value, found, kept[kind], superseded, dropped)
