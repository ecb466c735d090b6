"""A summary as data: what a conversation holds that the work needs, in its sections.

1. Messages add to it, an earlier summary is read back into it, and summaries are merged, all by
   the same rules; it becomes text last. [summary.statements]
2. A user's message is a request, unless the assistant only took note of it: then it is statements.
3. Of the assistant the last text of each turn is kept, of the newest turn all texts.
4. The newest statement about a subject replaces older ones where that is sure; an assistant's
   statement never replaces a user's. [summary.superseded]
5. Output that a harness sends as the user's message is the result of the command before it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from app.compaction.summaries import sentences
from app.compaction.summaries.calls import WorkState, lines_of, restore_pair
from app.compaction.summaries.sentences import QUESTION, Statement, is_prose, label_of, statement_of
from app.formats.message import File, Message, Role, Text

HEADING = "Extract of earlier messages."
NOTHING = "Nothing is listed of the earlier messages."
MORE = "More: "
"""How the last line of a summary begins, which says where the rest is."""
MAX_TEXT_CHARS = 12_000
MAX_STATEMENTS, MAX_FROM_MESSAGE = 400, 16
MAX_SAID = 60
MAX_RESTORED = 1_000_000
STEP_CHARS = 160
CUT = "[…]"
"""In the place of what a newer statement replaces."""
MIN_STEMS = 3
EXACT = ("money", "date", "time", "mail", "version", "host")
NOTED_CHARS, MAX_NOTED_CHARS, MAX_WHOLE_CHARS = 90, 450, 240
"""An answer of the assistant without calls that is no longer only takes note."""
SHORT_ANSWER_CHARS = 80
LONG_MESSAGE_CHARS = 2_000
EDGE_CHARS = 800
"""Of longer messages statements are read at the beginning and the end, labelled ones anywhere."""

_NUMBER = re.compile(r"^#(\d{1,12}) ")
ASKED = "\n(asked: "


class Section(StrEnum):
    """The sections of a summary, in its order; the value is the heading."""

    STATED = "Stated by the user"
    REQUESTS = "Requests"
    EARLIER = "Earlier summary"
    TODO = "Todo list"
    OPEN = "Open calls"
    FAILED = "Failed last"
    COMMANDS = "Commands"
    DONE = "Calls"
    EDITED = "Files edited"
    READ = "Files read"
    LOOKED = "Looked up"
    REFERENCES = "Stored output"
    SAID = "Where it stood"
    VALUES = "Values"


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


@dataclass(slots=True)
class Stated:
    """A statement; `request` is the number of the message that has it, 0 where none is listed."""

    text: str
    of: Statement
    by_user: bool = True
    request: int = 0

    @property
    def section(self) -> Section:
        """Where it is listed."""
        return Section.STATED if self.by_user else Section.VALUES


@dataclass(slots=True)
class _Asked:
    """A user's message that the assistant has not answered yet."""

    number: int
    text: str
    is_noted: bool = False


