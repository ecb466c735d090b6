"""The command `upgrade-database`."""

from __future__ import annotations

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
    from app.database.dumps import DumpError, dump, restore
    from app.database.embedded import EmbeddedPostgresError, running
    from app.database.embedded_upgrade import upgrading
    from app.database.migrate import MigrationError

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
                with tempfile.TemporaryFile(dir=folder) as file:
                    with upgrade.running(old_programs) as url:
                        dump(url, file)
                    file.seek(0)
                    with running(folder_path) as url:
                        restore(url, file)
                        migrated(url)
                kept = upgrade.replace_by(folder_path / "postgres")
    except (OSError, DumpError, EmbeddedPostgresError, MigrationError) as exc:
        text = str(exc).rstrip(".")
        raise click.ClickException(f"Nothing was changed. {text}.") from exc
    click.echo(f"The old database is {kept}: delete it once all is well.")
