"""The parts of the benchmarks that decide what their figures mean."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

import httpx

from benchmarks.log_copies import copy_conversations, copying, extend
from benchmarks.workload import plain_message


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
