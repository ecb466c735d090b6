"""The commands `backup` and `restore`, by `pg_dump` and `pg_restore`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import click

from app.cli.database import database, existing_settings, location, migrated
from app.cli.options import exiting_on_sigterm, on_database, read_settings

with_programs = click.option(
    "--programs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of `pg_dump` and `pg_restore`; default: those of the private PostgreSQL.",
)


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@with_programs
@on_database
def backup(file: Path, programs: Path | None) -> None:
    """Write all data to the new FILE by `pg_dump`, while the service runs.

    The rows are those of one moment. `-` is stdout. FILE has the hashes of API keys, and everything
    else in the clear: keep it as safe as the database. Objects of an object store are not in it.
    """
    from app.database.dumps import dump

    settings = existing_settings()
    with _one_line_errors(), exiting_on_sigterm(), database(settings) as url, _new(file) as opened:
        dump(settings.direct_database_url or url, opened, programs)
    click.echo(f"Wrote {location(settings)} to {file}.", err=str(file) == "-")


@click.command()
@click.argument(
    "file", type=click.Path(exists=True, dir_okay=False, path_type=Path, allow_dash=True)
)
@with_programs
@on_database
def restore(file: Path, programs: Path | None) -> None:
    """Load FILE into a database without tables by `pg_restore`; `-` is stdin.

    All is loaded, or nothing. Then the schema is migrated to that of this version.
    """
    from app.database.dumps import restore as restore_dump

    settings = read_settings()
    with _one_line_errors(), exiting_on_sigterm(), _old(file) as opened, database(settings) as url:
        restore_dump(settings.direct_database_url or url, opened, programs)
        migrated(settings.direct_database_url or url)
    click.echo(f"Restored {file} to {location(settings)}.")


@contextmanager
def _one_line_errors() -> Iterator[None]:
    from app.database.dumps import DumpError
    from app.database.embedded import EmbeddedPostgresError
    from app.database.migrate import MigrationError

    try:
        yield
    except (OSError, DumpError, EmbeddedPostgresError, MigrationError) as exc:
        raise click.ClickException(f"{str(exc).rstrip('.')}.") from exc


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


@contextmanager
def _old(path: Path) -> Iterator[IO[bytes]]:
    if str(path) == "-":
        yield sys.stdin.buffer
        return
    with path.open("rb") as opened:
        yield opened
