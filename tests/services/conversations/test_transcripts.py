"""Transcripts: visibilities agree with builds, and reads have a bounded cost.

[transcript.visibility]
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.common.errors import ContextOverflow, ValidationError
from app.conversations.messages.stored_results import Content
from app.conversations.messages.transcripts import ShownAs, Visibility
from app.conversations.turns import entry, group_boundary_before
from app.conversations.view import Span
from app.formats.message import Role
from app.prompt.resolved_settings import RequestSettings
from app.repositories import Database
from tests.services.fakes import (
    SUMMARISER,
    TENANT,
    Build,
    Harness,
    ScriptedGateway,
    WatchedDatabase,
    asks,
    result,
    says,
    user,
)

SMALL: dict[str, Any] = {
    "agent_tools": "none",
    "budget": {"notice_at": 1.0},
    "sandwich": {"preserve_top": 1, "preserve_bottom": 2},
    "tree_summary": {"chunk_size": 2},
    "sliding_window": {"keep_last_n": 4},
    "tool_output": {"context_budget_tokens": 300, "clear_at_least": 100},
}
STRATEGIES = ("sandwich", "tree_summary", "retain_summary", "sliding_window", "full_history")
LARGE = "word " * 150


def harness_over(database: Database) -> Harness:
    """Return the services of a process over a real database, with a model that summarises."""
    gateway = ScriptedGateway()
    return Harness(WatchedDatabase(database), gateway, model=SUMMARISER, service_policy=SMALL)


@pytest.fixture
def harness(database: Database) -> Harness:
    """The services of a process over a real database."""
    return harness_over(database)


async def read(harness: Harness, conversation_id: str) -> dict[int, Visibility]:
    """Return the visibilities of the whole transcript by seq."""
    conversation = await harness.stored(conversation_id)
    page = await harness.messages(conversation_id)
    shown, _ = await harness.transcripts.shown(TENANT, conversation, page, Content.AUTO)
    return {item["seq"]: item["visibility"] for item in shown}


# --- visibilities and builds ----------------------------------------------------------------------


class Story:
    """One conversation, and the operations on it."""

    def __init__(self, harness: Harness, conversation_id: str) -> None:
        self.harness = harness
        self.id = conversation_id
        self.roles: list[Role] = []
        self.calls: dict[str, int] = {}
        self.results: dict[str, int] = {}
        self.awaited: list[str] = []

    async def run_operation(self, kind: str, amount: int) -> None:
        """Run an operation; one that is impossible now does nothing."""
        harness, seq = self.harness, len(self.roles) + 1
        place = 1 + amount % max(1, len(self.roles))
        match kind:
            case "say":
                words = "well " * (amount % 60)
                for turn in range(seq, seq + 2 * (1 + amount % 3), 2):
                    await self._append(user(f"m{turn}. {words}"), says(f"m{turn + 1}. {words}"))
                self.awaited = []
            case "call":
                self.awaited = [f"c{seq}a", f"c{seq}b"]
                self.calls |= dict.fromkeys(self.awaited, seq)
                await self._append(asks(*self.awaited))
                await self._answer(amount % 3, LARGE if amount % 2 else "done")
            case "answer":
                await self._answer(2, LARGE)
            case "compact":
                await harness.compact(self.id)
            case "cut" if self.roles:
                with suppress(ContextOverflow, ValidationError):
                    await harness.context.overflow(TENANT, self.id, RequestSettings())
            case "clear":
                await harness.conversations.clear(TENANT, self.id)
            case "pin" if self.roles:
                await harness.pin(self.id, place)
            case "unpin" if self.roles:
                await harness.unpin(self.id, place)
            case "undo" if (await harness.stored(self.id)).state.compaction_id is not None:
                await harness.undo(self.id)
            case "restore" if self.roles:
                await self._rejoin(place, place + amount % 7)
            case "pass":
                harness.clock.pass_seconds(amount)
            case _ if kind in STRATEGIES:
                await harness.set_policy(self.id, {"strategy": kind})

    async def _answer(self, count: int, text: str) -> None:
        for call_id in self.awaited[:count]:
            self.results[call_id] = len(self.roles) + 1
            await self._append(result(call_id, text))
        self.awaited = self.awaited[count:]

    async def _append(self, *messages: dict[str, Any]) -> None:
        await self.harness.append(self.id, *messages)
        self.roles += [Role(message["role"]) for message in messages]

    def shown_in(self, build: Build) -> dict[int, ShownAs]:
        """Return the messages that a payload shows; texts begin with their seqs."""
        found = {}
        for item in build.messages:
            match item:
                case {"role": "tool", "tool_call_id": call_id, "content": text}:
                    is_cleared = text.startswith("[tool output trimmed")
                    if call_id in self.results:
                        state = ShownAs.CLEARED if is_cleared else ShownAs.VERBATIM
                        found[self.results[call_id]] = state
                case {"tool_calls": [*calls]}:
                    found |= {self.calls[call["id"]]: ShownAs.VERBATIM for call in calls}
                case {"content": text} if said := re.match(r"m(\d+)\.", text):
                    found[int(said[1])] = ShownAs.VERBATIM
        return found

    async def _rejoin(self, first: int, last: int) -> None:
        log = [entry(seq, role, 1) for seq, role in enumerate(self.roles, start=1)]
        start, end = (group_boundary_before(log, index) + 1 for index in (first - 1, last))
        async with self.harness.database.transaction() as session:
            locked = await session.conversations.get(TENANT, self.id, lock=True)
            await self.harness.active.restore(session, locked, [Span(start, end)])


def stories() -> st.SearchStrategy[list[tuple[str, int]]]:
    """Draw operations, their order and their sizes."""
    often = ["say", "say", "call", "call", "answer", "compact", "compact"] * 2
    rest = ["cut", "clear", "pin", "unpin", "undo", "restore", "pass", *STRATEGIES]
    kinds = st.sampled_from([*often, *rest])
    return st.lists(st.tuples(kinds, st.integers(0, 900)), min_size=12, max_size=24)


@settings(max_examples=16, deadline=None, suppress_health_check=list(HealthCheck))
@given(story=stories())
async def test_visibilities_agree_with_the_next_build(
    database: Database, story: list[tuple[str, int]]
) -> None:
    """Exactly the messages that the next payload shows are verbatim or cleared."""
    harness = harness_over(database)
    agent = await harness.agent(2400)
    told = Story(harness, await harness.conversation(agent_id=agent))
    before, after = story[: len(story) // 2], story[len(story) // 2 :]
    for kind, amount in [("say", 332), *before, ("build", 0), *after, ("build", 0)]:
        await told.run_operation(kind, amount)
        if kind == "build":
            await check(told)


async def check(story: Story) -> None:
    """Compare the visibilities with a build."""
    harness, conversation_id = story.harness, story.id
    try:
        build = await harness.build(conversation_id)
    except ValidationError:
        expected: dict[int, ShownAs] = {}
    else:
        if build["degraded"]:
            return
        expected = story.shown_in(build)
    found = await read(harness, conversation_id)
    shown = {ShownAs.VERBATIM, ShownAs.CLEARED}
    assert {seq: mark.state for seq, mark in found.items() if mark.state in shown} == expected
    conversation = await harness.stored(conversation_id)
    active = conversation.state.compaction_id
    for mark in found.values():
        is_reduced = mark.state in (ShownAs.CLEARED, ShownAs.SUMMARISED, ShownAs.LEFT_OUT)
        assert mark.compaction_id == (active if is_reduced else None)
    assert all(
        conversation.state.window.holds(seq) for seq, mark in found.items() if mark.restored_at
    )


# --- what it costs --------------------------------------------------------------------------


async def test_a_page_takes_a_few_statements(harness: Harness, ran: list[str]) -> None:
    """The number of reads does not depend on the log."""
    cid = await harness.conversation()
    for _ in range(3):
        await harness.talk(cid, 5)
        assert (await harness.compact(cid)).compacted
    ran.clear()
    assert len(await read(harness, cid)) == 30
    assert len(ran) == 4
