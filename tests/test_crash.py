"""Crashes in the middle of a replay, with real processes: what was acknowledged is there (A8).

Writers replay conversations with client ids and repeat whatever was not acknowledged, as a
careful agent backend does. Meanwhile the service, or its database, is killed with -9.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil
import pytest

from app.adapters.postgres.embedded import running
from app.adapters.postgres.migrate import migrate
from app.demo import Answer, Client, Unreachable
from tests.replay import Served, read_messages

WRITERS = 3
SECONDS = 20


class Writer(threading.Thread):
    """Appends turns to one conversation for ever, and remembers what was acknowledged.

    Every fourth request is a batch: a call with its result. A request without an answer, or
    with 503, is sent again as it was.
    """

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._client = Client(url)
        self._leave = threading.Event()
        self.sent: list[dict[str, Any]] = []
        self.acknowledged: dict[str, int] = {}
        self.refused: list[str] = []
        self.unanswered = 0
        self.problems: list[Answer] = []
        answer = self._client.send("POST", "/v1/conversations", {"model": "gpt-4o"})
        assert answer.accepted, answer.reason
        self.conversation_id: str = answer.body["conversation_id"]

    def run(self) -> None:
        """Append until told to leave, or refused."""
        while not self._leave.is_set() and not self.refused:
            self._deliver(self._next_batch())
        self._client.close()

    def leave(self) -> None:
        """Finish the request under way, repeated until it is acknowledged, and end."""
        self._leave.set()
        self.join(SECONDS)
        assert not self.is_alive()

    def _next_batch(self) -> list[dict[str, Any]]:
        number = len(self.sent)
        batch: list[dict[str, Any]] = [
            {"id": f"m{number}", "role": "user", "content": f"Step {number}: go on. 続けて"}
        ]
        if number % 4 == 3:
            function = {"name": "run", "arguments": f'{{"step": {number}}}'}
            call = {"id": f"call_{number}", "type": "function", "function": function}
            batch = [
                {"id": f"m{number}", "role": "assistant", "content": None, "tool_calls": [call]},
                {
                    "id": f"m{number + 1}",
                    "role": "tool",
                    "tool_call_id": call["id"],
                    "content": "done\n" * (number % 50),
                },
            ]
        self.sent += batch
        return batch

    def _deliver(self, batch: list[dict[str, Any]]) -> None:
        path = f"/v1/conversations/{self.conversation_id}/messages"
        while True:
            try:
                answer = self._client.send("POST", path, {"messages": batch})
            except Unreachable:
                self.unanswered += 1
            else:
                if answer.accepted:
                    self._acknowledge(answer)
                    return
                if answer.status != 503:
                    self.refused.append(answer.reason)
                    return
                self.problems.append(answer)
            sleep(0.01)

    def _acknowledge(self, answer: Answer) -> None:
        for stored in answer.body["messages"]:
            self.acknowledged[stored["id"]] = stored["seq"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory whose database is migrated and stopped."""
    data_dir = tmp_path_factory.mktemp("prepared") / "data"
    with running(data_dir) as url:
        migrate(url)
    return data_dir


@pytest.fixture
def service(prepared: Path, tmp_path: Path) -> Iterator[Served]:
    """A service on a copy of it; afterwards both are gone, whatever happened."""
    shutil.copytree(prepared, tmp_path / "data")
    served = Served(tmp_path / "data")
    try:
        served.start()
        yield served
    finally:
        served.kill()
        with running(tmp_path / "data"):
            pass


@contextmanager
def writing(service: Served) -> Iterator[list[Writer]]:
    """Run the writers; they leave in the end, even when the test fails."""
    writers = [Writer(service.url) for _ in range(WRITERS)]
    for writer in writers:
        writer.start()
    try:
        yield writers
    finally:
        for writer in writers:
            with suppress(AssertionError):
                writer.leave()


def progress(service: Served, writers: list[Writer], messages: int) -> None:
    """Wait until every writer has had so many more messages acknowledged."""
    goals = [len(writer.acknowledged) + messages for writer in writers]

    def reached() -> bool:
        assert not any(writer.refused for writer in writers), writers[0].refused
        pairs = zip(writers, goals, strict=True)
        return all(len(writer.acknowledged) >= goal for writer, goal in pairs)

    service.wait_until(reached, SECONDS, f"{messages} more messages are acknowledged")


def assert_nothing_lost(service: Served, writers: list[Writer]) -> None:
    """Everything acknowledged is in the log once, in order, where the answers said."""
    with closing(Client(service.url)) as client:
        for writer in writers:
            writer.leave()
            assert not writer.refused
            log = read_messages(client, writer.conversation_id)
            assert [message["id"] for message in log] == [sent["id"] for sent in writer.sent]
            assert {message["id"]: message["seq"] for message in log} == writer.acknowledged
            for sent, stored in zip(writer.sent, log, strict=True):
                assert {key: stored[key] for key in sent} == sent
            built = client.send("POST", f"/v1/conversations/{writer.conversation_id}/context", {})
            assert built.accepted
            assert built.body["through_seq"] == len(writer.sent)


def kill_postgres(service: Served) -> None:
    """Kill the server of this service's data directory with -9, and wait until it is gone."""
    lines = (service.data_dir / "postgres" / "postmaster.pid").read_text().splitlines()
    server = psutil.Process(int(lines[0]))
    assert str(service.data_dir / "postgres") in server.cmdline()
    server.kill()
    with suppress(psutil.TimeoutExpired):  # a zombie where nobody reaps it
        server.wait(1)


def test_kill_of_the_service_loses_and_doubles_nothing(service: Served) -> None:
    """A kill -9 of the service in the middle of appends, three times over (A2, A8)."""
    with writing(service) as writers:
        for _ in range(3):
            progress(service, writers, 25)
            service.kill()
            service.start()
        progress(service, writers, 25)
        assert any(writer.unanswered for writer in writers)
        assert_nothing_lost(service, writers)


def test_kill_of_postgres_is_answered_with_503_and_heals(service: Served) -> None:
    """A kill -9 of PostgreSQL: 503, nothing lost, and the service needs no restart (A8)."""
    with writing(service) as writers:
        progress(service, writers, 25)
        kill_postgres(service)
        service.wait_until(
            lambda: all(writer.problems for writer in writers),
            SECONDS,
            "every writer is told that the database is away",
        )
        for problem in (problem for writer in writers for problem in writer.problems):
            assert problem.body["code"] == "SERVICE_UNAVAILABLE"
        with running(service.data_dir):
            progress(service, writers, 25)
            assert service.status("/readyz") == 200
            assert_nothing_lost(service, writers)


def test_kill_of_both_at_once_recovers_on_restart(service: Served) -> None:
    """A kill -9 of PostgreSQL and of the service; the next start recovers everything (33, A8)."""
    with writing(service) as writers:
        progress(service, writers, 25)
        kill_postgres(service)
        service.kill()
        started = monotonic()
        service.start()
        assert monotonic() - started < SECONDS
        progress(service, writers, 25)
        assert_nothing_lost(service, writers)
