"""Active windows as services see them: time passes, agents are cleared, messages come back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.common.errors import Conflict, ValidationError
from app.conversations.conversation import Conversation
from app.conversations.schemas import AgentPatch
from app.conversations.view import Span
from app.models.model_calls import Completion, ModelCall
from app.prompt.resolved_settings import RequestSettings
from app.repositories import Database
from tests.services.fakes import (
    ANTHROPIC,
    CHAT,
    CLAUDE,
    TENANT,
    Harness,
    ScriptedGateway,
    WatchedDatabase,
    asks,
    result,
    says,
    user,
)

DAY = 86_400
PLAIN = {"agent_tools": "none", "budget": {"notice_at": 1.0}}
pytestmark = pytest.mark.services(service_policy=PLAIN)


async def shown(harness: Harness, conversation_id: str, format: Any = CHAT) -> list[str]:
    """Return the texts of the messages that a build shows."""
    model = CLAUDE if format is ANTHROPIC else None
    build = await harness.build(conversation_id, RequestSettings(format, model))
    return [str(item["content"]) for item in build.messages]


async def agents_conversation(harness: Harness, seconds: int | None = DAY) -> str:
    """Return a conversation of an agent with this rolling window."""
    return await harness.conversation(agent_id=await harness.agent(seconds))


async def test_a_window_never_begins_inside_a_call_group(harness: Harness) -> None:
    """No result is without its call, in any format [window.whole-groups]."""
    cid = await agents_conversation(harness, 3600)
    await harness.append(cid, user("look"), asks("c1", "c2"), result("c1", "one"))
    harness.clock.pass_seconds(1800)
    await harness.append(cid, result("c2", "two"), says("done"))
    harness.clock.pass_seconds(1800)
    for format in (CHAT, ANTHROPIC):
        texts = await shown(harness, cid, format)
        assert any("done" in text for text in texts)
        assert not any("two" in text for text in texts)


async def test_a_clear_drops_the_summary_and_a_running_compaction(harness: Harness) -> None:
    """State, summary and `resume_at_tokens` are reset."""
    cid = await harness.conversation({"sandwich": {"preserve_top": 1, "preserve_bottom": 1}})
    await harness.talk(cid, 12, words=60)
    assert (await harness.compact(cid)).compacted
    assert await harness.receipts.state(TENANT, cid) is not None
    await harness.conversations.clear(TENANT, cid)
    assert await harness.receipts.state(TENANT, cid) is None
    assert (await harness.compact(cid)).reason == (
        "the conversation has no messages in its active window"
    )
    await harness.append(cid, user("anew"))
    build = await harness.build(cid)
    assert (build.messages[0]["content"], build["summary_used"]) == ("anew", False)
    assert build["cache_break_reason"] is None


async def test_a_clear_while_a_compaction_runs(database: Database) -> None:
    """Its summary is not shown, because its range was cleared meanwhile [window.clear]."""

    class Interrupted(ScriptedGateway):
        async def complete(self, call: ModelCall) -> Completion:
            await harness.conversations.clear(TENANT, cid)
            return await super().complete(call)

    harness = Harness(
        WatchedDatabase(database), Interrupted(), model="summariser", service_policy=PLAIN
    )
    cid = await harness.conversation({"sandwich": {"preserve_top": 1, "preserve_bottom": 1}})
    await harness.talk(cid, 12)
    with pytest.raises(Conflict):
        await harness.compact(cid)
    await harness.append(cid, user("anew"))
    assert await shown(harness, cid) == ["anew"]


async def test_a_summary_wholly_outside_the_window_is_not_shown(harness: Harness) -> None:
    """A summary leaves with the last of its messages [window.clear-drops-state]."""
    agent = await harness.agent(3600)
    cid = await harness.conversation(
        {"sandwich": {"preserve_top": 1, "preserve_bottom": 2}}, agent_id=agent
    )
    await harness.talk(cid, 6)
    harness.clock.pass_seconds(1000)
    await harness.talk(cid, 6)
    assert (await harness.compact(cid)).compacted
    build = await harness.build(cid)
    assert build["summary_used"]
    harness.clock.pass_seconds(2600)
    build = await harness.build(cid)
    assert build["summary_used"], "it tells of the younger half as well"
    assert not build.messages[0]["content"].startswith("question 0")
    assert build.count() == build["tokens_used"]
    await harness.append(cid, user("still here"))
    harness.clock.pass_seconds(1000)
    build = await harness.build(cid)
    assert (build["summary_used"], build.messages[0]["content"]) == (False, "still here")
    assert await harness.receipts.state(TENANT, cid) is None


@pytest.mark.parametrize("edge", ["first", "last"])
@pytest.mark.parametrize("then", ["settled", "undone"])
async def test_a_pin_at_the_edge_of_the_hidden_range_is_shown(
    harness: Harness, edge: str, then: str
) -> None:
    """It is shown after every move of the window and every undo [pins.not-in-window]."""
    agent = await harness.agent(7200)
    policy = {"sandwich": {"preserve_top": 1, "preserve_bottom": 2}}
    cid = await harness.conversation(policy, agent_id=agent)
    await harness.talk(cid, 12, words=80)
    assert (await harness.compact(cid)).compacted
    span = (await harness.stored(cid)).state.hidden_span
    assert span is not None
    pinned = span.start if edge == "first" else span.end - 1
    if then == "undone":
        await harness.talk(cid, 12, words=80)
        assert (await harness.compact(cid)).compacted
    await harness.pin(cid, pinned)
    before = (await harness.build(cid)).contents
    if then == "undone":
        await harness.undo(cid)
    else:
        patch = AgentPatch(rolling_window_seconds=3600)
        await harness.agents.change(TENANT, agent, patch)
        await harness.context.budget(TENANT, cid)
    state = (await harness.stored(cid)).state
    assert pinned in state.kept_seqs
    words = f"{'answer' if pinned % 2 == 0 else 'question'} {(pinned - 1) // 2} "
    build = await harness.build(cid)
    for model in (None, "gpt-4o-mini"):
        build = await harness.build(cid, RequestSettings(CHAT, model), service=harness.cold())
        texts = [text for item in build.messages if (text := item["content"])[0] != "["]
        assert any(text.startswith(words) for text in texts)
        assert build.count() == build["tokens_used"]
    assert words in before
    assert (await used(harness, cid)) == build["tokens_used"]


async def used(harness: Harness, conversation_id: str) -> int:
    """Return the tokens of the budget."""
    reading = await harness.context.budget(TENANT, conversation_id)
    assert reading is not None
    return reading.budget.used_tokens


async def test_a_clear_resets_the_named_agent_tools(database: Database) -> None:
    """The budget counts the agent tools that the window names; restored results name them again."""
    harness = Harness(WatchedDatabase(database), service_policy={"budget": {"notice_at": 1.0}})
    cid = await harness.conversation()
    large = "line\n" * 20_000
    await harness.append(cid, user("look"), asks("c1"), result("c1", large), says("done"))
    full = await used(harness, cid)
    await harness.conversations.clear(TENANT, cid)
    await harness.append(cid, user("anew"))
    build = await harness.build(cid)
    assert build["tokens_used"] == await used(harness, cid) < 100
    await rejoin(harness, cid, Span(1, 5))
    build = await harness.build(cid)
    assert build["tokens_used"] == await used(harness, cid) > full


async def rejoin(harness: Harness, conversation_id: str, *spans: Span) -> Conversation:
    """Put spans back into the window."""
    async with harness.database.transaction() as session:
        locked = await session.log.lock(TENANT, conversation_id, None)
        assert locked is not None
        return await harness.active.restore(session, locked, spans)


class Story:
    """A plain model of the window: which of the log's groups are shown."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds
        self.groups: list[tuple[list[str], list[datetime]]] = []
        self.cleared = 0
        self.cleared_at = datetime.min.replace(tzinfo=UTC)

    def add(self, texts: list[str], times: list[datetime]) -> None:
        """Append a call group."""
        self.groups.append((texts, times))

    def clear(self, now: datetime) -> None:
        """Clear the conversation."""
        self.cleared, self.cleared_at = len(self.groups), now

    def may_show(self, now: datetime, *, ahead: bool) -> list[str]:
        """Return the messages newer than the marker, which may be a step ahead."""
        length = self.seconds * 23 / 24 if ahead else self.seconds
        rolled = now - timedelta(seconds=length)
        return [
            text
            for texts, times in self.groups[self.cleared :]
            if min(times) > rolled and min(times) > self.cleared_at
            for text in texts
        ]


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[str, int]]:
    """Draw appends with delays, calls whose results come later, pauses, clears and builds."""
    said = ["say", "say", "late", "call", "ask", "answer", "answer"]
    kinds = st.sampled_from([*said, "pass", "pass", "clear", "build"])
    return draw(st.lists(st.tuples(kinds, st.integers(0, 3000)), min_size=4, max_size=24))


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(story=stories())
async def test_windows_equal_those_of_a_simple_model(database: Database, story: Any) -> None:
    """No message outside the window is shown, and none inside it is missing.

    A result is in the next build, wherever its call is [window.appended].
    """
    harness = Harness(WatchedDatabase(database), service_policy=PLAIN)
    cid = await agents_conversation(harness, 2400)
    model = Story(2400)
    waiting: list[str] = []
    for number, (kind, amount) in enumerate([*story, ("build", 0)]):
        now = harness.clock.utc()
        received = now + timedelta(microseconds=1)  # later than any clear before
        match kind:
            case "say" | "late":
                late = amount if kind == "late" else 0
                own = now - timedelta(seconds=late)
                stamp = {"timestamp": own.isoformat()} if late else {}
                await harness.append(cid, {**user(f"m{number}"), **stamp})
                model.add([f"m{number}"], [own if late else received])
            case "call":
                own = now - timedelta(seconds=amount)
                answer = {**result(f"c{number}", f"r{number}"), "timestamp": own.isoformat()}
                await harness.append(cid, user(f"m{number}"), asks(f"c{number}"), answer)
                model.add([f"m{number}"], [received])
                model.add([f"r{number}"], [own if amount else received, received])
            case "ask":
                await harness.append(cid, asks(f"a{number}"))
                waiting.append(f"a{number}")
            case "answer" if waiting:
                call = waiting.pop(-(amount % 2))
                await harness.append(cid, result(call, f"answer {number}."))
                assert any(f"answer {number}." in text for text in await shown(harness, cid))
            case "pass":
                harness.clock.pass_seconds(amount)
            case "clear":
                await harness.conversations.clear(TENANT, cid)
                model.clear(now)
            case _:
                await check(harness, cid, model)


async def check(harness: Harness, cid: str, model: Story) -> None:
    """Compare a warm and a cold build with the model."""
    now = harness.clock.utc()
    most, least = model.may_show(now, ahead=False), model.may_show(now, ahead=True)
    try:
        build = await harness.build(cid)
    except ValidationError:
        assert not least
        return
    found = [str(item["content"]) for item in build.messages if item.get("content")]
    texts = [text for text in found if not text.startswith(("[", "answer"))]
    assert [text for text in most if text in texts] == texts, (texts, most)
    assert set(least) <= set(texts), (texts, least)
    assert build.count() == build["tokens_used"]
    cold = await harness.build(cid, service=harness.cold())
    assert cold.text == build.text
    state = (await harness.stored(cid)).state
    assert state.shown_tokens >= 0 and state.shown_messages > 0
