"""The commands `backup` and `restore`."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from app.cli.database import database, existing_settings, location, migrated, run_in
from app.cli.options import exiting_on_sigterm, on_database, read_settings, setting
from app.cli.output import as_json, print_json

if TYPE_CHECKING:
    from app.adapters.blobs.object_store import ObjectStore
    from app.adapters.postgres.maintenance.backups import Manifest
    from app.settings import Settings


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--objects", "with_objects", is_flag=True, help="Also those of the object store.")
@as_json
@on_database
@setting("blob_store_url")
def backup(file: Path, with_objects: bool, is_json: bool) -> None:
    """Write all data to the new FILE, while the service runs, and read the file again.

    The rows are those of one moment. `-` is stdout, which is not read again. FILE has the hashes of
    API keys, and everything else in the clear: keep it as safe as the database.
    """
    from app.adapters.postgres.maintenance.backups import verify, write_backup
    from app.adapters.postgres.migrate import MigrationError
    from app.composition import app_version, utc_now

    settings = existing_settings()

    async def write(opened: BinaryIO, settings: Settings) -> Manifest:
        objects = objects_of(settings) if with_objects else None
        return await write_backup(direct_url(settings), opened, utc_now(), app_version(), objects)

    try:
        with exiting_on_sigterm(), database(settings) as url:
            if str(file) == "-":
                manifest = run_in(settings, url, partial(write, sys.stdout.buffer))
            else:
                with _new_file(file) as opened:
                    run_in(settings, url, partial(write, opened))
                    manifest = verify(opened)
    except (OSError, MigrationError) as exc:
        raise click.ClickException(f"{exc}.") from exc
    _report(manifest, f"Wrote {location(settings)} to {file}", is_json, err=str(file) == "-")
    if manifest.objects_outside:
        click.echo(
            f"Not in it: {manifest.objects_outside:,} objects of the object store; --objects adds"
            " them.",
            err=True,
        )


@click.command()
@click.argument(
    "file", type=click.Path(exists=True, dir_okay=False, path_type=Path, allow_dash=True)
)
@as_json
@on_database
@setting("blob_store_url")
def restore(file: Path, is_json: bool) -> None:
    """Load the backup FILE into a database without rows, of any version of PostgreSQL from 15.

    FILE is read once before anything is changed; `-` is stdin, which is copied to a temporary file.
    All rows are loaded, or none. Then the schema is migrated to that of this version.
    """
    from app.adapters.postgres.maintenance.backups import BackupError, restore_backup, verify
    from app.adapters.postgres.migrate import MigrationError

    settings = read_settings()

    async def load(settings: Settings) -> Manifest:
        return await restore_backup(direct_url(settings), opened, objects_of(settings))

    try:
        with exiting_on_sigterm(), _existing_file(file) as opened:
            verify(opened)
            with database(settings) as url:
                manifest = run_in(settings, url, load)
                migrated(settings.direct_database_url or url)
    except (OSError, BackupError, MigrationError) as exc:
        raise click.ClickException(f"{file} was not restored. {exc}.") from exc
    _report(manifest, f"Restored {file} to {location(settings)}", is_json)


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that exists under its name once it is complete and on the disk."""
    if path.exists():
        raise click.ClickException(f"{path} exists: name a new file.")
    part = path.with_name(f"{path.name}.part")
    try:
        descriptor = os.open(part, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600)
        with os.fdopen(descriptor, "w+b") as opened:
            yield opened
            opened.flush()
            os.fsync(opened.fileno())
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _existing_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file; stdin is copied, because a ZIP file is read from its end."""
    if str(path) != "-":
        with path.open("rb") as opened:
            yield opened
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        yield copy


def direct_url(settings: Settings) -> str:
    """Return the URL of PostgreSQL itself: a pooler cannot hold a transaction for hours."""
    url = settings.direct_database_url or settings.database_url
    assert url
    return url


def objects_of(settings: Settings) -> ObjectStore | None:
    """Return the configured object store."""
    from app.adapters.blobs.object_store import ObjectStore

    return ObjectStore(settings.blob_store_url) if settings.blob_store_url else None


def _report(manifest: Manifest, sentence: str, is_json: bool, *, err: bool = False) -> None:
    if is_json:
        print_json(asdict(manifest), err=err)
        return
    click.echo(
        f"{sentence}: {manifest.rows:,} rows of {len(manifest.tables)} tables, schema"
        f" {manifest.revision:04d}, and {manifest.objects:,} objects.",
        err=err,
    )
