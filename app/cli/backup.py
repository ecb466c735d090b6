"""The commands `backup` and `restore`, by PostgreSQL's own `pg_dump` and `pg_restore`.

1. `pg_dump` reads all rows in one transaction: they are those of one moment.
2. A restore loads all or nothing in one transaction: a table that exists already ends it.
3. No password is on a command line, where every process can read it.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import click

from app.cli.database import (
    database,
    exiting_on_sigterm,
    location,
    migrated,
    on_database,
    read_settings,
    waiting,
)

_RESTORE = ("--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges")
_programs = click.option(
    "--programs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of `pg_dump` and `pg_restore`; default: those of the private PostgreSQL.",
)


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@_programs
@on_database
def backup(file: Path, programs: Path | None) -> None:
    """Write all data to the new FILE by `pg_dump`, while the service runs.

    The rows are those of one moment. `-` is stdout. FILE has the hashes of API keys, and everything
    else in the clear: keep it as safe as the database. Objects of an object store are not in it.
    """
    settings = read_settings(existing=True)
    if file.exists():
        raise click.ClickException(f"{file} exists: name a new file.")
    os.umask(0o077)
    options = ["--format=custom", *_named(file, "--file=")]
    with exiting_on_sigterm(), database(settings) as url:
        try:
            run_program("pg_dump", options, settings.direct_database_url or url, programs)
        except BaseException:
            file.unlink(missing_ok=True)  # it is not complete
            raise
    click.echo(f"Wrote {location(settings)} to {file}.", err=True)


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
    with exiting_on_sigterm(), database(settings) as url:
        options = [*_RESTORE, *_named(file)]
        run_program("pg_restore", options, settings.direct_database_url or url, programs)
        migrated(settings, url)
    click.echo(f"Restored {file} to {location(settings)}.")


def _named(file: Path, option: str = "") -> list[str]:
    """Return the argument that names a file, none for a standard stream."""
    return [] if str(file) == "-" else [f"{option}{file}"]


def run_program(program: str, options: list[str], url: str, programs: Path | None) -> None:
    """Run a program of PostgreSQL; its errors become one line."""
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
    with waiting(f"Running {program}"):
        done = subprocess.run(
            (path, "--no-password", f"--dbname={target}", *options),
            check=False,
            env=dict(os.environ) | ({"PGPASSWORD": password} if password else {}),
            stderr=subprocess.PIPE,
        )
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").splitlines()
        errors = [line.removeprefix(f"{program}: error: ") for line in lines if "error: " in line]
        reason = " | ".join(errors[:3] or lines[-3:]) or f"{program} ended without a reason"
        raise click.ClickException(f"{reason.rstrip('.')}.")
