"""The commands `backup` and `restore`, by PostgreSQL's own `pg_dump` and `pg_restore`.

1. `pg_dump` reads all rows in one transaction: they are those of one moment.
2. A restore needs a database without tables, and loads all or nothing in one transaction.
3. No password is on a command line, where every process can read it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import click

from app.cli.database import (
    database,
    exiting_on_sigterm,
    location,
    migrated,
    on_database,
    read_settings,
)

OLDEST_RESTORED = 17
"""The oldest major version that takes what `pg_restore` 18 sends: it sets `transaction_timeout`."""
_CONNECT_SECONDS = 10.0
_TABLE = """
    SELECT format('%I.%I', schemaname, tablename) FROM pg_tables
    WHERE schemaname NOT IN ('pg_catalog', 'information_schema') LIMIT 1
"""
_RESTORE = ("--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges")
_programs = click.option(
    "--programs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of `pg_dump` and `pg_restore`; default: those of the private PostgreSQL.",
)


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@_programs
@on_database
def backup(file: Path, programs: Path | None) -> None:
    """Write all data to the new FILE by `pg_dump`, while the service runs.

    The rows are those of one moment. `-` is stdout. FILE has the hashes of API keys, and everything
    else in the clear: keep it as safe as the database. Objects of an object store are not in it.
    """
    settings = read_settings(existing=True)
    with _one_line_errors(), exiting_on_sigterm(), database(settings) as url, _new(file) as opened:
        direct = settings.direct_database_url or url
        run_program("pg_dump", ["--format=custom"], direct, programs, opened)
    click.echo(f"Wrote {location(settings)} to {file}.", err=str(file) == "-")


@click.command()
@click.argument(
    "file", type=click.Path(exists=True, dir_okay=False, path_type=Path, allow_dash=True)
)
@_programs
@on_database
def restore(file: Path, programs: Path | None) -> None:
    """Load FILE into a database without tables by `pg_restore`; `-` is stdin.

    All is loaded, or nothing. Then the schema is migrated to that of this version.
    """
    settings = read_settings()
    with (
        _one_line_errors(),
        exiting_on_sigterm(),
        click.open_file(str(file), "rb") as opened,
        database(settings) as url,
    ):
        direct = settings.direct_database_url or url
        asyncio.run(_prepared(direct))
        run_program("pg_restore", _RESTORE, direct, programs, opened)
        asyncio.run(_prepared(direct, is_loaded=True))
        migrated(settings, url)
    click.echo(f"Restored {file} to {location(settings)}.")


@contextmanager
def _one_line_errors() -> Iterator[None]:
    import asyncpg

    try:
        yield
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as exc:
        text = str(exc) or type(exc).__name__
        raise click.ClickException(f"{text.rstrip('.')}.") from exc


@contextmanager
def _new(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file, which stays once it is complete and on the disk."""
    if str(path) == "-":
        yield sys.stdout.buffer
        return
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        raise click.ClickException(f"{path} exists: name a new file.") from None
    try:
        with os.fdopen(descriptor, "wb") as opened:
            yield opened
            os.fsync(opened.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


async def _prepared(url: str, *, is_loaded: bool = False) -> None:
    """Check that a restore can begin, or analyze the tables that it has loaded."""
    import asyncpg

    no_limit = {"statement_timeout": "0"}
    connection = await asyncpg.connect(url, timeout=_CONNECT_SECONDS, server_settings=no_limit)
    try:
        major = connection.get_server_version().major
        if is_loaded:
            await connection.execute("ANALYZE")
        elif major < OLDEST_RESTORED:
            raise click.ClickException(
                f"The server is PostgreSQL {major}, and `restore` needs {OLDEST_RESTORED} or newer:"
                " docs/deployment.md has the command for older ones."
            )
        elif table := await connection.fetchval(_TABLE):
            raise click.ClickException(f"The database is not empty: it has the table {table}.")
    finally:
        await connection.close()


def run_program(
    program: str, options: Sequence[str], url: str, programs: Path | None, file: IO[bytes]
) -> None:
    """Run a program whose input, or output for `pg_dump`, is a file."""
    from app.database.embedded import EmbeddedPostgresError
    from app.database.embedded import programs as own_programs

    try:
        path = (programs or own_programs()) / program
    except EmbeddedPostgresError:
        raise click.ClickException(
            f"This installation has no PostgreSQL: name the folder of {program} by --programs."
        ) from None
    parts = urlsplit(url)
    account, at, hosts = parts.netloc.rpartition("@")
    user, _, password = account.partition(":")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    password = query.pop("password", unquote(password))
    query.pop("sslpassword", None)  # no variable can pass it
    shown = urlencode(query, quote_via=quote)
    target = parts._replace(netloc=f"{user}{at}{hosts}", query=shown).geturl()
    is_dump = program == "pg_dump"
    done = subprocess.run(
        (path, *options, "--no-password", f"--dbname={target}"),
        check=False,
        env=dict(os.environ) | ({"PGPASSWORD": password} if password else {}),
        stdin=subprocess.DEVNULL if is_dump else file,
        stdout=file if is_dump else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").splitlines()
        errors = [line.removeprefix(f"{program}: error: ") for line in lines if "error: " in line]
        reason = " | ".join(errors[:3] or lines[-3:]) or f"{program} ended without a reason"
        raise click.ClickException(f"{reason.rstrip('.')}.")
