"""Crashes in the middle of a replay, with real processes: what was acknowledged is there.

Writers replay conversations with client ids and repeat whatever was not acknowledged, as a
careful agent backend does. Meanwhile the service, or its database, is killed with -9.

[log.durable]
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from app.cli.demo import Client, Unreachable
from app.database.embedded import running
from tests.patience import PATIENCE_SECONDS
from tests.replay import Served, read_messages
from tests.torture.forked import forked
from tests.writers import Difference, Message, Writer, grown, writing

WRITERS = 3


class Turns(Writer):
    """Appends user messages; every fourth request is a batch, a call with its result."""

    def next_batch(self, number: int) -> list[Message]:
        """Return the next turn's message, or its call and result."""
        if number % 4 != 3:
            return [
                {"id": f"m{number}", "role": "user", "content": f"Step {number}: go on. 続けて"}
            ]
        function = {"name": "run", "arguments": f'{{"step": {number}}}'}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        return [
            {"id": f"m{number}", "role": "assistant", "content": None, "tool_calls": [call]},
            {
                "id": f"m{number + 1}",
                "role": "tool",
                "tool_call_id": call["id"],
                "content": "done\n" * (number % 50),
            },
        ]


@pytest.fixture
def service(data_dir: Path) -> Iterator[Served]:
    """A service that is gone afterwards, whatever happened."""
    served = Served(data_dir, launch=forked)
    try:
        served.start()
        yield served
    finally:
        served.kill()


def turns(service: Served) -> list[Turns]:
    """Return writers that have not begun yet."""
    return [Turns(service.url) for _ in range(WRITERS)]


def progress(service: Served, writers: Sequence[Writer]) -> None:
    """Wait until every writer has had some more messages acknowledged."""
    service.wait_until(grown(writers, 25), PATIENCE_SECONDS, "every writer has gone on")


def assert_nothing_lost(service: Served, writers: Sequence[Writer]) -> None:
    """Everything acknowledged is in the log once, in order, where the answers said."""
    with closing(Client(service.url)) as client:
        for writer in writers:
            writer.leave()
            assert not writer.refused
            log = read_messages(client, writer.conversation_id)
            assert writer.difference(log) == Difference()
            assert [message["id"] for message in log] == [sent["id"] for sent in writer.sent]
            assert {message["id"]: message["seq"] for message in log} == writer.acknowledged
            for sent, stored in zip(writer.sent, log, strict=True):
                assert {key: stored[key] for key in sent} == sent
            built = client.send("POST", f"{writer.path}/context", {})
            assert built.accepted
            assert built.body["through_seq"] == len(writer.sent)


def kill_postgres(service: Served, sign: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to the server of this service's data directory, and wait until it is gone."""
    lines = (service.data_dir / "postgres" / "postmaster.pid").read_text().splitlines()
    server = psutil.Process(int(lines[0]))
    assert str(service.data_dir / "postgres") in server.cmdline()
    server.send_signal(sign)
    with suppress(psutil.TimeoutExpired):  # a zombie where nobody reaps it
        server.wait(1)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_kill_of_postgres_is_answered_with_503_and_heals(
    service: Served, sign: signal.Signals
) -> None:
    """PostgreSQL is killed or told to stop: 503, nothing lost, the service needs no restart."""
    with writing(turns(service)) as writers:
        progress(service, writers)
        kill_postgres(service, sign)
        service.wait_until(
            lambda: all(writer.problems for writer in writers),
            PATIENCE_SECONDS,
            "every writer is told that the database is away",
        )
        for problem in (problem for writer in writers for problem in writer.problems):
            assert problem["code"] == "SERVICE_UNAVAILABLE"
        progress(service, writers)
        assert service.status("/readyz") == 200
        assert_nothing_lost(service, writers)


@pytest.fixture
def small_disk(prepared: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of the data directory on a file system of its own, with little room."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", "size=144m,mode=755", "tmpfs", str(disk))
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        shutil.copytree(prepared, disk / "data")
        yield disk
        with running(disk / "data"):
            pass
    finally:
        subprocess.run(("umount", "--lazy", str(disk)), check=True)


def test_a_full_disk_is_503_and_heals(small_disk: Path) -> None:
    """Appends to a full disk are 503, nothing acknowledged is lost, and room alone mends it.

    [operation.disk-full]
    """
    served = Served(small_disk / "data", launch=forked)
    served.start()
    try:
        with closing(Client(served.url)) as client:
            made = client.send("POST", "/v1/conversations", {"model": "gpt-4o"})
            path = f"/v1/conversations/{made.body['conversation_id']}/messages"
            acknowledged: list[str] = []

            def append() -> int:
                text = f"{len(acknowledged)} " + random_text(1_000_000)
                message = {"id": f"m{len(acknowledged)}", "role": "user", "content": text}
                try:
                    answer = client.send("POST", path, {"messages": [message]})
                except Unreachable:
                    return 0
                if answer.status == 201:
                    acknowledged.append(text)
                return answer.status

            assert append() == 201
            ballast = small_disk / "ballast"
            with ballast.open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(2**16))
            statuses = {append() for _ in range(8)}
            assert 503 in statuses
            assert statuses <= {201, 503}
            ballast.unlink()
            served.wait_until(lambda: append() == 201, PATIENCE_SECONDS, "an append is taken again")
            log = read_messages(client, made.body["conversation_id"])
            stored = {message["id"]: message["content"] for message in log}
            assert stored == {f"m{place}": text for place, text in enumerate(acknowledged)}
    finally:
        served.kill()


def random_text(size: int) -> str:
    """Return text that no compression makes small."""
    return random.Random(size).randbytes(size // 2).hex()
