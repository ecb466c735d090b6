"""The checklist of a summary by a model: statements that it must not lose.

1. Standing instructions and constraints of users are `kept`: they are put above the model's text
   word for word, whatever it answers. They take at most half of the summary, in a tree half of all
   summaries; of more the newest stay, standing instructions first. [summary.checklist]
2. A line of the answer that repeats one of them is left out, so that each is there once.
3. The next summary reads them back from the sections of the one before. What a model writes below
   the same headings is not taken for them.
4. The model is sent other statements as well, as far as the text that it is sent lacks them.
5. What a newer summary of a tree replaces is left out of the older ones, and what it may change is
   marked there. Items about the work are not compared.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace

from app.compaction.summaries.statements.entry_index import key_of
from app.compaction.summaries.statements.ledger import StatementLedger
from app.compaction.summaries.statements.statement import Author, Kind, Statement
from app.compaction.summaries.statements.summary_text import (
    EARLIER_MARK,
    HEADING,
    LEFT_OUT,
    NOTHING,
    closing_of,
    read_into,
    section_lines,
)
from app.formats.message import Message
from app.models.tokens import CountText

KEPT_SHARE = 0.5
"""The share of a summary that kept statements may take."""
WORD_FOR_WORD = ", word for word"
_KEPT_KINDS = (Kind.STANDING, Kind.CONSTRAINT)
_KEPT_HEADINGS = {f"## {kind.value}{WORD_FOR_WORD}": kind for kind in _KEPT_KINDS}
_OTHER_KINDS = (
    *(Kind.TODO, Kind.PREFERENCE, Kind.GOAL, Kind.FACT, Kind.DECISION, Kind.OPEN),
    *(Kind.ERROR, Kind.CHECK, Kind.EDITED, Kind.REPLACED),
)
"""In the order in which they take the room."""
MAX_OTHERS = 200
_COMPARED_HEADINGS = {
    "decisions": Kind.DECISION,
    "requests": None,
    "state of the work": None,
    "files": None,
    "errors and fixes": None,
    "evidence": None,
    "next step": None,
    "left out": None,
}
"""What the items below the headings of the built-in prompt are; None for those not compared."""
_LIST_MARK = re.compile(r"^\s*(?:[-*\u2022]|\d+[.)])\s+")
_LINE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Checklist:
    """Statements that a summary must not lose; `others` is the text of those not kept."""

    kept: tuple[Statement, ...] = ()
    others: str = ""

    @property
    def text(self) -> str:
        """What a model is sent of it, its tags not yet escaped."""
        return "\n\n".join(filter(None, (kept_text(self.kept), self.others)))


# --- choosing -------------------------------------------------------------------------------


def kept_statements(
    ledger: StatementLedger, max_tokens: int, count: CountText
) -> tuple[Statement, ...]:
    """Return the standing instructions and constraints of users within `max_tokens` (rule 1)."""
    found: list[Statement] = []
    for statement in (entry.statement for entry in ledger.entries()):
        if statement.kind in _KEPT_KINDS and statement.author is Author.USER:
            texts = [*((text, True) for text in reversed(statement.earlier))]
            texts.append((statement.text, statement.is_earlier))
            found += (Statement(statement.kind, text.strip(), is_earlier=e) for text, e in texts)
    chosen: list[int] = []
    remaining = max_tokens
    newest = sorted(range(len(found)), key=lambda place: (found[place].is_earlier, -place))
    for kind in _KEPT_KINDS:
        is_headed = False
        for place in newest:
            statement = found[place]
            if statement.kind is not kind or not statement.text:
                continue
            cost = count(_item(statement)) + 1
            cost += 0 if is_headed else count(_heading(kind)) + 2
            if cost <= remaining:
                chosen.append(place)
                remaining -= cost
                is_headed = True
    kept = [found[place] for place in sorted(chosen)]
    return tuple(item for kind in _KEPT_KINDS for item in kept if item.kind is kind)


def other_statements(ledger: StatementLedger, sent: str, max_tokens: int, count: CountText) -> str:
    """Return the other statements within `max_tokens`, those that the text `sent` lacks (rule 4).

    The newest come first where not all of a section fit.
    """
    sent = _LINE.sub(" ", sent)
    by_kind: dict[Kind, list[Statement]] = defaultdict(list)
    for entry in reversed(ledger.entries()):
        by_kind[entry.statement.kind].append(entry.statement)
    sections: dict[Kind, str] = {}
    remaining = max_tokens
    for kind in _OTHER_KINDS:
        lacking = [
            statement
            for statement in by_kind[kind][:MAX_OTHERS]
            if kind is Kind.REPLACED or _LINE.sub(" ", statement.text) not in sent
        ]
        while lacking:
            text = section_lines(kind, lacking[::-1], ledger.state.root)
            tokens = count(text) + 2
            if tokens <= remaining:
                sections[kind] = text
                remaining -= tokens
                break
            lacking = lacking[: len(lacking) * remaining // (tokens + 1)]
    return "\n\n".join(sections[kind] for kind in Kind if kind in sections)


# --- the text of a summary ------------------------------------------------------------------


def with_kept(
    answer: str,
    kept: Sequence[Statement],
    closing: str,
    max_tokens: int | None = None,
    count: CountText = len,
) -> str:
    """Return the text of a summary: the kept statements, what a model wrote, and the last line.

    Of an answer that is too long for `max_tokens` beside them, the last lines are left out.
    """
    own = without_items(answer, {key_of(statement.text) for statement in kept})
    text = _joined(kept, own, closing)
    while max_tokens is not None and own and (tokens := count(text)) > max_tokens:
        lines = own.split("\n")
        excess = len(lines) * (tokens - max_tokens) // tokens
        own = "\n".join(lines[: min(len(lines) - 1, len(lines) - excess)]).rstrip()
        text = _joined(kept, own, closing)
    return text


def kept_tokens_of(texts: Sequence[str], count: CountText) -> int:
    """Return the tokens of the kept statements of summaries."""
    return sum(count(kept_text(split_kept(text)[0])) for text in texts)


def _joined(kept: Sequence[Statement], own: str, closing: str) -> str:
    return "\n\n".join(filter(None, (kept_text(kept), own, closing)))


def kept_text(kept: Sequence[Statement]) -> str:
    """Return the sections of the kept statements."""
    by_kind = {kind: [_item(it) for it in kept if it.kind is kind] for kind in _KEPT_KINDS}
    sections = ((_heading(kind), *items) for kind, items in by_kind.items() if items)
    return "\n\n".join(map("\n".join, sections))


def split_kept(summaries: str) -> tuple[list[Statement], str]:
    """Return the kept statements of summaries that a model wrote, and the other text (rule 3)."""
    kept: list[Statement] = []
    other: list[str] = []
    kind: Kind | None = None
    item: list[str] = []
    for line in (*summaries.split("\n"), ""):
        if item and line.startswith("  "):
            item.append(line[2:])
            continue
        if item and kind is not None:
            text = "\n".join(item)
            is_earlier = text.startswith(EARLIER_MARK)
            text = text.removeprefix(EARLIER_MARK)
            kept.append(Statement(kind, text, is_earlier=is_earlier))
        item = []
        if line in _KEPT_HEADINGS:
            kind = _KEPT_HEADINGS[line]
        elif kind is not None and line.startswith("- "):
            item = [line[2:]]
        else:
            kind = None
            if not line.startswith(LEFT_OUT):
                other.append(line)
    return kept, "\n".join(other).strip()


def read_summary(ledger: StatementLedger, text: str, *, replaces: bool = False) -> None:
    """Take up an earlier summary, or several, by a model or without one."""
    kept, other = split_kept(text)
    _add_kept(ledger, kept, replaces)
    is_extract = HEADING in text and not kept
    read_into(ledger, text if is_extract else other, replaces=replaces)


def read_kept(ledger: StatementLedger, text: str, *, replaces: bool = False) -> None:
    """Take up the standing instructions and constraints of an earlier summary, or of several."""
    kept, other = split_kept(text)
    if HEADING in other:
        extracted = StatementLedger()
        read_into(extracted, other)
        kept += (
            entry.statement
            for entry in extracted.entries()
            if entry.statement.kind in _KEPT_KINDS and entry.statement.author is Author.USER
        )
    _add_kept(ledger, kept, replaces)


def _add_kept(ledger: StatementLedger, kept: Sequence[Statement], replaces: bool) -> None:
    for statement in kept:
        ledger.add_earlier(
            statement.kind,
            statement.text,
            Author.USER,
            statement.mentions,
            statement.earlier,
            is_earlier=statement.is_earlier,
            replaces=replaces,
        )


def _items(text: str) -> Iterator[tuple[Kind, str]]:
    """Yield the items that are compared of a text that a model wrote."""
    if HEADING in text:
        return
    kind: Kind | None = Kind.FACT
    for line in text.split("\n"):
        if line.startswith("#"):
            kind = _COMPARED_HEADINGS.get(line.strip("# :").lower(), Kind.FACT)
        elif kind is not None and _LIST_MARK.match(line):
            item = _LIST_MARK.sub("", line).strip()
            if not item.startswith(EARLIER_MARK):
                yield kind, item


def replaced_items(ledger: StatementLedger) -> frozenset[str]:
    """Return the words of the statements that newer ones replace."""
    replaced: set[str] = set()
    current: set[str] = set()
    for entry in ledger.entries():
        is_replaced = entry.statement.kind is Kind.REPLACED
        (replaced if is_replaced else current).add(key_of(entry.statement.text))
    return frozenset(replaced - current)


def newest_ledger(texts: Sequence[str], shown: Sequence[Message] = ()) -> StatementLedger:
    """Return what summaries state, oldest first, and what later ones and messages replace.

    Items that a model wrote count as the assistant's: they replace no statement of a user.
    """
    ledger = StatementLedger()
    for place, text in enumerate(texts):
        read_kept(ledger, text, replaces=place > 0)
        for kind, item in _items(split_kept(text)[1]):
            ledger.add_earlier(kind, item, Author.ASSISTANT, 1, replaces=place > 0)
    for message in shown:
        ledger.replace_by(message)
    return ledger


def without_replaced_items(texts: Sequence[str], shown: Sequence[Message] = ()) -> list[str]:
    """Return summaries, oldest first, without what a later one or a message replaces (rule 5).

    What one of these may change is marked. A summary without such an item, or that was made without
    a model, is returned as it is.
    """
    ledger = newest_ledger(texts, shown)
    replaced, earlier = replaced_items(ledger), _earlier_items(ledger)
    return [_without(text, replaced, earlier) for text in texts]


def _earlier_items(ledger: StatementLedger) -> frozenset[str]:
    """Return the words of the statements that newer ones may change."""
    earlier: set[str] = set()
    current: set[str] = set()
    for statement in (entry.statement for entry in ledger.entries()):
        earlier.update(map(key_of, statement.earlier))
        (earlier if statement.is_earlier else current).add(key_of(statement.text))
    return frozenset(earlier - current)


def _without(text: str, replaced: Set[str], earlier: Set[str]) -> str:
    if HEADING in text:
        return text
    kept, other = split_kept(text)
    left = [
        replace(item, is_earlier=item.is_earlier or key_of(item.text) in earlier)
        for item in kept
        if key_of(item.text) not in replaced
    ]
    own = "\n".join(
        _marked_earlier(line, earlier) for line in without_items(other, replaced).split("\n")
    )
    if left == kept and own == other:
        return text
    return _joined(left, own, closing_of(text).text)


def _marked_earlier(line: str, earlier: Set[str]) -> str:
    mark = _LIST_MARK.match(line)
    if mark is None or key_of(line[mark.end() :]) not in earlier:
        return line
    return f"{line[: mark.end()]}{EARLIER_MARK}{line[mark.end() :]}"


def without_items(answer: str, words: Set[str]) -> str:
    """Return a text of a model without the items of these words (rules 2, 3 and 5)."""
    lines: list[str] = []
    heading: int | None = None
    was_removed = False
    for line in (*answer.split("\n"), "#"):
        if line.startswith("#"):
            if heading is not None and was_removed and not any(lines[heading + 1 :]):
                del lines[heading:]
            heading, was_removed = len(lines), False
        elif key_of(_LIST_MARK.sub("", line)) in words:
            was_removed = True
            continue
        lines.append(_unmarked(line))
    return "\n".join(lines[:-1]).strip()


def _unmarked(line: str) -> str:
    """Return a line that cannot be taken for one that the service adds to summaries."""
    if line in (HEADING, NOTHING):
        return ""
    if line in _KEPT_HEADINGS:
        return line.removesuffix(WORD_FOR_WORD)
    return f" {line}" if line.startswith(LEFT_OUT) else line


def _heading(kind: Kind) -> str:
    return f"## {kind.value}{WORD_FOR_WORD}"


def _item(statement: Statement) -> str:
    mark = EARLIER_MARK if statement.is_earlier else ""
    return f"- {mark}{statement.text}".replace("\n", "\n  ")
