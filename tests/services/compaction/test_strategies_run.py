"""Strategies end to end over a real database: what each shows of a log.

[strategy.pure, strategy.tree, strategy.retain-summary, strategy.chain, compaction.state,
 strategy.target, pins.verbatim, compaction.forced, compaction.failure-keeps-state]
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.common.errors import ContextOverflow, ServiceUnavailable, ValidationError
from app.conversations.view import SUMMARY_PREFIX, Span
from app.formats.message import Role
from app.prompt.resolved_settings import RequestSettings
from app.repositories import Database
from tests.conftest import execute
from tests.domain.histories import raw_logs
from tests.services.fakes import (
    ANTHROPIC,
    CHAT,
    MODEL,
    SUMMARISER,
    TENANT,
    Build,
    Clock,
    Harness,
    ScriptedGateway,
    WatchedDatabase,
    asks,
    own_text,
    result,
    says,
    user,
)
from tests.services.payload.builders import ASKS, TOOLS, check, fill, policy

COMPACTING = ("sandwich", "retain_summary", "tree_summary", "chain")
DOWN = ServiceUnavailable("no", {"reason": "provider_error"})
BOTH = "<retain>the goal is tea</retain><summary>what was said</summary>"
RETAINS = {"retain_directives": ["Keep the goal."]}


@pytest.fixture
def harness(database: Database) -> Harness:
    """One process's services with a model that summarises."""
    clock = Clock()
    return Harness(WatchedDatabase(database), ScriptedGateway(clock=clock), clock, model=SUMMARISER)


def texts(build: Build) -> list[str]:
    """Return every text of a payload's messages, in order."""
    found: list[str] = []
    for message in build.messages:
        content = message["content"]
        if isinstance(content, str):
            found.append(content)
            continue
        for part in content or []:
            inner = part.get("text", part.get("content", ""))
            found += [inner] if isinstance(inner, str) else [item["text"] for item in inner]
    return found


async def both(harness: Harness, cid: str) -> list[Build]:
    """Build in both formats, check the payloads, and return them."""
    builds = []
    for format, options in ASKS.items():
        build = await harness.build(cid, options)
        check(build, exact=format is CHAT)
        cold = await harness.build(cid, options, harness.cold())
        assert cold.text == build.text
        builds.append(build)
    return builds


async def work(harness: Harness, cid: str, groups: int, words: int = 60) -> None:
    """Append one turn in which so many tools are called, and an answer."""
    await harness.append(cid, user(f"please look into it {groups}"))
    for number in range(groups):
        await harness.append(cid, asks(f"c{number}"), result(f"c{number}", f"r{number} " * words))
    await harness.append(cid, says("all is looked into"))


def prompts(harness: Harness) -> list[str]:
    """Return the prompts of all model calls."""
    return [call.messages[-1]["content"] for call in harness.gateway.calls]


# --- retain_summary -------------------------------------------------------------------------


@pytest.mark.parametrize("in_background", [True, False])
async def test_checkpoint_3_the_history_is_replaced(harness: Harness, in_background: bool) -> None:
    """Threshold exceeded, history replaced by retain + summary + last turn.

    [strategy.retain-summary, summary.retain, compaction.background] The same in the background and
    inside a build, in both formats.
    """
    harness.gateway.replies = [BOTH]
    own = policy(1100, 100, strategy="retain_summary", compaction=RETAINS | {"target": 0.05})
    cid = await harness.conversation(own)
    await fill(harness, cid, 810 if in_background else 955)
    await harness.append(cid, user("the last question"), says("the last answer"))
    await harness.append(cid, says("and more of it"))
    log = await harness.bodies(cid)
    assert (await harness.stored(cid)).state.is_due
    if in_background:
        await harness.work(cid)
    for build in await both(harness, cid):
        retain, summary, *later = texts(build)
        assert retain == "[Kept from earlier in the conversation: the goal is tea]"
        assert summary.startswith(f"{SUMMARY_PREFIX}what was said\n\nNot all is listed: ")
        assert later[:3] == [
            "the last question",
            "the last answer",
            "and more of it",
        ]
        assert later[3:] in ([], ["[Continue.]"])
        assert build["summary_used"]
    stored = await harness.receipt(cid)
    assert stored.trigger == ("background" if in_background else "proactive")
    assert (stored.strategy, stored.strategies_run) == ("retain_summary", ("retain_summary",))
    assert (stored.view.retain, own_text(stored.summary)) == ("the goal is tea", "what was said")
    assert stored.hidden_span == Span(1, len(log) - 2)
    assert len(harness.gateway.calls) == 1
    assert await harness.bodies(cid) == log


