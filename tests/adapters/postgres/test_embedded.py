"""The embedded PostgreSQL, with real servers: created, shared, killed, recovered, refused."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import asyncpg
import psutil
import pytest

from app.database.embedded import EmbeddedPostgresError, running
from tests.logged import lines
from tests.patience import PATIENCE_SECONDS

__all__ = ["lines"]

pytestmark = pytest.mark.one_server

HOLD = """
import sys
from pathlib import Path
from app.database.embedded import running
with running(Path(sys.argv[1]), print if "supervised" in sys.argv else None) as url:
    print(url, flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(data_dir: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run another process that uses the cluster until its standard input is closed."""
    command = (sys.executable, "-c", HOLD, str(data_dir), *words)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("postgresql://")
        try:
            yield process
        finally:
            process.kill()


def postmaster(data_dir: Path) -> psutil.Process:
    """Return the live server's process."""
    lines = (data_dir / "postgres" / "postmaster.pid").read_text().splitlines()
    return psutil.Process(int(lines[0]))


def stopped(data_dir: Path) -> bool:
    """Tell whether the server was stopped in good order."""
    return not (data_dir / "postgres" / "postmaster.pid").exists()


async def ask(url: str, statement: str) -> object:
    """Run one statement and return its first value."""
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def answered(url: str, statement: str) -> object:
    """Run one statement as soon as the database answers, and return its first value."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return await ask(url, statement)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            assert time.monotonic() < deadline, "the database does not come back"
            await asyncio.sleep(0.05)


def kill(data_dir: Path, which: str) -> psutil.Process:
    """Kill the server with -9, alone or with all its children, and return it."""
    server = postmaster(data_dir)
    children = server.children(recursive=True) if which == "all" else []
    for process in (server, *children):
        # Children end by themselves as soon as their parent is gone.
        with suppress(psutil.NoSuchProcess):
            process.kill()
    return server


def servers(data_dir: Path) -> list[psutil.Process]:
    """Return the processes that are the cluster's server.

    A child that was just forked has the server's command line until it takes a name of its own.
    """
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = process.cmdline()
            if process.name() == "postgres" and str(data_dir / "postgres") in command:
                found[process.pid] = (process, process.ppid())
    return [process for process, parent in found.values() if parent not in found]


@pytest.mark.parametrize("which", ["postmaster", "all"])
async def test_a_supervised_server_is_restarted(data_dir: Path, which: str) -> None:
    """Killed with -9, alone or with all its processes, the server is started again, twice over."""
    lost: list[str] = []
    with running(data_dir, lost.append) as url:
        await ask(url, "CREATE TABLE kept AS SELECT 7 AS value")
        for _ in range(2):
            killed = kill(data_dir, which)
            assert await answered(url, "SELECT value FROM kept") == 7
            assert postmaster(data_dir).pid != killed.pid
    assert stopped(data_dir)
    assert not lost


async def test_first_start_creates_the_database(tmp_path: Path) -> None:
    """A start in a new directory makes the cluster and leaves foreign files alone.

    [operation.embedded-database]
    """
    data_dir = tmp_path / "not" / "there" / "yet"
    data_dir.mkdir(parents=True)
    (data_dir / "notes.txt").write_text("mine")
    (data_dir / "postgres.new.left").mkdir()
    with running(data_dir) as url:
        assert await ask(url, "SELECT current_database()") == "context_service"
        assert await ask(url, "SHOW max_connections") == "200"
        assert await ask(url, "SHOW listen_addresses") == ""
        assert await ask(url, "SELECT lower('ÄÖ')") == "äö"
    assert stopped(data_dir)
    assert (data_dir / "notes.txt").read_text() == "mine"
    assert not (data_dir / "postgres.new.left").exists()


async def test_server_of_a_killed_service_is_used_and_then_stopped(data_dir: Path) -> None:
    """A service killed with -9 leaves its server; the next start adopts and later stops it."""
    with holder(data_dir) as killed:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    server = postmaster(data_dir)
    with running(data_dir) as url:
        assert await ask(url, "SELECT 1") == 1
        assert postmaster(data_dir).pid == server.pid
    assert stopped(data_dir)


async def test_server_whose_socket_was_deleted_is_replaced(data_dir: Path) -> None:
    """A running server without a socket is stopped and started again. [operation.shutdown]"""
    with holder(data_dir) as killed:
        server = postmaster(data_dir)
        killed.kill()
        killed.wait()
    (data_dir / "postgres" / ".s.PGSQL.5432").unlink(missing_ok=True)
    with running(data_dir) as url:
        assert await ask(url, "SELECT 1") == 1
        assert postmaster(data_dir).pid != server.pid


def test_concurrent_starts_end_in_one_server(data_dir: Path) -> None:
    """Processes that start at the same moment find one server and leave none."""
    command = (sys.executable, "-c", HOLD, str(data_dir))
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
                )
            )
            for _ in range(3)
        ]
        answers = {process.communicate()[0] for process in processes}
    assert len(answers) == 1
    assert {process.returncode for process in processes} == {0}
    assert stopped(data_dir)


def test_cluster_of_another_version_is_refused(data_dir: Path) -> None:
    """A cluster of another PostgreSQL is refused with what to do. [operation.new-major]"""
    (data_dir / "postgres" / "PG_VERSION").write_text("16\n")
    with pytest.raises(EmbeddedPostgresError, match=r"PostgreSQL 16.*restore"), running(data_dir):
        pass
