"""Strategies end to end over a real database: what each shows of a log.

[strategy.pure, strategy.tree, strategy.retain-summary, strategy.chain, compaction.state,
 strategy.target, pins.verbatim, compaction.forced, compaction.failure-keeps-state]
"""

from __future__ import annotations

from typing import Any

import pytest

from app.common.errors import ServiceUnavailable
from app.conversations.view import SUMMARY_PREFIX, Span
from tests.services.fakes import (
    CHAT,
    SUMMARISER,
    TENANT,
    Build,
    Harness,
    asks,
    own_text,
    result,
    says,
    user,
)
from tests.services.payload.builders import ASKS, check, fill, policy

pytestmark = pytest.mark.services(model=SUMMARISER)

COMPACTING = ("sandwich", "retain_summary", "tree_summary", "chain")
DOWN = ServiceUnavailable("no", {"reason": "provider_error"})
BOTH = "<retain>the goal is tea</retain><summary>what was said</summary>"
RETAINS = {"retain_directives": ["Keep the goal."]}


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
        assert summary.startswith(SUMMARY_PREFIX) and "\nwhat was said\n\nMore: " in summary
        assert later[:3] == ["the last question", "the last answer", "and more of it"]
        assert later[3:] in ([], ["[Continue.]"])
        assert build["summary_used"]
    stored = await harness.receipt(cid)
    assert stored.trigger == ("background" if in_background else "build")
    assert (stored.strategy, stored.stages) == ("retain_summary", ("retain_summary",))
    assert (stored.view.retain, own_text(stored.summary)) == ("the goal is tea", "what was said")
    assert stored.hidden_span == Span(1, len(log) - 2)
    assert len(harness.gateway.calls) == 1
    assert await harness.bodies(cid) == log


# --- tree_summary ---------------------------------------------------------------------------


def tree(chunk: int, window: int = 20_000, **leaves: Any) -> dict[str, Any]:
    """Return the policy of a tree."""
    return policy(window, strategy="tree_summary", tree_summary={"chunk_size": chunk}, **leaves)


async def number(harness: Harness, cid: str, first: int, count: int) -> None:
    """Append user messages that carry their number."""
    batch = [user(f"«{first + n}» " + "why " * 30) for n in range(count)]
    await harness.append(cid, *batch)


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
    assert "User:\n«1»" in prompts(harness)[0] and "User:\n«1»" not in prompts(harness)[4]
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
            assert text.startswith(SUMMARY_PREFIX) and f"node {node}\n" in text


# --- chain ----------------------------------------------------------------------------------


def chain(window: int = 1100, **leaves: Any) -> dict[str, Any]:
    """Return the policy of a chain."""
    return policy(window, 100, strategy="chain", **leaves)


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


# --- options of one call --------------------------------------------------------------------


# --- the state ------------------------------------------------------------------------------


@pytest.mark.parametrize("one", COMPACTING)
@pytest.mark.parametrize("other", [*COMPACTING, "sliding_window", "full_history"])
async def test_changing_the_strategy_drops_the_state(
    harness: Harness, one: str, other: str
) -> None:
    """Another strategy starts from the log; the old receipt is replaced."""
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
    assert found.status == "replaced"
    await harness.set_policy(cid, {"strategy": one})
    assert not (await harness.build(cid))["summary_used"]