async def test_without_a_retain_request_there_is_none(harness: Harness) -> None:
    """A retain section is made on request only; an earlier one goes into the summary."""
    harness.gateway.replies = [BOTH, "<summary>what was said</summary>"]
    own = policy(20_000, strategy="retain_summary", compaction=RETAINS)
    cid = await harness.conversation(own)
    await harness.talk(cid, 4)
    await harness.compact(cid)
    await harness.set_policy(cid, {"compaction": {"retain_directives": []}})
    await harness.talk(cid, 4)
    assert (await harness.compact(cid)).compacted
    assert (await harness.receipt(cid)).view.retain is None
    assert "the goal is tea" in prompts(harness)[1]
    for build in await both(harness, cid):
        assert texts(build)[0].startswith(f"{SUMMARY_PREFIX}what was said\n")


@pytest.mark.parametrize("turns", [0, 1, 3])
async def test_the_last_turns_stay_verbatim(harness: Harness, turns: int) -> None:
    """`retain_last_turns` whole turns follow; with 0 the last call group and user message."""
    own = policy(20_000, strategy="retain_summary", compaction={"retain_last_turns": turns})
    cid = await harness.conversation(own)
    await harness.talk(cid, 3)
    await work(harness, cid, 3)
    await harness.talk(cid, 2)
    made = await harness.compact(cid)
    assert made.compacted
    chat, _ = await both(harness, cid)
    rest = chat.messages[1:]
    assert len(rest) == {0: 2, 1: 2, 3: 12}[turns]
    assert made.after_msg_count == len(chat.messages)
    assert made.after_tokens == chat["tokens_used"]


# --- tree_summary ---------------------------------------------------------------------------


def tree(chunk: int, window: int = 20_000, **leaves: Any) -> dict[str, Any]:
    """Return the policy of a tree."""
    shape = {"chunk_size": chunk}
    return policy(window, strategy="tree_summary", tree_summary=shape, **leaves)


async def number(harness: Harness, cid: str, first: int, count: int) -> None:
    """Append user messages that carry their number."""
    batch = [user(f"«{first + n}» " + "why " * 30) for n in range(count)]
    await harness.append(cid, *batch)


async def test_a_tree_summarises_each_message_once(harness: Harness) -> None:
    """Each chunk is one call, and no message is read twice at a level."""
    harness.gateway.replies = [f"<summary>node {n}</summary>" for n in range(40)]
    cid = await harness.conversation(tree(4))
    for round_ in range(3):
        await number(harness, cid, 1 + 9 * round_, 9)
        made = await harness.compact(cid)
        assert made.compacted
        assert made.strategies_run == ("tree_summary",)
        await both(harness, cid)
    hidden = (await harness.receipt(cid)).hidden_span
    for seq in range(hidden.start, hidden.end):
        read = [text for text in prompts(harness) if f"«{seq}»" in text]
        assert len(read) == 1, seq
    assert hidden == Span(1, 27)


