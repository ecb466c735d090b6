"""Backup and restore of a whole database by PostgreSQL's own `pg_dump` and `pg_restore`.

1. `pg_dump` reads all rows in one transaction: they are those of one moment.
2. A restore needs a database without tables, and loads all or nothing in one transaction.
3. No password is on a command line, where every process can read it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import asyncpg

from app.database.embedded_cluster import EmbeddedPostgresError
from app.database.embedded_cluster import programs as own_programs

OLDEST_RESTORED = 17
"""The oldest major version that takes what `pg_restore` 18 sends: it sets `transaction_timeout`."""

_CONNECT_SECONDS = 10.0
_TABLE = """
    SELECT format('%I.%I', schemaname, tablename) FROM pg_tables
    WHERE schemaname NOT IN ('pg_catalog', 'information_schema') LIMIT 1
"""


class DumpError(Exception):
    """A database cannot be dumped or restored, for the reason in the text."""


def dump(url: str, file: IO[bytes], programs: Path | None = None) -> None:
    """Write a dump in the custom format; raises DumpError.

    `programs` is the folder of `pg_dump`, by default that of the private PostgreSQL.
    """
    _run("pg_dump", ["--format=custom"], url, programs, stdout=file)


def restore(url: str, file: IO[bytes], programs: Path | None = None) -> None:
    """Load a dump, read from the position of `file`; raises DumpError."""
    asyncio.run(_require_empty(url))
    options = ["--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges"]
    _run("pg_restore", options, url, programs, stdin=file)
    asyncio.run(_analyze(url))


async def _require_empty(url: str) -> None:
    async with _connected(url) as connection:
        major = connection.get_server_version().major
        if major < OLDEST_RESTORED:
            raise DumpError(
                f"The server is PostgreSQL {major}, and `restore` needs {OLDEST_RESTORED} or newer:"
                " docs/deployment.md has the command for older ones"
            )
        if table := await connection.fetchval(_TABLE):
            raise DumpError(f"The database is not empty: it has the table {table}")


async def _analyze(url: str) -> None:
    async with _connected(url) as connection:
        await connection.execute("ANALYZE")


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    no_limit = {"statement_timeout": "0"}
    try:
        connection = await asyncpg.connect(url, timeout=_CONNECT_SECONDS, server_settings=no_limit)
        try:
            yield connection
        finally:
            await connection.close()
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as exc:
        reason = str(exc) or type(exc).__name__
        raise DumpError(f"The database does not answer: {reason}") from exc


def _run(
    program: str,
    options: list[str],
    url: str,
    programs: Path | None,
    *,
    stdin: IO[bytes] | int = subprocess.DEVNULL,
    stdout: IO[bytes] | int = subprocess.DEVNULL,
) -> None:
    try:
        path = (programs or own_programs()) / program
    except EmbeddedPostgresError:
        raise DumpError(
            f"This installation has no PostgreSQL: name the folder of {program} by --programs"
        ) from None
    target, environ = _connection(url)
    try:
        done = subprocess.run(
            (path, *options, "--no-password", f"--dbname={target}"),
            check=False,
            env=environ,
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
        )
    except OSError as exc:
        raise DumpError(f"{path} cannot be run: {exc.strerror}") from exc
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").splitlines()
        errors = [line.removeprefix(f"{program}: error: ") for line in lines if "error: " in line]
        raise DumpError(" | ".join(errors[:3] or lines[-3:]) or f"{program} ended without a reason")


def _connection(url: str) -> tuple[str, dict[str, str]]:
    """Return the URL without password, and the variables of a program with it."""
    parts = urlsplit(url)
    account, at, hosts = parts.netloc.rpartition("@")
    user, _, password = account.partition(":")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    password = options.pop("password", unquote(password))
    options.pop("sslpassword", None)  # no variable can pass it
    target = parts._replace(
        netloc=f"{user}{at}{hosts}", query=urlencode(options, quote_via=quote)
    ).geturl()
    return target, dict(os.environ) | ({"PGPASSWORD": password} if password else {})
