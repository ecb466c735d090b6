"""Tool search and promotion over a real database, and the last use of tools.

[tools.promotion, tools.deferral]
"""

from __future__ import annotations

from typing import Any

from app.repositories import Database
from tests.services.fakes import Harness, result, says, user

NOWHERE = "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"


def calls(*names: str) -> dict[str, Any]:
    """Return an assistant message that calls each of the tools."""
    called = [
        {"id": f"c{place}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for place, name in enumerate(names)
    ]
    return {"role": "assistant", "content": None, "tool_calls": called}


async def promoted(database: Database, cid: str, *names: str) -> tuple[str, ...]:
    """Promote tools and return all that are."""
    async with database.session() as session:
        return await session.log.promote(cid, names)


async def test_a_promotion_lasts_for_the_turn(harness: Harness) -> None:
    """Promotions of one turn add up, each name once; the next user message ends them."""
    cid = await harness.conversation()
    await harness.append(cid, user("go"))
    assert await promoted(harness.database, cid, "b", "a") == ("b", "a")
    await harness.append(cid, says("on it"))
    assert await promoted(harness.database, cid, "c", "a") == ("b", "a", "c")
    await harness.append(cid, user("next"))
    assert await promoted(harness.database, cid, "d") == ("d",)


async def test_the_last_use_of_each_tool_is_read(harness: Harness) -> None:
    """The newest call counts, parallel ones too; results and plain messages do not."""
    cid = await harness.conversation()
    async with harness.database.session() as session:
        assert await session.log.last_used(cid) == {}
        assert await session.log.last_used(NOWHERE) == {}
    done = [result("c0"), result("c1")]
    await harness.append(cid, user("go"), calls("a", "b"), *done, calls("a", "\x00"), *done)
    await harness.append(cid, says("done"))
    async with harness.database.session() as session:
        assert await session.log.last_used(cid) == {"a": 5, "b": 2, "\x00": 5}
