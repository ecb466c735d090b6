"""Snapshots over a real database: pages, batches, summaries, interrupted restores.

[snapshots.save, snapshots.shape, snapshots.list, snapshots.restore-source]
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast

import pytest

from app.common.errors import NotFound, ServiceUnavailable
from app.common.pages import UNBOUNDED
from app.conversations.messages.row import RawBatch
from app.conversations.messages.service import LogService
from app.conversations.messages.stored_results import Content
from app.formats.message import FormatName
from app.prompt.resolved_settings import RequestSettings
from app.repositories import Database
from app.snapshots.restores import RestoreService
from app.snapshots.schemas import Snapshot
from app.snapshots.service import LAST_MESSAGES, SnapshotService
from tests.services.fakes import (
    ANTHROPIC,
    SUMMARISER,
    TENANT,
    Harness,
    ScriptedGateway,
    WatchedDatabase,
    asks,
    failing,
    new_id,
    result,
    user,
)
from tests.services.payload.builders import policy

AWAY = ServiceUnavailable("The database does not answer")


@pytest.fixture
def harness(database: Database) -> Harness:
    """The services with a model that summarises."""
    gateway = ScriptedGateway("<summary>They agreed on green tea.</summary>")
    return Harness(WatchedDatabase(database), gateway, model=SUMMARISER)


class Appends:
    """Appends as the log does, remembers the batches, and fails when told to."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self.batches: list[list[Mapping[str, Any]]] = []
        self.fails_at: int | None = None

    async def append(self, tenant_id: str, conversation_id: str, request: RawBatch) -> None:
        """Append a batch, or raise the error that the test has set."""
        if self.fails_at == len(self.batches):
            raise AWAY
        self.batches.append(list(request.messages))
        await self._harness.log.append(tenant_id, conversation_id, request)


class Copies:
    """The snapshots of one process, whose appends take ten messages at most."""

    def __init__(self, harness: Harness) -> None:
        self.appends = Appends(harness)
        self.restores = RestoreService(
            harness.database,
            harness.outputs,
            harness.active,
            cast(LogService, self.appends),
            harness.conversations,
            10,
        )
        self.saved = SnapshotService(
            harness.database, harness.resolver, harness.summariser, harness.active, new_id
        )

    async def save(self, conversation_id: str) -> Snapshot:
        """Save the window of a conversation."""
        return await self.saved.save(TENANT, None, conversation_id=conversation_id)

    async def read(self, saved: Snapshot) -> AsyncGenerator[bytes]:
        """Return the pages of a snapshot."""
        return self.restores.saved(*await self.saved.find(TENANT, saved.snapshot_id), Content.AUTO)

    async def restore(self, saved: Snapshot, target: str) -> tuple[int, int]:
        """Restore a snapshot, and return how many messages were restored and skipped."""
        _, parts = await self.saved.find(TENANT, saved.snapshot_id)
        done = await self.restores.restore(TENANT, saved.snapshot_id, parts, target)
        return done.restored, done.skipped


@pytest.fixture
def snapshots(harness: Harness) -> Copies:
    """The snapshots of one process."""
    return Copies(harness)


async def texts_in(harness: Harness, conversation_id: str) -> list[str]:
    """Return the texts of a log."""
    return [json.loads(body)["content"] for body in await harness.bodies(conversation_id)]


# --- reading ---------------------------------------------------------------------------------


async def test_an_interrupted_read_ends_in_an_error(harness: Harness, snapshots: Copies) -> None:
    """A failing database or a deletion ends the pages with an error. [snapshots.no-copy]"""
    conversation_id = await harness.conversation()
    await harness.talk(conversation_id, 150, words=1)
    saved = await snapshots.save(conversation_id)
    pages = await snapshots.read(saved)
    await anext(pages)
    with failing("page", AWAY), pytest.raises(ServiceUnavailable):
        await anext(pages)
    pages = await snapshots.read(saved)
    await anext(pages)
    await harness.conversations.remove(TENANT, conversation_id)
    with pytest.raises(ServiceUnavailable, match="changed"):
        await anext(pages)


