"""Rewinds: later messages leave the window, a new branch goes on, an undo brings them back."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.common.errors import Conflict, ContextOverflow, UnpairedToolResult, ValidationError
from app.compaction.rewind import Rewound
from app.conversations.messages.stored_results import Content
from app.formats.message import FormatName
from app.formats.reasoning import binds_reasoning
from app.prompt.resolved_settings import RequestSettings
from tests.domain.histories import raw_logs
from tests.services.fakes import SUMMARISER, TENANT, Harness, asks, result, says, user
from tests.services.payload.builders import ASKS, both, check, is_extension, policy

pytestmark = pytest.mark.services(model=SUMMARISER)


async def rewind(harness: Harness, cid: str, to_seq: int, **ask: Any) -> Rewound:
    """Rewind to a seq."""
    return await harness.rewinds.rewind(TENANT, cid, to_seq, **ask)


async def states(harness: Harness, cid: str) -> list[str]:
    """Return how the context shows each message of the log."""
    conversation, page = await harness.stored(cid), await harness.messages(cid)
    shown, _ = await harness.transcripts.shown(TENANT, conversation, page, Content.VIEW)
    return [message["visibility"].state for message in shown]


async def test_a_new_branch_goes_on(harness: Harness) -> None:
    """The log keeps what left; the prefix stays; an undo shows all. [rewind.window, rewind.undo]"""
    cid = await harness.conversation(policy(5_000))
    await harness.talk(cid, 3)
    before = await harness.build(cid)
    rewound = await rewind(harness, cid, 2, expected_seq=6)
    assert (rewound.to_seq, rewound.message_count) == (2, 4)
    assert await rewind(harness, cid, 2) == rewound
    _, left = await harness.receipts.expand(TENANT, cid, rewound.compaction_id or "", 0, 10)
    assert [message.seq for message in left] == [3, 4, 5, 6]
    await harness.append(cid, user("another question"))
    build = await harness.build(cid)
    check(build, exact=True)
    assert build.messages == [*before.messages[:2], user("another question")]
    assert (build["cache_break_reason"], build["budget"].summary) == ("rewound", 0)
    assert await states(harness, cid) == ["verbatim"] * 2 + ["outside"] * 4 + ["verbatim"]
    with pytest.raises(Conflict):
        await rewind(harness, cid, 2, expected_seq=6)
    with pytest.raises(ValidationError):
        await rewind(harness, cid, 8)
    await harness.undo(cid)
    undone = await harness.build(cid)
    assert undone.messages == [*before.messages, user("another question")]
    assert [kind for kind, _ in await harness.events_of(cid)] == ["rewound", "undone"]
    assert (await rewind(harness, cid, 7)).compaction_id is None


async def test_a_whole_call_group_leaves(harness: Harness) -> None:
    """A cut inside it is one before it; no result of its open call comes any more, until an undo.

    [rewind.call-groups]
    """
    cid = await harness.conversation(policy(5_000))
    await harness.append(cid, user("look"), asks("a", "b"), result("a", "first"))
    rewound = await rewind(harness, cid, 2)
    assert (rewound.to_seq, rewound.message_count) == (1, 2)
    with pytest.raises(UnpairedToolResult):
        await harness.append(cid, result("b", "two"))
    await harness.append(cid, asks("b"), result("b", "three"), says("done"))
    for build in await both(harness, cid):
        assert "three" in build.contents and "first" not in build.contents
    await rewind(harness, cid, 1)
    await harness.undo(cid)
    await harness.undo(cid)
    await harness.append(cid, result("b", "late"))
    for build in await both(harness, cid):
        assert "late" in build.contents and "three" in build.contents


async def test_a_rewind_into_a_summary_shows_what_came_before_it(harness: Harness) -> None:
    """The messages that stay are shown, and what was told of the others is not."""
    cid = await harness.conversation(policy(5_000))
    await harness.talk(cid, 8)
    first = await harness.build(cid)
    await harness.compact(cid, model="extractive")
    summarised = await harness.build(cid)
    await rewind(harness, cid, 14)
    kept = await harness.build(cid)
    assert kept.messages == summarised.messages[:-2] and kept["budget"].summary > 0
    made = await harness.receipt(cid)
    counts = (made.before_messages, made.after_messages)
    assert counts == (len(summarised.messages), len(kept.messages))
    await rewind(harness, cid, 8)
    build = await harness.build(cid)
    assert build.messages == first.messages[:8] and build["budget"].summary == 0
    await harness.undo(cid)
    await harness.undo(cid)
    assert (await harness.build(cid)).messages == summarised.messages


async def test_all_of_a_log_may_leave(harness: Harness) -> None:
    """The next message is then the first that a payload shows, as after a clear."""
    cid = await harness.conversation(policy(5_000))
    await harness.talk(cid, 2)
    await rewind(harness, cid, 0)
    with pytest.raises(ValidationError):
        await harness.build(cid)
    await harness.append(cid, user("start again"))
    assert (await harness.build(cid)).messages == [user("start again")]
    assert (await harness.stored(cid)).state.shown_messages == 1


@given(
    log=raw_logs(8),
    at=st.dictionaries(st.integers(1, 12), st.floats(0, 1), max_size=4),
    compacts=st.sets(st.integers(1, 12), max_size=2),
    undoes=st.sets(st.integers(1, 12), max_size=2),
    strategy=st.sampled_from(["sandwich", "sliding_window", "chain"]),
    window=st.sampled_from([1_500, 100_000]),
    pin=st.integers(0, 6),
)
@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_any_log_can_be_rewound(
    harness: Harness,
    log: Any,
    at: Mapping[int, float],
    compacts: set[int],
    undoes: set[int],
    strategy: str,
    window: int,
    pin: int,
) -> None:
    """Valid, in budget, warm as cold; nothing that left is shown; an undo is exact.

    [rewind.window, rewind.call-groups, compaction.undo]
    """
    cid = await harness.conversation(policy(window, strategy=strategy))
    gone: list[set[int]] = []
    for number, (format, raw) in enumerate(log.messages, 1):
        try:
            await harness.append(cid, raw, format=format)
        except UnpairedToolResult:
            assert gone  # its call has left
            continue
        head = (await harness.stored(cid)).state.head_seq
        if number == pin:
            with suppress(ValidationError):  # a pin may be too large
                await harness.pin(cid, head)
        if number in compacts:
            await harness.compact(cid, model="extractive")
        if number in undoes and gone:
            await undo_rewind(harness, cid, gone)
        if number in at:
            to_seq = int(at[number] * head)
            before = await harness.stored(cid)
            done = await rewind(harness, cid, to_seq)
            assert done.to_seq <= to_seq
            if done.compaction_id is not None:
                await harness.undo(cid)
                after = (await harness.stored(cid)).state
                sums = ("shown_tokens", "shown_messages", "summary_tokens")
                for name in ("window", "protected_seqs", *sums):
                    assert getattr(after, name) == getattr(before.state, name), name
                assert after.calls.open == before.state.calls.open
                await rewind(harness, cid, to_seq)
                gone.append({*range(done.to_seq + 1, head + 1)})
        await look(harness, cid, {seq for left in gone for seq in left})


async def undo_rewind(harness: Harness, cid: str, gone: list[set[int]]) -> None:
    """Undo the newest rewind if it is active."""
    state = (await harness.stored(cid)).state
    if state.compaction_id and (await harness.receipt(cid)).trigger == "rewind":
        await harness.undo(cid)
        gone.pop()


async def look(harness: Harness, cid: str, gone: set[int]) -> None:
    """Check the window and the payloads of both formats."""
    state = (await harness.stored(cid)).state
    assert {seq for seq in range(1, state.head_seq + 1) if not state.window.holds(seq)} == gone
    try:
        builds = await both(harness, cid)
    except (ContextOverflow, ValidationError):
        return
    if (await harness.stored(cid)).state.view_version != state.view_version:
        return  # the second build has compacted, so that the first is not extended
    for build in builds:
        later = await harness.build(cid, ASKS[FormatName(build["format"])])
        assert is_extension(later, build)


async def test_reasoning_stays_with_its_prefix(harness: Harness) -> None:
    """Nothing before it has changed, so that even a model that binds it to that takes it back."""
    cid = await harness.conversation(policy(5_000))
    ask = RequestSettings(FormatName.ANTHROPIC, "claude-opus-5-1")
    assert binds_reasoning("claude-opus-5-1")
    await harness.append(cid, user("why?"))
    await harness.build(cid, ask)
    thinking = {"type": "thinking", "thinking": "let me see", "signature": "c2ln"}
    said = {"role": "assistant", "content": [thinking, {"type": "text", "text": "so"}]}
    await harness.append(cid, said, format=FormatName.ANTHROPIC)
    await harness.append(cid, user("and?"), says("hm"))
    before = await harness.build(cid, ask)
    await rewind(harness, cid, 2)
    await harness.append(cid, user("or?"))
    build = await harness.build(cid, ask)
    assert build.messages[:2] == before.messages[:2] and "let me see" in build.contents
    assert (build["cache_break_reason"], build["degraded"]) == ("rewound", [])
