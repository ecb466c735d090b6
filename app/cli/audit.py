"""The command group `audit`."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import BinaryIO

import click

from app.cli.database import existing_settings, run_migrated
from app.cli.options import on_database


class _Time(click.ParamType[datetime]):
    """A time in ISO 8601, of UTC unless it says otherwise."""

    name = "time"

    def convert(
        self, value: str | datetime, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """Return the time, or fail with a sentence."""
        if isinstance(value, datetime):
            return value
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no time such as 2026-03-01 or 2026-03-01T12:00Z", param, ctx)
        return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


@click.group()
def audit() -> None:
    """Read who has changed keys and tenants, and who has deleted data."""


@audit.command("export")
@click.argument("file", type=click.File("wb", lazy=False), default="-")
@click.option("--since", type=_Time(), help="First time, such as 2026-03-01; default: all.")
@click.option("--until", type=_Time(), help="Time after the last entry; default: now.")
@click.option("--tenant", help="Only this tenant's entries.")
@on_database
def export_audit(
    file: BinaryIO, since: datetime | None, until: datetime | None, tenant: str | None
) -> None:
    """Write the audit to FILE (default: stdout), one JSON object per line, oldest first."""
    from app.keys import export_audit

    span = (since or datetime(1970, 1, 1, tzinfo=UTC), until or datetime.now(UTC))
    count = run_migrated(existing_settings(), partial(export_audit, *span, tenant, file))
    click.echo(f"Exported {count:,} entries.", err=True)