# --- recaps ----------------------------------------------------------------------------------


async def test_a_summary_is_bounded(harness: Harness, snapshots: Copies) -> None:
    """Of a large window a summary reads the end, in a few calls of the model."""
    conversation_id = await harness.conversation()
    count = LAST_MESSAGES + 600
    for start in range(0, count, 500):
        batch = [user(f"<{seq}> {'word ' * 2_000}") for seq in range(start, start + 500)]
        await harness.append(conversation_id, *batch[: count - start])
    harness.gateway.calls.clear()
    saved = await snapshots.save(conversation_id)
    assert (saved.message_count, saved.summary) == (count, "They agreed on green tea.")
    asked = "".join(call.messages[-1]["content"] for call in harness.gateway.calls)
    assert "Earlier messages are left out" in asked and f"<{count - 1}>" in asked
    assert "<0>" not in asked
    assert len(harness.gateway.calls) <= 60
    assert len(asked) < 1_000 * LAST_MESSAGES * 1.5


@pytest.mark.parametrize("of_agent", [False, True])
async def test_no_snapshot_is_stored_of_a_deleted_conversation_or_agent(
    harness: Harness, snapshots: Copies, of_agent: bool
) -> None:
    """Nothing is stored of a conversation or an agent that was deleted meanwhile."""
    agent_id = await harness.agent()
    conversation_id = await harness.conversation(agent_id=agent_id)
    await harness.talk(conversation_id, 1)
    harness.gateway.release.clear()
    whose = {"agent_id": agent_id} if of_agent else {"conversation_id": conversation_id}
    saving = asyncio.create_task(snapshots.saved.save(TENANT, None, **whose))
    await harness.gateway.waiting.wait()
    if of_agent:
        await harness.agents.remove(TENANT, agent_id)
    else:
        await harness.conversations.remove(TENANT, conversation_id)
    harness.gateway.release.set()
    with pytest.raises(NotFound):
        await saving
    assert await snapshots.saved.page(TENANT, 10, None, UNBOUNDED) == []


# --- restoring -------------------------------------------------------------------------------


async def test_an_interrupted_restore_can_be_repeated(harness: Harness, snapshots: Copies) -> None:
    """A repeated restore appends the missing copies only. [snapshots.restore-elsewhere]"""
    source, target = await harness.conversation(), await harness.conversation()
    await harness.talk(source, 15, words=1)
    saved = await snapshots.save(source)
    snapshots.appends.fails_at = 2
    with pytest.raises(ServiceUnavailable):
        await snapshots.restore(saved, target)
    snapshots.appends.fails_at = None
    done = await snapshots.restore(saved, target)
    assert done == (10, 20)
    assert await texts_in(harness, target) == await texts_in(harness, source)


async def test_late_results_of_copied_calls_are_restored(
    harness: Harness, snapshots: Copies
) -> None:
    """The copy of its call is open, whatever came since [snapshots.restore-twice]."""
    source, target = await harness.conversation(), await harness.conversation()
    await harness.append(source, user("q"), asks("c1"))
    early = await snapshots.save(source)
    await snapshots.restore(early, target)
    await harness.append(target, user("never mind"))
    await harness.append(source, result("c1", "one"))
    late = await snapshots.save(source)
    done = await snapshots.restore(late, target)
    assert done == (1, 2)


async def test_a_result_without_its_call_is_copied_as_text(
    harness: Harness, snapshots: Copies
) -> None:
    """It came after a clear. A repeated restore adds nothing [snapshots.restore-elsewhere]."""
    source, target = await harness.conversation(), await harness.conversation()
    await harness.append(source, user("q"), asks("c1", "c2"))
    await harness.conversations.clear(TENANT, source)
    await harness.append(source, result("c1", "one"), user("next"), result("c2", "two"))
    saved = await snapshots.save(source)
    for restored in (3, 0):
        done = await snapshots.restore(saved, target)
        assert done == (restored, 3 - restored)
    shown = [str(item["content"]) for item in (await harness.build(target)).messages]
    assert len(shown) == 3 and shown[1] == "next"
    assert "[result of tool call c1]" in shown[0] and "two" in shown[2]


