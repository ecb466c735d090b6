"""One session driven through five compactions over HTTP, and what was seen of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import import_module
from itertools import chain
from typing import Any

from app.demo import Client
from benchmarks.fidelity import judge
from benchmarks.fidelity.client import Conversation
from benchmarks.fidelity.planted.generated import Session, generated
from benchmarks.fidelity.planted.recorded import planted, recording
from benchmarks.fidelity.planted.wording import Wording
from tests.payload_tokens import payload_texts, payload_tokens, text_tokens

MAX_OUTPUT_TOKENS = 1_024
WINDOW_SHARE = 1.3
"""The window, relative to the conversation: each compaction is one that is asked for."""
EXTRACTIVE = "extractive"
SMALL_LENGTHS, SMALL_SHARE = (7, 14), 0.2
"""Messages of the short conversations; they are compacted at this budget alone."""
UNMET = "target"
"""A receipt that cannot reach the target says so: an entry of `degraded` begins with this word."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run: a session, and how it is compacted; `share` is of the conversation's tokens."""

    wording: str
    session: str
    strategy: str
    share: float
    writer: str = EXTRACTIVE

    @property
    def row(self) -> tuple[str, str, float, str]:
        """What its figures are added up by."""
        kind = "recorded" if ":" in self.session else "generated"
        return kind, self.writer.rpartition("/")[2], self.share, self.strategy


@dataclass(slots=True)
class Seen:
    """What was seen in the runs of one row of the tables."""

    runs: int = 0
    planted: Counter[str] = field(default_factory=Counter)
    survived: Counter[str] = field(default_factory=Counter)
    old_values: int = 0
    stale: int = 0
    compactions: int = 0
    failed: int = 0
    within: int = 0
    said: int = 0
    grown: int = 0
    small: int = 0
    small_grown: int = 0
    of_target: list[float] = field(default_factory=list)
    last_of_target: list[float] = field(default_factory=list)
    of_source: list[float] = field(default_factory=list)
    conversation_tokens: int = 0
    sent_tokens: int = 0
    sent_above_payload: int = 0
    todos: int = 0
    todos_kept: int = 0
    failures: int = 0
    failures_kept: int = 0
    errors_listed: int = 0
    false_errors: int = 0
    decisions_listed: int = 0
    fragments: int = 0
    paths_listed: int = 0
    duplicate_paths: int = 0
    whole_requests: int = 0
    lost: list[str] = field(default_factory=list)

    def add(self, other: Seen) -> None:
        """Add what was seen in another run."""
        for entry in fields(self):
            setattr(self, entry.name, getattr(self, entry.name) + getattr(other, entry.name))


@dataclass(slots=True)
class Results:
    """What was seen, by row."""

    rows: dict[tuple[str, str, float, str], Seen] = field(default_factory=dict)

    def add(self, other: Results) -> None:
        """Add the results of another run."""
        for row, seen in other.rows.items():
            self.rows.setdefault(row, Seen()).add(seen)


def run(client: Client, job: Job) -> Results:
    """Drive one session."""
    return Results({job.row: _Run(client, job, session_of(job.wording, job.session)).seen()})


@cache
def session_of(wording: str, name: str) -> Session:
    """Return a session by its name, which is a seed or that of a recorded conversation."""
    words = wording_of(wording)
    if ":" in name:
        return planted(words, recording(name))
    return generated(words, name)


def wording_of(name: str) -> Wording:
    """Return the set of wordings with a name."""
    words: Wording = import_module(f"benchmarks.fidelity.planted.{name}_wording").WORDING
    return words


