"""Conversations of any length that end with the same messages, for the service and the floors.

1. A block of short messages is appended over HTTP and repeated by SQL (`log_copies`). Then the
   active window is cleared over HTTP, and 1000 messages of the usual kind are appended, with builds
   between them. So payloads and compactions are the same at every length.
2. The floors get the same messages by COPY and by SQL, with their own running sums.
3. A filled conversation counts only if it then shows as many tokens as the shortest one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from random import Random
from uuid import UUID

import orjson

from benchmarks.connection import Connection, UnexpectedAnswer
from benchmarks.floors import FloorA
from benchmarks.log_copies import copying, extend
from benchmarks.processes import Served
from benchmarks.request_steps import Kind, Lane, fill
from benchmarks.stage import create_conversation, report
from benchmarks.workload import conversation, plain_message

SHOWN = 1000
BLOCK = 1000
BLOCK_CHARS = 160
REPETITIONS_AT_ONCE = 100


async def long_log(
    served: Served, url: str, floor_a: FloorA, floors: Sequence[Lane], size: int
) -> Lane:
    """Make a conversation of `size` messages, a multiple of 1000; the floors get copies of it."""
    report(f"filling a log of {size:,} messages")
    with Connection(served.port) as ours:
        lane = Lane(Kind.FULL, size, ours, served, UUID(create_conversation(ours)))
    repetitions = (size - SHOWN) // BLOCK
    messages: list[dict[str, object]] = []
    if repetitions:
        rng = Random(3)
        messages = [
            plain_message(rng, "user" if place % 2 == 0 else "assistant", BLOCK_CHARS)
            for place in range(BLOCK)
        ]
        with Connection(served.port) as ours:
            answer = orjson.loads(ours.post(f"{lane.path}/messages", {"messages": messages}))
        tokens = [message["token_count"] for message in answer["messages"]]
        bodies = [orjson.dumps(message).decode() for message in messages]
        async with copying(url) as connection:
            for start in range(1, repetitions, REPETITIONS_AT_ONCE):
                count = min(REPETITIONS_AT_ONCE, repetitions - start)
                head = await extend(connection, lane.conversation_id, 1, BLOCK, count)
                if head != (start + count) * BLOCK:
                    raise RuntimeError(
                        f"the log has {head} messages, not {(start + count) * BLOCK}"
                    )
        with Connection(served.port) as ours:
            ours.post(f"{lane.path}/clear", {})
        for floor in floors:
            await floor_a.start(floor.conversation_id)
            await floor_a.preload(floor.conversation_id, tokens, bodies)
            await floor_a.repeat(floor.conversation_id, BLOCK, sum(tokens), repetitions - 1)
    with Connection(served.port) as ours:
        lane.through = ours
        for floor in () if repetitions else floors:
            await floor_a.start(floor.conversation_id)
        await fill(lane, floor_a, floors, islice(conversation(seed=1), SHOWN))
        _check(lane, size)
    return lane


def _check(lane: Lane, size: int) -> None:
    """Make sure that a build shows the newest messages within the window (rule 3)."""
    built = lane.build()
    shown = built["payload"]["messages"]
    if built["through_seq"] != size or not shown or not 10_000 < lane.tokens < 128_000:
        raise UnexpectedAnswer(
            f"{size} messages: seq {built['through_seq']}, {len(shown)} shown, {lane.tokens} tokens"
        )
