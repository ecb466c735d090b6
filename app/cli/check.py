"""The commands `check` and `usage`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from app.cli.backup import direct_url, objects_of
from app.cli.database import database, existing_settings, run_in
from app.cli.options import exiting_on_sigterm, on_database, setting
from app.cli.output import as_json, print_json, print_rows

if TYPE_CHECKING:
    from app.adapters.postgres.maintenance.integrity import Checked
    from app.adapters.postgres.maintenance.storage import Usage
    from app.settings import Settings


@click.command()
@click.option("--objects", "with_objects", is_flag=True, help="Also those of the object store.")
@as_json
@on_database
@setting("blob_store_url")
@click.pass_context
def check(context: click.Context, with_objects: bool, is_json: bool) -> None:
    """Check that the rows of the database belong together, while the service runs.

    Sequences and sums of logs, references, the bytes of outputs, indexes. Nothing is written. The
    exit code is 1 if anything is wrong.
    """
    from app.adapters.postgres.maintenance import integrity
    from app.adapters.postgres.maintenance.connection import snapshot

    async def work(settings: Settings) -> list[Checked]:
        objects = objects_of(settings) if with_objects else None
        results = []
        async with snapshot(direct_url(settings)) as connection:
            async for checked in integrity.check(connection, objects):
                results.append(checked)
                if not is_json:
                    lines = (f"{'WRONG' if checked.wrong else 'ok':<6}{checked.name}",)
                    click.echo("\n      ".join((*lines, *checked.examples)))
        return results

    results = _run(work)
    wrong = [asdict(result) for result in results if result.wrong]
    if is_json:
        names = [result.name for result in results]
        print_json({"checks": names, "problems": wrong})
    else:
        click.echo(f"{len(results)} checks, {sum(row['wrong'] for row in wrong):,} wrong rows.")
    context.exit(1 if wrong else 0)


largest_shown = click.option(
    "--largest",
    type=click.IntRange(0, 10_000),
    default=10,
    show_default=True,
    help="How many of the largest conversations are shown.",
)


@click.command()
@largest_shown
@as_json
@on_database
def usage(largest: int, is_json: bool) -> None:
    """Show how many bytes are stored: by table, by tenant, and of the largest conversations."""
    from app.adapters.postgres.maintenance.storage import usage_of

    async def work(settings: Settings) -> Usage:
        return await usage_of(direct_url(settings), largest)

    print_usage(_run(work), is_json=is_json)


def print_usage(found: Usage, *, is_json: bool) -> None:
    """Print sizes, as one table for each of what they are of."""
    if is_json:
        print_json(found)
        return
    for rows in found.values():
        if rows:
            print_rows(rows, list(rows[0]))
            click.echo()


def _run(work: Any) -> Any:
    """Run work on the database as it is: a check migrates nothing."""
    from app.adapters.postgres.migrate import MigrationError

    settings = existing_settings()
    try:
        with exiting_on_sigterm(), database(settings) as url:
            return run_in(settings, url, work)
    except MigrationError as exc:
        raise click.ClickException(f"{exc}.") from exc
