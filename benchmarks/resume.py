"""Resuming after a restart: a long compacted conversation beside a short one of its size."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import orjson

from benchmarks.connection import Connection
from benchmarks.figures import Section, ms, p50
from benchmarks.processes import service
from benchmarks.stage import create_conversation, database, report
from benchmarks.workload import Message, messages

BATCH = 1000
SHOWN_TOKENS = 60_000
"""So much the compacted conversation shows in the end, well below its next compaction."""
_WORK = """
    SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint
    FROM pg_stat_user_tables WHERE relname = 'messages'
"""


@dataclass(slots=True)
class Lane:
    """A conversation, and what its first build in each new process took."""

    name: str
    conversation_id: str
    messages: int
    tokens_used: int = 0
    shown: int = 0
    rows: list[int] = field(default_factory=list)
    first_request_seconds: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)

    def path(self, what: str) -> str:
        """Return the path of the conversation's log or context."""
        return f"/v1/conversations/{self.conversation_id}/{what}"


def measure(quick: bool) -> Section:
    """Compact a long conversation, and build it first thing in new processes."""
    size = 10_000 if quick else 100_000
    with database() as (data_dir, url, log):
        with service(data_dir, log=log) as running, Connection(running.port) as ours:
            said = messages(1, size + 10_000)
            long = _filled("compacted", said[:size], ours)
            short = _filled("never compacted", [], ours)
        # Without a worker, which might still have something to compact.
        with service(data_dir, "--no-worker", log=log) as running, Connection(running.port) as ours:
            _grow(long, said, ours)
            _grow(short, said, ours)
        for _ in range(3 if quick else 7):
            for lane in (long, short):
                _resume(lane, data_dir, url, log)
    return _section(long, short)


def _filled(name: str, said: list[Message], ours: Connection) -> Lane:
    """Append messages as an agent does, building now and then."""
    report(f"resume: filling {len(said)} messages, {name}")
    lane = Lane(name, create_conversation(ours), len(said))
    for start in range(0, len(said), BATCH):
        ours.post(lane.path("messages"), {"messages": said[start : start + BATCH]})
        _note(lane, ours.post(lane.path("context"), {}))
    return lane


def _grow(lane: Lane, said: list[Message], ours: Connection) -> None:
    """Append more until so much is shown that reading it is some work."""
    while lane.tokens_used < SHOWN_TOKENS:
        batch = said[lane.messages : lane.messages + 20]
        ours.post(lane.path("messages"), {"messages": batch})
        lane.messages += len(batch)
        _note(lane, ours.post(lane.path("context"), {}))


def _note(lane: Lane, answer: bytes) -> None:
    built = orjson.loads(answer)
    lane.tokens_used = built["tokens_used"]
    lane.shown = len(built["payload"]["messages"])


def _resume(lane: Lane, data_dir: Path, url: str, log: Path) -> None:
    """Build in a process that has just started, and in one that has built something else before.

    The rows are those of the second; its connections tell of them when it ends.
    """
    with service(data_dir, "--no-worker", log=log) as running, Connection(running.port) as ours:
        answer, seconds = _timed(lane, ours)
        lane.first_request_seconds.append(seconds)
    with service(data_dir, "--no-worker", log=log) as running, Connection(running.port) as ours:
        path = f"/v1/conversations/{create_conversation(ours)}"
        ours.post(f"{path}/messages", {"messages": [{"role": "user", "content": "Hello."}]})
        ours.post(f"{path}/context", {})
        before = asyncio.run(_rows_read(url))
        again, seconds = _timed(lane, ours)
        lane.seconds.append(seconds)
    lane.rows.append(asyncio.run(_rows_read(url)) - before)
    lane.payloads += [orjson.dumps(orjson.loads(each)["payload"]) for each in (answer, again)]
    _note(lane, again)


def _timed(lane: Lane, ours: Connection) -> tuple[bytes, float]:
    began = time.perf_counter()
    answer = ours.post(lane.path("context"), {})
    return answer, time.perf_counter() - began


async def _rows_read(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval(_WORK))
    finally:
        await connection.close()


def _section(long: Lane, short: Lane) -> Section:
    section = Section("resume", "the first build after a restart")
    section.add_text(
        "Over HTTP, medians: the first request of all that a new process gets, which also loads"
        " tokenizer and model data, and the first build of the conversation in a process that has"
        " built another. Rows are those of the log that PostgreSQL read for the latter, by its own"
        " statistics."
    )
    section.add_table(
        (
            "conversation",
            "messages",
            "shown",
            "tokens",
            "rows read",
            "first request",
            "first build",
        ),
        [
            (
                lane.name,
                str(lane.messages),
                str(lane.shown),
                str(lane.tokens_used),
                str(p50(lane.rows)),
                ms(p50(lane.first_request_seconds)),
                ms(p50(lane.seconds)),
            )
            for lane in (long, short)
        ],
    )
    same = all(len(set(lane.payloads)) == 1 for lane in (long, short))
    section.add_text(f"Every new process built the same payload: {'yes' if same else 'NO'}.")
    ratio = p50(long.seconds) / p50(short.seconds)
    rows = p50(long.rows) / max(1, p50(short.rows))
    section.goal(
        "compaction.resume",
        "reads what is shown, not the log",
        f"{rows:.2f}x the rows and {ratio:.2f}x the time of one never compacted",
        rows <= 1.2 and ratio <= 1.2,
    )
    return section
