"""The model: what must be true of a conversation. It shares no code with the service.

1. An entry is a message as it was sent. Forks share the entries of their source, so that a
   redaction in one is a redaction in all. Imports and copies of a restore have their own.
2. The active window is a set of seqs: an append adds to it, a clear empties it, a restore adds what
   the snapshot had, a rewind takes the newest out of it and its undo puts them back.
3. Each message has a mark, a word that stands nowhere else. So a text tells where it comes from.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.judge.epochs import ITEMS

Message = dict[str, Any]

LONGEST_INLINE = 65_536
"""Bytes of a result above which a transcript shows a preview, unless it is asked for the whole."""
REDACTED = "[redacted]"


@dataclass(slots=True, eq=False)
class Entry:
    """One message as it was sent; `text` is its content, if it is a text."""

    body: Message
    mark: str
    is_redacted: bool = False

    @property
    def id(self) -> str:
        """Its id in the conversation."""
        return str(self.body["id"])

    @property
    def role(self) -> str:
        """Its role."""
        return str(self.body["role"])

    @property
    def text(self) -> str | None:
        """Its text, if it has one; of a result that was copied without its call, the result."""
        content = self.body.get("content")
        return content[1]["text"] if isinstance(content, list) else content

    @property
    def calls(self) -> list[Message]:
        """The tool calls in it."""
        return self.body.get("tool_calls") or []

    def difference(self, shown: Mapping[str, Any], *, is_whole: bool = False) -> str | None:
        """Return how the message differs from what is read back, None where it does not."""
        if shown.get("role") != self.role:
            return f"the role is {shown.get('role')}"
        if self.is_redacted:
            return None if self.mark not in json.dumps(shown) else "it is not redacted"
        for name, value in self.body.items():
            if name == "content" and shown.get("content_truncated"):
                size = len((self.text or "").encode("utf-8", "surrogatepass"))
                if is_whole or size <= LONGEST_INLINE:
                    return f"a content of {size} bytes is truncated"
            elif name != "id" and shown.get(name) != value:
                return f"{name} is {shown.get(name)!r:.200}, not {value!r:.200}"
        return None


@dataclass(slots=True)
class Held:
    """A caller's copy of the payloads of one format: the items, and the rest of the payload.

    `tail` is what the next payload replaces; `items` are those before it.
    """

    epoch: int
    through_seq: int
    build_id: str
    rest: Message
    items: list[Any]
    tail: list[Any]

    @property
    def shown(self) -> list[Any]:
        """All items, without the notes and the status of the agent's other conversations.

        Those may change at any time. In some formats they share an item with messages.
        """
        return list(without_notes([*self.items, *self.tail]))


@dataclass(slots=True, eq=False)
class Rewound:
    """The seqs of a rewind, with those that were in the window, and the calls that were open."""

    start: int
    end: int
    active: set[int]
    calls: dict[str, int]


@dataclass(slots=True)
class Conversation:
    """A conversation as it must be; seqs count from 1."""

    id: str
    window: int
    sections: list[str]
    kept_last: int | None = None
    agent: str | None = None
    entries: list[Entry] = field(default_factory=list)
    active: set[int] = field(default_factory=set)
    pinned: set[int] = field(default_factory=set)
    open_calls: dict[str, int] = field(default_factory=dict)
    group: int = 1
    """The seq at which the last call group begins."""
    answering: int = 0
    """The seq at which the answer begins that the next message of the assistant goes on with."""
    answers: dict[int, int] = field(default_factory=dict)
    """By the seq of a message of the assistant, the seq at which its answer begins."""
    joined: set[int] = field(default_factory=set)
    """The messages that joined the call group before them."""
    asked: dict[int, int] = field(default_factory=dict)
    """By the seq of a result, the seq of its call."""
    usage: Counter[str] = field(default_factory=Counter)
    held: dict[str, Held] = field(default_factory=dict)
    promised: dict[tuple[str, int], list[Any]] = field(default_factory=dict)
    builds: list[tuple[str, Message]] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    is_moved: bool = False
    """Whether its window was ever cleared, rewound or restored."""
    rewound: list[Rewound] = field(default_factory=list)
    """What rewinds took out of the window, the newest last."""

    @property
    def head(self) -> int:
        """The newest seq."""
        return len(self.entries)

    def entry(self, seq: int) -> Entry:
        """Return the message at a seq."""
        return self.entries[seq - 1]

    def add(self, entry: Entry) -> None:
        """Append a message; one that joins a call group is in the window, and pinned, as that is.

        Results join while calls of the group wait. Until the first one comes, so do messages of
        the assistant, which are of the same answer.
        """
        before, joins = self.head, self._waits
        self.entries.append(entry)
        if entry.role == "tool":
            asked = self.open_calls.pop(str(entry.body["tool_call_id"]))
            self.asked[self.head] = asked
            self.answering = self.answering if asked < self.group else 0
        else:
            joins = entry.role == "assistant" and self.answering > 0
            self.group = self.group if joins else self.head
            if entry.role == "assistant":
                self.answers[self.head] = self.answering or self.head
                self.open_calls |= {str(made["id"]): self.head for made in entry.calls}
            self.answering = self.answers.get(self.head, 0) if self._waits else 0
        self.joined |= {self.head} if joins else set()
        self.active |= {self.head} if not joins or before in self.active else set()
        self.pinned |= {self.head} if joins and before in self.pinned else set()

    @property
    def _waits(self) -> bool:
        """Whether calls of the last group have no result."""
        return any(seq >= self.group for seq in self.open_calls.values())

    def clear(self) -> None:
        """Empty the window; nothing joins the last call group any more."""
        self.active.clear()
        self.rewound.clear()
        self.is_moved, self.group, self.answering = True, self.head + 1, 0

    def rewind(self, to_seq: int) -> Rewound:
        """Take what is after a seq out of the window, as whole call groups, with its open calls."""
        while to_seq + 1 in self.joined:
            to_seq -= 1
        active = {seq for seq in self.active if seq > to_seq}
        calls = {id: seq for id, seq in self.open_calls.items() if seq > to_seq}
        left = Rewound(to_seq + 1, self.head + 1, active, calls)
        if active:
            self.rewound.append(left)
            self.active -= active
            self.open_calls = {id: at for id, at in self.open_calls.items() if id not in calls}
            self.is_moved, self.group, self.answering = True, self.head + 1, 0
        return left

    def unrewind(self, start: int, end: int) -> None:
        """Put back what the newest rewind of these seqs took out."""
        left = next(it for it in reversed(self.rewound) if (it.start, it.end) == (start, end))
        self.rewound.remove(left)
        self.active |= left.active
        self.open_calls |= left.calls

    def fork(self, id: str, at: int) -> Conversation:
        """Return a copy up to a seq; at an earlier seq an empty window becomes the whole log.

        A seq inside what a rewind took out goes on with that.
        """
        left = [it for it in self.rewound if it.end <= at or at == self.head]
        again = (it.active for it in self.rewound if it not in left)
        active = {seq for seq in self.active.union(*again) if seq <= at}
        if not active and at < self.head:
            active = set(range(1, at + 1))
        pinned = {seq for seq in self.pinned if seq <= at}
        left = [replace(it, calls={}) for it in left]
        return self._copy(id, at, active=active, pinned=pinned, rewound=left)

    def imported(self, id: str) -> Conversation:
        """Return a copy that shares nothing."""
        log = {"active": set(self.active), "pinned": set(self.pinned)}
        made = self._copy(id, self.head, **log, rewound=list(self.rewound))
        made.entries = [replace(entry) for entry in self.entries]
        made.open_calls, made.group = dict(self.open_calls), self.group
        made.answering = self.answering
        return made

    def _copy(self, id: str, at: int, **log: Any) -> Conversation:
        made = Conversation(id, self.window, self.sections, self.kept_last, self.agent, **log)
        made.entries, made.is_moved = self.entries[:at], self.is_moved
        made.answers, made.asked = (
            {seq: start for seq, start in each.items() if seq <= at}
            for each in (self.answers, self.asked)
        )
        made.joined = {seq for seq in self.joined if seq <= at}
        return made

    def with_results(self, seqs: Collection[int]) -> set[int]:
        """Return seqs with what has joined their call groups by now."""
        found = set(seqs)
        for seq in sorted(self.joined):
            found |= {seq} if seq - 1 in found else set()
        return found

    def place(self, seq: int, format: str, *, is_call: bool, is_labelled: bool) -> tuple[int, ...]:
        """Return what orders the texts and calls of messages in a payload.

        The texts of an answer are before its calls, where its messages are one. Gemini has results
        in the order of their calls. One that came late is next to its call, behind the other
        results, or it is labelled and where it came, but in no other call group.
        """
        if seq in self.answers:
            start = seq if format == "openai_responses" else self.answers[seq]
            return start, int(is_call), seq
        asked = self.asked.get(seq)
        if asked is None:
            return (seq,)
        if is_labelled:
            return self._end(seq), 4, seq
        call = self.entry(seq).body["tool_call_id"]
        order = next(at for at, made in enumerate(self.entry(asked).calls) if made["id"] == call)
        if format == "gemini" or self.is_late(seq, call):
            return self._end(asked), 3, asked, order
        return seq, 2

    def is_late(self, seq: int, call: str) -> bool:
        """Whether a message is the result of a call, and not in its call group."""
        is_result = seq in self.asked and self.entry(seq).body["tool_call_id"] == call
        return is_result and seq > self._end(self.asked[seq])

    def _end(self, seq: int) -> int:
        """Return the last seq of a call group."""
        while seq + 1 in self.joined:
            seq += 1
        return seq

    def slides(self, seq: int) -> bool:
        """Return whether a sliding window leaves out a message that is not pinned."""
        newer = sum(other > seq for other in self.active)
        return self.kept_last is not None and newer >= self.kept_last and seq not in self.pinned

    def living(self) -> Iterator[tuple[int, Entry]]:
        """Yield the messages of the active window that are not redacted, with their seqs."""
        for seq in sorted(self.active):
            if not self.entry(seq).is_redacted:
                yield seq, self.entry(seq)


_NOT_TEXTS = {
    "type",
    "role",
    "id",
    "name",
    "call_id",
    "tool_call_id",
    "tool_use_id",
    "cache_control",
    "thoughtSignature",
    "signature",
    "status",
}
_ARGUMENTS = {"arguments", "input", "args"}
_SYSTEM = ("system", "config", "system_instruction")
_CHANGING = (
    r"\[Context: \d+% used[^\]]*\]"
    r"|\[Status\]\nOther conversations of this agent:(\n- .*)+(\n\n\[Context: [^\]]*\])?"
)
_NOTES = re.compile(
    r"\[Earlier messages are not shown\.\]|\[The conversation starts here\.\]|\[Continue\.\]"
    r"|\[.*left out to fit the window\.\]|\[no result recorded\]"
    rf"|\[tool output trimmed; [^\]]*\]|{_CHANGING}"
)
_LABELLED = ("[Earlier summary, lossy: ", "[Kept from earlier in the conversation: ")
_LABEL = re.compile(r"\[result of tool call ([^\]]*)\](?:\n|$)")
_CUT = re.compile(r"\[[^\[\]]*cut: [\d,]+ of [\d,]+ bytes shown[^\]]*\]")
_UNSENDABLE = re.compile("[\x00\ud800-\udfff\ufffd]")


@dataclass(slots=True)
class Shown:
    """What a payload shows of a log: the seqs of its texts, in order, and what is wrong with it."""

    seqs: list[int] = field(default_factory=list)
    items: set[tuple[int, str]] = field(default_factory=set)
    placeholders: int = 0
    is_summarised: bool = False
    wrong: list[str] = field(default_factory=list)


def read_payload(
    conversation: Conversation, format: str, payload: Message, marks: re.Pattern[str]
) -> Shown:
    """Tell each text of a payload's items by the log: it is of a message, a summary or a note."""
    shown = Shown()
    texts, calls = _expected(conversation)
    allowed = {entry.mark for _, entry in conversation.living()}
    has_tombstone = any(conversation.entry(seq).is_redacted for seq in conversation.active)
    places: list[tuple[int, ...]] = []
    label = ""
    for kind, value in _leaves(payload[ITEMS[format]], ""):
        text, found, is_call = sendable(value), list[int](), kind == "arguments"
        if is_call and text in calls:
            found = [calls[text]]
        elif is_call and not has_tombstone:
            shown.wrong.append(f"arguments from nowhere: {text:.200}")
        elif not is_call:
            if (labelled := _LABEL.match(text)) is not None:
                label, text = labelled[1], text[labelled.end() :]
                if not text:
                    continue  # what it stands for is next
            found = _seqs_of(conversation, text, texts)
            if not found:
                _tell_other(conversation, text, shown, has_tombstone)
        for seq in found:
            is_copied = isinstance(conversation.entry(seq).body.get("content"), list)
            if label and not (is_copied or conversation.is_late(seq, label)):
                shown.wrong.append(f"seq {seq} is labelled as the late result of {label}")
                continue
            place = conversation.place(seq, format, is_call=is_call, is_labelled=bool(label))
            places.append(place)
            item = (seq, text if is_call else "")
            if item in shown.items:
                shown.wrong.append(f"seq {seq} is shown twice")
            shown.items.add(item)
        label = ""
        shown.seqs += found
        if foreign := set(marks.findall(text)) - allowed:
            shown.wrong.append(f"marks that are not of the window: {sorted(foreign)[:5]}")
    if places != sorted(places):
        shown.wrong.append(f"not in the order of the log: {shown.seqs}")
    return shown


