"""Active windows as services see them: time passes, agents are cleared, messages come back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.common.errors import Conflict, ValidationError
from app.models.usage import Completion, ModelCall
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


async def test_a_pinned_message_leaves_the_window(harness: Harness) -> None:
    """A pin does not keep it there [pins.not-in-window]."""
    cid = await agents_conversation(harness, 3600)
    await harness.append(cid, user("old"), says("pinned"))
    await harness.pin(cid, 2)
    harness.clock.pass_seconds(4000)
    await harness.append(cid, user("new"))
    assert await shown(harness, cid) == ["new"]


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
