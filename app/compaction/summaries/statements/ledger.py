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

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from app.compaction.summaries.statements.classification import classify_assistant, classify_user
from app.compaction.summaries.statements.entry_index import (
    MAX_EARLIER,
    Entry,
    EntryIndex,
    entry_of,
    key_of,
)
from app.compaction.summaries.statements.noise import is_output, is_resumption, without_noise
from app.compaction.summaries.statements.statement import STATE_KINDS, Author, Kind, Statement
from app.compaction.summaries.statements.work_state import WorkState
from app.formats.message import File, Message, Role, Text

MAX_ENTRIES = 6000
"""Of more statements the oldest remarks are dropped."""
MAX_REPLACED = 60
MAX_FIRST_CHARS = 12_000

_MARKS = re.compile(r"^(?:assistant: |\(earlier\) )+|(?: \(\u00d7\d{1,6}\))+$")
"""What a summary adds to a statement: a message that has it cannot pass for another statement."""
_PRECEDENCE = {kind: place for place, kind in enumerate(Kind)}
_INHERITED = frozenset({Kind.STANDING, Kind.CONSTRAINT, Kind.PREFERENCE, Kind.GOAL, Kind.FACT})


_EARLIER = " (earlier: "


def shown_with_earlier(text: str, earlier: Sequence[str]) -> str:
    """Return a statement with the older ones that it may change."""
    return text + "".join(f"{_EARLIER}{older})" for older in earlier)


def split_earlier(item: str) -> tuple[str, tuple[str, ...]]:
    """Return a line without the older statements that are shown with it, and those."""
    earlier: list[str] = []
    while "\n" not in item and item.endswith(")") and (at := item.rfind(_EARLIER)) > 0:
        earlier.insert(0, item[at + len(_EARLIER) : -1])
        item = item[:at]
    return item, tuple(earlier)


@dataclass(slots=True)
class StatementLedger:
    """The statements of a conversation so far, in the order of their last mention."""

    first_request: str | None = None
    state: WorkState = field(default_factory=WorkState)
    superseded: Counter[Kind] = field(default_factory=Counter)
    forgotten: Counter[Kind] = field(default_factory=Counter)
    _index: EntryIndex = field(default_factory=EntryIndex)
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
                is_own = message.role is Role.ASSISTANT
                for statement in classify_assistant(text) if is_own else classify_user(text):
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
        """Remove what a message that stays shown replaces, and mark what it may change.

        The message is not collected itself.
        """
        if message.role is not Role.USER:
            return
        for part in message.parts:
            if isinstance(part, Text) and part.text:
                for statement in classify_user(without_noise(part.text)):
                    entry = entry_of(statement)
                    self._replace_older(entry)
                    changed = self._index.likely_changed_by(entry)
                    if changed in self._index.entries and changed != key_of(statement.text):
                        self._index.entries[changed].mark_earlier()

    def add_earlier(
        self,
        kind: Kind,
        text: str,
        author: Author,
        mentions: int,
        earlier: tuple[str, ...] = (),
        *,
        is_earlier: bool = False,
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
            statement = Statement(
                kind, text, author, mentions, earlier=earlier, is_earlier=is_earlier
            )
            self.add(statement, replaces=replaces)

    # --- one by one -----------------------------------------------------------------------

    def add(self, statement: Statement, *, in_first: bool = False, replaces: bool = True) -> None:
        """Add a statement: to the same one, in the place of an older one, or as a new one."""
        text, earlier = split_earlier(statement.text)
        text = _MARKS.sub("", text)
        key = key_of(text)
        if not key:
            return
        if text != statement.text:
            statement = replace(statement, text=text)
        statement = self._with_earlier(statement, earlier)
        known = self._index.entries.get(key)
        if known is not None:
            self._index.remove(key)
            statement = self._with_earlier(
                _merged(known.statement, statement, repeats=replaces), known.statement.earlier
            )
            in_first = in_first and known.in_first
        if known is not None and known.subject is not None:
            entry = replace(known, statement=statement, in_first=in_first)
        else:
            entry = entry_of(statement, in_first=in_first)
        if replaces:
            self._replace_older(entry)
            self._link(entry)
        self._index.insert(key, entry)
        if len(self._index.entries) > MAX_ENTRIES:
            self._forget()

    def _forget(self) -> None:
        """Drop the oldest of the least important statements."""
        oldest = max(
            list(self._index.entries)[: MAX_ENTRIES // 4],
            key=lambda key: _PRECEDENCE[self._index.entries[key].statement.kind],
        )
        self.forgotten[self._index.remove(oldest).statement.kind] += 1

    # --- replacement ----------------------------------------------------------------------

    def _replace_older(self, entry: Entry) -> None:
        """Remove what a statement replaces; it gets the section of that."""
        for replaced in self._index.replaced_by(entry):
            old, statement = replaced.statement, entry.statement
            self.superseded[old.kind] += 1
            self._note_replaced(old.text)
            if old.kind in _INHERITED and _PRECEDENCE[old.kind] < _PRECEDENCE[statement.kind]:
                statement = replace(statement, kind=old.kind)
            entry.statement = self._with_earlier(statement, old.earlier)

    def _link(self, entry: Entry) -> None:
        """Take up the older statement that this one most likely changes, to be shown with it."""
        changed = self._index.likely_changed_by(entry)
        if changed is None:
            return
        old, statement = self._index.remove(changed).statement, entry.statement
        kind = min(old.kind, statement.kind, key=lambda kind: _PRECEDENCE[kind])
        statement = replace(statement, kind=kind)
        entry.statement = self._with_earlier(statement, (old.text, *old.earlier))

    def _with_earlier(self, statement: Statement, texts: Sequence[str]) -> Statement:
        """Return a statement with older ones beside it; of more than fit the oldest are history."""
        if not texts and not statement.earlier:
            return statement
        found = [
            text for text in dict.fromkeys((*statement.earlier, *texts)) if text != statement.text
        ]
        for text in found[MAX_EARLIER:]:
            self.superseded[statement.kind] += 1
            self._note_replaced(text)
        return replace(statement, earlier=tuple(found[:MAX_EARLIER]))

    def _note_replaced(self, text: str) -> None:
        self._replaced.pop(text, None)
        self._replaced[text] = None
        if len(self._replaced) > MAX_REPLACED:
            del self._replaced[next(iter(self._replaced))]

    def keep_only(self, held: StatementLedger) -> int:
        """Remove the statements that another ledger does not hold; return how many changed.

        Those that it shows with newer ones are marked.
        """
        entries = held._index.entries
        earlier = {
            key_of(text) for entry in entries.values() for text in entry.statement.earlier
        } - entries.keys()
        earlier.update(key for key, entry in entries.items() if entry.statement.is_earlier)
        changed = 0
        for key, entry in list(self._index.entries.items()):
            if key in earlier:
                changed += not entry.statement.is_earlier
                entry.mark_earlier()
            elif key not in entries:
                self._index.remove(key)
                changed += 1
        return changed

    # --- results --------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """Return what holds, oldest mention first: what was stated, then the state of the work."""
        found = list(self._index.entries.values())
        found += (
            Entry(statement)
            for statement in self.state.statements()
            if statement.kind in STATE_KINDS or key_of(statement.text) not in self._index.entries
        )
        found += (Entry(Statement(Kind.REPLACED, text)) for text in self._replaced)
        return found


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
        is_earlier=new.is_earlier if repeats else old.is_earlier or new.is_earlier,
    )
