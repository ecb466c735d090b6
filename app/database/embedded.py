"""An embedded PostgreSQL in the data directory, for services without a configured database.

1. The cluster is `<data_dir>/postgres/`; other files in the data directory are not changed.
2. A process that uses the cluster holds a shared lock on `postgres.in-use`, which the kernel
   releases when the process ends. The last process stops the server.
3. Starts and stops are serialised by an exclusive lock on `postgres.lock`.
4. A supervising process restarts a server that ended. PostgreSQL recovers after a crash at the next
   start, which may take long.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import quote

import psutil

from app.database.embedded_cluster import (
    DATABASE,
    Cluster,
    EmbeddedPostgresError,
    account_for,
    fail,
    prepare,
    programs,
)

__all__ = ["DATABASE", "EmbeddedPostgresError", "is_embedded_url", "is_full", "running"]

WATCH_SECONDS = 0.25
"""The interval at which a supervisor checks the server."""
MIN_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 10.0
"""The pause after a failed start, which may succeed later, as on a full disk."""

RECOVERY_SECONDS = 600
"""The timeout of a start, crash recovery included."""
ORPHAN_SECONDS = 10
"""How long the child processes of a killed server may take to exit."""
SUPERVISED_SECONDS = 3
"""How long a supervisor waits for a start before it checks whether to stop."""
URL_PREFIX = f"postgresql://postgres@/{DATABASE}?host="
_STOPPING = "stopping"
"""The status of a server that was told to stop, in `postmaster.pid`."""
_MAX_SOCKET_DIR = 88
_PLAIN_PATH = re.compile(r"[\w./+-]+", re.ASCII)
_SEGMENT_BYTES = 16 * 2**20

_log = logging.getLogger("app.database.embedded")


def is_embedded_url(url: str) -> bool:
    """Return whether a URL is one of an embedded server."""
    return url.startswith(URL_PREFIX)


def is_full(data_dir: Path) -> bool:
    """Return whether the disk has no space for the next WAL segment."""
    try:
        return shutil.disk_usage(data_dir / "postgres").free < _SEGMENT_BYTES
    except OSError:
        return False


@contextmanager
def running(data_dir: Path, on_lost: Callable[[str], None] | None = None) -> Iterator[str]:
    """Run the cluster of `data_dir`, created if missing, and yield the URL of its database.

    Raises EmbeddedPostgresError. With `on_lost` a server that ends is restarted; `on_lost` gets the
    reason if the cluster is deleted. On exit the server is stopped unless another process uses it:
    a fast shutdown for 4 s, then an immediate one.
    """
    with ExitStack() as stack:
        cluster, url = _enter(data_dir.resolve(), stack)
        if on_lost is not None:
            stack.enter_context(_supervised(cluster, on_lost))
        yield url


@contextmanager
def _supervised(cluster: Cluster, on_lost: Callable[[str], None]) -> Iterator[None]:
    """Supervise the server in a thread (rule 4)."""
    stopping = threading.Event()
    thread = threading.Thread(
        target=_supervise, args=(cluster, stopping, on_lost), name="postgres", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def _supervise(cluster: Cluster, stopping: threading.Event, on_lost: Callable[[str], None]) -> None:
    """Restart the server when it has ended, with increasing pauses after failures."""
    pause, reason = WATCH_SECONDS, ""
    while not stopping.wait(pause):
        if is_alive(cluster):
            continue
        if not (cluster.path / "PG_VERSION").exists():
            on_lost(f"The database in {cluster.path} was deleted")
            return
        if not reason:
            _log.warning("database_lost")
        try:
            with _locked(cluster.path.parent):
                start(cluster, stopping)
        except Exception as error:  # the supervisor must survive
            pause = min(max(pause * 2, MIN_PAUSE_SECONDS), MAX_PAUSE_SECONDS)
            if str(error) != reason:
                _log.error("database_not_restarted", extra={"data": {"reason": str(error)}})
            reason = str(error)
        else:
            if not stopping.is_set():
                _log.info("database_restarted")
            pause, reason = WATCH_SECONDS, ""


def _enter(data_dir: Path, stack: ExitStack) -> tuple[Cluster, str]:
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        cluster = Cluster(data_dir / "postgres", programs(), account_for(data_dir / "postgres"))
        in_use = stack.enter_context((data_dir / "postgres.in-use").open("ab"))
        with _locked(data_dir):
            fcntl.flock(in_use, fcntl.LOCK_SH)
            stack.callback(_leave, cluster, in_use)
            prepare(cluster)
            server = start(cluster)
            assert server is not None, "no stop event is passed"
            return cluster, server.url
    except OSError as exc:
        place = exc.filename or data_dir
        reason = exc.strerror or exc
        raise EmbeddedPostgresError(
            f"The data directory {data_dir} cannot be used ({place}: {reason})."
        ) from exc


def _leave(cluster: Cluster, in_use: IO[bytes]) -> None:
    with _locked(cluster.path.parent):
        try:
            fcntl.flock(in_use, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        stop(cluster)
        if socket_dir_of(cluster) != cluster.path:
            with suppress(OSError):  # missing, or not empty
                socket_dir_of(cluster).rmdir()


@contextmanager
def _locked(data_dir: Path) -> Iterator[None]:
    with (data_dir / "postgres.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True, slots=True)
class Server:
    """A running server, as described by `postmaster.pid`."""

    socket_dir: Path
    port: str
    status: str

    @property
    def url(self) -> str:
        """The address of its database, over a socket."""
        host = quote(str(self.socket_dir), safe="/")
        return f"{URL_PREFIX}{host}&port={self.port}"

    @property
    def socket(self) -> Path:
        """Its socket."""
        return self.socket_dir / f".s.PGSQL.{self.port}"

    def listens(self) -> bool:
        """Whether something accepts connections at the socket."""
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket)) == 0


def is_alive(cluster: Cluster) -> bool:
    """Return whether the server runs, has its socket and takes new sessions; needs no lock.

    A server that stops refuses new sessions, and may wait for the end of its last one for ever.
    """
    server = _find_server(cluster, cleans=False)
    return server is not None and server.status != _STOPPING and server.socket.exists()


def start(cluster: Cluster, stopping: threading.Event | None = None) -> Server | None:
    """Return the server when it is ready, None if `stopping` is set before."""
    deadline = time.monotonic() + RECOVERY_SECONDS
    while time.monotonic() < deadline:
        server = _find_server(cluster)
        if stopping is not None and stopping.is_set():
            return None
        if server is None:
            _launch(cluster, RECOVERY_SECONDS if stopping is None else SUPERVISED_SECONDS)
        elif server.status == _STOPPING:
            stop(cluster)
        elif server.status != "ready":
            time.sleep(0.05)
        elif server.listens():
            return server
        else:
            stop(cluster)  # its socket was deleted
    raise EmbeddedPostgresError(
        f"PostgreSQL in {cluster.path} is not ready after {RECOVERY_SECONDS} s; see {cluster.log}."
    )


def _launch(cluster: Cluster, seconds: int) -> None:
    """Start a server; it may still be recovering after `seconds`."""
    log_start = cluster.log.stat().st_size if cluster.log.exists() else 0
    socket_dir = socket_dir_of(cluster)
    _create_socket_dir(cluster, socket_dir)
    for stale in socket_dir.glob(".s.PGSQL.*"):  # a process may have the id of the dead server
        stale.unlink(missing_ok=True)
    options = f"-k {shlex.quote(str(socket_dir))}"
    orphans_gone = time.monotonic() + ORPHAN_SECONDS
    while True:
        started = _pg_ctl(cluster, "start", seconds, "-l", str(cluster.log), "-o", options)
        if started.returncode == 0 or _find_server(cluster) is not None:
            return
        log = _text_after(cluster.log, log_start)
        if "shared memory block" not in log or time.monotonic() > orphans_gone:
            fail(f"PostgreSQL cannot start in {cluster.path}", log or started.stdout)
        time.sleep(0.1)


def stop(cluster: Cluster) -> None:
    """Stop the server of a cluster, if it runs."""
    for mode, seconds in (("fast", 4), ("immediate", 2)):
        if _find_server(cluster) is None:
            return
        _pg_ctl(cluster, "stop", seconds, "-m", mode)


def _pg_ctl(
    cluster: Cluster, action: str, seconds: int, *options: str
) -> subprocess.CompletedProcess[str]:
    return cluster.run(
        "pg_ctl", action, "-w", "-t", str(seconds), "-D", str(cluster.path), *options
    )


def _find_server(cluster: Cluster, *, cleans: bool = True) -> Server | None:
    """Return the running server of a cluster; with `cleans`, delete an invalid pid file.

    The file of a dead server stays: PostgreSQL uses it to find remaining child processes.
    """
    file = cluster.path / "postmaster.pid"
    lines: list[str] = []
    command: list[str] = []
    try:
        lines = [line.strip() for line in file.read_text().splitlines()]
        command = psutil.Process(int(lines[0])).cmdline()
    except FileNotFoundError:
        return None
    except (ValueError, IndexError, psutil.ZombieProcess):
        pass  # a torn file, or a process that has ended
    except psutil.NoSuchProcess:
        return None
    if str(cluster.path) not in command:  # or the process id was reused
        if cleans:
            file.unlink(missing_ok=True)
        return None
    lines += [""] * (8 - len(lines))
    return Server(socket_dir=Path(lines[4]), port=lines[3], status=lines[7])


def socket_dir_of(cluster: Cluster) -> Path:
    """Return a directory with a path that a socket and a URL can have."""
    path = str(cluster.path)
    if len(path) <= _MAX_SOCKET_DIR and _PLAIN_PATH.fullmatch(path):
        return cluster.path
    name = f"context-service-{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}"
    temporary = tempfile.gettempdir()
    short = len(temporary) + len(name) < _MAX_SOCKET_DIR and _PLAIN_PATH.fullmatch(temporary)
    return Path(temporary if short else "/tmp", name)


def _create_socket_dir(cluster: Cluster, folder: Path) -> None:
    owner = cluster.account.uid if cluster.account else os.geteuid()
    if not folder.exists():
        folder.mkdir(mode=0o700)
        if cluster.account:
            os.chown(folder, owner, cluster.account.gid)
    if folder.is_symlink() or folder.stat().st_uid != owner:
        raise EmbeddedPostgresError(
            f"{folder}, the directory of the database socket, belongs to another user."
        )


def _text_after(log: Path, start: int) -> str:
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace")
