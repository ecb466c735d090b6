"""An embedded PostgreSQL in the data directory, for services without a configured database.

1. The cluster is `<data_dir>/postgres/`; other files in the data directory are not changed.
2. A process that uses the cluster holds a shared lock on `postgres.in-use`, which the kernel
   releases when the process ends. The last process stops the server.
3. Starts and stops are serialised by an exclusive lock on `postgres.lock`.
4. A supervising process restarts a server that ended.
"""

from __future__ import annotations

import fcntl
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from app.database.embedded_cluster import (
    DATABASE,
    Cluster,
    EmbeddedPostgresError,
    account_for,
    prepare,
    programs,
)
from app.database.embedded_server import URL_PREFIX, is_alive, socket_dir_of, start, stop

__all__ = ["DATABASE", "EmbeddedPostgresError", "is_embedded_url", "is_full", "running"]

WATCH_SECONDS = 0.25
"""The interval at which a supervisor checks the server."""
MIN_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 10.0
"""The pause after a failed start, which may succeed later, as on a full disk."""

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
