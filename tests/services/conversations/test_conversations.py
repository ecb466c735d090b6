"""ConversationService and AgentService on a real database.

[log.delete-everything, sections.order, log.client-ids, log.idempotency-key, policy.inheritance]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest

from app.common.errors import Conflict, NotFound, ValidationError
from app.conversations.agents import AgentService
from app.conversations.lookup import ConversationKeys
from app.conversations.schemas import AgentCreate, ConversationCreate, ConversationPatch
from app.conversations.service import ConversationService
from app.conversations.settings import ListVersion, SettingsList
from app.conversations.settings_resolver import SettingsResolver
from app.models.registry import ModelRegistry
from app.models.tokenizer import TiktokenTokenizer
from app.repositories import Database
from tests.services.fakes import Clock

POLICY = {"sandwich": {"preserve_top": 3}}


def counting_ids() -> Callable[[], str]:
    """Return a source of predictable ids."""
    numbers = count(1)
    return lambda: f"00000000-0000-7000-8000-{next(numbers):012}"


async def delete_objects(tenant_id: str, conversation_ids: Sequence[str]) -> None:
    """Stand in for an object store without objects of these conversations."""


def any_model(_model: str, _pointer: str) -> None:
    """Allow every model."""


@pytest.fixture
def resolver() -> SettingsResolver:
    """A resolver with the service's own policy, without a default model."""
    return SettingsResolver(ModelRegistry(), TiktokenTokenizer(), POLICY, None)


@pytest.fixture
def conversations(database: Database, resolver: SettingsResolver) -> ConversationService:
    """The service on this test's database."""
    return ConversationService(
        database, resolver, POLICY, counting_ids(), Clock().utc, delete_objects, any_model
    )


@pytest.fixture
def agents(database: Database, resolver: SettingsResolver) -> AgentService:
    """The service on this test's database."""
    return AgentService(
        database, resolver, POLICY, counting_ids(), Clock().utc, delete_objects, any_model
    )


async def test_policies_override_the_services(
    conversations: ConversationService, agents: AgentService
) -> None:
    """The policies of service, agent and conversation override each other in this order.

    [policy.inheritance]
    """
    policy = {"sandwich": {"preserve_top": 2, "preserve_bottom": 2}}
    await agents.create("t", AgentCreate(name="A", agent_id="a", policy=policy))
    own = {"sandwich": {"preserve_bottom": 1}}
    made = await conversations.create("t", ConversationCreate(agent_id="a", policy=own))
    assert made.policy["sandwich"] == {
        "preserve_top": 2,
        "preserve_bottom": 1,
        "compression_threshold": 0.75,
    }
    alone = await conversations.create("t", ConversationCreate())
    assert alone.policy["sandwich"]["preserve_top"] == 3


async def test_another_key_is_found(conversations: ConversationService, database: Database) -> None:
    """The key of an id that another tenant has is looked up, also after it changed."""
    shared = "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"
    keys = ConversationKeys(database)
    await conversations.create("one", ConversationCreate(conversation_id=shared))
    made = await conversations.create("two", ConversationCreate(conversation_id=shared))
    own_key = made.resource.conversation_id
    assert made.resource.public_id == shared
    assert await keys.find_other("two", shared, shared) == own_key != shared
    assert await keys.find_other("two", shared, own_key) is None
    assert await keys.find_other("three", shared, shared) is None
    await conversations.remove("one", shared)
    await conversations.remove("two", own_key)
    made = await conversations.create("two", ConversationCreate(conversation_id=shared))
    assert await keys.find_other("two", shared, own_key) == shared
    assert made.resource.conversation_id == shared


async def test_tenants_do_not_see_each_other(
    conversations: ConversationService, agents: AgentService
) -> None:
    """Conversations and agents of another tenant are not found [log.client-ids]."""
    made = await conversations.create("one", ConversationCreate())
    await agents.create("one", AgentCreate(name="A", agent_id="a"))
    conversation_id = made.resource.conversation_id
    for attempt in (
        conversations.get("two", conversation_id),
        conversations.change("two", conversation_id, ConversationPatch()),
        conversations.remove("two", conversation_id),
        conversations.set_list("two", conversation_id, SECTIONS, []),
        agents.get("two", "a"),
        agents.remove("two", "a"),
    ):
        with pytest.raises(NotFound):
            await attempt
    with pytest.raises(ValidationError):
        await conversations.create("two", ConversationCreate(agent_id="a"))
    assert await conversations.list("two") == ([], None)
    await agents.create("two", AgentCreate(name="Other", agent_id="a"))
    assert (await agents.get("one", "a")).resource.name == "A"


async def test_idempotency_keys_belong_to_a_tenant(conversations: ConversationService) -> None:
    """A repeated creation stores nothing [log.idempotency-key]."""
    new = ConversationCreate(metadata={"a": 1})
    first = await conversations.create("one", new, "k")
    assert await conversations.create("one", new, "k") == first
    other = await conversations.create("two", new, "k")
    assert other.resource.conversation_id != first.resource.conversation_id
    with pytest.raises(Conflict):
        await conversations.create("one", ConversationCreate(metadata={"a": 2}), "k")
    assert len((await conversations.list("one"))[0]) == 1


async def test_a_refused_change_stores_nothing(conversations: ConversationService) -> None:
    """A patch that could never work stores nothing of itself [policy.checked-when-set]."""
    made = await conversations.create("t", ConversationCreate())
    conversation_id = made.resource.conversation_id
    patch = ConversationPatch(model="m", policy={"budget": {"context_window": 9}})
    with pytest.raises(ValidationError) as caught:
        await conversations.change("t", conversation_id, patch)
    assert caught.value.problems[0].pointer == "/policy/budget/max_output_tokens"
    assert (await conversations.get("t", conversation_id)) == made


# --- versions -------------------------------------------------------------------------------

SECTIONS, TOOLS = SettingsList.SECTIONS, SettingsList.TOOLS
Owner = tuple[ConversationService | AgentService, str]


def section(text: str) -> dict[str, Any]:
    """Return a section with this text."""
    return {"name": "base", "content": text}


@pytest.fixture(params=["conversation", "agent"])
async def owner(
    request: pytest.FixtureRequest, conversations: ConversationService, agents: AgentService
) -> Owner:
    """A conversation or an agent, without any list, and its service."""
    if request.param == "agent":
        await agents.create("t", AgentCreate(name="A", agent_id="a"))
        return agents, "a"
    made = await conversations.create("t", ConversationCreate())
    return conversations, made.resource.conversation_id


async def test_one_of_several_editors_succeeds(owner: Owner) -> None:
    """Of several that expect the same version exactly one is stored."""
    service, owner_id = owner
    await service.set_list("t", owner_id, SECTIONS, [section("old")], 0)
    answers = await asyncio.gather(
        *(service.set_list("t", owner_id, SECTIONS, [section(str(n))], 1) for n in range(6)),
        return_exceptions=True,
    )
    (won,) = [answer for answer in answers if isinstance(answer, ListVersion)]
    lost = [answer for answer in answers if isinstance(answer, Conflict)]
    assert len(lost) == 5
    assert all(error.facts["version"] == 2 for error in lost)
    assert await service.get_list("t", owner_id, SECTIONS) == won
    assert won.version == 2
