"""A Citus cluster on this machine, from installed programs, to try the service and to test it.

    python deploy/citus/cluster.py start FOLDER --programs /usr/lib/postgresql/15/bin --workers 2
    python deploy/citus/cluster.py status FOLDER
    python deploy/citus/cluster.py stop FOLDER [--node worker1]

`start` makes what is missing: the nodes, each in a folder of its own, and the service's database on
all of them, migrated and distributed. It prints the URLs for the service and for its tests. The
nodes listen on 127.0.0.1 only, where every account of the machine gets in without a password, and
what they store does not survive a crash of the machine. docs/scaling.md has the steps for a cluster
of several machines.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DATABASE = "context_service"
ROLE = "postgres"
OF_A_TRIAL = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 300
citus.node_conninfo = 'sslmode=disable'
fsync = off
synchronous_commit = off
full_page_writes = off
"""
# PostgreSQL does not run as root; Debian's package has made this account.
_ACCOUNT: dict[str, Any] = (
    {"user": "postgres", "group": "postgres", "extra_groups": ()} if os.geteuid() == 0 else {}
)


@dataclass(frozen=True)
class Cluster:
    """The nodes of a folder: the coordinator at the first port, then the workers."""

    folder: Path
    programs: str
    port: int
    workers: int

    @property
    def nodes(self) -> dict[str, int]:
        """Return the ports by name, in the order in which a database is made: workers first."""
        workers = {f"worker{number}": self.port + number for number in range(1, self.workers + 1)}
        return workers | {"coordinator": self.port}

    def url(self, port: int, database: str) -> str:
        """Return the URL of a database on a node."""
        return f"postgresql://{ROLE}@127.0.0.1:{port}/{database}"

    def start(self) -> None:
        """Start all nodes, and make those and the database that are missing."""
        for name, port in self.nodes.items():
            if not (self.folder / name / "PG_VERSION").exists():
                self._make_node(name, port)
            if not self.runs(name):
                log = str(self.folder / name / "log")
                self._control(name, "-w", "-l", log, "start")
        found = f"SELECT FROM pg_database WHERE datname = '{DATABASE}'"
        if "(1 row)" not in self._psql(self.port, "postgres", "--command", found):
            for database in ("postgres", DATABASE):
                self._make_database(database)
            self._distribute()

    def stop(self, only: str | None = None) -> None:
        """Stop all nodes, the coordinator first, or one."""
        for name in reversed(self.nodes):
            if only in (None, name) and self.runs(name):
                self._control(name, "-w", "-m", "fast", "stop")

    def runs(self, name: str) -> bool:
        """Return whether a node runs."""
        return self._control(name, "status", check=False) == 0

    def _make_node(self, name: str, port: int) -> None:
        path = self.folder / name
        path.mkdir(mode=0o700, exist_ok=True)
        if _ACCOUNT:
            shutil.chown(path, _ACCOUNT["user"], _ACCOUNT["group"])
        options = (f"--pgdata={path}", f"--username={ROLE}", "--auth=trust", "--encoding=UTF8")
        _run(f"{self.programs}/initdb", *options, "--locale=C.UTF-8", **_ACCOUNT)
        with (path / "postgresql.conf").open("a", encoding="utf-8") as settings:
            settings.write(f"{(HERE / 'node.conf').read_text()}\nport = {port}\n{OF_A_TRIAL}")

    def _make_database(self, database: str) -> None:
        """Make a database on every node, and let the coordinator know the others."""
        for port in self.nodes.values():
            if database != "postgres":
                apart = "SET citus.enable_create_database_propagation = off"
                create = f"CREATE DATABASE {database}"
                self._psql(port, "postgres", "--command", apart, "--command", create)
            self._psql(port, database, "--file", str(HERE / "node.sql"))
        known = [f"SELECT citus_set_coordinator_host('127.0.0.1', {self.port})"]
        known += [
            f"SELECT citus_add_node('127.0.0.1', {port})"
            for name, port in self.nodes.items()
            if name != "coordinator"
        ]
        self._psql(self.port, database, *(word for sql in known for word in ("--command", sql)))

    def _distribute(self) -> None:
        """Make the tables of the service, and place them on the nodes."""
        url = self.url(self.port, DATABASE)
        program = str(Path(sys.executable).with_name("context-service"))
        service = os.environ | {"CONTEXT_DATABASE_URL": url}
        _run(program, "migrate", env=service)
        self._psql(self.port, DATABASE, "--file", str(HERE / "distribute.sql"))
        _run(program, "migrate", env=service)  # makes the functions of the shards

    def _psql(self, port: int, database: str, *words: str) -> str:
        options = ("--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1")
        return _run(f"{self.programs}/psql", *options, self.url(port, database), *words)

    def _control(self, name: str, *words: str, check: bool = True) -> int:
        command = [f"{self.programs}/pg_ctl", f"--pgdata={self.folder / name}", *words]
        # The server inherits these, and would keep a pipe open.
        null = subprocess.DEVNULL
        return subprocess.run(command, check=check, stdin=null, stdout=null, **_ACCOUNT).returncode


def _run(*command: str, **options: Any) -> str:
    """Run a program and return what it prints; ends this one with its errors if it fails."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, check=False, capture_output=True, text=True, **options
    )
    if done.returncode:
        sys.exit(f"{Path(command[0]).name} failed: {done.stderr or done.stdout}")
    return done.stdout


def main(words: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("start", "status", "stop"))
    parser.add_argument("folder", type=Path, help="the nodes; every account has to reach it")
    parser.add_argument("--programs", default="/usr/lib/postgresql/15/bin", help="where initdb is")
    parser.add_argument("--port", type=int, default=5440, help="of the coordinator")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--node", help="stop this one only, such as worker1")
    given = parser.parse_args(words)
    folder = given.folder.resolve()
    kept = folder / "cluster.json"
    if kept.exists():  # what the nodes were made with
        cluster = Cluster(folder, **json.loads(kept.read_text()))
    elif given.command == "start":
        folder.mkdir(parents=True, exist_ok=True)
        cluster = Cluster(folder, given.programs, given.port, given.workers)
        kept.write_text(json.dumps({k: v for k, v in asdict(cluster).items() if k != "folder"}))
    else:
        parser.error(f"there is no cluster in {folder}")
    if given.command == "status":
        for name, port in cluster.nodes.items():
            print(f"{name} on port {port} {'runs' if cluster.runs(name) else 'does not run'}")
    elif given.command == "stop":
        cluster.stop(given.node)
    else:
        cluster.start()
        print(f"export CONTEXT_DATABASE_URL={cluster.url(cluster.port, DATABASE)}")
        print(f"export CONTEXT_TEST_CITUS_URL={cluster.url(cluster.port, 'postgres')}")


if __name__ == "__main__":
    main()
