"""The private PostgreSQL, with real servers: made, shared, killed, adopted, recovered, refused."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import asyncpg
import psutil
import pytest

from app.adapters.postgres.embedded import EmbeddedPostgresError, running

HOLD = """
import sys
from pathlib import Path
from app.adapters.postgres.embedded import running
with running(Path(sys.argv[1])) as url:
    print(url, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory whose cluster is complete and stopped."""
    data_dir = tmp_path_factory.mktemp("made")
    with running(data_dir):
        pass
    return data_dir


@pytest.fixture
def data_dir(made: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of it for one test, whose server is stopped afterwards whatever happened."""
    copy = tmp_path / "data"
    shutil.copytree(made, copy)
    yield copy
    if (copy / "postgres" / "postmaster.pid").exists():
        with ExitStack() as stack:
            stack.enter_context(running(copy))


@contextmanager
def holder(data_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """Run another process that uses the cluster until its standard input is closed."""
    command = (sys.executable, "-c", HOLD, str(data_dir))
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


async def test_first_start_makes_the_database(tmp_path: Path) -> None:
    """A start in a new directory makes the cluster and leaves foreign files alone (33)."""
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


async def test_data_outlives_a_restart(data_dir: Path) -> None:
    """What was committed is there after the next start (A8)."""
    with running(data_dir) as url:
        await ask(url, "CREATE TABLE kept AS SELECT 7 AS value")
    with running(data_dir) as url:
        assert await ask(url, "SELECT value FROM kept") == 7


@pytest.mark.parametrize("name", ["d" * 120, "with space, comma & mother's", "ünïcode"])
async def test_socket_path_is_short_and_plain(data_dir: Path, tmp_path: Path, name: str) -> None:
    """A deep or odd data directory still gets a socket that a client can name (33)."""
    deep = tmp_path / name
    data_dir.rename(deep)
    with running(deep) as url:
        assert await ask(url, "SELECT 1") == 1
        assert len(url) < 160
    assert stopped(deep)


async def test_server_of_a_killed_service_is_adopted_and_then_stopped(data_dir: Path) -> None:
    """A service killed with -9 leaves its server; the next start adopts and later stops it (33)."""
    with holder(data_dir) as killed:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    server = postmaster(data_dir)
    with running(data_dir) as url:
        assert await ask(url, "SELECT 1") == 1
        assert postmaster(data_dir).pid == server.pid
    assert stopped(data_dir)


async def test_killed_server_recovers(data_dir: Path) -> None:
    """After kill -9 of PostgreSQL a start recovers what was acknowledged (33, A8)."""
    with holder(data_dir) as killed, running(data_dir) as url:
        await ask(url, "CREATE TABLE kept AS SELECT 7 AS value")
        postmaster(data_dir).send_signal(signal.SIGKILL)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    with running(data_dir) as url:
        assert await ask(url, "SELECT value FROM kept") == 7
    assert stopped(data_dir)


@pytest.mark.parametrize(
    "left",
    [f"{os.getpid()}\n/elsewhere\n1\n5432\n", "", "no number\n"],
    ids=["another process", "empty", "no number"],
)
async def test_misleading_pid_file_does_not_stop_a_start(data_dir: Path, left: str) -> None:
    """A pid file whose number another process has by now, or a torn one, is overcome (33)."""
    (data_dir / "postgres" / "postmaster.pid").write_text(left)
    with running(data_dir) as url:
        assert await ask(url, "SELECT 1") == 1
    assert stopped(data_dir)


async def test_server_whose_socket_was_deleted_is_replaced(data_dir: Path) -> None:
    """A live server that nobody can reach any more is stopped and started again (33)."""
    with holder(data_dir) as killed:
        server = postmaster(data_dir)
        killed.kill()
        killed.wait()
    (data_dir / "postgres" / ".s.PGSQL.5432").unlink(missing_ok=True)
    with running(data_dir) as url:
        assert await ask(url, "SELECT 1") == 1
        assert postmaster(data_dir).pid != server.pid


async def test_two_processes_share_one_server(data_dir: Path) -> None:
    """Two processes use one server, and the last one out stops it (33)."""
    with holder(data_dir) as other:
        with running(data_dir) as url:
            shared = postmaster(data_dir).pid
        assert await ask(url, "SELECT 1") == 1
        with running(data_dir):
            assert postmaster(data_dir).pid == shared
            assert other.stdin is not None
            other.stdin.close()
            other.wait()
            assert await ask(url, "SELECT 1") == 1
    assert stopped(data_dir)


def test_starts_at_once_end_in_one_server(data_dir: Path) -> None:
    """Processes that start at the same moment find one server and leave none (33)."""
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


def test_data_directory_that_cannot_be(tmp_path: Path) -> None:
    """A data directory that is a file, or can't be made, is one sentence (33)."""
    file = tmp_path / "file"
    file.touch()
    for impossible in (file, file / "below", Path("/proc/none")):
        with pytest.raises(EmbeddedPostgresError, match="cannot be used"), running(impossible):
            pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_unwritable_data_directory(tmp_path: Path) -> None:
    """A data directory without write permission is one sentence (33)."""
    tmp_path.chmod(0o500)
    with pytest.raises(EmbeddedPostgresError, match="Permission denied"), running(tmp_path):
        pass


def test_cluster_of_another_version_is_refused(data_dir: Path) -> None:
    """A cluster of another PostgreSQL is refused with what to do about it."""
    (data_dir / "postgres" / "PG_VERSION").write_text("16\n")
    with pytest.raises(EmbeddedPostgresError, match=r"PostgreSQL 16.*pg_dump"), running(data_dir):
        pass


def test_folder_that_is_no_cluster_is_refused(tmp_path: Path) -> None:
    """A folder named postgres with other things in it is neither used nor emptied (33)."""
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "holiday.jpg").touch()
    with pytest.raises(EmbeddedPostgresError, match="no PostgreSQL cluster"), running(tmp_path):
        pass
    assert (tmp_path / "postgres" / "holiday.jpg").exists()


def test_path_that_a_shell_would_change_is_refused(tmp_path: Path) -> None:
    """A data directory whose name a shell would expand is refused, not misread (33)."""
    with (
        pytest.raises(EmbeddedPostgresError, match="choose another path"),
        running(tmp_path / "$HOME"),
    ):
        pass


def test_failed_start_says_why(data_dir: Path) -> None:
    """When PostgreSQL refuses to start, the error has the end of its log (33)."""
    with (data_dir / "postgres" / "postgresql.conf").open("a") as file:
        file.write("max_connections = plenty\n")
    with pytest.raises(EmbeddedPostgresError, match='"plenty"'), running(data_dir):
        pass
    assert stopped(data_dir)
