"""Settings of conversations and agents: inherited, patched, and the keys of shared ids."""

from __future__ import annotations

import pytest

from app.common.errors import ValidationError
from app.conversations.lookup import ConversationKeys
from app.conversations.schemas import ConversationCreate, ConversationPatch
from app.repositories import Database
from tests.services.fakes import Harness


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
