"""The checklist of a summary by a model: statements that it must not lose.

1. Standing instructions and constraints of users are `kept`: they are put above the model's text
   word for word, whatever it answers. They take at most half of the summary; of more the newest
   stay, standing instructions first. [summary.checklist]
2. A line of the answer that repeats one of them is left out, so that each is there once.
3. The next summary reads them back from the sections of the one before. What a model writes below
   the same headings is not taken for them.
4. The model is sent other statements as well, as far as the text that it is sent lacks them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.compaction.summaries.statements.ledger import StatementLedger
from app.domain.compaction.summaries.statements.statement import Author, Kind, Statement
from app.domain.compaction.summaries.statements.summary_text import (
    HEADING,
    LEFT_OUT,
    NOTHING,
    read_into,
    section_lines,
)
from app.domain.compaction.summaries.statements.words import WORD
from app.domain.models.tokens import CountText

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


NO_CHECKLIST = Checklist()


# --- choosing -------------------------------------------------------------------------------


def kept_statements(
    ledger: StatementLedger, max_tokens: int, count: CountText
) -> tuple[Statement, ...]:
    """Return the standing instructions and constraints of users that fit (rule 1)."""
    found = [
        Statement(entry.statement.kind, entry.statement.text.strip())
        for entry in ledger.entries()
        if entry.statement.kind in _KEPT_KINDS and entry.statement.author is Author.USER
    ]
    chosen: list[int] = []
    remaining = int(max_tokens * KEPT_SHARE)
    for kind in _KEPT_KINDS:
        is_headed = False
        for place in reversed(range(len(found))):
            statement = found[place]
            if statement.kind is not kind or not statement.text:
                continue
            cost = count(_item(statement)) + 1
            cost += 0 if is_headed else count(_heading(kind)) + 2
            if cost <= remaining:
                chosen.append(place)
                remaining -= cost
                is_headed = True
    return tuple(sorted((found[place] for place in sorted(chosen)), key=_kind_order))


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
    own = _own_words(answer, kept)
    text = _joined(kept, own, closing)
    while max_tokens is not None and own and (tokens := count(text)) > max_tokens:
        lines = own.split("\n")
        excess = len(lines) * (tokens - max_tokens) // tokens
        own = "\n".join(lines[: min(len(lines) - 1, len(lines) - excess)]).rstrip()
        text = _joined(kept, own, closing)
    return text


def _joined(kept: Sequence[Statement], own: str, closing: str) -> str:
    return "\n\n".join(filter(None, (kept_text(kept), own, closing)))


def kept_text(kept: Sequence[Statement]) -> str:
    """Return the sections of the kept statements."""
    sections = []
    for kind in _KEPT_KINDS:
        items = [_item(statement) for statement in kept if statement.kind is kind]
        if items:
            sections.append("\n".join((_heading(kind), *items)))
    return "\n\n".join(sections)


def split_kept(text: str) -> tuple[list[Statement], str]:
    """Return the kept statements of summaries that a model wrote, and the other text (rule 3)."""
    kept: list[Statement] = []
    other: list[str] = []
    kind: Kind | None = None
    item: list[str] = []
    for line in (*text.split("\n"), ""):
        if item and line.startswith("  "):
            item.append(line[2:])
            continue
        if item and kind is not None:
            kept.append(Statement(kind, "\n".join(item)))
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
    """Take up an earlier summary, or several, whoever wrote them."""
    kept, other = split_kept(text)
    if not kept:
        read_into(ledger, text, replaces=replaces)
        return
    for statement in kept:
        ledger.add_earlier(statement.kind, statement.text, Author.USER, 1, replaces=replaces)
    if other:
        read_into(ledger, other, replaces=replaces)


def read_kept(ledger: StatementLedger, text: str) -> None:
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
    for statement in kept:
        ledger.add_earlier(statement.kind, statement.text, Author.USER, statement.mentions)


def _own_words(answer: str, kept: Sequence[Statement]) -> str:
    """Return what an answer has besides the kept statements (rules 2 and 3)."""
    repeated = {_words(statement.text) for statement in kept}
    lines: list[str] = []
    heading: int | None = None
    was_removed = False
    for line in (*answer.split("\n"), "#"):
        if line.startswith("#"):
            if heading is not None and was_removed and not any(lines[heading + 1 :]):
                del lines[heading:]
            heading, was_removed = len(lines), False
        elif _words(_LIST_MARK.sub("", line)) in repeated:
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


def _words(text: str) -> str:
    words = "\0".join(match[0].lower() for match in WORD.finditer(text))
    return words or text.strip()


def _heading(kind: Kind) -> str:
    return f"## {kind.value}{WORD_FOR_WORD}"


def _item(statement: Statement) -> str:
    return f"- {statement.text}".replace("\n", "\n  ")


def _kind_order(statement: Statement) -> int:
    return _KEPT_KINDS.index(statement.kind)
