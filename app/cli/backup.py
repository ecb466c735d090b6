"""The commands `backup`, `restore` and `upgrade-database`, by `pg_dump` and `pg_restore`."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import click

from app.cli.database import database, existing_settings, location, migrated
from app.cli.options import exiting_on_sigterm, on_database, read_settings, setting

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


@click.command("upgrade-database")
@click.option(
    "--programs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of `postgres` of the old version; default: where packages install it.",
)
@setting("data_dir")
def upgrade_database(programs: Path | None) -> None:
    """Move the private database of another major version of PostgreSQL to this release's.

    Needed once after a release with a new major version, while the service is stopped. All rows are
    copied; the old database stays beside the new one, and may be deleted later.
    """
    from app.database.dumps import dump
    from app.database.dumps import restore as restore_dump
    from app.database.embedded import running
    from app.database.embedded_upgrade import upgrading

    data_dir = read_settings().data_dir.resolve()
    if not (data_dir / "postgres" / "PG_VERSION").exists():
        raise click.ClickException(f"There is no database in {data_dir}.")
    with (
        _one_line_errors("Nothing was changed. "),
        exiting_on_sigterm(),
        upgrading(data_dir, programs) as found,
    ):
        if found is None:
            click.echo("The database is of this version already.")
            return
        upgrade, old_programs = found
        with tempfile.TemporaryDirectory(prefix="upgrade.", dir=data_dir) as folder:
            folder_path = Path(folder)
            folder_path.chmod(0o711)  # root starts PostgreSQL as another account
            with tempfile.TemporaryFile(dir=folder) as file:
                with upgrade.running(old_programs) as url:
                    dump(url, file)
                file.seek(0)
                with running(folder_path) as url:
                    restore_dump(url, file)
                    migrated(url)
            kept = upgrade.replace_by(folder_path / "postgres")
    click.echo(f"The old database is {kept}: delete it once all is well.")


@contextmanager
def _one_line_errors(before: str = "") -> Iterator[None]:
    from app.database.dumps import DumpError
    from app.database.embedded import EmbeddedPostgresError
    from app.database.migrate import MigrationError

    try:
        yield
    except (OSError, DumpError, EmbeddedPostgresError, MigrationError) as exc:
        raise click.ClickException(f"{before}{str(exc).rstrip('.')}.") from exc


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
