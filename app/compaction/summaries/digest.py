"""A summary as data: the requests, statements and state of the work in a conversation.

1. Messages are added to it, and earlier summaries are read back into it, by the same rules. Only
   then `writing.py` makes text of it. [summary.statements]
2. A user's message is a request. One that the assistant only took note of ("ok") is statements
   instead. A sentence of a request with a label (`Deadline: …`) is also a statement: it holds
   beyond the request.
3. The assistant's last text of a turn is where the work stood, an earlier one is a step. The last
   sentence of several in a step announces what followed: it is left out, as are others that do,
   unless it says what was decided. A question that the user answered is left out of where the work
   stood.
4. What a user states replaces an older statement on the same subject, where both surely are about
   it; it never replaces a later one. A short correction right after a message is joined to it.
   [summary.superseded]
5. A harness may send the output of a command as the user's message. A message counts as output if
   the assistant's message before it ends in a command, and if it looks like output or nearly all
   messages after commands do. Where the message before is unknown, it must be marked as output. Any
   other message is the user's. A command without output yet is an open call.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import takewhile

from app.compaction.summaries import sentences
from app.compaction.summaries.summary_text import ASKED, CHANGED, GAVE, TITLE, Heading, items_of
from app.compaction.summaries.work_state import WorkState
from app.formats.message import File, Message, Role, Text

MAX_TEXT_CHARS = 12_000
MAX_STATEMENTS, MAX_SAID, MAX_STEPS, MIN_STEMS = 400, 100, 200, 3
NOTED_CHARS, MAX_NOTED_CHARS = 90, 450
"""Most characters of an answer that only takes note, and of the message that it takes note of."""
SHORT_ANSWER_CHARS, MAX_QUESTION_CHARS, MAX_ACTION_CHARS = 80, 300, 160
LONG_MESSAGE_CHARS, MAX_TYPED_CHARS = 2_000, 800
"""A message after a slash command with more than `MAX_TYPED_CHARS` is the prompt of the command."""

_NUMBER = re.compile(r"^[#@](\d{1,12}) ")
_HEADS = r"^(?:\d{1,2}\. |#{1,6} )"
_SECTION = re.compile(rf"(?={_HEADS})", re.MULTILINE)
_OVERTAKEN = re.compile(rf"{_HEADS}\W*{sentences.any_of('overtaken')}", re.I)
_PENDING = re.compile(rf"{_HEADS}\W*{sentences.any_of('pending')}[^\n:]*", re.I | re.MULTILINE)


@dataclass(slots=True)
class Stated:
    """A statement.

    `request` is the number of the request that it is a sentence of, or 0. `at` is the number of its
    message, 0 where that is not known. One that `is_newer` replaced another.
    """

    text: str
    of: sentences.Statement
    by_user: bool = True
    request: int = 0
    is_newer: bool = False
    at: int = 0

    @property
    def heading(self) -> Heading:
        """The heading that it stands below."""
        return Heading.STATED if self.by_user else Heading.VALUES

    @property
    def line(self) -> str:
        """The item that states it."""
        return f"{self.text}{CHANGED}" if self.is_newer and self.by_user else self.text

    @property
    def is_listed(self) -> bool:
        """Whether it is an item of its own, not only a sentence of a request (rule 2)."""
        return not self.request or bool(sentences.label_of(self.text))


@dataclass(slots=True)
class Digest:
    """The requests, statements and state of the work in the messages read so far.

    `requests`, `said` (by the assistant) and `steps` have texts by the number of their message, in
    any order. `stated` has statements by their normalised text, in the order of their last mention.
    `source_tokens` are those of the messages. `earlier` is a harness's own summary. `superseded`
    counts replaced statements. With `keeps_users` nothing replaces what a user stated.
    """

    requests: dict[int, str] = field(default_factory=dict)
    said: dict[int, str] = field(default_factory=dict)
    steps: dict[int, str] = field(default_factory=dict)
    stated: dict[str, Stated] = field(default_factory=dict)
    work: WorkState = field(default_factory=WorkState)
    earlier: str = ""
    superseded: Counter[Heading] = field(default_factory=Counter)
    keeps_users: bool = False
    source_tokens: int = 0
    _number: int = 0
    _by_word: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _asked: tuple[int, str] | None = None
    """The number and the text of a user's message that the assistant has not answered yet."""
    _noted: tuple[int, str] | None = None
    """The number and the text of a short answer to it, which may only take note of it."""
    _is_resumed: bool = False
    _acts: bool | None = False
    """Whether what the assistant said last ends in a command; None where that is not known."""
    _question: str = ""
    _action: str = ""
    _before: str = ""
    """How the last message began: after a slash command or a skill its prompt may follow."""
    _after_commands: Counter[bool] = field(default_factory=Counter)
    """How many messages after a command looked like its output, and how many did not."""

    @property
    def texts(self) -> dict[Heading, dict[int, str]]:
        """The texts of messages below each heading."""
        return {Heading.REQUESTS: self.requests, Heading.SAID: self.said, Heading.STEPS: self.steps}

    # --- messages -------------------------------------------------------------------------

    def add(self, message: Message, number: int = 0) -> None:
        """Collect what a message states, and what its calls did."""
        if number > self._number + 1:  # what the assistant said right before is not known
            self._acts = None
        self._number = number or self._number + 1
        self.work.items[Heading.OPEN].clear()
        text = "\n".join(p.text for p in message.parts if isinstance(p, Text | File) and p.text)
        before, self._before = self._before, text[:400]
        if message.role is Role.TOOL:
            self.finish(is_answered=True)
            if answer := self.work.add_result(message):
                self._add_request(self._number, answer[:LONG_MESSAGE_CHARS])
        elif message.role is Role.ASSISTANT:
            self._add_assistant(message, text)
        elif TITLE in text[:400]:  # a summary that another conversation was continued from
            self.read(text)
        elif message.role is Role.USER:
            self._add_user(text, before)
        elif text.strip():
            self.finish()
            self._add_request(self._number, text)

    def _add_user(self, text: str, before: str) -> None:
        asked, typed = self._asked, sentences.typed_text(text)
        if asked and ASKED not in asked[1] and sentences.corrects(typed, asked[1]):
            self._asked = asked[0], f"{asked[1]}{GAVE}{typed}"
            return
        self.finish()
        acts, self._acts = self._acts, False
        is_answer = len(typed) <= SHORT_ANSWER_CHARS and not typed.endswith(sentences.QUESTION)
        if self._is_output(text, acts):
            self.work.add_command(self._action, text)
            self._action = ""
        elif resumed := sentences.resumed_from(text):
            self.earlier, self._is_resumed = resumed, True
        elif not typed:
            self.work.end_task(text)
        elif len(typed) <= MAX_TYPED_CHARS or not sentences.BEGINS_COMMAND.match(before):
            if is_answer and self._question:
                typed, self._question = f"{typed}{ASKED}{self._question})", ""
            self._asked = self._number, typed

    def _is_output(self, text: str, acts: bool | None) -> bool:
        """Whether a user's message is the output of a command that the assistant's text ends in."""
        is_marked = sentences.is_output(text)
        if not acts:
            return acts is None and is_marked
        looks = is_marked or sentences.is_listing(text)
        self._after_commands[looks] += 1
        return looks or self._after_commands[True] > 3 * self._after_commands[False]

    def _add_assistant(self, message: Message, text: str) -> None:
        calls = message.calls
        closing = sentences.action_in(text)
        action = None if calls or self.work.has_calls else closing
        self._acts, (self._action, before) = action is not None, action or ("", text)
        prose = sentences.without_code(before)
        if closing and not action and 0 < len(closing[0]) <= MAX_ACTION_CHARS:
            prose = f"{prose} `{'; '.join(closing[0].splitlines())}`"
        is_step = bool(calls) or self._acts
        width = len(prose) + sum(character > "\u2e80" for character in prose[:NOTED_CHARS])
        is_note = not (is_step or width > NOTED_CHARS or prose.endswith(sentences.QUESTION))
        if is_note and self._asked is None and self._number - 1 in self.requests:
            self._asked = self._number - 1, self.requests.pop(self._number - 1)
        if is_note and self._asked is not None and not self._noted:
            self._noted = self._number, prose
            return
        self.finish(is_answered=True)
        tail = [piece.strip() for piece in sentences.pieces(prose[-1200:])]
        asked = next((piece for piece in tail[::-1] if piece.endswith(sentences.QUESTION)), "")
        self._question = asked[:MAX_QUESTION_CHARS]
        for call in calls:
            self.work.add_call(call)
        if self._action:
            self.work.items[Heading.OPEN][sentences.one_line(self._action, MAX_ACTION_CHARS)] = ""
        every = map(str.strip, sentences.pieces(prose[:MAX_TEXT_CHARS]))
        told = (each for each in every if not sentences.ANNOUNCES.match(each))
        if (is_step and not any(map(sentences.is_prose, told))) or not any(map(str.isalpha, prose)):
            return
        if self._is_resumed:  # the work goes on: what was pending may be done by now
            parts = _SECTION.split(self.earlier)
            kept = "".join(each for each in parts if not _OVERTAKEN.match(each))
            self.earlier = _PENDING.sub(r"\g<0> (at that time)", kept).strip()
            self._is_resumed = False
        if (last := max(self.said, default=0)) > max(self.requests, default=0):
            self._add_step(last)
        self.said[self._number] = _bounded(prose)
        for texts, most in ((self.said, MAX_SAID), (self.steps, MAX_STEPS)):
            for each in sorted(texts)[:-most]:
                del texts[each]
        self._state_all(prose, is_step=is_step)

    def _add_step(self, number: int) -> None:
        """Make a text a step, as another one of its turn follows (rule 3)."""
        *found, last = sentences.pieces(self.said.pop(number)) or [""]
        found += [last] * (not found or sentences.DECIDES.search(last) is not None)
        found = [each for each in found if not sentences.ANNOUNCES.match(each)]
        if any(sentences.is_prose(each.strip()) for each in found):
            self.steps[number] = "".join(found).strip()

    def finish(self, *, is_answered: bool = False) -> None:
        """Make the unanswered message of a user a request or statements (rule 2)."""
        asked, self._asked = self._asked, None
        noted, self._noted = self._noted, None
        if asked is None:
            return
        number, text = asked
        found = list(sentences.sentences(text[:MAX_TEXT_CHARS]))
        is_plain = bool(found) and all(map(sentences.is_prose, found)) and ASKED not in text
        is_noted = noted and len(text) <= MAX_NOTED_CHARS and not is_answered
        has_labels = all(map(sentences.label_of, found))
        if is_plain and (is_noted or has_labels):
            for each in found if has_labels else _parted(text):
                self._state(each, number)
        else:
            self._add_request(number, text)
            if noted and sentences.is_prose(noted[1]):
                self.said[noted[0]] = noted[1]

    def _add_request(self, number: int, text: str) -> None:
        """Add a request, which ends the turn before it (rule 3)."""
        begun = max(self.requests, default=0)
        ended = max((each for each in self.said if begun < each < number), default=0)
        parts = sentences.pieces(self.said.pop(ended, ""))
        while parts and (not parts[-1].strip() or parts[-1].rstrip().endswith(sentences.QUESTION)):
            parts.pop()
        if parts:
            self.said[ended] = "".join(parts).rstrip()
        self.requests[number] = _bounded(text)
        self._state_all(text.partition(ASKED)[0], request=number)

    def _state_all(
        self, text: str, *, request: int = 0, is_step: bool = False, replaces: bool = True
    ) -> None:
        """Add the statements of a request, or of an assistant's text."""
        by_user = request > 0
        every = list(sentences.sentences(text[:MAX_TEXT_CHARS]))
        for each in every[: -1 if is_step else None]:  # the last says what the call is for
            is_next = not by_user and sentences.ANNOUNCES.match(each)
            if is_next or not sentences.is_prose(each):
                continue
            of = sentences.statement_of(each)
            is_stated = bool(of.values) if by_user else of.is_strong
            is_telling = by_user or len(of.stems) >= MIN_STEMS
            if (is_stated and is_telling) or sentences.label_of(each):
                number = request or self._number
                self._state(each, number, by_user=by_user, request=request, replaces=replaces)

    # --- statements -----------------------------------------------------------------------

    def _state(
        self, text: str, at: int, *, by_user: bool = True, request: int = 0, replaces: bool = True
    ) -> None:
        """Add a statement in the place of those that it replaces (rule 4)."""
        is_newer = text.endswith(CHANGED)
        text = text.removesuffix(CHANGED)
        key = sentences.flat(text)
        if key in self.stated:
            old = self._remove(key)
            by_user, request = by_user or old.by_user, min(request, old.request)
            is_newer, at = is_newer or old.is_newer, at or old.at
        new = Stated(text, sentences.statement_of(text), by_user, request, is_newer, at)
        if replaces:
            self._replace(new)
        self.stated[key] = new
        for word in new.of.words:
            self._by_word[word].add(key)
        if len(self.stated) > MAX_STATEMENTS:
            self._remove(min(self.stated.items(), key=lambda a: (a[1].by_user, a[1].is_listed))[0])

    def common_words(self) -> frozenset[str]:
        """Return the words that many statements have: they do not identify a subject."""
        least = max(4, len(self.stated) // 5)
        return frozenset(word for word, keys in self._by_word.items() if len(keys) >= least)

    def _replace(self, new: Stated) -> None:
        if not new.by_user:
            return
        common = self.common_words()
        found = {key for word in new.of.words - common for key in self._by_word[word]}
        for key in sorted(found):
            old = self.stated[key]
            is_later = 0 < new.at < old.at
            is_held = is_later or (old.by_user and self.keeps_users)
            if not is_held and sentences.replaces(new.of, old.of, common):
                self.superseded[old.heading] += old.is_listed
                self._remove(key)
                new.is_newer = True
                self._cut(old)

    def _cut(self, old: Stated) -> None:
        """Cut a replaced statement out of its request; the first request stays whole."""
        text = self.requests.get(old.request, "")
        if old.request > min(self.requests, default=0) and old.text in text:
            left = text.replace(old.text, sentences.CUT).strip()
            self.requests[old.request] = left
            if left.partition(ASKED)[0] == sentences.CUT:
                del self.requests[old.request]

    def _remove(self, key: str) -> Stated:
        old = self.stated.pop(key)
        for word in old.of.words:
            self._by_word[word].discard(key)
        return old

    def replace_by(self, message: Message) -> None:
        """Remove the statements that a user's message replaces; the message stays shown itself."""
        if message.role is Role.USER:
            for each in sentences.sentences(sentences.typed_text(message.text)[:MAX_TEXT_CHARS]):
                if sentences.is_prose(each):
                    self._replace(Stated(each, sentences.statement_of(each)))

    def forget(self, numbers: Collection[int], tokens: int) -> None:
        """Remove what the newest messages state; what they replaced and did is not undone."""
        for texts in self.texts.values():
            for number in texts.keys() & set(numbers):
                del texts[number]
        self.keep_stated([key for key, each in self.stated.items() if each.at not in numbers])
        self.source_tokens -= tokens

    def keep_stated(self, keys: Collection[str]) -> bool:
        """Remove the statements without these keys; return whether there were any."""
        others = self.stated.keys() - set(keys)
        for key in others:
            self._remove(key)
        return bool(others)

    # --- earlier summaries ----------------------------------------------------------------

    def read(self, summary: str, *, replaces: bool = False) -> None:
        """Add the items of earlier summaries; text without our headings is a harness's summary.

        With `replaces` its statements replace those that are in the digest already.
        """
        self.finish()
        self._acts = None
        for heading, item in items_of(summary):
            numbered = _NUMBER.match(item)
            number, body = (int(numbered[1]), item[numbered.end() :]) if numbered else (0, item)
            self._number = max(self._number, number)
            texts = self.texts.get(heading) if heading and number else None
            if texts is not None:
                texts[number] = max(texts.get(number, ""), body, key=len)
                if heading is Heading.REQUESTS:
                    stated = body.partition(ASKED)[0]
                    self._state_all(stated, request=number, replaces=replaces)
            elif heading in (Heading.STATED, Heading.VALUES):
                at, text = (number, body) if item.startswith("@") else (0, item)
                self._state(text, at, by_user=heading is Heading.STATED, replaces=replaces)
            elif heading and heading not in (Heading.EARLIER, *self.texts):
                self.work.restore(heading, item)
            elif item not in self.earlier:
                self.earlier = f"{self.earlier}\n\n{item}".strip()


def _parted(text: str) -> list[str]:
    """Return what stands before the first sentence with a value apart from that and the rest."""
    text = " ".join(text.split())
    before = "".join(takewhile(lambda each: not sentences.has_values(each), sentences.pieces(text)))
    is_one = before == text or sentences.label_of(text)
    return [text] if is_one else [part for part in (before.strip(), text[len(before) :]) if part]


def _bounded(text: str) -> str:
    if len(text) <= MAX_TEXT_CHARS:
        return text
    return sentences.shortened(text, MAX_TEXT_CHARS // 4, lambda part: len(part) // 4 + 1)