def _tell_other(conversation: Conversation, text: str, shown: Shown, has_tombstone: bool) -> None:
    """Tell a text that is of no message: it is a summary, a note or a section."""
    if text.startswith(_LABELLED):
        shown.is_summarised = True
    elif _NOTES.fullmatch(text):
        shown.placeholders += text.startswith("[tool output trimmed")
    elif has_tombstone and set(text.split("\n")) == {REDACTED}:
        pass
    elif not _is_system(conversation, text):
        shown.wrong.append(f"a text from nowhere: {text:.300}")


def _seqs_of(conversation: Conversation, text: str, texts: Mapping[str, int]) -> list[int]:
    """Return the seq of the message whose text it is, or those of the messages of one answer."""
    found = texts.get(text) or _cut_from(text, texts)
    if found is not None:
        return [found]
    for line_end in re.finditer("\n", text):
        first, rest = text[: line_end.start()], text[line_end.end() :]
        seq = texts.get(first) or _cut_from(first, texts)
        if seq is None and first != REDACTED:
            continue
        seqs = [] if rest == REDACTED else _seqs_of(conversation, rest, texts)
        whole = [seq, *seqs] if seq is not None else seqs
        if seqs or rest == REDACTED:
            starts = {conversation.answers.get(each) for each in whole}
            if len(starts) == 1 and None not in starts:
                return whole
    return []


