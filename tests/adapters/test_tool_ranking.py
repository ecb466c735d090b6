"""The ranking of tools: which words match, what counts for more, what is kept. [tools.search]"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from app.formats import ToolDefinition
from app.tool_output.tool_search import ToolRanking


def tool(name: str, description: str = "", **properties: Any) -> ToolDefinition:
    """Return a tool with parameters of these schemas."""
    return ToolDefinition(name, description, {"type": "object", "properties": properties}, "mcp")


TOOLS = [
    tool("read_file", "Read a file.", path={"type": "string", "description": "Where it stands."}),
    tool("npmPackageReadme", "Returns the README of packages."),
    tool("lol-champion-analysis", "Win rates of a champion."),
    tool("get_weather", "Return the forecast.", city={"type": "string"}),
    tool("weather_alerts", "Storms and floods.", region={"description": "A county or a city."}),
    tool("send", "Send a message; it may be about the weather."),
    tool("add_slide", "Add a slide to a PowerPoint presentation."),
    tool("get-tickets", "查询12306余票信息。"),
    tool("get_stock_ja", "株価を取得します"),
    tool("delete_row", "Erases."),
    tool("paint", "", hue={"enum": ["crimson", 7], "default": "azure"}),
    tool("meteo_fr", "Prévisions météo."),
    tool("shorten", "Makes it short.", url={}),
    tool("plan", "", steps={"type": "array", "items": {"properties": {"milestone": {}}}}),
]


async def found(query: str, tools: Sequence[ToolDefinition] = TOOLS, limit: int = 5) -> list[str]:
    """Rank with a fresh adapter."""
    return await ToolRanking().rank(query, tools, limit, key="k")


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("reading files", "read_file"),
        ("package readme", "npmPackageReadme"),
        ("npm packages", "npmPackageReadme"),
        ("analyse a champion of LOL", "lol-champion-analysis"),
        ("Power Point slides", "add_slide"),
        ("powerpoint", "add_slide"),
        ("余票", "get-tickets"),
        ("查询车票信息", "get-tickets"),
        ("株価", "get_stock_ja"),
        ("county", "weather_alerts"),
        ("milestones", "plan"),
        ("deleting a row", "delete_row"),
        ("crimson", "paint"),
        ("azure", "paint"),
        ("PREVISIONS Meteo", "meteo_fr"),
        ("\uff32\uff25\uff21\uff24\uff2d\uff25", "npmPackageReadme"),
    ],
)
async def test_words_match_in_every_spelling(query: str, first: str) -> None:
    """Names split into words, English stems, full width, pairs where nothing is spaced.

    Values of parameters match as well.
    """
    assert (await found(query))[0] == first


@pytest.mark.parametrize("name", [item.name for item in TOOLS])
async def test_an_exact_name_is_first(name: str) -> None:
    """The exact name of a tool ranks it first, whatever else its words match."""
    others = [tool(f"{name}_{number}", f"{name} {name}") for number in range(3)]
    assert (await found(f" {name} ", [*others, *TOOLS]))[0] == name


@pytest.mark.parametrize("query", ["chess", "the of and", "", " ", "?!", "\x00", "\ud800", "月"])
async def test_a_query_without_matches_finds_nothing(query: str) -> None:
    """No arbitrary tools where no word matches. [tools.search-deterministic]"""
    assert await found(query) == []


class Watched(list[ToolDefinition]):
    """Tools that note in which threads they are read."""

    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        super().__init__(tools)
        self.readers: list[int] = []

    def __iter__(self) -> Iterator[ToolDefinition]:
        self.readers.append(threading.get_ident())
        return super().__iter__()


async def test_an_index_is_built_once_and_in_a_thread() -> None:
    """Concurrent searches wait for one index, and the event loop is not blocked.

    [operation.loop-never-stalls]
    """
    ranking, once, tools = ToolRanking(), Watched(TOOLS), Watched(TOOLS)
    await ToolRanking().rank("weather", once, 5, key="k")
    answers = await asyncio.gather(*(ranking.rank("weather", tools, 5, key="k") for _ in range(5)))
    assert len({tuple(answer) for answer in answers}) == 1
    assert len(tools.readers) == len(once.readers)
    assert threading.get_ident() not in tools.readers


async def test_the_least_recently_searched_index_is_evicted() -> None:
    """The cache is bounded by the number of tools in it. [tools.search-deterministic]"""
    ranking = ToolRanking(max_tools=2 * len(TOOLS))
    built = []
    for key in ("a", "b", "a", "c", "a", "b"):
        tools = Watched(TOOLS)
        await ranking.rank("weather", tools, 5, key=key)
        built.append(bool(tools.readers))
    assert built == [True, True, False, True, False, True]
