"""The parts of the benchmarks that decide what their figures mean."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

import httpx

from app.models.usage import TokenUsage
from benchmarks.log_copies import copy_conversations, copying, extend
from benchmarks.provider_cache import MarkedCache, Piece
from benchmarks.workload import plain_message


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