def without_notes(value: Any) -> Any:
    """Return a part of a payload without its changing notes, and without what they leave empty."""
    match value:
        case list():
            return [left for each in value if (left := without_notes(each)) is not None]
        case {"content": inner, **rest} | {"parts": inner, **rest}:
            left = without_notes(inner)
            name = "content" if "content" in value else "parts"
            return None if inner and not left else {**rest, name: left}
        case {"text": str(text)} if re.fullmatch(_CHANGING, text):
            return None
        case str() if re.fullmatch(_CHANGING, value):
            return None
        case _:
            return value


def system_texts(payload: Message) -> str:
    """Return all that stands outside of the items and the tools, as one text."""
    rest = {key: value for key, value in payload.items() if key in _SYSTEM}
    return "\n".join(value for _, value in _leaves(rest, ""))


def sendable(text: str) -> str:
    """Return a text whose characters that no provider accepts are all the same."""
    return _UNSENDABLE.sub("?", text)


def _expected(conversation: Conversation) -> tuple[dict[str, int], dict[str, int]]:
    texts, calls = dict[str, int](), dict[str, int]()
    for seq, entry in conversation.living():
        if entry.text is not None:
            texts[sendable(entry.text)] = seq
        for call in entry.calls:
            calls[_canonical(call["function"]["arguments"])] = seq
    return texts, calls


