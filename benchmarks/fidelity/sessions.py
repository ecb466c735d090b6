"""Recorded sessions by kind, and facts put into them.

1. The kind is told by a session's structure: `text` has no tool results, and commands in fences to
   which the user's messages are the output; `coding` has calls for files and commands; all others
   are `tools`.
2. Sessions at even places of their file are for tuning, those at odd places for reporting. Short
   ones of a kind are joined; long ones are cut.
3. Facts of users are messages of their own or stand after what a user said, those of assistants
   stand after what they said; a call has its result. The last tenth has none.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from random import Random
from typing import Any

from benchmarks.fidelity.facts import SMALL_TALK, Fact, Facts
from benchmarks.fidelity.matching import flat
from tests.payload_tokens import payload_texts, text_tokens
from tests.recorded import named_traces, trace_files, traces_dir

Message = dict[str, Any]
KINDS = ("coding", "tools", "text")
MIN_TOKENS, MAX_TOKENS = 24_000, 60_000
FACTS = 20
ROUNDS = 5
QUIET = 0.1
END = (
    {"role": "user", "content": "(no output)"},
    {"role": "assistant", "content": "That was the last step."},
)
NO_REQUEST = (
    "<local-command", "<command-", "<system-reminder", "<task-notification", "<bash-",
    "[request interrupted", "base directory for this skill", "this session is being continued",
)  # fmt: skip
"""How messages begin that a harness sends as the user, flat."""
_SHELL = re.compile(r"(?:\n\([A-Z][a-z ]+: [^\n]*\))+\n\S*\$\s*\Z")
"""The lines below a request by which a harness shows where its shell is."""


@dataclass(slots=True)
class Session:
    """Messages in the OpenAI Chat format, and what was put into them."""

    name: str
    kind: str
    messages: list[Message]
    starts: set[int] = field(default_factory=lambda: {0})
    """Where the sessions begin that it was joined from."""
    facts: list[Fact] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """The tokens of all texts."""
        return sum(map(tokens_of, self.messages))

    @property
    def is_text(self) -> bool:
        """Whether the user's messages after the first are output of commands."""
        return self.kind == "text"

    def requests(self) -> list[str]:
        """Return what the user asked, without output and what a harness sent."""
        said = [
            _SHELL.sub("", content_text(message))
            for at, message in enumerate(self.messages)
            if message["role"] == "user" and (at in self.starts or not self.is_text)
        ]
        return [text for text in said if text.strip() and not flat(text).startswith(NO_REQUEST)]

    def runs(self) -> Iterator[tuple[str, str]]:
        """Yield each command with its output."""
        calls: dict[str, str] = {}
        command = ""
        for message in self.messages:
            text = content_text(message)
            for call in message.get("tool_calls") or ():
                calls[call["id"]] = _command(call["function"]["arguments"])
            if message["role"] == "tool":
                yield calls.get(message["tool_call_id"], ""), text
            elif self.is_text and message["role"] == "assistant":
                command = text.split("```")[1].strip() if text.count("```") > 1 else ""
            elif self.is_text and command:
                yield command, text
                command = ""

    def renamed(self, number: int) -> list[Message]:
        """Return copies of the messages whose calls have ids of their own."""
        messages = copy.deepcopy(self.messages)
        for message in messages:
            for call in message.get("tool_calls") or ():
                call["id"] = f"{number}-{call['id']}"
            if "tool_call_id" in message:
                message["tool_call_id"] = f"{number}-{message['tool_call_id']}"
        return messages

    def rounds(self) -> list[list[Message]]:
        """Return the messages in five parts, none of which ends in a call."""
        parts: list[list[Message]] = [[]]
        size = -(-len(self.messages) // ROUNDS)
        ends = {*_gaps(self.messages), len(self.messages)}
        for number, message in enumerate(self.messages, 1):
            parts[-1].append(message)
            if number >= size * len(parts) and number in ends and number < len(self.messages):
                parts.append([])
        return parts


def content_texts(message: Message) -> list[str]:
    """Return the texts of a message's content."""
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or () if part.get("text")]


def content_text(message: Message) -> str:
    """Return the content of a message as one text."""
    return "\n".join(content_texts(message))


def tokens_of(message: Message) -> int:
    """Return the tokens of all texts of a message."""
    return sum(map(text_tokens, payload_texts({"messages": [message]})))


@cache
def recorded(*, is_tuning: bool) -> dict[str, list[Session]]:
    """Return the sessions of one half by kind (rules 1 and 2)."""
    found: dict[str, list[Session]] = {kind: [] for kind in KINDS}
    for path in trace_files(traces_dir()):
        for number, trace in enumerate(named_traces(path)):
            kind = _kind(trace.messages)
            if number % 2 == (not is_tuning):
                messages = [raw for raw in trace.messages if raw["role"] in _ROLES]
                found[kind].append(Session(trace.name, kind, messages))
    return found


_ROLES = ("user", "assistant", "tool")


