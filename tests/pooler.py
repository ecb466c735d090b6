"""A real PgBouncer in transaction mode, set up by `deploy/pgbouncer.ini`. [operation.pooler]"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from configparser import RawConfigParser
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.patience import PATIENCE_SECONDS

SHIPPED = Path(__file__).parent.parent / "deploy" / "pgbouncer.ini"
DATABASE = "context_service"
PROGRAM = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin")

Pooled = Callable[[str], str]
"""Returns the URL through the pooler for a database's own URL."""


@contextmanager
def pooling(url: str) -> Iterator[Pooled]:
    """Run a pooler in front of the server that a URL names, for all of its databases."""
    if PROGRAM is None:
        raise RuntimeError("PgBouncer is not installed")
    (host,), (port,) = (parse_qs(urlsplit(url).query)[name] for name in ("host", "port"))
    account = pwd.getpwuid(os.stat(f"{host}/.s.PGSQL.{port}").st_uid)
    folder = Path(tempfile.mkdtemp(prefix="pgbouncer-", dir="/tmp"))
    os.chown(folder, account.pw_uid, account.pw_gid)
    (folder / "ini").write_text(_configured(folder, host, port))
    (folder / "ini").chmod(0o644)
    # As root it wants to become somebody else; only the server's owner reaches the server.
    switch = ("-u", account.pw_name) if os.geteuid() == 0 else ()
    process = subprocess.Popen((PROGRAM, "-q", *switch, str(folder / "ini")))
    try:
        _wait_for(process, folder / f".s.PGSQL.{port}")
        yield lambda own: own.replace(f"host={host}", f"host={folder}")
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
        shutil.rmtree(folder)


def connect_query() -> str:
    """Return what the shipped file lets every connection to the server begin with."""
    return _shipped()["databases"][DATABASE].partition("connect_query=")[2].strip("'")


def _shipped() -> RawConfigParser:
    parser = RawConfigParser(delimiters=("=",), comment_prefixes=(";",))
    parser.read(SHIPPED)
    return parser


def _configured(folder: Path, host: str, port: str) -> str:
    """Return the shipped file with other places, and without passwords."""
    parser = _shipped()
    options = dict(parser["pgbouncer"])
    options |= {"listen_addr": "", "listen_port": port, "unix_socket_dir": str(folder)}
    options |= {"auth_type": "any", "logfile": str(folder / "log"), "autodb_idle_timeout": "5"}
    # A test has one database, and each of the suite's hundreds of them has a pool of its own.
    options |= {"default_pool_size": "5", "server_idle_timeout": "5", "server_login_retry": "0.1"}
    del options["auth_file"]
    settings = "\n".join(f"{name} = {value}" for name, value in options.items())
    server = f"host={host} port={port} user=postgres connect_query='{connect_query()}'"
    return f"[databases]\n* = {server}\n\n[pgbouncer]\n{settings}\n"


def _wait_for(process: subprocess.Popen[bytes], path: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, "PgBouncer did not start"
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                return probe.connect(str(path))
            except OSError:
                time.sleep(0.01)
    raise TimeoutError("PgBouncer does not listen")
