"""Ports for tenants, API keys, quotas and retention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from app.domain.tenancy.api_keys import ApiKey, KeyUse
from app.domain.tenancy.quotas import QuotaKind, TenantLimits
from app.domain.tenancy.retention import RetainedKind


class TenantRepository(Protocol):
    """Sentences about what belongs to a tenant alone: its models and its creation keys."""

    async def kept_creation(self, tenant_id: str, key: str) -> tuple[str, str] | None:
        """Return the request hash and the resource id kept under an idempotency key."""
        ...

    async def keep_creation(
        self, tenant_id: str, key: str, request_hash: str, resource_id: str
    ) -> bool:
        """Take a key for 24 hours; False when an equal request took it first (decision 8)."""
        ...

    async def set_model(self, tenant_id: str, model: str, entry: str) -> None:
        """Add or replace the tenant's own entry for a model (J5)."""
        ...

    async def find_model(self, tenant_id: str, model: str) -> str | None:
        """Return the tenant's own entry for a model, or None."""
        ...

    async def list_models(self, tenant_id: str) -> list[tuple[str, str]]:
        """Return the tenant's own entries, by model name."""
        ...

    async def remove_model(self, tenant_id: str, model: str) -> bool:
        """Delete the tenant's own entry; False when there was none."""
        ...


class RetentionRepository(Protocol):
    """Sentences about what is old."""

    async def forget(self, kind: RetainedKind, before: datetime, limit: int) -> int:
        """Delete up to `limit` rows from before a time, and return how many that were."""
        ...

    async def walk(self, after: str, before: datetime, limit: int) -> list[tuple[str, str, bool]]:
        """Return tenant and id of the next conversations, and whether they are idle since then.

        Idle is one that was not appended to, nor changed, and is in no snapshot.
        """
        ...

    async def is_idle(self, conversation_id: str, before: datetime) -> bool:
        """Tell whether a conversation is idle since then; ask it under the head's lock."""
        ...


class StorageRepository(Protocol):
    """Sentences about how much tenants store."""

    async def measure(self, tenant_id: str) -> bool:
        """Measure some of what was appended since; tell whether there may be more of it."""
        ...

    async def total(self, tenant_id: str) -> int:
        """Return the bytes of a tenant's measured messages, blobs and imported snapshots."""
        ...


class ApiKeyRepository(Protocol):
    """Sentences about tenants, their keys and their allowances."""

    async def add_tenant(self, tenant_id: str) -> None:
        """Make a tenant without limits of its own, if there is none of that id."""
        ...

    async def set_limits(self, tenant_id: str, limits: TenantLimits) -> None:
        """Give a tenant limits of its own, which is made if there is none of that id."""
        ...

    async def find_limits(self, tenant_id: str) -> TenantLimits | None:
        """Return a tenant's own limits; None for a tenant nobody made."""
        ...

    async def list_limits(self) -> Mapping[str, TenantLimits]:
        """Return all tenants' own limits, by tenant."""
        ...

    async def add(self, key: ApiKey) -> None:
        """Store a new key."""
        ...

    async def find(self, key_id: str) -> ApiKey | None:
        """Return a key, revoked or not."""
        ...

    async def of_tenant(self, tenant_id: str | None) -> list[ApiKey]:
        """Return the keys of a tenant, or all."""
        ...

    async def any(self) -> bool:
        """Tell whether there is any key, revoked or not."""
        ...

    async def revoke(self, key_id: str, at: datetime) -> ApiKey | None:
        """Set a key's end, unless it has one; return it, None when there is none."""
        ...

    async def count_uses(self, uses: Sequence[KeyUse], at: datetime) -> None:
        """Add to the counts of each key, hour and address; what was admitted was used at `at`."""
        ...

    async def uses(self, key_id: str, since: datetime) -> list[KeyUse]:
        """Return what is counted of a key from an hour on, the newest first."""
        ...

    async def take(
        self, tenant_id: str, kind: QuotaKind, window_start: datetime, asked: int
    ) -> int:
        """Add to what is taken in a window, and return how much that is then."""
        ...
