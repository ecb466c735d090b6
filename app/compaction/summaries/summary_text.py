"""A summary as text: its headings, how an item below each is written, and how it is read back.

1. Below a heading stand items `- …`; further lines of an item are indented.
2. An item of a message is `#number text`, one of a call or a command `name → outcome`.
3. Statements with one label stand below it, names of files on one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from app.compaction.summaries.sentences import label_of

TITLE = "Extract of messages."
WRITTEN = "## Written by the summariser, not by the user"
"""What stands above a model's text, below what users said."""
NOTHING = "Nothing is listed of the earlier messages."
MORE = "More: "
"""How the last line of a summary begins, which says where the rest is."""
GAVE = " → "
ASKED = "\n(asked: "
"""What stands between an answer of a user and its question."""
CHANGED, CHANGED_NOTE = " *", " (* changed)"
"""The mark of a statement that replaced another one, and what its heading says of it."""


class Heading(StrEnum):
    """The headings of a summary, in its order."""

    STATED = "Stated by the user"
    REQUESTS = "Requests"
    EARLIER = "Earlier summary"
    TODO = "Todo list"
    OPEN = "Open calls"
    FAILED = "Failed last"
    COMMANDS = "Commands"
    LOOKED = "Looked up, as of then"
    DONE = "Calls"
    EDITED = "Files edited"
    READ = "Files read"
    REFERENCES = "Stored output"
    STEPS = "Steps"
    SAID = "Where it stood"
    VALUES = "Values"


ON_ONE_LINE = frozenset({Heading.EDITED, Heading.READ})
_BY_HEADING = {f"## {heading.value}": heading for heading in Heading}


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
        where = f"messages {self.first_seq} to {self.last_seq}" if self.last_seq else "all messages"
        if self.names_recall:
            return f"{MORE}`recall`, {where}."
        return f"{MORE}receipt, {where}." if self.last_seq else ""


NO_CLOSING = Closing()


def line_of(item: str) -> str:
    """Return an item as it stands in a summary."""
    return "- " + item.replace("\n", "\n  ")


def text_under(heading: Heading, items: Iterable[str]) -> str:
    """Return a heading with the items below it."""
    items, note = list(items), ""
    if heading in ON_ONE_LINE:
        items = [", ".join(items)]
    elif heading is Heading.STATED:
        note = CHANGED_NOTE if any(item.endswith(CHANGED) for item in items) else ""
        items = _by_label(items)
    return "\n".join((f"## {heading.value}{note}", *map(line_of, items)))


def _by_label(statements: Iterable[str]) -> list[str]:
    groups: dict[tuple[str, str], list[str]] = {}
    for text in statements:
        label = label_of(text)
        lines = groups.setdefault((label, "" if label else text), [])
        lines.append(text.removeprefix(label).strip())
    return [
        "\n".join((label, *lines)) if len(lines) > 1 else f"{label} {lines[0]}".strip()
        for (label, _), lines in groups.items()
    ]


def items_of(text: str) -> Iterator[tuple[Heading | None, str]]:
    """Yield the items of summaries with their headings, and other text without one."""
    heading: Heading | None = None
    item, other = list[str](), list[str]()
    is_ours = False
    for line in (*text.split("\n"), TITLE):
        if is_ours and item and line.startswith("  "):
            item.append(line[2:])
            continue
        if item and heading is not None:
            label, *rest = item
            is_group = heading in (Heading.STATED, Heading.VALUES)
            whole = "\n".join(item)
            for each in [f"{label} {each}" for each in rest] if is_group and rest else [whole]:
                yield heading, each
        item = []
        if line.endswith(TITLE) and not line.startswith("- "):
            if any(part.strip() for part in other):
                yield None, "\n".join(other).strip()
            other, is_ours, heading = [], True, None
        elif is_ours and (found := _BY_HEADING.get(line.removesuffix(CHANGED_NOTE))):
            heading = found
        elif is_ours and line.startswith("- "):
            item = [line[2:]]
        elif line.startswith((MORE, WRITTEN)):
            is_ours = False
        elif (line or not is_ours) and line != NOTHING:
            is_ours = False
            other.append(line)
