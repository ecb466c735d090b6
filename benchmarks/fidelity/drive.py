"""One session driven through five compactions over HTTP, and what was seen of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import chain
from typing import Any

from app.demo import Client
from benchmarks.fidelity import judge
from benchmarks.fidelity.client import Conversation
from benchmarks.fidelity.planted.generated import Session, generated
from benchmarks.fidelity.planted.report_wording import WORDING
from tests.payload_tokens import payload_texts, payload_tokens, text_tokens

MAX_OUTPUT_TOKENS = 1_024
WINDOW_SHARE = 1.3
"""The window, relative to the conversation: each compaction is one that is asked for."""
EXTRACTIVE = "extractive"
UNMET = "target"
"""A receipt that cannot reach the target says so: an entry of `degraded` begins with this word."""


Row = tuple[str, str, float]
"""Who summarises, the strategy and the budget."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run: a session, and how it is compacted; `share` is of the conversation's tokens."""

    seed: str
    strategy: str
    share: float
    writer: str = EXTRACTIVE

    @property
    def row(self) -> Row:
        """What its figures are added up by."""
        return self.writer.rpartition("/")[2], self.strategy, self.share


@dataclass(slots=True)
class Seen:
    """What was seen in the runs of one row of the tables."""

    runs: int = 0
    planted: Counter[str] = field(default_factory=Counter)
    survived: Counter[str] = field(default_factory=Counter)
    old_values: int = 0
    stale: int = 0
    compactions: int = 0
    within: int = 0
    said: int = 0
    of_source: list[float] = field(default_factory=list)
    conversation_tokens: int = 0
    sent_tokens: int = 0
    todos: int = 0
    todos_kept: int = 0
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

    rows: dict[Row, Seen] = field(default_factory=dict)

    def add(self, other: Results) -> None:
        """Add the results of another run."""
        for row, seen in other.rows.items():
            self.rows.setdefault(row, Seen()).add(seen)


def run(client: Client, job: Job) -> Results:
    """Drive one session."""
    return Results({job.row: _Run(client, job, session_of(job.seed)).seen()})


@cache
def session_of(seed: str) -> Session:
    """Return the session of a seed."""
    return generated(WORDING, seed)


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
        self._payload: Mapping[str, Any] = {}

    def seen(self) -> Seen:
        """Compact after each round, then judge the payload."""
        for messages in self._session.rounds:
            self._append(messages)
            self._compact()
        self._judge(self._payload)
        return self._seen

    def _append(self, messages: Sequence[dict[str, Any]]) -> None:
        self._conversation.append(messages)
        for message in messages:
            self._messages.append(message)
            self._texts.update(judge.content_texts(message))
            self._tokens.append(_tokens_of(message))

    def _compact(self) -> None:
        seen = self._seen
        target = int(self._job.share * (self._fixed + sum(self._tokens)))
        answer = self._conversation.send("POST", "/compact", {"target_tokens": target})
        self._payload = self._conversation.ask("POST", "/context", {})["payload"]
        after = payload_tokens(self._payload)
        seen.compactions += 1
        receipt: Mapping[str, Any] = {}
        if not answer.accepted:
            seen.lost.append(f"failed: {answer.reason}")
            return
        result = answer.body
        if result["compacted"]:
            path = f"/compactions/{result['compaction_id']}"
            receipt = self._conversation.ask("GET", path)
            self._weigh(receipt)
        said = [*result["degraded"], *receipt.get("degraded", ()), result.get("reason") or ""]
        if after <= target:
            seen.within += 1
        elif any(text.startswith(UNMET) for text in said):
            seen.said += 1

    def _weigh(self, receipt: Mapping[str, Any]) -> None:
        """Compare the summaries with their sources, and what a model was sent with the payload."""
        seen, kept = self._seen, set(receipt["kept_seqs"])
        seen.sent_tokens += receipt["input_tokens"]
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
