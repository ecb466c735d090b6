"""Changes of an agent between the builds of its conversations.

A change of what begins a payload begins an epoch, with its reason. Anything else stays in the tail.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.common.errors import ContextOverflow, ValidationError
from app.conversations.schemas import AgentPatch, ConversationPatch
from app.conversations.settings import SettingsList
from app.prompt.resolved_settings import RequestSettings
from app.repositories import Database
from tests.services.fakes import (
    ANTHROPIC,
    CHAT,
    SUMMARISER,
    TENANT,
    Build,
    Clock,
    Harness,
    ScriptedGateway,
    WatchedDatabase,
    asks,
    result,
    says,
    unmarked,
    user,
)
from tests.services.payload.builders import GEMINI, RESPONSES, TOOLS

PROVIDERS = (CHAT, RESPONSES, ANTHROPIC, GEMINI)
ITEMS = {CHAT: "messages", RESPONSES: "input", ANTHROPIC: "messages", GEMINI: "contents"}
SECTIONS = [
    [],
    [{"name": "base", "content": "You are kind."}],
    [
        {"name": "base", "content": "You are kind."},
        {"name": "pad", "content": "Buy milk.", "kind": "scratchpad"},
    ],
    [{"name": "now", "content": "Busy.", "kind": "status"}],
]
POLICIES: list[dict[str, Any]] = [
    {"dynamic_position": position} for position in ("tail", "system", "before_window")
]
POLICIES += [{"agent_tools": tools} for tools in ("auto", "none", ["recall"])]
POLICIES += [{"status_preamble": "none"}, {"status_preamble": "auto"}]
POLICIES += [{"budget": {"notice_at": share}} for share in (0.1, 0.5, 0.9)]
POLICIES += [{"budget": {"context_window": tokens}} for tokens in (2_500, 9_000)]
POLICIES += [{"strategy": strategy} for strategy in ("sandwich", "sliding_window", "full_history")]
POLICIES += [{"summary_role": role} for role in ("user", "system")]
POLICIES += [{"tool_output": {"context_budget_tokens": tokens}} for tokens in (200, 20_000)]
OWN = {"strategy": "sandwich", "budget": {"context_window": 4_000, "max_output_tokens": 100}}

CHANGES = st.one_of(
    st.tuples(st.just("policy"), st.sampled_from(POLICIES)),
    st.tuples(st.just("sections"), st.sampled_from(SECTIONS)),
    st.tuples(st.just("tools"), st.sampled_from([[], TOOLS])),
    st.tuples(st.just("name"), st.sampled_from(["A", "B"])),
    st.tuples(st.just("model"), st.sampled_from([None, "gpt-4.1", "gemini-2.5-pro"])),
    st.tuples(st.just("window"), st.sampled_from([60, 3_600, 86_400])),
    st.tuples(st.just("other"), st.sampled_from(["append", "call", "title", "clear"])),
    st.tuples(st.sampled_from(["clear", "move"]), st.none()),
)
STEPS = st.lists(
    st.tuples(
        st.none() | CHANGES,
        st.sampled_from([None, "user", "says", "result"]),
        st.sampled_from([0, 2, 2, 2, 90]),
        st.lists(st.sampled_from(PROVIDERS), min_size=1, max_size=2, unique=True),
        st.integers(0, 2),
    ),
    min_size=3,
    max_size=12,
)


async def _change(harness: Harness, ids: list[str], kind: str, value: Any) -> None:
    agents, conversations = harness.agents, harness.conversations
    agent, other_agent, cid, other = ids
    match kind:
        case "policy":
            await agents.change(TENANT, agent, AgentPatch(policy=value))
        case "name":
            await agents.change(TENANT, agent, AgentPatch(name=value))
        case "model":
            await agents.change(TENANT, agent, AgentPatch(model=value))
        case "window":
            await agents.change(TENANT, agent, AgentPatch(rolling_window_seconds=value))
        case "sections" | "tools":
            await agents.set_list(TENANT, agent, SettingsList(kind), value)
        case "clear":
            await agents.clear(TENANT, agent)
        case "move":
            ids[0], ids[1] = other_agent, agent
            patch = ConversationPatch(agent_id=other_agent)
            await conversations.change(TENANT, cid, patch)
        case _:
            await _change_other(harness, other, value)


async def _change_other(harness: Harness, other: str, kind: str) -> None:
    match kind:
        case "append":
            await harness.append(other, user("What now?"))
        case "call":
            await harness.append(other, user("Look."), asks("c1"))
        case "clear":
            await harness.conversations.clear(TENANT, other)
        case _:
            patch = ConversationPatch(metadata={"title": "Tests", "status": "red"})
            await harness.conversations.change(TENANT, other, patch)


async def _append(harness: Harness, cid: str, kind: str | None, number: int) -> None:
    call = f"call_{number}"
    match kind:
        case "user":
            await harness.append(cid, user(f"question {number} " + "why " * 60))
        case "says":
            await harness.append(cid, says(f"answer {number} " + "because " * 60))
        case "result":
            await harness.append(cid, asks(call), result(call, f"{number} " + "row " * 150))


def _extends(build: Build, before: Build) -> bool:
    """Whether a payload begins as the stable part of an earlier one, with the same other fields."""
    name = ITEMS[build["format"]]
    payload, earlier = unmarked(build.payload), unmarked(before.payload)
    items, stable = payload.pop(name), earlier.pop(name)[: before["stable_items"]]
    return bool(payload == earlier and items[: len(stable)] == stable)


@given(own=st.sampled_from([{}, *POLICIES]), steps=STEPS)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_a_change_of_an_agent_breaks_the_prefix_with_a_reason(
    database: Database, own: dict[str, Any], steps: list[Any]
) -> None:
    """Inside an epoch each payload extends the last one, also after changes of agent and status.

    All processes build the same, warm or cold.

    [epochs.extend, payload.deterministic, agents.status-preamble]
    """
    clock = Clock()
    harness = Harness(WatchedDatabase(database), ScriptedGateway(clock=clock), clock, SUMMARISER)
    agents = [await harness.agent(86_400, OWN) for _ in range(2)]
    cid, other = [await harness.conversation(agent_id=agents[0]) for _ in range(2)]
    ids = [*agents, cid, other]
    await _change(harness, ids, "policy", own)
    await harness.append(cid, user("hello"))
    services = [harness.context, harness.cold()]
    last: dict[tuple[str, str], Build] = {}
    for number, (change, appended, seconds, formats, process) in enumerate(steps):
        if change is not None:
            await _change(harness, ids, *change)
        await _append(harness, cid, appended, number)
        clock.pass_seconds(seconds)
        for format in formats:
            ask, service = RequestSettings(format), [*services, harness.cold()][process]
            try:
                build = await harness.build(cid, ask, service)
            except (ContextOverflow, ValidationError):  # nothing fits, or the window is empty
                continue
            stream = format, build.payload["model"]
            before = last.get(stream)
            if before is not None and build["epoch"] == before["epoch"]:
                assert _extends(build, before)
                assert build["cache_break_reason"] is None
            elif before is not None:
                assert build["cache_break_reason"] is not None
            clock.pass_seconds(2)  # a status is known for a second: the next build may have another
            newest = await harness.build(cid, ask)
            if newest["epoch"] == build["epoch"]:
                assert _extends(newest, build)
            else:
                assert newest["cache_break_reason"] is not None
            build = newest
            for each in (*services, harness.cold()):
                again = await harness.build(cid, ask, each)
                assert _extends(again, build)
                assert again["epoch"] == build["epoch"]
                build = again
            last[stream] = build