async def test_a_tree_merges_full_levels(harness: Harness) -> None:
    """When a level has enough nodes they are summarised into one; nodes link to sources."""
    harness.gateway.replies = [f"<summary>node {n}</summary>" for n in range(40)]
    cid = await harness.conversation(tree(2))
    await number(harness, cid, 1, 9)
    await harness.compact(cid)
    stored = await harness.receipt(cid)
    assert [(made.level, made.span.start, made.span.end) for made in stored.made] == [
        (1, 1, 3),
        (1, 3, 5),
        (1, 5, 7),
        (1, 7, 9),
        (2, 1, 5),
        (2, 5, 9),
        (3, 1, 9),
    ]
    by_span = {(made.level, made.span): made for made in stored.made}
    assert by_span[1, Span(3, 5)].sources == (Span(3, 5),)
    assert by_span[2, Span(1, 5)].sources == (Span(1, 3), Span(3, 5))
    assert by_span[3, Span(1, 9)].sources == (Span(1, 5), Span(5, 9))
    assert [own_text(node.text) for node in stored.view.summaries] == ["node 6"]
    assert stored.calls == len(harness.gateway.calls) == 7
    assert "node 4" in prompts(harness)[6] and "node 5" in prompts(harness)[6]
    assert "«1»" not in prompts(harness)[4]
    await number(harness, cid, 10, 2)
    await harness.compact(cid)
    later = await harness.receipt(cid)
    assert [(node.level, node.span) for node in later.view.summaries] == [
        (3, Span(1, 9)),
        (1, Span(9, 11)),
    ]
    assert len(harness.gateway.calls) == 8
    for build in await both(harness, cid):
        for node, text in zip((6, 7), texts(build), strict=False):
            assert text.startswith(f"{SUMMARY_PREFIX}node {node}\n")


@pytest.mark.parametrize("k", [2, 3])
async def test_a_model_that_fails_at_a_chunk_keeps_those_before(harness: Harness, k: int) -> None:
    """The chunks before the failure are kept; the next compaction continues there."""
    good = [f"<summary>node {n}</summary>" for n in range(1, k)]
    harness.gateway.replies = [*good, DOWN]
    cid = await harness.conversation(tree(3))
    await number(harness, cid, 1, 12)
    made = await harness.compact(cid)
    assert made.compacted
    end = 1 + 3 * (k - 1)
    assert made.summary_range == (1, end)
    stored = await harness.receipt(cid)
    assert [own_text(node.text) for node in stored.made] == [f"node {n}" for n in range(1, k)]
    assert stored.view.note is None
    chat, _ = await both(harness, cid)
    assert [f"«{n}»" in chat.contents for n in range(1, 13)] == [n >= end for n in range(1, 13)]
    assert made.after_tokens == chat["tokens_used"]
    harness.gateway.replies = ["<summary>the rest</summary>"]
    assert (await harness.compact(cid)).summary_range == (1, 12)
    assert sum("«1»" in text for text in prompts(harness)) == 1
    await both(harness, cid)


# --- chain ----------------------------------------------------------------------------------


def chain(window: int = 1100, **leaves: Any) -> dict[str, Any]:
    """Return the policy of a chain."""
    return policy(window, 100, strategy="chain", **leaves)


async def test_a_chain_clears_results_without_a_model(harness: Harness) -> None:
    """Where clearing old results is enough nothing else is done. [strategy.chain]"""
    cid = await harness.conversation(chain(3100), tools=TOOLS)
    await work(harness, cid, 9, words=120)
    log = await harness.bodies(cid)
    await harness.build(cid)
    made = await harness.compact(cid, target_tokens=1600)
    assert made.compacted
    assert made.strategies_run == ("clear_tool_results",)
    assert (made.summary_range, made.model, made.summary_tokens) == (None, None, 0)
    assert made.before_msg_count == made.after_msg_count == len(log)
    assert harness.gateway.calls == []
    for build in await both(harness, cid):
        assert "[tool output trimmed; ref=" in build.contents
        assert "r0 r0" not in build.contents and "r8 r8" in build.contents
        assert not build["summary_used"]
        assert build["degraded"] == []
        assert build["cache_break_reason"] == ("compaction" if build["format"] == CHAT else None)
    assert (await harness.build(cid))["tokens_used"] <= made.after_tokens <= 1600
    stored = await harness.receipt(cid)
    assert (stored.view.hidden, stored.summary, stored.view.note) == (None, None, None)
    assert stored.hidden_span == Span(1, stored.view.results_cleared_through + 1)
    assert (stored.hidden_messages, stored.made, stored.calls) == (0, (), 0)
    assert await harness.receipts.state(TENANT, cid) is None
    assert await harness.bodies(cid) == log


