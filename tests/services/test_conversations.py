"""ConversationService and AgentService on a real database (A7, decisions 7, 8, 22)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import pytest

from app.adapters.models import ModelRegistry
from app.adapters.postgres.database import PostgresDatabase
from app.adapters.tokenizer import TiktokenTokenizer
from app.domain.errors import Conflict, NotFound, ValidationError
from app.services.agents import AgentService, NewAgent
from app.services.conversations import ConversationService, NewConversation
from app.services.frames import Frames
from app.services.layers import OwnSettings, Patch

POLICY = {"sandwich": {"preserve_top": 3}}


def counting_ids() -> Callable[[], str]:
    """Return a source of ids that can be told beforehand."""
    numbers = count(1)
    return lambda: f"00000000-0000-7000-8000-{next(numbers):012}"


async def forget(tenant_id: str, conversation_ids: Sequence[str]) -> None:
    """Stand for an object store that has nothing of these conversations."""


@pytest.fixture
def frames() -> Frames:
    """Frames over the service's own policy, without a default model."""
    return Frames(ModelRegistry(), TiktokenTokenizer(), POLICY, None)


@pytest.fixture
def conversations(database: PostgresDatabase, frames: Frames) -> ConversationService:
    """The service on this test's database."""
    return ConversationService(database, frames, POLICY, counting_ids(), forget)


@pytest.fixture
def agents(database: PostgresDatabase, frames: Frames) -> AgentService:
    """The service on this test's database."""
    return AgentService(database, frames, POLICY, counting_ids(), forget)


async def test_the_services_policy_is_the_weakest_layer(
    conversations: ConversationService, agents: AgentService
) -> None:
    """Decision 22: service, agent and conversation layers add up in this order."""
    policy = {"sandwich": {"preserve_top": 2, "preserve_bottom": 2}}
    await agents.create("t", NewAgent("A", "a", OwnSettings(policy=policy)))
    own = OwnSettings(policy={"sandwich": {"preserve_bottom": 1}})
    made = await conversations.create("t", NewConversation(agent_id="a", settings=own))
    assert made.policy["sandwich"] == {
        "preserve_top": 2,
        "preserve_bottom": 1,
        "compression_threshold": 0.7,
    }
    alone = await conversations.create("t", NewConversation())
    assert alone.policy["sandwich"]["preserve_top"] == 3


async def test_ids_and_times_come_from_outside(conversations: ConversationService) -> None:
    """Decision 7: an id is made only where the caller gives none."""
    made = await conversations.create("t", NewConversation())
    assert made.conversation.conversation_id.endswith("000000000001")
    own_id = "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"
    made = await conversations.create("t", NewConversation(own_id))
    assert made.conversation.conversation_id == own_id
    with pytest.raises(Conflict):
        await conversations.create("t", NewConversation(own_id))


async def test_tenants_do_not_see_each_other(
    conversations: ConversationService, agents: AgentService
) -> None:
    """Decision 7: another tenant's conversation and agent are not there."""
    made = await conversations.create("one", NewConversation())
    await agents.create("one", NewAgent("A", "a"))
    conversation_id = made.conversation.conversation_id
    for attempt in (
        conversations.get("two", conversation_id),
        conversations.change("two", conversation_id, Patch(frozenset())),
        conversations.remove("two", conversation_id),
        conversations.set_sections("two", conversation_id, []),
        agents.get("two", "a"),
        agents.remove("two", "a"),
    ):
        with pytest.raises(NotFound):
            await attempt
    with pytest.raises(ValidationError):
        await conversations.create("two", NewConversation(agent_id="a"))
    assert await conversations.list("two", None, 10, None) == []
    await agents.create("two", NewAgent("Other", "a"))
    assert (await agents.get("one", "a")).agent.name == "A"


async def test_keys_belong_to_a_tenant(conversations: ConversationService) -> None:
    """Decision 8: a creation's key is the tenant's own, and a repeat makes nothing."""
    new = NewConversation(idempotency_key="k", request={"a": 1})
    first = await conversations.create("one", new)
    assert await conversations.create("one", new) == first
    other = await conversations.create("two", new)
    assert other.conversation.conversation_id != first.conversation.conversation_id
    with pytest.raises(Conflict):
        await conversations.create("one", NewConversation(idempotency_key="k", request={"a": 2}))
    assert len(await conversations.list("one", None, 10, None)) == 1


async def test_a_refused_change_leaves_no_trace(conversations: ConversationService) -> None:
    """Decision 22: a patch that could never work stores nothing of itself."""
    made = await conversations.create("t", NewConversation())
    conversation_id = made.conversation.conversation_id
    patch = Patch(frozenset({"model", "policy"}), model="m", policy={"budget": {"hard_block": 0.1}})
    with pytest.raises(ValidationError) as caught:
        await conversations.change("t", conversation_id, patch)
    assert caught.value.problems[0].pointer == "/policy/budget/hard_block"
    assert (await conversations.get("t", conversation_id)) == made


async def test_removing_says_how_much(
    conversations: ConversationService, agents: AgentService
) -> None:
    """A7: a removal counts the rows of every table it touched."""
    await agents.create("t", NewAgent("A", "a"))
    for _ in range(2):
        await conversations.create("t", NewConversation(agent_id="a"))
    deleted = await agents.remove("t", "a")
    assert (deleted["agents"], deleted["conversations"], deleted["heads"]) == (1, 2, 2)
    assert deleted["messages"] == 0
    with pytest.raises(NotFound):
        await agents.remove("t", "a")
