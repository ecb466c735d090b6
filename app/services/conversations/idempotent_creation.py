"""Creations with an `Idempotency-Key`."""

from __future__ import annotations

from typing import Any

from app.domain.common import json_text
from app.domain.common.errors import Conflict
from app.domain.prompt.resolved_settings import digest
from app.services.ports import Repositories


async def claim_key(
    repositories: Repositories, tenant_id: str, key: str, request: Any, resource_id: str
) -> str | None:
    """Claim an idempotency key for a creation.

    Returns the id of the resource that an equal request created before, None for a new key.
    Raises Conflict when the key was used with another request. Call it first in the transaction
    of the creation: a creation that fails then releases the key.
    """
    request_hash = digest(json_text.dumps(request))
    if await repositories.tenants.add_creation(tenant_id, key, request_hash, resource_id):
        return None
    stored = await repositories.tenants.find_creation(tenant_id, key)
    if stored is None or stored[0] != request_hash:
        raise Conflict("The Idempotency-Key was used with another body")
    return stored[1]
