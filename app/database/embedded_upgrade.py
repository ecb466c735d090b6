"""Moves an embedded PostgreSQL of another major version to this one.

PostgreSQL reads the files of its own major version only. So the old cluster is run once more, by
programs of its version, and its dump is restored in a new cluster, which takes its place by
renames. The old one stays beside it.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.database.embedded import start, stop
from app.database.embedded_cluster import (
    MAJOR_VERSION,
    UPGRADED,
    Cluster,
    EmbeddedPostgresError,
    account_for,
    prepare,
    version_of,
)

PROGRAM_FOLDERS = (
    "/usr/lib/postgresql/{}/bin",
    "/usr/pgsql-{}/bin",
    "/opt/homebrew/opt/postgresql@{}/bin",
)
"""Where the packages of Linux distributions and Homebrew have the programs of a major version."""


def programs_of(version: str) -> Path | None:
    """Return the folder of the programs of a major version, if a package has installed them."""
    folders = (Path(folder.format(version)) for folder in PROGRAM_FOLDERS)
    return next((folder for folder in folders if (folder / "postgres").exists()), None)


class Upgrade:
    """The old cluster of a data directory, which no other process uses."""

    def __init__(self, data_dir: Path, version: str) -> None:
        self._path = data_dir / "postgres"
        self._version = version
        self._kept = data_dir / f"postgres.{version}"

    @contextmanager
    def running(self, programs: Path) -> Iterator[str]:
        """Run the old cluster and yield its URL; raises EmbeddedPostgresError."""
        cluster = Cluster(self._path, programs.resolve(), account_for(self._path))
        prepare(cluster, self._version)
        try:
            server = start(cluster)
            assert server is not None, "no stop event is passed"
            yield server.url
        finally:
            stop(cluster)

    def replace_by(self, new: Path) -> Path:
        """Put a stopped cluster in its place, and return where the old one is now.

        After a crash in between, the next start completes it.
        """
        new.rename(self._path.with_name(UPGRADED))
        self._path.rename(self._kept)
        self._path.with_name(UPGRADED).rename(self._path)
        return self._kept


@contextmanager
def upgrading(data_dir: Path, programs: Path | None) -> Iterator[tuple[Upgrade, Path] | None]:
    """Yield the upgrade and the folder of the old programs; None if nothing has to be done.

    No other process can use the data directory during the block. Raises EmbeddedPostgresError.
    """
    with (data_dir / "postgres.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        version = version_of(data_dir / "postgres")
        if version == MAJOR_VERSION:
            yield None
            return
        with (data_dir / "postgres.in-use").open("ab") as in_use:
            try:
                fcntl.flock(in_use, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise EmbeddedPostgresError(f"{data_dir} is in use: stop the service.") from None
            found = programs or programs_of(version)
            if found is None:
                raise EmbeddedPostgresError(
                    f"The programs of PostgreSQL {version} are needed once, and were not found:"
                    f" install its package, such as postgresql-{version}, or name their folder by"
                    " --programs."
                )
            _require_version(found, version)
            if (kept := data_dir / f"postgres.{version}").exists():
                raise EmbeddedPostgresError(f"{kept} is there already: move it away.")
            shutil.rmtree(data_dir / UPGRADED, ignore_errors=True)  # of an interrupted upgrade
            yield Upgrade(data_dir, version), found


def _require_version(programs: Path, version: str) -> None:
    try:
        command = (programs / "postgres", "--version")
        shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as exc:
        raise EmbeddedPostgresError(f"{programs / 'postgres'} cannot be run: {exc}.") from exc
    found = re.search(r"PostgreSQL\) (\d+)", shown)
    if found is None or found[1] != version:
        raise EmbeddedPostgresError(
            f"{programs} has {shown.strip()}, and the data is of PostgreSQL {version}."
        )
