"""Compactions inside a build without a model: applied once, on one view."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.services.fakes import Harness, says, user
from tests.services.payload.builders import check, fill, policy


def _inline(**leaves: Any) -> dict[str, Any]:
    return policy(1100, 100, compaction={"mode": "inline", "threshold_ratio": 0.7}, **leaves)


async def test_two_builds_apply_one_compaction(harness: Harness) -> None:
    """[compaction.at-most-once, compaction.inline-mode]"""
    cid = await harness.conversation(_inline())
    await fill(harness, cid, 705)
    one, other = harness.context, harness.cold()

    async def by(context: Any) -> Any:
        harness.context = context
        return await harness.build(cid)

    builds = await asyncio.gather(by(one), by(other))
    for build in builds:
        check(build, exact=True)
    assert sum(build["compaction"] is not None for build in builds) == 1
    assert (await harness.stored(cid)).state.view_version == 1


async def test_an_event_between_makes_the_build_plan_again(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pin that is set while a build plans stays shown: the build plans once more."""
    cid = await harness.conversation(_inline())
    await fill(harness, cid, 300)
    appended = await harness.append(cid, user("Keep this one."), says("Done."))
    await fill(harness, cid, 705)
    runner = harness.compaction
    store, pinned = runner._store, [False]

    async def late(run: Any, *receipt: Any) -> Any:
        if not pinned[0]:
            pinned[0] = True
            await harness.transcripts.pin(
                run.source.tenant_id, cid, appended.messages[0].id, whole_turn=False
            )
        return await store(run, *receipt)

    monkeypatch.setattr(runner, "_store", late)
    build = await harness.build(cid)
    check(build, exact=True)
    assert pinned == [True]
    assert "Keep this one." in str(build.payload)
    assert build["compaction"].compacted
