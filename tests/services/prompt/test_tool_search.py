"""Tool search and promotion over a real database, and the last use of tools.

[tools.promotion, tools.deferral]
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from app.formats import ToolDefinition
from app.repositories import Database
from app.tool_output.tool_ranking import ToolRanking
from app.tool_output.tool_search import ToolSearchService
from tests.services.fakes import TENANT, Harness, result, says, user

NOWHERE = "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"


class WordRanking(ToolRanking):
    """Finds tools whose name contains the query, and records the searches."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, int, int, str]] = []

    async def rank(
        self, query: str, tools: Sequence[ToolDefinition], limit: int, *, key: str
    ) -> list[str]:
        """Return the names that contain the query, in the order given."""
        self.asked.append((query, len(tools), limit, key))
        return [tool.name for tool in tools if query in tool.name][:limit]


def named(*names: str, **more: Any) -> list[dict[str, Any]]:
    """Return definitions of tools of the category mcp."""
    return [
        {"type": "function", "category": "mcp", "function": {"name": name, **more}}
        for name in names
    ]


def service(harness: Harness) -> tuple[ToolSearchService, WordRanking]:
    """Return the search over the harness's database, and its ranking."""
    ranking = WordRanking()
    return ToolSearchService(harness.database, harness.resolver, ranking), ranking


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


async def test_matches_are_returned_whole_and_promoted(harness: Harness) -> None:
    """Full definitions in the ranking's order, how many were searched, what is promoted."""
    tools, ranking = service(harness)
    cid = await harness.conversation(tools=named("git_log", "git_add", "sum", description="Git."))
    found = await tools.search(TENANT, cid, "git", 5)
    assert [tool.name for tool in found.tools] == ["git_log", "git_add"]
    assert {(tool.description, tool.category) for tool in found.tools} == {("Git.", "mcp")}
    assert (found.total, found.promoted) == (3, ("git_log", "git_add"))
    await tools.search(TENANT, cid, "git", 1)
    (first, second) = ranking.asked
    assert first[:3] == ("git", 3, 5)
    assert second == ("git", 3, 1, first[3])


async def test_a_promotion_lasts_for_the_turn(harness: Harness) -> None:
    """Promotions of one turn add up, each name once; the next user message ends them."""
    cid = await harness.conversation()
    await harness.append(cid, user("go"))
    assert await promoted(harness.database, cid, "b", "a") == ("b", "a")
    await harness.append(cid, says("on it"))
    assert await promoted(harness.database, cid, "c", "a") == ("b", "a", "c")
    await harness.append(cid, user("next"))
    assert await promoted(harness.database, cid, "d") == ("d",)


async def test_concurrent_promotions_are_all_stored(harness: Harness) -> None:
    """One statement promotes, so that no search loses another's tools."""
    cid = await harness.conversation()
    names = [f"tool_{number}" for number in range(8)]
    await asyncio.gather(*(promoted(harness.database, cid, name) for name in names))
    assert sorted(await promoted(harness.database, cid)) == names


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
