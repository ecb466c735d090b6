"""Pins over a real database: never summarised, cleared or dropped, whatever happens.

[pins.verbatim]
"""

from __future__ import annotations

import pytest

from tests.services.fakes import SUMMARISER, Harness, asks, result, says
from tests.services.payload.builders import TOOLS, both, policy

pytestmark = pytest.mark.services(model=SUMMARISER)

COMPACTING = ("sandwich", "retain_summary", "tree_summary", "chain")


@pytest.mark.parametrize("strategy", COMPACTING)
async def test_results_after_the_pin_are_pinned(harness: Harness, strategy: str) -> None:
    """A pin on an open call group applies to its later results [pins.whole-group]."""
    own = policy(4100, 100, strategy=strategy)
    cid = await harness.conversation(own, tools=TOOLS)
    await harness.talk(cid, 3)
    await harness.append(cid, asks("a", "b"), result("a", "early " * 100))
    state = (await harness.stored(cid)).state.head_seq
    assert await harness.pin(cid, state) == [state - 1, state]
    await harness.append(cid, result("b", "late " * 100), says("so"))
    for number in range(9):
        await harness.append(cid, asks(f"c{number}"), result(f"c{number}", f"r{number} " * 90))
    await harness.talk(cid, 6)
    for _ in range(2):
        assert (await harness.compact(cid)).compacted
        for build in await both(harness, cid):
            assert "early early" in build.contents
            assert "late late" in build.contents
            assert "r0 r0" not in build.contents
        await harness.talk(cid, 8)
    await harness.undo(cid)
    for build in await both(harness, cid):
        assert "late late" in build.contents
