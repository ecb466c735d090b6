"""Settings of conversations and agents: inherited, patched, and the keys of shared ids."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from app.common.errors import ValidationError
from app.common.ids import AgentId
from app.conversations.conversation import Agent, StoredSettings
from app.conversations.lookup import ConversationKeys
from app.conversations.schemas import AgentPatch, ConversationCreate, ConversationPatch
from app.repositories import Database
from tests.services.fakes import Harness, WatchedDatabase

NOW = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)


async def test_policies_override_the_services(database: Database) -> None:
    """The policies of service, agent and conversation override each other in this order.

    [policy.inheritance]
    """
    own = {"sandwich": {"preserve_top": 3}}
    harness = Harness(WatchedDatabase(database), service_policy=own)
    agent = await harness.agent(policy={"sandwich": {"preserve_top": 2, "preserve_bottom": 2}})
    policy = {"sandwich": {"preserve_bottom": 1}}
    for cid, expected in (
        (await harness.conversation(policy, agent_id=agent), (2, 1)),
        (await harness.conversation(), (3, 5)),
    ):
        conversation = await harness.stored(cid)
        levels = conversation.agent.policy, conversation.settings.policy
        shown = harness.resolver.unchecked_policy(*levels)["sandwich"]
        assert (shown["preserve_top"], shown["preserve_bottom"]) == expected
        checked = harness.resolver.policy_of(conversation).sandwich
        assert (checked.preserve_top, checked.preserve_bottom) == expected


async def test_another_key_is_found(harness: Harness, database: Database) -> None:
    """The key of an id that another tenant has is looked up, also after it changed.

    [log.client-ids]
    """
    shared = "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"
    keys, conversations = ConversationKeys(database), harness.conversations
    new = ConversationCreate(conversation_id=shared)
    await conversations.create("one", new)
    made = await conversations.create("two", new)
    own_key = made.conversation_id
    assert made.public_id == shared
    assert await keys.find_other("two", shared, shared) == own_key != shared
    assert await keys.find_other("two", shared, own_key) is None
    assert await keys.find_other("three", shared, shared) is None
    await conversations.remove("one", shared)
    await conversations.remove("two", own_key)
    assert (await conversations.create("two", new)).conversation_id == shared
    assert await keys.find_other("two", shared, own_key) == shared


async def test_a_refused_change_stores_nothing(harness: Harness) -> None:
    """A patch that could never work stores nothing of itself [policy.checked-when-set]."""
    cid = await harness.conversation()
    before = await harness.stored(cid)
    patch = ConversationPatch(model="m", policy={"budget": {"context_window": 9}})
    with pytest.raises(ValidationError) as caught:
        await harness.conversations.change("default", cid, patch)
    assert caught.value.problems[0].pointer == "/policy/budget/max_output_tokens"
    assert await harness.stored(cid) == before


@pytest.mark.parametrize(
    ("stored", "patch", "expected"),
    [
        ("{}", {"sandwich": {"preserve_top": 1}}, '{"sandwich":{"preserve_top":1}}'),
        ('{"sandwich":{"preserve_top":1}}', {"sandwich": {"preserve_top": None}}, "{}"),
        ('{"sandwich":{"preserve_top":1}}', {"sandwich": None}, "{}"),
        ('{"sandwich":{"preserve_top":1}}', {"sandwich": {}}, '{"sandwich":{"preserve_top":1}}'),
        ('{"summary_role":"user"}', None, "{}"),
        ("{}", {}, "{}"),
    ],
)
def test_patches_of_policies(stored: str, patch: Any, expected: str) -> None:
    """Leaves merge, null leaves go, a null policy resets everything. [policy.null-resets]"""
    agent = Agent(AgentId("a"), "A", StoredSettings("m", stored), "{}", NOW, NOW)
    after = AgentPatch(policy=patch).applied(agent).settings
    assert (after.policy, after.model) == (expected, "m")