@pytest.mark.parametrize("strategy", COMPACTING)
@pytest.mark.parametrize("reply", [DOWN, "nothing of use"])
async def test_every_strategy_names_a_failing_model_in_a_build(
    harness: Harness, strategy: str, reply: Any
) -> None:
    """A build whose model fails names the reason in `degraded`. [budget.degraded]"""
    harness.gateway.replies = [reply]
    cid = await harness.conversation(policy(1100, 100, strategy=strategy))
    await fill(harness, cid, 955)
    log = await harness.bodies(cid)
    build = await harness.build(cid)
    check(build, exact=True)
    assert "summariser_unavailable" in build["degraded"]
    assert harness.gateway.calls
    assert await harness.bodies(cid) == log


async def test_a_background_chain_names_the_summary_it_lacks(
    harness: Harness, database_url: str
) -> None:
    """After three failures messages are dropped without a call; the receipt names it."""
    harness.gateway.replies = [DOWN]
    cid = await harness.conversation(chain(1100))
    await fill(harness, cid, 850)
    for _ in range(3):
        await harness.work(cid)
        assert (await harness.stored(cid)).state.compaction_id is None
        statement = "UPDATE heads SET due_at = now() WHERE conversation_id = $1"
        await execute(database_url, statement, cid)
    await harness.work(cid)
    made = await harness.receipt(cid)
    assert (made.trigger, made.strategies_run) == ("background", ("truncate",))
    assert made.degraded == ("summariser_unavailable",)
    assert len(harness.gateway.calls) == 3


@pytest.mark.parametrize("strategy", COMPACTING)
async def test_a_forced_compaction_without_a_model_changes_nothing(
    harness: Harness, strategy: str
) -> None:
    """Whatever the strategy: forced and failing is 503, and what is shown stays."""
    cid = await harness.conversation(policy(20_000, strategy=strategy))
    await harness.talk(cid, 10)
    assert (await harness.compact(cid)).compacted
    await harness.talk(cid, 10)
    before = await both(harness, cid)
    state = (await harness.stored(cid)).state
    harness.gateway.replies = [DOWN]
    with pytest.raises(ServiceUnavailable):
        await harness.compact(cid)
    assert [build.text for build in await both(harness, cid)] == [build.text for build in before]
    assert (await harness.stored(cid)).state == state
    assert len(await harness.receipts.page(TENANT, cid, 10, None)) == 1
    type_, data = (await harness.events_of(cid))[-1]
    assert (type_, data["reason"]) == ("failed", "provider_error")


# --- options of one call --------------------------------------------------------------------


@pytest.mark.parametrize("own", COMPACTING)
@pytest.mark.parametrize("wanted", COMPACTING)
async def test_one_call_uses_its_own_strategy(harness: Harness, own: str, wanted: str) -> None:
    """A call's strategy works on a new log and over any summary; every message is covered.

    The state stays valid for the policy's strategy, which goes on from it.

    [compaction.forced, compaction.state]
    """
    cid = await harness.conversation(tree(3) | {"strategy": own}, tools=TOOLS)
    await harness.talk(cid, 10)
    await work(harness, cid, 4)
    for strategy in (own, wanted, own):
        await harness.talk(cid, 6)
        made = await harness.compact(cid, strategy=strategy)
        if not made.compacted:
            continue
        stored = await harness.receipt(cid)
        assert (stored.strategy, stored.policy_strategy) == (strategy, own)
        assert stored.view.note is None
        spans = [summary.span for summary in stored.view.summaries]
        assert all(one.end <= two.start for one, two in pairwise(spans))
        chat, _ = await both(harness, cid)
        assert (made.after_tokens, made.after_msg_count) == (
            chat["tokens_used"],
            len(chat.messages),
        )
    assert len(harness.gateway.calls) >= 1
    assert (await harness.stored(cid)).state.compaction_id is not None


