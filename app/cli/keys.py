"""The command groups `keys` and `tenants`; what they change is logged for the audit."""

from __future__ import annotations

import getpass
import json
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from app.cli.database import Group, has_database, location, on_database, read_settings, run_migrated

if TYPE_CHECKING:
    from app.composition import Services

as_json = click.option("--json", "is_json", is_flag=True, help="Print the result as JSON.")
_log = logging.getLogger("app.audit")
_Result = TypeVar("_Result")


def _run(work: Callable[[Services], Awaitable[_Result]]) -> _Result:
    return run_migrated(read_settings(existing=True), work)


@click.group(cls=Group)
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
    settings, expires_at = read_settings(), _in_days(expires_in_days)
    exists = has_database(settings)
    text = run_migrated(
        settings,
        lambda services: services.keys.create(tenant, name, expires_at, read_only=read_only),
    )
    key_id = text.split("_")[1]
    own = {"name": name, "expires_at": expires_at, "read_only": read_only}
    _log.info("key_created", extra={"data": _by_account(tenant_id=tenant, key=key_id, **own)})
    message = f"Created a key of tenant {tenant} in {location(settings)}"
    if not exists:
        message += ", which is new: services of other directories do not use it"
    click.echo(f"{message}. Keep the key: it is not stored.", err=True)
    if is_json:
        _print_json({"key_id": key_id, "key": text})
    else:
        click.echo(text)


@keys.command("list")
@click.option("--tenant", help="Only this tenant's keys.")
@as_json
@on_database
def list_keys(tenant: str | None, is_json: bool) -> None:
    """List keys with tenant, state, times and scope, without their secrets."""
    now = datetime.now(UTC)
    rows = [
        {
            "key_id": key.key_id,
            "tenant": key.tenant_id,
            "name": key.name or None,
            "state": key.state(now),
            "created": key.created_at,
            "expires": key.expires_at,
            "scope": "read-only" if key.read_only else "full",
        }
        for key in _run(lambda services: services.keys.list_keys(tenant))
    ]
    heads = ("key_id", "tenant", "name", "state", "created", "expires", "scope")
    _print_rows(rows, heads, is_json=is_json)


@keys.command("expire")
@click.argument("key_id")
@click.option("--in-days", type=click.IntRange(0, 36_500), help="From now; 0 is now.")
@click.option("--never", is_flag=True)
@on_database
def expire_key(key_id: str, in_days: int | None, never: bool) -> None:
    """Change when KEY_ID expires."""
    if never == (in_days is not None):
        raise click.UsageError("Give --in-days or --never.")
    key = _run(lambda services: services.keys.expire(key_id, _in_days(in_days)))
    _log.info(
        "key_expiry_changed",
        extra={"data": _by_account(tenant_id=key.tenant_id, key=key_id, expires_at=key.expires_at)},
    )
    end = _shown(key.expires_at) if key.expires_at else "it is revoked"
    click.echo(f"{key_id} works until {end}.")


@keys.command("revoke")
@click.argument("key_id")
@on_database
def revoke_key(key_id: str) -> None:
    """Revoke a key for good; `keys list` shows its KEY_ID. Takes effect within 10 s."""
    started_at = datetime.now(UTC)
    key = _run(lambda services: services.keys.revoke(key_id))
    of_tenant = f"{key_id} of tenant {key.tenant_id}"
    if key.revoked_at is not None and key.revoked_at < started_at:
        click.echo(f"{of_tenant} was revoked already at {_shown(key.revoked_at)}.")
    else:
        _log.info("key_revoked", extra={"data": _by_account(tenant_id=key.tenant_id, key=key_id)})
        click.echo(f"Revoked {of_tenant}.")


@click.group(cls=Group)
def tenants() -> None:
    """List tenants, set limits and delete their data."""


@tenants.command("list")
@as_json
@on_database
def list_tenants(is_json: bool) -> None:
    """List tenants with the limits that override the settings."""
    from app.tenancy.limits import TenantLimits

    found = _run(lambda services: services.limits.all())
    rows = [{"tenant": name, **asdict(limits)} for name, limits in found.items()]
    heads = ("tenant", *(field.name for field in fields(TenantLimits)))
    _print_rows(rows, heads, is_json=is_json)


@tenants.command("limit")
@click.argument("tenant")
@click.option("--requests-per-minute", type=click.IntRange(1), help="In each process.")
@click.option("--summarizer-calls-per-hour", type=click.IntRange(0), help="Over all processes.")
@click.option("--reset", is_flag=True, help="Let those not given follow the settings again.")
@click.option("--create", is_flag=True, help="Create TENANT if it does not exist.")
@on_database
def limit_tenant(tenant: str, reset: bool, create: bool, **limits: int | None) -> None:
    """Set limits of TENANT; those not given stay. Takes effect in 10 s."""
    from app.tenancy.api_keys import DEFAULT_TENANT
    from app.tenancy.limits import TenantLimits

    async def work(services: Services) -> TenantLimits:
        # Requests without a key belong to the default tenant, which exists without a key.
        known = await services.limits.all()
        if not create and tenant not in (DEFAULT_TENANT, *known):
            raise click.ClickException(
                f"No tenant {tenant}: `context-service tenants list` shows the tenants, and"
                " --create creates one."
            )
        before = TenantLimits() if reset else known.get(tenant, TenantLimits())
        given = {name: limit for name, limit in limits.items() if limit is not None}
        after = replace(before, **given)
        await services.limits.set(tenant, after)
        return after

    limits = asdict(_run(work))
    _log.info("tenant_limited", extra={"data": _by_account(tenant_id=tenant, **limits)})
    _print_rows([{"tenant": tenant, **limits}], ("tenant", *limits), is_json=False)


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

    async def work(services: Services) -> Mapping[str, int]:
        _log.info("tenant_deletion_begun", extra={"data": _by_account(tenant_id=tenant)})
        return await services.conversations.remove_tenant(tenant)

    counts = {name: count for name, count in sorted(_run(work).items()) if count}
    _log.info("tenant_deleted", extra={"data": _by_account(tenant_id=tenant, rows=counts)})
    if is_json:
        _print_json(counts)
        return
    click.echo(f"Deleted tenant {tenant}.")
    for name, count in counts.items():
        click.echo(f"{name}  {count}")


def _by_account(**data: object) -> dict[str, object]:
    """Return the data of a log line: who runs this command, and what was done."""
    try:
        account = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number without a name
        account = str(os.getuid())
    return {"account": account, **data}


def _in_days(days: int | None) -> datetime | None:
    return datetime.now(UTC) + timedelta(days=days) if days is not None else None


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