async def test_every_format_is_restored_elsewhere(harness: Harness, snapshots: Copies) -> None:
    """Copies of each format pair with their calls, and build like their sources."""
    source, target = await harness.conversation(), await harness.conversation()
    use = {"type": "tool_use", "id": "t1", "name": "read_file", "input": {}}
    answered = {"type": "tool_result", "tool_use_id": "t1", "content": "anthropic says"}
    said = [
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [answered, {"type": "text", "text": "thanks"}]},
    ]
    items = [
        {"role": "user", "content": "q"},
        {"type": "message", "role": "assistant", "content": "let me see"},
        {"type": "function_call", "call_id": "r1", "name": "read_file", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "r1", "output": "responses says"},
    ]
    contents = [
        {"role": "user", "parts": [{"text": "q"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {}}}]},
    ]
    await harness.append(source, user("hello"))
    await harness.append(source, *said, format=ANTHROPIC)
    for item in items:  # one by one, so that none is gathered
        await harness.append(source, item, format=FormatName.OPENAI_RESPONSES)
    await harness.append(source, *contents, format=FormatName.GEMINI)
    saved = await snapshots.save(source)
    await harness.append(target, user("own"), asks("t1", "r1"), result("t1"), result("r1"))
    done = await snapshots.restore(saved, target)
    assert done == (11, 0)
    payload = (await harness.build(target)).contents
    for text in ("anthropic says", "thanks", "let me see", "responses says", "own"):
        assert payload.count(text) == 1
    assert "restored_from" not in payload
    again = await snapshots.restore(saved, target)
    assert again == (0, 11)
    assert (await harness.stored(target)).state.open_calls == ()


async def test_a_restore_of_copies_starts_an_epoch(harness: Harness, snapshots: Copies) -> None:
    """The next payload replays no reasoning that is bound to another prefix."""
    thought = {"type": "thinking", "thinking": "hm", "signature": "c2lnbmVk"}
    spoken = {"role": "assistant", "content": [thought, {"type": "text", "text": "hello"}]}
    source, target = await harness.conversation(), await harness.conversation()
    for conversation_id in (source, target):
        await harness.append(conversation_id, user("hi"))
        await harness.append(conversation_id, spoken, format=ANTHROPIC)
    await harness.append(target, user("go on"))
    ask = RequestSettings(format=ANTHROPIC, model="claude-fable-5-1")
    assert "c2lnbmVk" in (await harness.build(target, ask)).contents
    saved = await snapshots.save(source)
    await snapshots.restore(saved, target)
    await harness.append(target, user("go on"))
    built = await harness.build(target, ask)
    assert built.raw["cache_break_reason"] == "restored"
    assert "c2lnbmVk" not in built.contents
    assert built.contents.count("hello") == 2
    await snapshots.restore(saved, target)
    assert (await harness.build(target, ask)).raw["cache_break_reason"] is None


async def test_a_pinned_result_comes_back_whole(harness: Harness, snapshots: Copies) -> None:
    """Although later results are cleared meanwhile. [pins.verbatim]"""
    output = {"context_budget_tokens": 1_300, "clear_at_least": 600}
    cid = await harness.conversation(policy(20_000, tool_output=output))
    await harness.append(cid, user("read"), asks("c0"), result("c0", "r0 " * 150))
    await harness.pin(cid, 2)
    saved = await snapshots.save(cid)
    await harness.conversations.clear(TENANT, cid)
    await harness.append(cid, user("read more"))
    for number in range(1, 7):
        await harness.append(cid, asks(f"c{number}"), result(f"c{number}", "r1 " * 150))
    assert (await harness.build(cid)).contents.count("[tool output trimmed") == 3
    assert await snapshots.restore(saved, cid) == (3, 0)
    assert "r0 " * 150 in (await harness.build(cid)).contents
