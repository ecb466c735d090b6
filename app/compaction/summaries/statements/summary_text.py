"""The text of a summary without a model: sections of statements, which can be read back."""

# ruff: noqa: RUF001 - characters of several scripts are meant

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from app.compaction.summaries.statements.ledger import (
    StatementLedger,
    shown_with_earlier,
    split_earlier,
)
from app.compaction.summaries.statements.segments import Form, segments
from app.compaction.summaries.statements.statement import STATE_KINDS, Author, Kind, Statement

HEADING = "Summary of earlier messages, picked out without a model."
LEFT_OUT = "Not all is listed: "
"""How the last line of a summary begins, which says where the rest is."""
NOTHING = "Nothing is listed of the earlier messages."
MAX_QUOTED_CHARS = 1200

_MENTIONS = re.compile(r" \(×([2-9]|[1-9]\d{1,5})\)$")
_CLOSING = re.compile(
    rf"^{LEFT_OUT}(`recall` searches|the receipt of) messages (\d+) to (\d+)", re.MULTILINE
)
_BY_ASSISTANT = "assistant: "
EARLIER_MARK = "(earlier) "
"""Before a statement that something newer, shown elsewhere, may change."""
_KINDS = {kind.value: kind for kind in Kind}
_PATH_KINDS = (Kind.EDITED, Kind.READ)


@dataclass(frozen=True, slots=True)
class Closing:
    """What the last line of a summary says: which messages it stands for, and how to find them.

    `first_seq` and `last_seq` are 0 where the messages have none, as in a stateless call.
    """

    first_seq: int = 0
    last_seq: int = 0
    names_recall: bool = False

    @property
    def text(self) -> str:
        """The line."""
        messages = (
            f"messages {self.first_seq} to {self.last_seq}" if self.last_seq else "the messages"
        )
        if self.names_recall:
            stored = ", which their receipt has in full" if self.last_seq else ""
            return f"{LEFT_OUT}`recall` searches {messages}{stored}."
        return f"{LEFT_OUT}the receipt of {messages} has them in full." if self.last_seq else ""


NO_CLOSING = Closing()


def closing_of(text: str) -> Closing:
    """Return the closing line of a summary."""
    found = _CLOSING.search(text)
    if found is None:
        return Closing(names_recall=f"{LEFT_OUT}`recall`" in text)
    return Closing(int(found[2]), int(found[3]), names_recall=found[1] == "`recall` searches")


def section_lines(kind: Kind, statements: Sequence[Statement], root: str | None) -> str:
    """Return a section with its heading."""
    lines: Iterable[str] = map(statement_line, statements)
    if kind in _PATH_KINDS:
        paths = f"- {', '.join(statement.text for statement in statements)}"
        lines = (f"- in {root}", paths) if root is not None else (paths,)
    return "\n".join((f"## {kind.value}", *lines))


def statement_line(statement: Statement) -> str:
    """Return a statement as an item of a list; further lines are indented."""
    text = statement.text.replace("\n", "\n  ")
    author = _BY_ASSISTANT if statement.author is Author.ASSISTANT else ""
    # After a block of several lines it could be part of the block.
    is_counted = statement.mentions > 1 and "\n" not in text
    mentions = f" (×{statement.mentions})" if is_counted else ""
    mark = EARLIER_MARK if statement.is_earlier else ""
    return shown_with_earlier(f"- {author}{mark}{text}{mentions}", statement.earlier)


def read_into(ledger: StatementLedger, text: str, *, replaces: bool = False) -> None:
    """Take up an earlier summary, or several; what none of ours wrote is quoted.

    With `replaces` its statements may replace those of the ledger.
    """
    for kind, item in _items(text):
        if kind is None:
            _quote(ledger, item)
            continue
        if kind is Kind.FIRST_REQUEST or kind in STATE_KINDS:
            ledger.add_earlier(kind, item, Author.USER, 1, replaces=replaces)
            continue
        is_line = "\n" not in item
        said, earlier = split_earlier(item)
        counted = _MENTIONS.search(said) if is_line else None
        said = said[: counted.start()] if counted else said
        author = Author.ASSISTANT if said.startswith(_BY_ASSISTANT) else Author.USER
        said = said.removeprefix(_BY_ASSISTANT)
        ledger.add_earlier(
            kind,
            said.removeprefix(EARLIER_MARK),
            author,
            int(counted[1]) if counted else 1,
            earlier,
            is_earlier=said.startswith(EARLIER_MARK),
            replaces=replaces,
        )


def _items(text: str) -> Iterator[tuple[Kind | None, str]]:
    """Yield the items of summaries with their kinds, and other text without one."""
    is_ours = False
    kind: Kind | None = None
    item: list[str] = []
    other: list[str] = []
    for line in (*text.split("\n"), HEADING):
        continues = is_ours and item and (line.startswith("  ") or line == "  ")
        if continues:
            item.append(line[2:])
            continue
        if item and kind is not None:
            yield kind, "\n".join(item)
        item = []
        if line in (HEADING, NOTHING):
            if any(part.strip() for part in other):
                yield None, "\n".join(other)
            other, is_ours, kind = [], True, None
        elif not is_ours:
            other.append(line)
        elif line.startswith(LEFT_OUT):
            is_ours = False
        elif line.startswith("## "):
            kind = _KINDS.get(line[3:])
        elif line.startswith("- "):
            item = [line[2:]]
        elif line:  # text of another summary follows without a closing line
            is_ours = False
            other.append(line)


def _quote(ledger: StatementLedger, text: str) -> None:
    """Add the sentences of a summary that a model wrote, or of text kept by its request."""
    for segment in segments(text):
        line = segment.text if segment.form is Form.BLOCK else " ".join(segment.text.split())
        if segment.form is not Form.HEADING and len(line) <= MAX_QUOTED_CHARS:
            ledger.add(Statement(Kind.EARLIER, line))
