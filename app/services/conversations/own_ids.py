"""The keys of conversations by their public ids."""

from __future__ import annotations

from app.domain.common.errors import Conflict
from app.domain.conversations.own_ids import keys_of
from app.services.ports import Repositories


async def find_key(repositories: Repositories, tenant_id: str, public_id: str) -> str | None:
    """Return the key of the tenant's conversation with this id, None if there is none."""
    keys = keys_of(tenant_id, public_id)
    stored = await repositories.conversations.stored_keys(tenant_id, public_id, keys)
    return next((key for key, is_own in stored.items() if is_own), None)


async def free_key(repositories: Repositories, tenant_id: str, public_id: str) -> str:
    """Return the key for a new conversation; raises Conflict if the tenant has one with this id."""
    keys = keys_of(tenant_id, public_id)
    stored = await repositories.conversations.stored_keys(tenant_id, public_id, keys)
    free = next((key for key in keys if key not in stored), None)
    if free is None or any(stored.values()):
        raise id_taken(public_id)
    return free


def own_id_of(key: str, public_id: str) -> str | None:
    """Return the id to store beside a key, None if the key is that id."""
    return public_id if public_id != key else None


def id_taken(public_id: str) -> Conflict:
    """Return the error for an id that the tenant uses."""
    return Conflict(f"The id {public_id!r} is taken", {"conversation_id": public_id})
