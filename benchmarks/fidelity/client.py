"""Conversations over HTTP, and runs in several processes.

`benchmarks.recorded` has both for recorded conversations. It imports the SDKs of all providers,
which takes longer than a quick run of this benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from typing import Any, TypeVar

from app.demo import Answer, Client
from benchmarks.stage import MODEL, report

MAX_BATCH = 400
PROCESSES = 2
_PROGRESS_STEPS = 8
Job = TypeVar("Job")
Seen = TypeVar("Seen")


class Conversation:
    """One stored conversation."""

    def __init__(
        self, client: Client, policy: Mapping[str, Any], sections: Sequence[object] = ()
    ) -> None:
        self._client = client
        body = {"model": MODEL, "policy": policy, "sections": sections}
        created = self._must("POST", "/v1/conversations", body)
        self._path = f"/v1/conversations/{created['conversation_id']}"

    def send(self, method: str, what: str, body: object = None) -> Answer:
        """Send a request about this conversation."""
        return self._client.send(method, self._path + what, body)

    def ask(self, method: str, what: str, body: object = None) -> Any:
        """Return the answer to a request about this conversation; raises unless it is a 2xx."""
        return self._must(method, self._path + what, body)

    def append(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Append messages, so many at a time."""
        for start in range(0, len(messages), MAX_BATCH):
            batch = list(messages[start : start + MAX_BATCH])
            self.ask("POST", "/messages", {"messages": batch})

    def _must(self, method: str, path: str, body: object) -> Any:
        answer = self._client.send(method, path, body)
        if not answer.accepted:
            raise RuntimeError(f"{method} {path}: {answer.reason}")
        return answer.body


def run_all(url: str, work: Callable[[Client, Job], Seen], jobs: Sequence[Job]) -> list[Seen]:
    """Do the jobs in several processes, each over a connection of its own."""
    step = max(1, len(jobs) // _PROGRESS_STEPS)
    found = []
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        futures = [pool.submit(_do, url, work, job) for job in jobs]
        for done, future in enumerate(futures, 1):
            found.append(future.result())
            if done % step == 0:
                report(f"fidelity: {done} of {len(jobs)} runs")
    return found


def _do(url: str, work: Callable[[Client, Job], Seen], job: Job) -> Seen:
    with closing(Client(url)) as client:
        return work(client, job)
