"""The parts of the benchmarks that decide what their figures mean."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from itertools import islice
from random import Random
from typing import Any
from uuid import UUID

import httpx

from app.demo import Trace
from app.models.usage_objects import TokenUsage
from benchmarks.log_copies import copy_conversations, copying, extend
from benchmarks.loop_stalls import loop_stalls
from benchmarks.provider_cache import (
    MarkedCache,
    Piece,
)
from benchmarks.recorded import without_end
from benchmarks.workload import plain_message
from tests.fake_llm import unpaired
from tests.patience import PATIENCE_SECONDS


def call(*ids: str) -> dict[str, Any]:
    """Return an assistant message that calls a tool once for each id."""
    function = {"name": "shell", "arguments": "{}"}
    calls = [{"id": call_id, "type": "function", "function": function} for call_id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id: str) -> dict[str, Any]:
    """Return the result of a call."""
    return {"role": "tool", "tool_call_id": call_id, "content": "done"}


def test_a_conversation_goes_on_from_its_start_with_new_call_ids() -> None:
    """A repeated conversation stays paired, and no id of the first time comes again."""
    messages = [{"role": "user", "content": "go"}, call("a", "b"), result("b"), result("a")]
    repeated = list(islice(without_end(Trace("t", [], [], messages)), 12))
    assert repeated[:4] == messages
    assert unpaired(repeated[1:4]) is unpaired(repeated[5:8]) is unpaired(repeated[9:]) is None
    ids = [entry["id"] for message in repeated for entry in message.get("tool_calls") or []]
    assert len(set(ids)) == len(ids) == 6


def pieces(*sizes: int, start: int = 0, marks: tuple[int, ...] = ()) -> list[Piece]:
    """Return pieces of so many tokens, named by their places from `start` on."""
    return [
        Piece(b"%d" % (start + place), size, start + place in marks)
        for place, size in enumerate(sizes)
    ]


def test_a_marked_cache_is_written_at_marks_alone() -> None:
    """Anthropic writes up to the last mark, reads up to the best entry; the rest is input.

    [performance.cacheable-prefix]
    """
    cache = MarkedCache(1_000)
    assert cache.take(pieces(800, 700, 50, marks=(0, 1))) == TokenUsage(
        input_tokens=50, cache_creation_tokens=1_500
    )
    assert cache.take(pieces(800, 700, 60, 40, marks=(2,))) == TokenUsage(
        input_tokens=40, cache_creation_tokens=60, cache_read_tokens=1_500
    )
    assert cache.take(pieces(800, 700, 60, 40)) == TokenUsage(input_tokens=1_600)
    short = pieces(800, 9, marks=(0,))  # shorter than the minimum, so never written
    assert cache.take(short) == cache.take(short) == TokenUsage(input_tokens=809)


def test_the_stall_of_a_served_loop_is_measured_inside_it() -> None:
    """A loop of uvicorn that is blocked shows it, with the CPU time of its thread."""
    code = """
import asyncio, time, uvicorn
from uvicorn.server import Server
class Blocked(Server):
    async def startup(self, sockets=None): pass
    async def shutdown(self, sockets=None): pass
async def app(*_): pass
server = Blocked(uvicorn.Config(app, lifespan="off"))
async def main():
    loop = asyncio.create_task(server.main_loop())
    await asyncio.sleep(1)
    time.sleep(0.2)
    await asyncio.sleep(0.2)
    server.should_exit = True
    await loop
asyncio.run(main())
"""
    with loop_stalls() as stalls:
        environ = {**os.environ, **stalls.environ}
        with subprocess.Popen([sys.executable, "-c", code], env=environ) as process:
            stalls.reset()
            deadline = time.monotonic() + PATIENCE_SECONDS
            while (stall := stalls.longest()).seconds < 0.19 and time.monotonic() < deadline:
                time.sleep(0.01)
        assert process.returncode == 0
    assert stall.seconds > 0.19
    assert stall.loop_cpu_seconds < stall.seconds


async def test_copied_logs_build_like_those_of_the_service(
    client: httpx.AsyncClient, database_url: str
) -> None:
    """A log that SQL made longer goes on with its seqs, turns and sums, and so do its copies."""
    rng = Random(1)
    roles = ("user", "assistant")
    block = [plain_message(rng, roles[place % 2], 100) for place in range(4)]

    async def post(path: str, body: object) -> dict[str, Any]:
        answer = await client.post(path, json=body)
        assert answer.is_success, answer.text
        made: dict[str, Any] = answer.json()
        return made

    made = await post("/v1/conversations", {"model": "gpt-4o"})
    path = f"/v1/conversations/{made['conversation_id']}"
    await post(f"{path}/messages", {"messages": block})
    by_sql = await post("/v1/conversations", {"model": "gpt-4o"})
    source = by_sql["conversation_id"]
    await post(f"/v1/conversations/{source}/messages", {"messages": block})
    for _ in range(2):
        await post(f"{path}/messages", {"messages": block})
    async with copying(database_url) as connection:
        assert await extend(connection, UUID(source), 1, 4, 2) == 12
        [copy] = await copy_conversations(connection, UUID(source), 1)
    expected = await post(f"{path}/context", {})
    for name in (source, str(copy)):
        built = await post(f"/v1/conversations/{name}/context", {})
        assert built["payload"]["messages"] == expected["payload"]["messages"]
        assert built["tokens_used"] == expected["tokens_used"]
        step = await post(f"/v1/conversations/{name}/context", {"append": {"messages": block}})
        assert step["through_seq"] == 16
    async with copying(database_url) as connection:
        columns = "seq, turn, tokens, total_tokens, role"
        query = f"SELECT {columns} FROM messages WHERE conversation_id = $1 AND seq <= 12"
        logs = [
            [tuple(row) for row in await connection.fetch(f"{query} ORDER BY seq", UUID(name))]
            for name in (made["conversation_id"], source)
        ]
    assert logs[0] == logs[1]