class _Run:
    def __init__(self, client: Client, job: Job, session: Session) -> None:
        self._job, self._session = job, session
        self._fixed = sum(text_tokens(section["content"]) for section in session.sections)
        whole = self._fixed + sum(_tokens_of(raw) for raw in chain.from_iterable(session.rounds))
        self._client = client
        self._policy = {
            "strategy": job.strategy,
            "budget": {
                "context_window": int(WINDOW_SHARE * whole) + MAX_OUTPUT_TOKENS,
                "max_output_tokens": MAX_OUTPUT_TOKENS,
            },
            "tool_output": {"enabled": False},  # shortens results before anything is compacted
            "compaction": {"auto": False, "model": job.writer},
        }
        self._conversation = Conversation(client, self._policy, session.sections)
        self._seen = Seen(runs=1)
        self._messages: list[dict[str, Any]] = []
        self._texts = {section["content"] for section in session.sections}
        self._tokens: list[int] = []
        self._shown = self._fixed
        self._payload: Mapping[str, Any] = {}

    def seen(self) -> Seen:
        """Compact after each round, then judge the payload."""
        for messages in self._session.rounds:
            self._append(messages)
            self._compact()
        seen = self._seen
        seen.last_of_target.append(seen.of_target[-1])
        self._judge(self._payload)
        if self._job.share == SMALL_SHARE:
            for length in SMALL_LENGTHS:
                self._compact_small(self._messages[:length])
        return seen

    def _append(self, messages: Sequence[dict[str, Any]]) -> None:
        self._conversation.append(messages)
        for message in messages:
            self._messages.append(message)
            self._texts.update(judge.content_texts(message))
            self._tokens.append(_tokens_of(message))
            self._shown += self._tokens[-1]

    def _compact(self) -> None:
        seen, before = self._seen, self._shown
        target = int(self._job.share * (self._fixed + sum(self._tokens)))
        answer = self._conversation.send("POST", "/compact", {"target_tokens": target})
        self._payload = self._conversation.ask("POST", "/context", {})["payload"]
        self._shown = after = payload_tokens(self._payload)
        seen.compactions += 1
        seen.of_target.append(after / target)
        seen.grown += after > before
        receipt: Mapping[str, Any] = {}
        if not answer.accepted:
            seen.failed += 1
            seen.lost.append(f"failed: {answer.reason}")
            return
        result = answer.body
        if result["compacted"]:
            path = f"/compactions/{result['compaction_id']}"
            receipt = self._conversation.ask("GET", path)
            self._weigh(receipt, before)
        said = [*result["degraded"], *receipt.get("degraded", ()), result.get("reason") or ""]
        if after <= target:
            seen.within += 1
        elif any(text.startswith(UNMET) for text in said):
            seen.said += 1

    def _compact_small(self, messages: Sequence[dict[str, Any]]) -> None:
        """Compact a conversation so short that a summary could be longer than its messages."""
        conversation = Conversation(self._client, self._policy, self._session.sections)
        conversation.append(messages)
        before = payload_tokens(conversation.ask("POST", "/context", {})["payload"])
        # One that fails leaves the payload as it was.
        conversation.send("POST", "/compact", {"target_tokens": int(SMALL_SHARE * before)})
        after = payload_tokens(conversation.ask("POST", "/context", {})["payload"])
        self._seen.small += 1
        self._seen.small_grown += after > before

    def _weigh(self, receipt: Mapping[str, Any], before: int) -> None:
        """Compare the summaries with their sources, and what a model was sent with the payload."""
        seen, kept = self._seen, set(receipt["kept"])
        seen.sent_tokens += receipt["input_tokens"]
        seen.sent_above_payload += receipt["input_tokens"] > before
        for summary in receipt["made"]:
            start, end = summary["summary_range"]
            seqs = (seq for seq in range(start, end) if seq not in kept)
            source = sum(self._tokens[seq - 1] for seq in seqs)
            if source:
                seen.of_source.append(text_tokens(summary["text"]) / source)

    def _judge(self, payload: Mapping[str, Any]) -> None:
        seen, session = self._seen, self._session
        text = judge.payload_text(payload)
        written = judge.written_text(payload, self._texts)
        seen.conversation_tokens = self._fixed + sum(self._tokens)
        for plant in session.plants:
            seen.planted[plant.kind] += 1
            if judge.survives(plant, text):
                seen.survived[plant.kind] += 1
            else:
                seen.lost.append(f"{plant.kind}: {plant.text}")
            seen.old_values += len(plant.old)
            stale = judge.stale_values(plant, text, written)
            seen.stale += len(stale)
            seen.lost += [f"stale: {value} ({plant.text})" for value in stale]
        seen.todos, seen.todos_kept = len(session.todos), judge.found_in(session.todos, text)
        seen.failures = len(session.errors[-1:])
        seen.failures_kept = judge.found_in(session.errors[-1:], text)
        seen.whole_requests = judge.found_in([session.first_request], text)
        self._judge_lists(written)

    def _judge_lists(self, written: str) -> None:
        """Judge what summaries list as errors, decisions and files."""
        seen, session, flat = self._seen, self._session, judge.flat(written)
        errors = judge.lines_under(written, "error", "fail")
        decisions = judge.lines_under(written, "decision", "decided")
        prose, code = judge.prose_and_code(self._messages)
        seen.errors_listed, seen.decisions_listed = len(errors), len(decisions)
        false = judge.only_read(errors, self._messages)
        listed = judge.flat("\n".join(errors))
        loose = [mark for mark in session.not_errors if mark in flat and mark not in listed]
        seen.false_errors = len(false) + len(loose)
        marked = [mark for mark in session.not_decisions if mark in flat]
        cut = [item for item in decisions if judge.is_cut(item, prose, code)]
        seen.fragments = len(marked) + len([i for i in cut if not any(m in i for m in marked)])
        duplicates = judge.duplicate_paths(written)
        seen.duplicate_paths = len(duplicates)
        seen.paths_listed = len(judge.listed_paths(written))
        seen.lost += [f"no error: {item}" for item in (*false, *loose)]
        seen.lost += [f"no whole decision: {item}" for item in (*cut, *marked)]
        seen.lost += [f"duplicate path: {path}" for path in duplicates]


def _tokens_of(value: object) -> int:
    """Return the tokens of all texts in a message, a list of tools or the like."""
    return sum(map(text_tokens, payload_texts({"messages": [value]})))
