"""The command `migrate`."""

from __future__ import annotations

import click

from app.cli.database import database, migrated
from app.cli.options import exiting_on_sigterm, on_database, read_settings


@click.command()
@on_database
def migrate() -> None:
    """Migrate the database to this version's schema; `serve` does it as well."""
    settings = read_settings()
    with exiting_on_sigterm(), database(settings) as url:
        changed = migrated(settings.direct_database_url or url)
    click.echo("The schema is up to date." if changed else "The schema was up to date.")
