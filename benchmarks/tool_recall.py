"""The recall of tool search, beside a plain BM25 over the same definitions and queries.

1. A query counts where any of its tools is among the first 1, 5 or 10.
2. The labelled sets: queries of our own (`tool_queries`) over the recorded definitions and over
   those of `tools.jsonl`; and, where `livemcpbench.jsonl` is given, what a model asked a tool
   search in recorded conversations, with the tools that it called before its next search.
3. Weights are chosen on the sets for tuning: `TUNING`, every second recorded conversation, and
   public questions with labelled functions (ToolAlpaca, Seal-Tools, MetaTool, and the simple
   questions of BFCL), which are not here.
4. The reference reads names, descriptions and schemas as words of letters and digits, without
   stems, with the usual k1 = 1.5 and b = 0.75.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from app.formats import ToolDefinition
from app.prompt.agent_tools import MAX_TOOL_MATCHES
from app.tool_output.tool_ranking import ToolRanking
from benchmarks.figures import Section
from benchmarks.tool_queries import Query

FIRST = (1, 5, 10)
_MISSED = 12
_K1, _B = 1.5, 0.75

LabelledSet = tuple[str, Sequence[ToolDefinition], Sequence[Query]]


def say_recall(section: Section, sets: Sequence[LabelledSet]) -> None:
    """Add a table of the recall of each set, and what the first set misses."""
    rows = []
    missed: list[tuple[str, int | None]] = []
    for number, (name, tools, queries) in enumerate(sets):
        for kind, rank in (("tool search", _service(tools)), ("plain BM25", reference(tools))):
            places = [place_of(rank(query), names) for query, names in queries]
            shares = [f"{share_within(places, first):.3f}" for first in FIRST]
            rows.append([name, str(len(tools)), str(len(queries)), kind, *shares])
            if number == 0 and kind == "tool search":
                pairs = zip(queries, places, strict=True)
                missed = [(query, place) for (query, _), place in pairs if (place or 99) > FIRST[1]]
    columns = ["set", "tools", "queries", "ranking", *(f"recall@{first}" for first in FIRST)]
    section.add_table(columns, rows)
    if missed:
        shown = [f"“{query}” ({place or 'not found'})" for query, place in islice(missed, _MISSED)]
        section.add_text(
            f"{len(missed)} queries of the first set have no tool of theirs among the first"
            f" {FIRST[1]}; their place: {', '.join(shown)}."
        )


def place_of(ranked: Sequence[str], names: Sequence[str]) -> int | None:
    """Return the place of the first of these names, counted from 1."""
    return next((place for place, name in enumerate(ranked, 1) if name in names), None)


def share_within(places: Sequence[int | None], first: int) -> float:
    """Return the share of the queries with a tool of theirs among the first so many."""
    return sum(place is not None and place <= first for place in places) / max(1, len(places))


def asked_by_models(
    path: Path, names: Mapping[str, Sequence[str]]
) -> tuple[list[Query], list[Query]]:
    """Return the searches of recorded conversations: for tuning, and for the report.

    `names` are the definitions' names by the name that was called: several servers have it.
    """
    sets: tuple[list[Query], list[Query]] = ([], [])
    with path.open("rb") as lines:
        for number, line in enumerate(lines):
            sets[number % 2].extend(_searches(orjson.loads(line)["messages"], names))
    return sets


def _searches(
    messages: Sequence[dict[str, Any]], names: Mapping[str, Sequence[str]]
) -> Iterator[Query]:
    query, used = "", list[str]()
    calls = [call["function"] for message in messages for call in message.get("tool_calls") or []]
    for call in [*calls, {"name": "route", "arguments": "{}"}]:
        try:
            arguments = orjson.loads(call["arguments"] or "{}")
        except orjson.JSONDecodeError:
            continue
        if call["name"] == "route":
            if used:
                yield query, tuple(used)
            query, used = re.sub("</?tool_assistant>", "", arguments.get("query") or ""), []
        elif query:
            used += names.get(arguments.get("tool_name"), ())


def _service(tools: Sequence[ToolDefinition]) -> Callable[[str], list[str]]:
    ranking = ToolRanking()
    return lambda query: asyncio.run(ranking.rank(query, tools, MAX_TOOL_MATCHES, key="all"))


def reference(tools: Sequence[ToolDefinition]) -> Callable[[str], list[str]]:
    """Return a plain BM25 over the same definitions (rule 4)."""
    texts = [
        Counter(_plain(f"{tool.name} {tool.description} {orjson.dumps(tool.parameters).decode()}"))
        for tool in tools
    ]
    lengths = [text.total() for text in texts]
    mean = sum(lengths) / max(1, len(lengths))
    found = Counter(word for text in texts for word in text)

    def score(text: Counter[str], length: int, query: Sequence[str]) -> float:
        total = 0.0
        for word in query:
            if count := text[word]:
                rarity = math.log1p((len(tools) - found[word] + 0.5) / (found[word] + 0.5))
                norm = _K1 * (1 - _B + _B * length / mean)
                total += rarity * count * (_K1 + 1) / (count + norm)
        return total

    def rank(query: str) -> list[str]:
        asked = _plain(query)
        pairs = zip(texts, lengths, strict=True)
        scores = [(-score(text, length, asked), n) for n, (text, length) in enumerate(pairs)]
        return [tools[number].name for value, number in sorted(scores)[:MAX_TOOL_MATCHES] if value]

    return rank


def _plain(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())
