"""The work of `context-service keys` and `tenants`; each command opens its own connection."""

from __future__ import annotations

import getpass
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from app.common.errors import NotFound
from app.composition import Services, keys_of, limits_of, store_of, utc_now
from app.repositories import Database
from app.settings import Settings
from app.tenancy.api_keys import DEFAULT_TENANT, KeyService
from app.tenancy.limits import LimitService, TenantLimits

Rows = list[dict[str, Any]]
_log = logging.getLogger("app.audit")


async def create(
    tenant_id: str,
    name: str,
    expires_in_days: int | None,
    settings: Settings,
    *,
    read_only: bool = False,
) -> str:
    """Create a key and return it."""
    expires_at = _in_days(expires_in_days)
    async with _opened(settings) as (keys, _):
        text = await keys.create(tenant_id, name, expires_at, read_only=read_only)
    own = {"name": name, "expires_at": expires_at, "read_only": read_only}
    data = by_account(tenant_id=tenant_id, key=text.split("_")[1], **own)
    _log.info("key_created", extra={"data": data})
    return text


async def expire(key_id: str, in_days: int | None, settings: Settings) -> str:
    """Set when a key expires, None for never, and return the result as a sentence."""
    async with _opened(settings) as (keys, _):
        key = await keys.expire(key_id, _in_days(in_days))
    data = by_account(tenant_id=key.tenant_id, key=key_id, expires_at=key.expires_at)
    _log.info("key_expiry_changed", extra={"data": data})
    return f"{key_id} works until {_time(key.expires_at) if key.expires_at else 'it is revoked'}."


async def revoke(key_id: str, settings: Settings) -> str:
    """Revoke a key and return the result as a sentence."""
    started_at = utc_now()
    async with _opened(settings) as (keys, _):
        key = await keys.revoke(key_id)
    if key.revoked_at is not None and key.revoked_at < started_at:
        return f"{key_id} of tenant {key.tenant_id} was revoked already at {_time(key.revoked_at)}."
    _log.info("key_revoked", extra={"data": by_account(tenant_id=key.tenant_id, key=key_id)})
    return f"Revoked {key_id} of tenant {key.tenant_id}."


async def has_keys(settings: Settings) -> bool:
    """Return whether a key was ever created."""
    async with _opened(settings) as (keys, _):
        return await keys.has_keys()


async def list_of_keys(tenant_id: str | None, settings: Settings) -> Rows:
    """Return the keys, without their secrets."""
    async with _opened(settings) as (keys, _):
        found = await keys.list_keys(tenant_id)
    return [
        {
            "key_id": key.key_id,
            "tenant": key.tenant_id,
            "name": key.name or None,
            "state": key.state(utc_now()),
            "created": key.created_at,
            "expires": key.expires_at,
            "scope": "read-only" if key.read_only else "full",
        }
        for key in found
    ]


async def list_of_tenants(settings: Settings) -> Rows:
    """Return the tenants with the limits that override the settings."""
    async with _opened(settings) as (_, limits):
        return [{"tenant": name, **asdict(own)} for name, own in (await limits.all()).items()]


async def set_limits(
    tenant_id: str, limits: TenantLimits, create: bool, settings: Settings
) -> None:
    """Set the limits of a tenant; without `create`, an unknown tenant raises NotFound."""
    async with _opened(settings) as (_, tenant_limits):
        # Requests without a key belong to the default tenant, which exists without a key.
        if not create and tenant_id not in (DEFAULT_TENANT, *await tenant_limits.all()):
            raise NotFound(
                f"No tenant {tenant_id}: `context-service tenants list` shows the tenants,"
                " and --create creates one"
            )
        await tenant_limits.set(tenant_id, limits)
    _log.info("tenant_limited", extra={"data": by_account(tenant_id=tenant_id, **asdict(limits))})


async def delete(tenant_id: str, settings: Settings) -> dict[str, int]:
    """Delete a tenant and return the numbers of rows by table."""
    services = Services(settings)
    await services.store.open()
    _log.info("tenant_deletion_begun", extra={"data": by_account(tenant_id=tenant_id)})
    try:
        counts = await services.conversations.remove_tenant(tenant_id)
    finally:
        await services.store.close()
        await services.gateway.close()
    rows = {name: count for name, count in sorted(counts.items()) if count}
    _log.info("tenant_deleted", extra={"data": by_account(tenant_id=tenant_id, rows=rows)})
    return rows


def by_account(**data: object) -> dict[str, object]:
    """Return the data of a log line of the audit: who runs this command, and what was done."""
    try:
        account = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number without a name
        account = str(os.getuid())
    return {"account": account, **data}


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[tuple[KeyService, LimitService]]:
    store = store_of(settings)
    await store.open()
    try:
        database = Database(store)
        yield keys_of(database), limits_of(settings, database)
    finally:
        await store.close()


def _in_days(days: int | None) -> datetime | None:
    return utc_now() + timedelta(days=days) if days is not None else None


def _time(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%MZ")