def _leaves(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield the texts of a payload's part, and the arguments of calls as canonical JSON."""
    match value:
        case str() if key in _ARGUMENTS:
            yield "arguments", _canonical(value)
        case dict() if key in _ARGUMENTS:
            yield "arguments", _canonical(json.dumps(value))
        case str() if key not in _NOT_TEXTS and value:
            yield "text", value
        case dict():
            for name, item in value.items():
                if name not in _NOT_TEXTS and name != "tools":
                    yield from _leaves(item, name)
        case list():
            for item in value:
                yield from _leaves(item, key)
        case _:
            pass


def _canonical(arguments: str) -> str:
    return json.dumps(json.loads(arguments or "{}"), sort_keys=True)


def _cut_from(text: str, texts: Mapping[str, int]) -> int | None:
    """Return the seq of the message that a text with a note about a cut shows."""
    note = _CUT.search(text)
    if note is None:
        return None
    head, tail = text[: note.start()].rstrip("\n"), text[note.end() :].lstrip("\n")
    for whole, seq in texts.items():
        if whole.startswith(head) and whole.endswith(tail) and len(head) + len(tail) < len(whole):
            return seq
    return None


def _is_system(conversation: Conversation, text: str) -> bool:
    """Return whether a text is one of the sections, or all of them."""
    return text in conversation.sections or text == "\n\n".join(conversation.sections)


def is_hidden(seq: int, receipts: Collection[Mapping[str, Any]]) -> bool:
    """Return whether an active receipt hides a message.

    That of a rewind shows what the newest one before it shows that covers nothing of what left.
    """
    by_id = {receipt["compaction_id"]: receipt for receipt in receipts}
    receipt = next((one for one in receipts if one["status"] == "active"), None)
    end = math.inf
    while receipt is not None:
        hidden, is_rewind = receipt["hidden_range"], receipt["trigger"] == "rewind"
        if not is_rewind and (not hidden or hidden[1] <= end):
            return bool(hidden) and hidden[0] <= seq < hidden[1] and seq not in receipt["kept_seqs"]
        end = min(end, hidden[0]) if is_rewind else end
        receipt = by_id.get(receipt["parent_id"])
    return False