@dataclass(slots=True)
class Digest:
    """What a conversation holds so far.

    `requests` and `said` are texts by the number of their message, `stated` statements by their
    words, in the order of their last mention. `earlier` is a harness's own summary.
    """

    requests: dict[int, str] = field(default_factory=dict)
    said: dict[int, str] = field(default_factory=dict)
    stated: dict[str, Stated] = field(default_factory=dict)
    work: WorkState = field(default_factory=WorkState)
    earlier: str = ""
    superseded: Counter[Section] = field(default_factory=Counter)
    _number: int = 0
    _by_word: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _asked: _Asked | None = None
    _last_said: str = ""
    _question: str = ""
    _action: str = ""
    _expands: bool = False

    # --- messages -------------------------------------------------------------------------

    def add(self, message: Message, number: int = 0) -> None:
        """Collect what a message states, and what its calls did."""
        self._number = number or self._number + 1
        self.work.open_before.clear()
        if message.role is Role.TOOL:
            self._settle(is_answered=True)
            if answer := self.work.add_result(message):
                self._add_request(self._number, answer[:LONG_MESSAGE_CHARS])
            return
        text = "\n".join(
            part.text for part in message.parts if isinstance(part, Text | File) and part.text
        )
        if message.role is Role.USER:
            self._settle()
            self._add_user(text)
        elif message.role is Role.ASSISTANT:
            self._add_assistant(message, text)
        elif text.strip():
            self._settle()
            self.read(text) if HEADING in text[:400] else self._add_request(self._number, text)

    def _add_user(self, text: str) -> None:
        if HEADING in text[:400]:  # a summary that another conversation was continued from
            self.read(text)
            return
        is_first = self._number <= 2 and not self.requests
        if not is_first and sentences.is_observation(text, self._last_said):
            if self._action:
                self.work.add_command(self._action, text)
                self._action = ""
            self._add_notes(text)
            return
        if resumed := sentences.resumed_from(text):
            self.earlier = resumed
            return
        is_command = "<command-name>" in text[:400]
        typed = sentences.typed_text(text)
        expands, self._expands = self._expands, is_command
        if not typed or sentences.is_template(text) or (expands and len(typed) > EDGE_CHARS):
            return
        if len(typed) <= SHORT_ANSWER_CHARS and self._question:
            typed = f"{typed}{ASKED}{self._question})"
        self._asked = _Asked(self._number, typed)

    def _add_notes(self, text: str) -> None:
        """Take labelled lines that a person added below the output of a command."""
        for line in text[-EDGE_CHARS:].splitlines()[-4:]:
            if label_of(line) and is_prose(line) and len(line.split(":")[0]) > 5:
                self._state(line.strip(), by_user=True)

    def _add_assistant(self, message: Message, text: str) -> None:
        calls = message.calls
        prose, self._action = text, ""
        if not calls and ("```" in text or "</" in text):
            self._action, before = sentences.command_in(text)
            prose = before or text
        prose = sentences.without_code(prose)
        is_note = (
            not (calls or self._action)
            and _width(prose) <= NOTED_CHARS
            and not prose.endswith(QUESTION)
        )
        if self._asked is None and is_note and self._number - 1 in self.requests:
            self._asked = _Asked(self._number - 1, self.requests.pop(self._number - 1))
        if self._asked is not None and is_note and not self._asked.is_noted:
            self._asked.is_noted = True
            return
        self._settle(is_answered=True)
        self._last_said = text
        tail = [piece.strip() for piece in sentences.pieces(prose[-1200:])]
        self._question = next((p for p in tail[::-1] if p.endswith(QUESTION)), "")[:300]
        for call in calls:
            self.work.add_call(call)
        if not prose:
            return
        is_step = bool(calls) or bool(self._action)
        last = max(self.said, default=0)
        if last > max(self.requests, default=0) and _width(self.said[last]) < STEP_CHARS:
            del self.said[last]  # a short step that is over
        self.said[self._number] = _bounded(prose)
        found = 0
        for each in sentences.sentences(prose[:MAX_TEXT_CHARS]):
            if found < MAX_FROM_MESSAGE and is_prose(each) and _is_kept(each, is_step):
                self._state(each, by_user=False)
                found += 1

    def _settle(self, *, is_answered: bool = False) -> None:
        """Take the user's message that waits as a request or as statements (rule 2)."""
        asked, self._asked = self._asked, None
        if asked is None:
            return
        found = list(sentences.sentences(asked.text[:MAX_TEXT_CHARS]))
        is_plain = bool(found) and all(map(is_prose, found)) and ASKED not in asked.text
        is_noted = asked.is_noted and not is_answered and len(asked.text) <= MAX_NOTED_CHARS
        if is_plain and (is_noted or all(map(label_of, found))):
            whole = " ".join(asked.text.split())
            for each in [whole] if len(whole) <= MAX_WHOLE_CHARS else found:
                self._state(each, by_user=True)
            return
        self._add_request(asked.number, asked.text)

    def _add_request(self, number: int, text: str) -> None:
        """Add a request, which ends the turn before it (rule 3)."""
        begun = max(self.requests, default=0)
        ended = [each for each in self.said if begun < each < number]
        for each in ended[:-1]:
            del self.said[each]
        while len(self.said) > MAX_SAID:
            del self.said[min(self.said)]
        if self.requests and number > begun:
            self.work.end_turn()
        if begun and not ended and text.startswith(self.requests[begun]):
            del self.requests[begun]  # it was sent once more
        self.requests[number] = _bounded(text)
        self._state_all(number, text)

    def _state_all(self, number: int, text: str) -> None:
        is_long, at, found = len(text) > LONG_MESSAGE_CHARS, 0, 0
        is_short = len(text) <= MAX_NOTED_CHARS
        for each in sentences.sentences(text[:MAX_TEXT_CHARS].partition(ASKED)[0]):
            at += len(each) + 1
            is_edge = at < EDGE_CHARS or at > len(text) - EDGE_CHARS
            if not is_prose(each) or found >= MAX_FROM_MESSAGE:
                continue
            of = statement_of(each)
            is_stated = bool(of.values) if is_short else of.is_strong
            if label_of(each) or ((is_edge or not is_long) and is_stated):
                self._state(each, by_user=True, request=number)
                found += 1

    # --- statements -----------------------------------------------------------------------

    def _state(self, text: str, *, by_user: bool, request: int = 0, replaces: bool = True) -> None:
        """Add a statement in the place of those that it replaces (rule 4)."""
        key = _key(text)
        old = self.stated.get(key)
        if old is not None:
            by_user, request = by_user or old.by_user, min(request, old.request)
            self._remove(key)
        new = Stated(text, statement_of(text), by_user, request)
        if replaces:
            self._replace(new)
        self.stated[key] = new
        for word in new.of.words:
            self._by_word[word].add(key)
        if len(self.stated) > MAX_STATEMENTS:
            keys = iter(self.stated)
            self._remove(next((k for k in keys if not self.stated[k].by_user), next(keys, key)))

    def common_words(self) -> frozenset[str]:
        """Return the words that many statements have: they tell no subject from another."""
        most = max(4, len(self.stated) // 5)
        return frozenset(word for word, keys in self._by_word.items() if len(keys) >= most)

    def _replace(self, new: Stated) -> None:
        common = self.common_words()
        found = {key for word in new.of.words - common for key in self._by_word[word]}
        for key in sorted(found):
            old = self.stated[key]
            if (new.by_user or not old.by_user) and sentences.replaces(new.of, old.of, common):
                self.superseded[old.section] += 1
                self._remove(key)
                if old.of.is_strong or old.of.stems <= new.of.stems | common:
                    self._cut(old)

    def _cut(self, old: Stated) -> None:
        """Leave a replaced statement out of the request that has it; the first stays whole."""
        text = self.requests.get(old.request, "")
        if old.request > min(self.requests, default=0) and old.text in text:
            left = text.replace(old.text, CUT).strip()
            self.requests[old.request] = left
            if left == CUT:
                del self.requests[old.request]

    def _remove(self, key: str) -> None:
        for word in self.stated.pop(key).of.words:
            self._by_word[word].discard(key)

    def replace_by(self, message: Message) -> None:
        """Remove what a user's message that stays shown replaces; it is not collected itself."""
        if message.role is Role.USER:
            for each in sentences.sentences(sentences.typed_text(message.text)[:MAX_TEXT_CHARS]):
                if is_prose(each):
                    self._replace(Stated(each, statement_of(each)))

    def keep_stated(self, keys: Collection[str]) -> bool:
        """Remove the statements without these keys; return whether there were any."""
        gone = [key for key in self.stated if key not in keys]
        for key in gone:
            self._remove(key)
        return bool(gone)

    # --- earlier summaries ----------------------------------------------------------------

    def finish(self) -> None:
        """Take the last message as it is: nothing follows."""
        self._settle()

    def restore_stated(self, text: str) -> None:
        """Take up what a user said from an earlier summary."""
        self._state(text, by_user=True, replaces=False)

    def restore_request(self, text: str) -> None:
        """Take up a user's message from an earlier summary, which comes before all new ones."""
        number = len(self.requests) - MAX_RESTORED
        self.requests[number] = text
        self._state_all(number, text)

    def read(self, text: str, *, replaces: bool = False) -> None:
        """Take up an earlier summary, or several; other text is a harness's own summary.

        With `replaces` its statements replace those that are known already.
        """
        self._settle()
        for section, item in _items(text):
            self._read_item(section, item, replaces)

    def _read_item(self, section: Section | None, item: str, replaces: bool) -> None:
        work = self.work
        numbered = _NUMBER.match(item)
        number, body = (int(numbered[1]), item[numbered.end() :]) if numbered else (0, item)
        restore: dict[Section, Callable[[str], None]] = {
            Section.TODO: work.restore_task,
            Section.FAILED: lambda line: restore_pair(work.failures, line),
            Section.COMMANDS: lambda line: restore_pair(work.commands, line),
            Section.DONE: lambda line: restore_pair(work.done, line),
            Section.LOOKED: lambda line: restore_pair(work.looked, line),
            Section.EDITED: lambda line: work.restore_files(line, edited=True),
            Section.READ: lambda line: work.restore_files(line, edited=False),
            Section.REFERENCES: lambda line: work.references.setdefault(line, None),
        }
        if section is Section.REQUESTS and number:
            known = self.requests.get(number, "")
            self.requests[number] = max(known, body, key=len)
            self.requests = dict(sorted(self.requests.items()))
            self._state_all(number, body)
        elif section is Section.SAID and number:
            self.said[number] = max(self.said.get(number, ""), body, key=len)
            self.said = dict(sorted(self.said.items()))
        elif section in (Section.STATED, Section.VALUES):
            label, *rest = item.split("\n")
            for text in [f"{label} {line}" for line in rest] or [label]:
                self._state(text, by_user=section is Section.STATED, replaces=replaces)
        elif section in restore:
            restore[section](item)
        elif section is Section.OPEN:
            work.open_before.append(item)
        elif item not in self.earlier:
            self.earlier = f"{self.earlier}\n\n{item}".strip()
        self._number = max(self._number, number)


def _is_kept(sentence: str, is_step: bool) -> bool:
    """Whether a sentence of the assistant is a statement; of a step only labels and amounts."""
    of = statement_of(sentence)
    if label_of(sentence):
        return True
    is_exact = not of.values.keys().isdisjoint(EXACT)
    return len(of.stems) >= MIN_STEMS and (is_exact if is_step else of.is_strong)


def _key(text: str) -> str:
    return " ".join(text.lower().split()).strip(" .!。*`")


def _width(text: str) -> int:
    """Return the length of a text, a wide character as long as two."""
    return len(text) + sum(character > "\u2e80" for character in text[:NOTED_CHARS])


def _bounded(text: str) -> str:
    if len(text) <= MAX_TEXT_CHARS:
        return text
    return sentences.head_and_tail(text, MAX_TEXT_CHARS // 4, lambda part: len(part) // 4 + 1)


def _items(text: str) -> Iterator[tuple[Section | None, str]]:
    """Yield the items of summaries with their sections, and other text without one."""
    section: Section | None = None
    item: list[str] = []
    other: list[str] = []
    is_ours = False
    sections = {f"## {each.value}": each for each in Section}
    for line in (*text.split("\n"), HEADING):
        if is_ours and item and (line.startswith("  ") or line == "  "):
            item.append(line[2:])
            continue
        if item and section is not None:
            yield section, "\n".join(item)
        item = []
        if line.endswith(HEADING) and not line.startswith("- "):
            if any(part.strip() for part in other):
                yield None, "\n".join(other).strip()
            other, is_ours, section = [], True, None
        elif not is_ours:
            other += [line] if line != NOTHING else []
        elif line in sections:
            section = sections[line]
        elif line.startswith("- "):
            item = [line[2:]]
        elif line.startswith(MORE) or line:
            is_ours = False
            other += [] if line.startswith(MORE) else [line]


def work_lines(work: WorkState) -> dict[Section, Sequence[str]]:
    """Return the state of the work, each section's oldest line first."""
    return {
        Section.TODO: list(work.task_lines()),
        Section.OPEN: work.open_lines(),
        Section.FAILED: lines_of(work.failures),
        Section.COMMANDS: lines_of(work.commands),
        Section.DONE: lines_of(work.done),
        Section.EDITED: work.file_lines(edited=True),
        Section.READ: work.file_lines(edited=False),
        Section.LOOKED: lines_of(work.looked),
        Section.REFERENCES: list(work.references),
    }