@pytest.mark.parametrize("strategy", ["tree_summary", "chain"])
async def test_a_target_is_met_and_no_more(harness: Harness, strategy: str) -> None:
    """`target_tokens` is the target; without it, within the target, little stays."""
    cid = await harness.conversation(policy(4100, strategy=strategy))
    await harness.talk(cid, 30)
    target = (await harness.build(cid))["tokens_used"] - 100
    preview = await harness.compact(cid, target_tokens=target, dry_run=True)
    deep = await harness.compact(cid, dry_run=True)
    assert deep.after_msg_count < preview.after_msg_count
    made = await harness.compact(cid, target_tokens=target)
    assert made.compacted
    assert made.after_tokens <= preview.after_tokens <= target
    # What is reserved for the summary: as much as has to be hidden, and the tool `recall`.
    unused = 300 - preview.summary_tokens
    assert target - preview.after_tokens < 60 + unused, "one more turn would not have fitted"
    again = await harness.compact(cid, target_tokens=target)
    assert not again.compacted
    await both(harness, cid)


# --- the state ------------------------------------------------------------------------------


@pytest.mark.parametrize("one", COMPACTING)
@pytest.mark.parametrize("other", [*COMPACTING, "sliding_window", "full_history"])
async def test_changing_the_strategy_drops_the_state(
    harness: Harness, one: str, other: str
) -> None:
    """Another strategy starts from the log; the old receipt is superseded."""
    if one == other:
        return
    cid = await harness.conversation(policy(20_000, strategy=one))
    await harness.talk(cid, 10)
    made = await harness.compact(cid)
    assert made.compacted and made.compaction_id is not None
    await harness.set_policy(cid, {"strategy": other})
    assert await harness.receipts.state(TENANT, cid) is None
    for build in await both(harness, cid):
        assert not build["summary_used"]
    state = (await harness.stored(cid)).state
    assert (state.compaction_id, state.hidden_tokens, state.hidden_messages) == (None, 0, 0)
    if other in COMPACTING:
        assert (await harness.compact(cid)).compacted
        assert (await harness.receipt(cid)).parent_id is None
    found = await harness.receipts.get(TENANT, cid, made.compaction_id)
    assert found.status == "superseded"
    await harness.set_policy(cid, {"strategy": one})
    assert not (await harness.build(cid))["summary_used"]


@pytest.mark.parametrize("strategy", COMPACTING)
async def test_user_messages_stay_verbatim_if_wanted(harness: Harness, strategy: str) -> None:
    """`preserve_user_messages` keeps what users said inside the compacted range."""
    own = policy(20_000, strategy=strategy, preserve_user_messages=True)
    cid = await harness.conversation(own)
    await harness.talk(cid, 10)
    made = await harness.compact(cid)
    assert made.compacted
    for build in await both(harness, cid):
        assert all(f"question {n} why" in build.contents for n in range(10))
        assert build["summary_used"]
    chat = await harness.build(cid)
    assert (made.after_tokens, made.after_msg_count) == (chat["tokens_used"], len(chat.messages))


# --- any log, anything that may happen to it ------------------------------------------------


GATEWAYS = st.sampled_from([None, "<summary>what was said</summary>", "<summary>s</summary>", DOWN])
OPERATIONS = st.one_of(
    raw_logs(4),
    raw_logs(4),
    st.sampled_from(["build", "claude", "small", "build", "unpin"]),
    st.sampled_from(["work", "undo", "undo", "overflow"]),
    st.just(("compact", None)),
    st.tuples(st.just("pin"), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("compact"), st.none() | st.sampled_from(COMPACTING)),
    st.tuples(st.just("strategy"), st.sampled_from([*COMPACTING, "sliding_window"])),
)


