"""The command groups `keys` and `tenants`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from functools import partial
from importlib import import_module
from typing import Any

import click

from app.cli.database import has_database, location, on_database, read_settings, run_migrated

as_json = click.option("--json", "is_json", is_flag=True, help="Print the result as JSON.")
KEY_HEADS = ("key_id", "tenant", "name", "state", "created", "expires", "scope")


def _run(work: str, *given: Any) -> Any:
    """Run a function of `app.cli.api_keys`, which is slow to import."""
    function = getattr(import_module("app.cli.api_keys"), work)
    return run_migrated(read_settings(existing=True), partial(function, *given))


@click.group()
def keys() -> None:
    """Create, expire, list and revoke API keys.

    Once a key exists, every request needs one, as `Authorization: Bearer ctx_...`.
    """


@keys.command("create")
@click.option("--tenant", required=True, help="Tenant of the key; created if it does not exist.")
@click.option("--name", default="", help="Purpose of the key, shown in lists.")
@click.option("--expires-in-days", type=click.IntRange(1, 36_500), help="Default: never.")
@click.option("--read-only", is_flag=True, help="Only requests that change nothing are allowed.")
@as_json
@on_database
def create_key(
    tenant: str, name: str, expires_in_days: int | None, read_only: bool, is_json: bool
) -> None:
    """Create a key and print it as the last word of stdout; it cannot be shown again.

    A line on stderr names the database. A private database is created if it does not exist.
    """
    from app.cli.api_keys import create

    settings = read_settings()
    exists = has_database(settings)
    text = run_migrated(
        settings, partial(create, tenant, name, expires_in_days, read_only=read_only)
    )
    message = f"Created a key of tenant {tenant} in {location(settings)}"
    if not exists:
        message += ", which is new: services of other directories do not use it"
    click.echo(f"{message}. Keep the key: it is not stored.", err=True)
    if is_json:
        _print_json({"key_id": text.split("_")[1], "key": text})
    else:
        click.echo(text)


@keys.command("list")
@click.option("--tenant", help="Only this tenant's keys.")
@as_json
@on_database
def list_keys(tenant: str | None, is_json: bool) -> None:
    """List keys with tenant, state, times and scope, without their secrets."""
    _print_rows(_run("list_of_keys", tenant), KEY_HEADS, is_json=is_json)


@keys.command("expire")
@click.argument("key_id")
@click.option("--in-days", type=click.IntRange(0, 36_500), help="From now; 0 is now.")
@click.option("--never", is_flag=True)
@on_database
def expire_key(key_id: str, in_days: int | None, never: bool) -> None:
    """Change when KEY_ID expires."""
    if never == (in_days is not None):
        raise click.UsageError("Give --in-days or --never.")
    click.echo(_run("expire", key_id, in_days))


@keys.command("revoke")
@click.argument("key_id")
@on_database
def revoke_key(key_id: str) -> None:
    """Revoke a key for good; `keys list` shows its KEY_ID. Takes effect within 10 s."""
    click.echo(_run("revoke", key_id))


@click.group()
def tenants() -> None:
    """List tenants, set limits and delete their data."""


@tenants.command("list")
@as_json
@on_database
def list_tenants(is_json: bool) -> None:
    """List tenants with the limits that override the settings."""
    from app.tenancy.limits import TenantLimits

    heads = ("tenant", *(field.name for field in fields(TenantLimits)))
    _print_rows(_run("list_of_tenants"), heads, is_json=is_json)


@tenants.command("limit")
@click.argument("tenant")
@click.option("--requests-per-minute", type=click.IntRange(1), help="In each process.")
@click.option("--summarizer-calls-per-hour", type=click.IntRange(0), help="Over all processes.")
@click.option("--create", is_flag=True, help="Create TENANT if it does not exist.")
@on_database
def limit_tenant(tenant: str, create: bool, **limits: int | None) -> None:
    """Set the limits of TENANT; those not given follow the settings. Takes effect in 10 s."""
    from app.tenancy.limits import TenantLimits

    _run("set_limits", tenant, TenantLimits(**limits), create)
    click.echo(f"Set the limits of tenant {tenant}.")


@tenants.command("delete")
@click.argument("tenant")
@click.option("--yes", is_flag=True, help="Delete without a question; needed.")
@as_json
@on_database
def delete_tenant(tenant: str, yes: bool, is_json: bool) -> None:
    """Delete all data of TENANT for good. Its keys are revoked first.

    The keys stay. Repeat it after an interruption.
    """
    if not yes:
        raise click.ClickException(
            f"This deletes all data of tenant {tenant}: repeat it with --yes."
        )
    counts = _run("delete", tenant)
    if is_json:
        _print_json(counts)
        return
    click.echo(f"Deleted tenant {tenant}.")
    for name, count in counts.items():
        click.echo(f"{name}  {count}")


def _print_json(value: Any) -> None:
    """Print a value as one line of JSON, with times in ISO 8601."""
    click.echo(json.dumps(value, default=datetime.isoformat))


def _print_rows(rows: Sequence[Mapping[str, Any]], heads: Sequence[str], *, is_json: bool) -> None:
    """Print rows as a table with these columns, or as JSON."""
    if is_json:
        _print_json(rows)
        return
    cells = [[head.upper() for head in heads]]
    cells += [[_shown(row[head]) for head in heads] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def _shown(value: Any) -> str:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%MZ")
    return "-" if value is None else str(value)
