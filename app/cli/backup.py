"""The commands `backup` and `restore`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.database import database, existing_settings, location, migrated, run_in
from app.cli.options import exiting_on_sigterm, on_database, read_settings, setting

if TYPE_CHECKING:
    from app.adapters.blobs.object_store import ObjectStore
    from app.adapters.postgres.maintenance.backups import Manifest
    from app.settings import Settings

as_json = click.option("--json", "is_json", is_flag=True, help="Print the result as JSON.")


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--objects", "with_objects", is_flag=True, help="Also those of the object store.")
@as_json
@on_database
@setting("blob_store_url")
def backup(file: Path, with_objects: bool, is_json: bool) -> None:
    """Write all data to the new FILE, while the service runs, and read the file again.

    The rows are those of one moment. FILE has the hashes of API keys, and everything else in the
    clear: keep it as safe as the database.
    """
    from app.adapters.postgres.maintenance.backups import verify, write_backup
    from app.adapters.postgres.migrate import MigrationError
    from app.composition import app_version, utc_now

    settings = existing_settings()
    if file.exists():
        raise click.ClickException(f"{file} exists: name a new file.")
    part = file.with_name(f"{file.name}.part")

    async def write(settings: Settings) -> Manifest:
        objects = objects_of(settings) if with_objects else None
        descriptor = os.open(part, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600)
        with os.fdopen(descriptor, "w+b") as opened:
            await write_backup(direct_url(settings), opened, utc_now(), app_version(), objects)
            opened.flush()
            os.fsync(opened.fileno())
            opened.seek(0)
            return verify(opened)

    try:
        with exiting_on_sigterm(), database(settings) as url:
            manifest = run_in(settings, url, write)
        part.rename(file)
    except (OSError, MigrationError) as exc:
        raise click.ClickException(f"{exc}.") from exc
    finally:
        part.unlink(missing_ok=True)
    _report(manifest, f"Wrote {file.stat().st_size:,} bytes of {location(settings)}", is_json)
    if manifest.objects_outside:
        click.echo(
            f"Not in it: {manifest.objects_outside:,} objects of the object store; --objects adds"
            " them.",
            err=True,
        )


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@as_json
@on_database
@setting("blob_store_url")
def restore(file: Path, is_json: bool) -> None:
    """Load the backup FILE into a database without rows, of any version of PostgreSQL from 15.

    FILE is read once before anything is changed. All rows are loaded, or none. Then the schema is
    migrated to that of this version.
    """
    from app.adapters.postgres.maintenance.backups import BackupError, restore_backup, verify
    from app.adapters.postgres.migrate import MigrationError

    settings = read_settings()

    async def load(settings: Settings) -> Manifest:
        return await restore_backup(direct_url(settings), opened, objects_of(settings))

    try:
        with exiting_on_sigterm(), file.open("rb") as opened:
            verify(opened)
            with database(settings) as url:
                manifest = run_in(settings, url, load)
                migrated(settings.direct_database_url or url)
    except (OSError, BackupError, MigrationError) as exc:
        raise click.ClickException(f"{file.name} was not restored. {exc}.") from exc
    _report(manifest, f"Restored {file.name} to {location(settings)}", is_json)


def direct_url(settings: Settings) -> str:
    """Return the URL of PostgreSQL itself: a pooler cannot hold a transaction for hours."""
    url = settings.direct_database_url or settings.database_url
    assert url
    return url


def objects_of(settings: Settings) -> ObjectStore | None:
    """Return the configured object store."""
    from app.adapters.blobs.object_store import ObjectStore

    return ObjectStore(settings.blob_store_url) if settings.blob_store_url else None


def _report(manifest: Manifest, sentence: str, is_json: bool) -> None:
    if is_json:
        click.echo(json.dumps(asdict(manifest)))
        return
    click.echo(
        f"{sentence}: {manifest.rows:,} rows of {len(manifest.tables)} tables, schema"
        f" {manifest.revision:04d}, and {manifest.objects:,} objects."
    )