class Story:
    """A conversation with random operations and the invariants that hold throughout."""

    def __init__(self, harness: Harness, cid: str) -> None:
        self.harness = harness
        self.cid = cid
        self.log: list[str] = []
        self.marks: dict[str, int] = {}
        self.pinned: dict[str, int] = {}

    async def happen(self, operation: Any) -> None:
        """Run one operation, and check what it must not change."""
        match operation:
            case "build" | "claude" | "small":
                await self.build(operation)
            case "work":
                await self.harness.work(self.cid)
            case "undo":
                await self.undo()
            case "unpin" if self.pinned:
                await self.unpin()
            case ("pin", place, turn) if len(self.pinned) < 6:
                await self.pin(place, turn)
            case ("compact", strategy):
                await self.compact(strategy)
            case ("strategy", name):
                await self.harness.set_policy(self.cid, {"strategy": name})
            case "overflow":
                await self.overflow()
            case _ if hasattr(operation, "messages"):
                await self.append(operation)

    async def append(self, log: Any) -> None:
        """Append a log, and a turn with a unique mark."""
        for format, raw in log.messages:
            await self.harness.append(self.cid, raw, format=format)
        number = len(self.marks)
        said = [
            user(f"mark-{number}/u"),
            asks(f"m{number}"),
            result(f"m{number}", f"mark-{number}/r " + "data " * 45),
            says(f"mark-{number}/a"),
        ]
        state = (await self.harness.append(self.cid, *said)).head_seq
        for name, back in (("u", 3), ("r", 1), ("a", 0)):
            self.marks[f"mark-{number}/{name}"] = state - back
        bodies = await self.harness.bodies(self.cid)
        assert bodies[: len(self.log)] == self.log
        self.log = bodies

    async def pin(self, place: int, turn: bool) -> None:
        """Pin one of the marked messages."""
        names = [name for name in self.marks if name not in self.pinned]
        if names:
            name = names[place % len(names)]
            try:
                seqs = await self.harness.pin(self.cid, self.marks[name], turn=turn)
            except ValidationError:  # too large a part of the window
                return
            self.pinned |= {mark: seq for mark, seq in self.marks.items() if seq in seqs}

    async def unpin(self) -> None:
        """Unpin one message, and with it what its call group or turn pinned."""
        seqs = await self.harness.unpin(self.cid, self.pinned.popitem()[1], turn=True)
        self.pinned = {mark: seq for mark, seq in self.pinned.items() if seq not in seqs}

    async def undo(self) -> None:
        """Undo what is active, if there is something."""
        if (await self.harness.stored(self.cid)).state.compaction_id is not None:
            assert (await self.harness.undo(self.cid)).undone_at is not None

    async def compact(self, strategy: str | None) -> None:
        """Compact by force; what a model that fails leaves is unchanged."""
        state = (await self.harness.stored(self.cid)).state
        try:
            made = await self.harness.compact(self.cid, strategy=strategy)
        except ServiceUnavailable:
            after = (await self.harness.stored(self.cid)).state
            assert after.compaction_id in {state.compaction_id, None}
            return
        if made.compacted:
            assert made.after_tokens < made.before_tokens

    async def overflow(self) -> None:
        """Cut as after an overflow error of a provider."""
        if not self.log:
            return
        try:
            made, built = await self.harness.context.overflow(TENANT, self.cid, ASKS[CHAT])
        except ContextOverflow:
            return
        assert made.after_tokens < made.before_tokens
        self.check(Build(built))

    async def build(self, kind: str) -> None:
        """Build and check; only what cannot fit may be an overflow."""
        if not self.log:
            return
        options = {
            "build": ASKS[CHAT],
            "claude": ASKS[ANTHROPIC],
            "small": RequestSettings(CHAT, MODEL, max_context_tokens=1500),
        }[kind]
        try:
            build = await self.harness.build(self.cid, options)
        except ContextOverflow as overflow:
            budget = overflow.facts["budget"]
            async with self.harness.database.session() as session:
                entries = await session.log.entries(self.cid, 1, 10**9)
            newest = next(item for item in reversed(entries) if item.role is Role.USER)
            minimum = sum(item.tokens for item in entries if item.pinned or item is newest)
            assert minimum > 0.65 * budget.effective_window - 100
            return
        self.check(build)
        cold = await self.harness.build(self.cid, options, self.harness.cold())
        assert cold.text == build.text

    def check(self, build: Build) -> None:
        """Check a payload: valid, within the window, and every pin verbatim."""
        check(build, exact=build["format"] == CHAT)
        shown = json.dumps(build.messages)
        for mark in self.pinned:
            assert mark in shown, mark

    async def end(self) -> None:
        """Check that the log is unchanged and every receipt can be expanded."""
        assert await self.harness.bodies(self.cid) == self.log
        for found in await self.harness.receipts.page(TENANT, self.cid, 1000, None):
            span, seq, bodies = found.compaction.hidden_span, 0, []
            while True:
                _, page = await self.harness.receipts.expand(
                    TENANT, self.cid, found.compaction.compaction_id, seq, 7
                )
                if not page:
                    break
                seq = page[-1].seq
                bodies += [message.body for message in page]
            assert bodies == self.log[span.start - 1 : span.end - 1]
            for summary in found.compaction.view.summaries:
                assert span.start <= summary.span.start < summary.span.end
                # What was pinned at its end since then is shown as well.
                assert all(map(found.compaction.view.shows, range(span.end, summary.span.end)))


