"""One session driven through five compactions over HTTP, and what was seen of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import chain
from typing import Any

from app.cli.demo import Answer, Client
from benchmarks.fidelity import judge
from benchmarks.fidelity.planted.generated import Session, generated
from benchmarks.fidelity.planted.report_wording import WORDING
from benchmarks.stage import MODEL
from tests.payload_tokens import payload_texts, payload_tokens, text_tokens

MAX_OUTPUT_TOKENS = 1_024
WINDOW_SHARE = 1.3
"""The window, relative to the conversation: each compaction is one that is asked for."""
EXTRACTIVE = "extractive"
UNMET = "target"
"""A receipt that cannot reach the target says so: an entry of `degraded` begins with this word."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run: a session, and how it is compacted; `share` is of the conversation's tokens."""

    seed: str
    strategy: str
    share: float
    writer: str = EXTRACTIVE


@dataclass(slots=True)
class Seen:
    """What was seen in the runs of one row of the table."""

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
    whole_requests: int = 0

    def add(self, other: Seen) -> None:
        """Add what was seen in another run."""
        for entry in fields(self):
            setattr(self, entry.name, getattr(self, entry.name) + getattr(other, entry.name))


@cache
def session_of(seed: str) -> Session:
    """Return the session of a seed."""
    return generated(WORDING, seed)


def run(url: str, job: Job) -> Seen:
    """Drive one session: compact after each round, then judge the payload."""
    session = session_of(job.seed)
    with closing(Client(url)) as client:
        driven = _Run(client, job, session)
        for messages in session.rounds:
            driven.append(messages)
            driven.compact()
        driven.judge(session)
    return driven.seen


class _Run:
    def __init__(self, client: Client, job: Job, session: Session) -> None:
        self.seen = Seen(runs=1)
        self._client, self._share = client, job.share
        self._fixed = sum(text_tokens(section["content"]) for section in session.sections)
        whole = self._fixed + sum(_tokens_of(raw) for raw in chain.from_iterable(session.rounds))
        policy = {
            "strategy": job.strategy,
            "budget": {
                "context_window": int(WINDOW_SHARE * whole) + MAX_OUTPUT_TOKENS,
                "max_output_tokens": MAX_OUTPUT_TOKENS,
            },
            "tool_output": {"enabled": False},  # shortens results before anything is compacted
            "compaction": {"auto": False, "model": job.writer},
        }
        body = {"model": MODEL, "policy": policy, "sections": session.sections}
        self._path = "/v1/conversations"
        self._path += f"/{self._ask('POST', '', body)['conversation_id']}"
        self._texts = {section["content"] for section in session.sections}
        self._tokens: list[int] = []
        self._payload: Mapping[str, Any] = {}

    def append(self, messages: Sequence[dict[str, Any]]) -> None:
        """Append messages, and remember their texts and tokens."""
        self._ask("POST", "/messages", {"messages": messages})
        for message in messages:
            self._texts.update(judge.content_texts(message))
            self._tokens.append(_tokens_of(message))

    def compact(self) -> None:
        """Compact to the share of the conversation, and build."""
        seen = self.seen
        target = int(self._share * (self._fixed + sum(self._tokens)))
        answer = self._send("POST", "/compact", {"target_tokens": target})
        self._payload = self._ask("POST", "/context", {})["payload"]
        seen.compactions += 1
        if not answer.accepted:
            return
        result, receipt = answer.body, {}
        if result["compacted"]:
            receipt = self._ask("GET", f"/compactions/{result['compaction_id']}")
            self._weigh(receipt)
        said = [*result["degraded"], *receipt.get("degraded", ()), result.get("reason") or ""]
        if payload_tokens(self._payload) <= target:
            seen.within += 1
        elif any(text.startswith(UNMET) for text in said):
            seen.said += 1

    def _weigh(self, receipt: Mapping[str, Any]) -> None:
        """Compare the summaries with their sources, and what a model was sent with the payload."""
        seen, kept = self.seen, set(receipt["kept_seqs"])
        seen.sent_tokens += receipt["input_tokens"]
        for summary in receipt["made"]:
            start, end = summary["summary_range"]
            seqs = (seq for seq in range(start, end) if seq not in kept)
            source = sum(self._tokens[seq - 1] for seq in seqs)
            if source:
                seen.of_source.append(text_tokens(summary["text"]) / source)

    def judge(self, session: Session) -> None:
        """Judge the last payload."""
        seen = self.seen
        text = judge.payload_text(self._payload)
        written = judge.written_text(self._payload, self._texts)
        seen.conversation_tokens = self._fixed + sum(self._tokens)
        for plant in session.plants:
            seen.planted[plant.kind] += 1
            seen.survived[plant.kind] += judge.survives(plant, text)
            seen.old_values += len(plant.old)
            seen.stale += len(judge.stale_values(plant, text, written))
        seen.todos, seen.todos_kept = len(session.todos), judge.found_in(session.todos, text)
        seen.whole_requests = judge.found_in([session.first_request], text)

    def _send(self, method: str, what: str, body: object = None) -> Answer:
        return self._client.send(method, self._path + what, body)

    def _ask(self, method: str, what: str, body: object = None) -> Any:
        answer = self._send(method, what, body)
        if not answer.accepted:
            raise RuntimeError(f"{method} {self._path}{what}: {answer.reason}")
        return answer.body


def _tokens_of(value: object) -> int:
    """Return the tokens of all texts in a message, a list of tools or the like."""
    return sum(map(text_tokens, payload_texts({"messages": [value]})))
