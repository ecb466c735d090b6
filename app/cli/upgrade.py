"""The command `upgrade-database`."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import click

from app.cli.database import migrated
from app.cli.options import exiting_on_sigterm, read_settings, setting


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
    from app.adapters.postgres.embedded import EmbeddedPostgresError, running
    from app.adapters.postgres.embedded_upgrade import upgrading
    from app.adapters.postgres.maintenance.backups import (
        BackupError,
        restore_backup,
        verify,
        write_backup,
    )
    from app.adapters.postgres.migrate import MigrationError
    from app.composition import app_version, utc_now

    data_dir = read_settings().data_dir.resolve()
    if not (data_dir / "postgres" / "PG_VERSION").exists():
        raise click.ClickException(f"There is no database in {data_dir}.")
    try:
        with exiting_on_sigterm(), upgrading(data_dir, programs) as found:
            if found is None:
                click.echo("The database is of this version already.")
                return
            upgrade, old_programs = found
            with tempfile.TemporaryDirectory(prefix="upgrade.", dir=data_dir) as folder:
                folder_path = Path(folder)
                folder_path.chmod(0o711)  # root starts PostgreSQL as another account
                with (folder_path / "rows.zip").open("w+b") as file:
                    with upgrade.running(old_programs) as url:
                        asyncio.run(write_backup(url, file, utc_now(), app_version()))
                    manifest = verify(file)
                    with running(folder_path) as url:
                        asyncio.run(restore_backup(url, file))
                        migrated(url)
                kept = upgrade.replace_by(folder_path / "postgres")
    except (OSError, EmbeddedPostgresError, BackupError, MigrationError) as exc:
        text = str(exc).rstrip(".")
        raise click.ClickException(f"Nothing was changed. {text}.") from exc
    click.echo(
        f"Moved {manifest.rows:,} rows from PostgreSQL {manifest.server_version.split()[0]}."
        f" The old database is {kept}: delete it once all is well."
    )
