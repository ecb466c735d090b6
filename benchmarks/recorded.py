"""Recorded conversations driven through the API: appended in order, built, again if too short."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from typing import Any, Protocol, Self, TypeVar

from app.demo import Answer, Client, Trace
from benchmarks.connection import UnexpectedAnswer
from benchmarks.stage import MODEL, report
from tests.recorded import named_traces, source, trace_files, traces_dir
from tests.replay import MAX_OUTPUT_TOKENS

PROCESSES = 3
_PROGRESS_STEPS = 20


def recorded(most_each: int | None = None) -> list[Trace]:
    """Return the recorded conversations, so many of each file, the longest first."""
    files = trace_files(traces_dir())
    found = [trace for path in files for trace in named_traces(path)[:most_each]]
    report(f"{len(found)} conversations of {source()}")
    return sorted(found, key=lambda trace: len(trace.messages), reverse=True)


class Conversation:
    """One stored conversation, and what was appended to it: the ids by seq, the tokens."""

    def __init__(
        self, client: Client, trace: Trace, policy: Mapping[str, Any], model: str = MODEL
    ) -> None:
        self._client = client
        body = {
            "model": model,
            "policy": policy,
            "sections": trace.sections,
            "tools": trace.tools,
        }
        created = self.must("POST", "/v1/conversations", body)
        self.path = f"/v1/conversations/{created['conversation_id']}"
        self.ids: list[str] = []
        self.tokens = 0

    def send(self, method: str, what: str, body: object = None) -> Answer:
        """Send a request about this conversation."""
        return self._client.send(method, self.path + what, body)

    def ask(self, method: str, what: str, body: object = None) -> Any:
        """Return the answer to a request about this conversation; raises unless it is a 2xx."""
        return self.must(method, self.path + what, body)

    def must(self, method: str, path: str, body: object = None) -> Any:
        """Return the body of an answer; raises UnexpectedAnswer unless it is a 2xx."""
        answer = self._client.send(method, path, body)
        if not answer.accepted:
            raise UnexpectedAnswer(f"{method} {path}: {answer.reason}")
        return answer.body

    def append(self, messages: list[dict[str, Any]]) -> Any:
        """Append messages and return the answer."""
        answer = self.ask("POST", "/messages", {"messages": messages})
        self.ids += [message["id"] for message in answer["messages"]]
        self.tokens += sum(message["token_count"] for message in answer["messages"])
        return answer


def budget_of(window: int) -> dict[str, Any]:
    """Return the budget policy of a window, with what every run keeps for the answer."""
    return {"context_window": window, "max_output_tokens": MAX_OUTPUT_TOKENS}


class Sum(Protocol):
    """What was seen, and can be added up."""

    def add(self, other: Self) -> None:
        """Add the results of another run."""


Job = TypeVar("Job")
Seen = TypeVar("Seen", bound=Sum)


def run_all(
    name: str, url: str, work: Callable[[Client, Job], Seen], jobs: list[Job], totals: Seen
) -> Seen:
    """Do the jobs in several processes, each over a connection of its own, and add up."""
    step = max(1, len(jobs) // _PROGRESS_STEPS)
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        futures = [pool.submit(_do, url, work, job) for job in jobs]
        for done, future in enumerate(futures, 1):
            totals.add(future.result())
            if done % step == 0:
                report(f"{name}: {done} of {len(jobs)} runs")
    return totals


def _do(url: str, work: Callable[[Client, Job], Seen], job: Job) -> Seen:
    with closing(Client(url)) as client:
        return work(client, job)
