"""The server process of an embedded PostgreSQL: find, start and stop it.

A running server is used, also one that another process started. PostgreSQL recovers after a crash
at the next start, which may take long.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import socket
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psutil

from app.database.embedded_cluster import DATABASE, Cluster, EmbeddedPostgresError, fail

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

    def listens(self) -> bool:
        """Whether something accepts connections at the socket."""
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.socket_dir / f".s.PGSQL.{self.port}"))
            except OSError:
                return False
        return True


def is_alive(cluster: Cluster) -> bool:
    """Return whether the server runs, has its socket and takes new sessions; needs no lock.

    A server that stops refuses new sessions, and may wait for the end of its last one for ever.
    """
    try:
        lines = (cluster.path / "postmaster.pid").read_text().splitlines()
        pid, port, socket_dir = int(lines[0]), lines[3].strip(), Path(lines[4].strip())
        command = psutil.Process(pid).cmdline()
    except (OSError, ValueError, IndexError, psutil.Error):
        return False
    has_socket = (socket_dir / f".s.PGSQL.{port}").exists()
    return str(cluster.path) in command and has_socket and _STOPPING not in lines[7:]


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


def _find_server(cluster: Cluster) -> Server | None:
    """Return the running server of a cluster; delete an invalid pid file.

    The file of a dead server stays: PostgreSQL uses it to find remaining child processes.
    """
    file = cluster.path / "postmaster.pid"
    try:
        lines = [line.strip() for line in file.read_text().splitlines()]
    except FileNotFoundError:
        return None
    if not lines or not lines[0].isdecimal():
        file.unlink(missing_ok=True)
        return None
    try:
        command = psutil.Process(int(lines[0])).cmdline()
    except psutil.ZombieProcess:
        command = []
    except psutil.NoSuchProcess:
        return None
    if str(cluster.path) not in command:  # the process id was reused, or is a zombie
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
