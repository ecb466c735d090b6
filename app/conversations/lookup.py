"""Agents and conversations by their ids, and the keys of conversations by their public ids."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from app.common.errors import Conflict, NotFound
from app.common.ids import keys_of
from app.conversations.conversation import Agent, Conversation
from app.repositories import Database, Repositories


async def get_conversation(
    repositories: Repositories,
    tenant_id: str,
    conversation_id: str,
    default_model: str | None,
    model: str | None = None,
) -> Conversation:
    """Return a conversation with what is stored about `model`, by default its own one.

    Raises NotFound.
    """
    conversation = await repositories.conversations.find(
        tenant_id, conversation_id, default_model, model
    )
    if conversation is None:
        raise NotFound.conversation(conversation_id)
    return conversation


async def lock_conversation(
    repositories: Repositories, tenant_id: str, conversation_id: str, default_model: str | None
) -> Conversation:
    """Return a conversation, locked until the transaction ends; raises NotFound."""
    conversation = await repositories.log.lock(tenant_id, conversation_id, default_model)
    if conversation is None:
        raise NotFound.conversation(conversation_id)
    return conversation


async def get_agent(
    repositories: Repositories, tenant_id: str, agent_id: str, *, lock: bool = False
) -> Agent:
    """Return an agent, with `lock` locked until the transaction ends; raises NotFound."""
    agent = await repositories.agents.find(tenant_id, agent_id, lock=lock)
    if agent is None:
        raise NotFound.agent(agent_id)
    return agent


@dataclass(eq=False, repr=False)
class ConversationKeys:
    """Finds keys and public ids of requests."""

    _database: Database

    async def public_ids_of(self, tenant_id: str, keys: Collection[str]) -> dict[str, str]:
        """Return the public ids of conversations by their keys."""
        async with self._database.session() as session:
            own = await session.conversations.own_ids(tenant_id, keys)
        return {key: own.get(key, key) for key in keys}

    async def find_other(self, tenant_id: str, public_id: str, key: str) -> str | None:
        """Return the key of the conversation if it is another one than this, which is unknown."""
        if len(keys_of(tenant_id, public_id)) == 1:
            return None
        async with self._database.session() as session:
            found = await find_key(session, tenant_id, public_id)
        return found if found != key else None


async def find_key(repositories: Repositories, tenant_id: str, public_id: str) -> str | None:
    """Return the key of the tenant's conversation with this id, None if there is none."""
    keys = keys_of(tenant_id, public_id)
    stored = await repositories.conversations.stored_keys(tenant_id, public_id, keys)
    return next((key for key, is_own in stored.items() if is_own), None)


async def free_key(
    repositories: Repositories, tenant_id: str, public_id: str, *, lock: bool = False
) -> str:
    """Return the key for a new conversation; raises Conflict if the tenant has one with this id.

    With `lock` other creations with this id wait until the transaction ends.
    """
    if lock:
        await repositories.conversations.lock_id(tenant_id, public_id)
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
