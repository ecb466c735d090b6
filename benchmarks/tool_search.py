"""How well tool search finds what an LLM asks for, how fast, and what a small window holds back.

1. The definitions are recorded ones of MCP servers, in `mcp_tools.jsonl` of `CONTEXT_TRACES_DIR`;
   without it, those of `tools.jsonl`. All are of the category `mcp` [tools.deferral, tools.search].
   The queries are in `tool_queries`; those that weights were tuned on are reported apart. How
   recall is counted, and beside what: `tool_recall`.
2. A cold search builds the index, a warm one finds it; both are timed inside one process, and warm
   ones over HTTP.
3. What is held back is what the domain plans for a window, with nothing used yet: the order is
   then the list's, and the reason of each is that the others leave no more tokens.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import orjson
import psutil

from app.formats import ToolDefinition, parse_tool
from app.models.tokenizer import TiktokenTokenizer
from app.models.tokens import estimate_tool_defs_tokens
from app.policy.policy import Policy
from app.prompt.agent_tools import plan_deferral
from app.tool_output.tool_ranking import ToolRanking
from benchmarks.connection import Connection
from benchmarks.figures import Section, ms, p50, p95
from benchmarks.processes import service
from benchmarks.stage import MODEL
from benchmarks.tool_queries import QUERIES, TUNING, Query, unique
from benchmarks.tool_recall import LabelledSet, asked_by_models, say_recall
from tests.recorded import is_external, traces_dir
from tests.replay import MAX_OUTPUT_TOKENS

FILE = "mcp_tools.jsonl"
ASKED_FILE = "livemcpbench.jsonl"
OWN_FILE = Path(__file__).with_name("tools.jsonl")
TOOLS = 500
TIMED_TOOLS = 1_000
WINDOW = 32_000
COLD_ROUNDS = 10
HTTP_ROUNDS = 4
KEPT = 5


def measure(quick: bool) -> Section:
    """Search the recorded tools, and plan what of them a small window holds back."""
    given = recorded_tools()
    tools = [parse_tool(raw, "/tools") for raw in given]
    queries, tuning = answerable(QUERIES, tools), answerable(TUNING, tools)
    where = FILE if recorded_file() != OWN_FILE else f"benchmarks/{OWN_FILE.name}"
    section = Section("tool_search", f"{len(tools)} tools of {where}, {len(queries)} queries")
    memory = _memory_section()
    say_recall(section, _labelled(tools, queries, tuning))
    some = tools[:TOOLS]
    rounds = 3 if quick else COLD_ROUNDS
    cold, warm = asyncio.run(_times(_copies(tools, TIMED_TOOLS), rounds))
    over_http = _http_times(given[:TOOLS], 1 if quick else HTTP_ROUNDS)
    section.add_text(f"Over {TIMED_TOOLS:,} tools, over HTTP {len(some)}; times in ms.")
    section.add_table(
        ["search", "searches", "p50", "p95"],
        [
            [name, str(len(times)), ms(p50(times)), ms(p95(times))]
            for name, times in (
                ("cold, the index built", cold),
                ("warm", warm),
                ("warm, over HTTP, promoted", over_http),
            )
        ],
    )
    section.add_text(memory(some))
    _say_deferral(section, some)
    return section


def recorded_file() -> Path:
    """Return the file of definitions: that of `CONTEXT_TRACES_DIR`, or the one beside this."""
    given = traces_dir() / FILE
    return given if is_external() and given.is_file() else OWN_FILE


def answerable(queries: Sequence[Query], tools: Sequence[ToolDefinition]) -> list[Query]:
    """Return the queries that name one of the tools."""
    names = {tool.name for tool in tools}
    return [query for query in queries if names.intersection(query[1])]


def recorded_tools() -> list[dict[str, Any]]:
    """Return the recorded definitions as a caller would send them; without them, a few of ours."""
    return _definitions(recorded_file())


def _definitions(path: Path) -> list[dict[str, Any]]:
    return unique(orjson.loads(line) for line in path.read_bytes().splitlines())


def _labelled(
    tools: Sequence[ToolDefinition], queries: Sequence[Query], tuning: Sequence[Query]
) -> list[LabelledSet]:
    own = [parse_tool(raw, "/tools") for raw in _definitions(OWN_FILE)]
    sets: list[LabelledSet] = [
        ("own queries", tools, queries),
        ("own, few tools", own, answerable(QUERIES, own)),
    ]
    recorded = traces_dir() / ASKED_FILE
    if recorded_file() != OWN_FILE and recorded.is_file():
        names: dict[str, list[str]] = {}
        lines = recorded_file().read_bytes().splitlines()
        for line, tool in zip(lines, tools, strict=True):
            names.setdefault(orjson.loads(line)["function"]["name"], []).append(tool.name)
        for_tuning, asked = asked_by_models(recorded, names)
        sets += [("asked by models", tools, asked), ("tuning: asked by models", tools, for_tuning)]
    return [*sets, ("tuning: own queries", tools, tuning)]


def _copies(tools: Sequence[ToolDefinition], count: int) -> list[ToolDefinition]:
    """Return as many tools as asked, those given again under other names."""
    return [
        replace(tools[number % len(tools)], name=f"{tools[number % len(tools)].name}_{number}")
        for number in range(count)
    ]


async def _times(tools: Sequence[ToolDefinition], rounds: int) -> tuple[list[float], list[float]]:
    ranking = ToolRanking()
    cold = []
    for number in range(rounds):
        begun = perf_counter()
        await ranking.rank(QUERIES[0][0], tools, KEPT, key=str(number))
        cold.append(perf_counter() - begun)
    warm = []
    for _ in range(rounds):
        for query, _names in QUERIES:
            begun = perf_counter()
            await ranking.rank(query, tools, KEPT, key="0")
            warm.append(perf_counter() - begun)
    return cold, warm


def _http_times(tools: Sequence[dict[str, Any]], rounds: int) -> list[float]:
    times = []
    with (
        tempfile.TemporaryDirectory(prefix="context-service-bench-") as folder,
        service(Path(folder, "data"), "--no-worker", log=Path(folder, "log")) as served,
        Connection(served.port) as connection,
    ):
        body = {"model": MODEL, "tools": tools}
        created = orjson.loads(connection.post("/v1/conversations", body))
        path = f"/v1/conversations/{created['conversation_id']}/tools/search"
        connection.post(path, {"query": "the first search builds the index"})
        for _ in range(rounds):
            for query, _names in QUERIES:
                begun = perf_counter()
                connection.post(path, {"query": query})
                times.append(perf_counter() - begun)
    return times


def _memory_section() -> Callable[[Sequence[ToolDefinition]], str]:
    """Note the memory of a process that never searched; the result says what searching adds."""
    process = psutil.Process()
    before = process.memory_info().rss
    asyncio.run(ToolRanking().rank("x", [ToolDefinition("x", "", {})], 1, key="x"))
    loaded = process.memory_info().rss

    def say(tools: Sequence[ToolDefinition]) -> str:
        start = process.memory_info().rss
        ranking = ToolRanking()
        for number in range(KEPT):
            asyncio.run(ranking.rank("x", tools, 1, key=str(number)))
        each = (process.memory_info().rss - start) / KEPT
        return (
            f"Memory of the process: {(loaded - before) / 2**20:.0f} MiB for the library, once"
            f" something is searched, and {each / 2**20:.1f} MiB for the index of {len(tools)}"
            " tools."
        )

    return say


def _say_deferral(section: Section, tools: Sequence[ToolDefinition]) -> None:
    count = TiktokenTokenizer().count
    costs = [estimate_tool_defs_tokens([tool], count) for tool in tools]
    effective = WINDOW - MAX_OUTPUT_TOKENS
    share = Policy().tool_deferral_threshold
    allowed = int(share * effective)
    held = set(plan_deferral(tools, costs, allowed, None, {}, ()))
    left = sum(cost for tool, cost in zip(tools, costs, strict=True) if tool.name not in held)
    section.add_text(
        f"Window {WINDOW:,}, of which {MAX_OUTPUT_TOKENS:,} for the answer: the {len(tools)}"
        f" definitions cost {sum(costs):,} tokens, and may cost {share:.0%} of {effective:,} ="
        f" {allowed:,}. {len(held)} are held back, the last of the list first, as none was used"
        f" yet; {len(tools) - len(held)} stay, for {left:,} tokens."
    )
