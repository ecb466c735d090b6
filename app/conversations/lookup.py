"""Agents and conversations by their ids."""

from __future__ import annotations

from app.common.errors import NotFound
from app.conversations.conversation import Agent, Conversation
from app.repositories import Repositories


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