def _kind(messages: Sequence[Message]) -> str:
    answers = [raw for raw in messages if raw["role"] == "assistant"]
    calls = [call for raw in answers for call in raw.get("tool_calls") or ()]
    if not calls:
        fenced = sum(content_text(raw).count("```") > 1 for raw in answers)
        return "text" if 2 * fenced > len(answers) else "tools"
    works = [call for call in calls if _command(call["function"]["arguments"])]
    return "coding" if 3 * len(works) > len(calls) else "tools"


def _command(arguments: str) -> str:
    """Return what a call runs, or the path that it works on."""
    try:
        given = json.loads(arguments or "{}")
    except ValueError:
        return ""
    names = ("command", "cmd", "file_path", "path", "pattern")
    found = (given.get(name) for name in names) if isinstance(given, dict) else ()
    return next((text for text in found if isinstance(text, str)), "")


def planted(kind: str, seed: int, *, is_tuning: bool) -> Session:
    """Return a joined session with facts in it, drawn by the seed."""
    session = joined(kind, seed, is_tuning=is_tuning)
    text = json.dumps(session.messages, ensure_ascii=False)
    session.facts = Facts(f"{kind} {seed}", text).drawn(FACTS)
    _plant(session, Random(f"{kind} {seed}"))
    return session


def joined(kind: str, seed: int, *, is_tuning: bool) -> Session:
    """Return sessions of the kind, drawn by the seed and joined to be long enough."""
    pool = list(recorded(is_tuning=is_tuning)[kind])
    Random(f"{kind} {seed}").shuffle(pool)
    session, size = Session("", kind, [], set()), 0
    for number, part in enumerate(pool):
        messages = part.renamed(number)
        sizes = [0, *accumulate(map(tokens_of, messages))]
        fits = [at for at in (*_gaps(messages), len(messages)) if size + sizes[at] <= MAX_TOKENS]
        if not fits:
            continue
        session.starts.add(len(session.messages))
        session.messages += messages[: fits[-1]]
        if session.is_text and "```" in content_text(session.messages[-1]):
            session.messages += END  # what the user says next is no output
        session.name += f"{'+' if session.name else ''}{part.name}"
        size += sizes[fits[-1]]
        if size >= MIN_TOKENS:
            break
    return session


def _gaps(messages: Sequence[Message]) -> list[int]:
    """Return the places at which a user's message may be put: no call is open there."""
    found, pending = [], set[str]()
    for at, message in enumerate(messages):
        if message["role"] == "tool":
            pending.discard(message["tool_call_id"])
            continue
        if at and not pending:
            found.append(at)
        pending = {call["id"] for call in message.get("tool_calls") or ()}
    return found


def _plant(session: Session, random: Random) -> None:
    """Put the facts into the session (rule 3), the last first, so that places stay true."""
    gaps = _gaps(session.messages)
    if session.is_text:  # nothing stands between a command and its output
        gaps = [at for at in gaps if session.messages[at]["role"] == "assistant"]
    gaps = gaps[: max(2, int(len(gaps) * (1 - QUIET)))]
    puts: list[tuple[int, int, list[Message]]] = []
    for number, fact in enumerate(session.facts):
        first, later = sorted(random.sample(range(len(gaps)), 2))
        puts.append((gaps[first], number, _stated(session, fact, random)))
        if fact.second and not fact.is_short:
            puts.append((gaps[later], number, _said(fact.second, random)))
    for at, _, messages in sorted(puts, key=lambda put: put[:2], reverse=True):
        session.messages[at:at] = messages


def _stated(session: Session, fact: Fact, random: Random) -> list[Message]:
    if fact.form == "assistant":
        return [{"role": "assistant", "content": fact.first}]
    if fact.form in ("argument", "result"):
        return _called(session, fact, random)
    said = _said(fact.first, random)
    return [*said, {"role": "user", "content": fact.second}] if fact.is_short else said


def _said(text: str, random: Random) -> list[Message]:
    """Return a user's message, sometimes with more around it or an answer after it."""
    is_plain = "\n" not in text
    if is_plain and random.random() < 0.4:
        text = f"{random.choice(SMALL_TALK)} {text}"
    said: list[Message] = [{"role": "user", "content": text}]
    if random.random() < 0.5:
        said.append({"role": "assistant", "content": random.choice(("Noted.", "OK.", "Got it."))})
    return said


def _called(session: Session, fact: Fact, random: Random) -> list[Message]:
    """Return a call that writes a record, with the fact in its argument or in its result."""
    record = "_".join(fact.subject)
    given, result = fact.first, f"Saved {record}."
    if fact.form == "result":
        given, result = json.dumps({"create": record}), fact.first
    if session.is_text:
        command = f"Next is the record.\n```\nrecords save '{given}'\n```"
        return [{"role": "assistant", "content": command}, {"role": "user", "content": result}]
    call_id = f"record-{random.randrange(16**8):x}"
    function = {"name": "save_record", "arguments": given}
    call = {"id": call_id, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": result},
    ]
