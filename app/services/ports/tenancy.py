"""Ports for tenants, API keys, limits and retention."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol

from app.domain.tenancy.api_keys import ApiKey
from app.domain.tenancy.limits import TenantLimits
from app.domain.tenancy.retention import RetainedKind


class TenantRepository(Protocol):
    """Tenants, their model entries and their creation keys."""

    async def add(self, tenant_id: str) -> None:
        """Add a tenant with default limits, unless it exists."""
        ...

    async def set_disabled(self, tenant_id: str, at: datetime | None) -> bool:
        """Set since when the keys of a tenant are refused, None for no more; False if unknown."""
        ...

    async def list_disabled(self) -> frozenset[str]:
        """Return the disabled tenants."""
        ...

    async def find_creation(self, tenant_id: str, key: str) -> tuple[str, str] | None:
        """Return the request hash and the resource id stored for an idempotency key."""
        ...

    async def add_creation(
        self, tenant_id: str, key: str, request_hash: str, resource_id: str
    ) -> bool:
        """Store a key for 24 hours; False when an equal request stored it first."""
        ...

    async def set_model(self, tenant_id: str, model: str, entry: str) -> None:
        """Add or replace the tenant's entry for a model."""
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
    """Deletion by age."""

    async def delete(self, kind: RetainedKind, before: datetime, limit: int) -> int:
        """Delete up to `limit` rows from before a time; returns the number deleted."""
        ...

    async def list_conversations(
        self, after: str, before: datetime, limit: int
    ) -> list[tuple[str, str, bool]]:
        """Return tenant and id of the next conversations, and whether each is idle since a time.

        A conversation is idle without appends, changes, compactions and other work, and outside
        every snapshot.
        """
        ...

    async def list_expired(self, limit: int) -> list[tuple[str, str]]:
        """Return tenant and id of conversations whose expiry has passed, the oldest first."""
        ...

    async def lock_expired(self, conversation_id: str) -> bool:
        """Lock a conversation until the transaction ends; False unless its expiry has passed."""
        ...

    async def is_idle(self, conversation_id: str, before: datetime) -> bool:
        """Return whether a conversation is idle since a time; call it with a lock on it."""
        ...


class LimitRepository(Protocol):
    """The limits of tenants, and the calls of their summarisers."""

    async def set(self, tenant_id: str, limits: TenantLimits) -> None:
        """Store limits for a tenant, which is added if it does not exist."""
        ...

    async def find(self, tenant_id: str) -> TenantLimits | None:
        """Return the stored limits of a tenant, None for an unknown tenant."""
        ...

    async def all(self) -> Mapping[str, TenantLimits]:
        """Return the stored limits by tenant."""
        ...

    async def add_summarizer_call(self, tenant_id: str, hour: datetime) -> int:
        """Count a call of the summariser; returns the calls of this hour."""
        ...


class ApiKeyRepository(Protocol):
    """API keys."""

    async def add(self, key: ApiKey) -> None:
        """Store a new key."""
        ...

    async def find(self, key_id: str) -> ApiKey | None:
        """Return a key, revoked or not."""
        ...

    async def list_keys(self, tenant_id: str | None) -> list[ApiKey]:
        """Return the keys of a tenant, or all."""
        ...

    async def any(self) -> bool:
        """Return whether any key exists, revoked or not."""
        ...

    async def revoke(self, key_id: str, at: datetime) -> ApiKey | None:
        """Set the time of revocation unless it is set; returns the key, None if unknown."""
        ...

    async def expire(self, key_id: str, at: datetime | None) -> None:
        """Let a key expire at this time, unless it expires before."""
        ...

    async def set_last_used(self, used: Mapping[str, datetime]) -> None:
        """Set the times of the last uses by key, unless a later one is stored."""
        ...


class TenantDataRepository(Protocol):
    """Everything that a tenant has."""

    async def conversations(self, tenant_id: str, limit: int) -> list[str]:
        """Return ids of some conversations."""
        ...

    async def revoke_keys(self, tenant_id: str) -> int:
        """Revoke the keys of a tenant; return their number, with those revoked before."""
        ...

    async def delete(self, table: str, tenant_id: str, limit: int) -> int:
        """Delete some of a tenant's rows of a table; return their number."""
        ...