@given(
    operations=st.lists(OPERATIONS, min_size=8, max_size=20),
    strategy=st.sampled_from(COMPACTING),
    reply=GATEWAYS,
    window=st.sampled_from([2000, 4000, 8000]),
    leaves=st.fixed_dictionaries(
        {
            "sandwich": st.fixed_dictionaries(
                {"preserve_top": st.integers(0, 3), "preserve_bottom": st.integers(1, 4)}
            ),
            "tree_summary": st.fixed_dictionaries({"chunk_size": st.integers(2, 6)}),
            "sliding_window": st.just({"keep_last_n": 5}),
            "preserve_user_messages": st.booleans(),
            "compaction": st.fixed_dictionaries(
                {
                    "mode": st.sampled_from(["background", "inline"]),
                    "max_messages": st.none() | st.integers(5, 20),
                    "retain_directives": st.sampled_from([[], ["Keep names."]]),
                    "target": st.sampled_from([0.3, 0.5, 0.8]),
                }
            ),
        }
    ),
)
@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_payloads_stay_valid_after_any_operations(
    harness: Harness,
    operations: list[Any],
    strategy: str,
    reply: Any,
    window: int,
    leaves: Mapping[str, Any],
) -> None:
    """Appends, builds, compactions of all kinds, undos and pins in any order and strategy.

    Every payload is valid and fits, a pin is always shown, the log never changes, and every receipt
    expands to exactly the originals.

    [budget.within-window, strategy.pure, strategy.sliding-window, strategy.tree,
     strategy.retain-summary, strategy.chain, compaction.state, strategy.target, pins.verbatim,
     budget.fitting-order, compaction.expand, log.append-only, payload.valid]
    """
    gateway = ScriptedGateway(*([reply] if reply is not None else []))
    harness = Harness(harness.database, gateway, model=SUMMARISER if reply is not None else None)
    budget = {"context_window": window, "max_output_tokens": 100}
    cid = await harness.conversation({"strategy": strategy, "budget": budget, **leaves})
    story = Story(harness, cid)
    for operation in operations:
        await story.happen(operation)
    await story.build("build")
    await story.build("claude")
    await story.end()
