"""A step in one request at 10 000 messages [performance.step, performance.delta].

1. Every lane is one conversation of one system. Steps alternate between the lanes, one by one and
   in changing order, so that noise on the machine is the same for all.
2. The service runs as it is served, with its worker. It answers `POST …/context` with `append`:
   with the full payload, or with a delta on the build before (`known`). A third conversation is
   only appended to. Floor A runs its two statements. Floor B answers one request, from the window
   that its process caches: with the full array, or with the messages after the last one.
3. Floors show as many tokens as the service's full payload does: the same messages.
4. The clock runs from the request to the whole answer. CPU times are read outside of it.
5. After the steps every lane must show the message that was appended last.
6. Beside them runs a peer in this process: the session of the OpenAI Agents SDK over the same
   PostgreSQL, which reads as many of its newest items as the service's payload has, and keeps no
   budget of tokens.
"""

from __future__ import annotations

import asyncio
import gc
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import orjson
import uvloop

from app.conversations.messages.draft import make_drafts
from app.formats.message import FormatName
from app.models.tokenizer import LocalTokenizer
from benchmarks.connection import Connection, UnexpectedAnswer, request
from benchmarks.figures import SAMPLE_HEADS, Samples, Section, kib, p50, times
from benchmarks.floors import FloorA, connect, settle
from benchmarks.peer import AgentsSession, bytes_on_disk
from benchmarks.processes import CpuMeter, Served, floor_b, service
from benchmarks.stage import create_conversation, database, report
from benchmarks.workload import Message, conversation

SIZE = 10_000
STEPS, QUICK_STEPS = 400, 80
GOALS = (
    ("performance.step", "full payload", "floor A", 1.5),
    ("performance.step", "full payload", "floor B, cached", 1.3),
    ("performance.delta", "delta", "floor B, cached, delta", 1.5),
    ("performance.delta", "delta", "append alone", 1.15),
)
"""Which step may take how many times as long as another one, p50."""
WARM_UP_STEPS = 5
BATCH = 1000
_TOKENS_USED = re.compile(rb'"tokens_used":\s*(\d+)')
_BUILD_ID = re.compile(rb'"build_id":\s*"([^"]+)"')
_IS_DELTA = re.compile(rb'"delta":\s*true')


class Kind(StrEnum):
    """What a lane sends."""

    FULL = "full payload"
    DELTA = "delta"
    APPEND = "append alone"
    FLOOR_A = "floor A"
    FLOOR_B = "floor B, cached"
    FLOOR_B_DELTA = "floor B, cached, delta"
    PEER = "OpenAI Agents SDK"


OURS = (Kind.FULL, Kind.DELTA, Kind.APPEND)


@dataclass(slots=True)
class Lane:
    """One conversation of one system, and its steps."""

    kind: Kind
    through: Connection | FloorA
    served: Served | None
    conversation_id: UUID = field(default_factory=uuid4)
    build_id: bytes = b""
    seq: int = 0
    tokens: int = 0
    samples: Samples = field(default_factory=Samples)
    answer_bytes: list[int] = field(default_factory=list)
    deltas: int = 0

    @property
    def path(self) -> str:
        """The path of the conversation at the service."""
        return f"/v1/conversations/{self.conversation_id}"

    @property
    def step_p50(self) -> float:
        """The median time of a step."""
        return p50(self.samples.seconds)

    @property
    def cpu_p50(self) -> float:
        """The median CPU time of a step, of the server and of PostgreSQL."""
        return p50(self.samples.cpu)

    def send(self, raw: bytes) -> bytes:
        """Send a request to the lane's server."""
        assert isinstance(self.through, Connection)
        return self.through.send(raw)

    @property
    def epoch_id(self) -> bytes:
        """The epoch of the last build."""
        return self.build_id.partition(b".")[0]

    def note(self, answer: bytes) -> None:
        """Remember what the next request refers to."""
        found = _BUILD_ID.search(answer)
        assert found is not None
        self.build_id, self.tokens = found[1], _number(_TOKENS_USED, answer)

    def build(self) -> dict[str, Any]:
        """Build the full payload, without an append; only of the service."""
        answer = self.send(request("POST", f"{self.path}/context", b"{}"))
        self.note(answer)
        built: dict[str, Any] = orjson.loads(answer)
        return built


def measure(quick: bool) -> Section:
    """Run the steps of all lanes and report them."""
    steps = QUICK_STEPS if quick else STEPS
    with database() as (data_dir, url, log), floor_b(url, log) as floor:
        lanes, disk = uvloop.run(_measure(data_dir, url, log, floor, steps))
    section = _section(lanes, steps)
    section.add_text(disk)
    return section


async def _measure(
    data_dir: Path, url: str, log: Path, floor: Served, steps: int
) -> tuple[list[Lane], str]:
    floor_a, peer = FloorA(await connect(url)), AgentsSession(url)
    with (
        service(data_dir, log=log) as served,
        Connection(served.port) as ours,
        Connection(floor.port) as bare,
    ):
        lanes = [Lane(kind, ours, served, UUID(create_conversation(ours))) for kind in OURS]
        floors = [Lane(Kind.FLOOR_A, floor_a, None)]
        floors += [Lane(kind, bare, floor) for kind in (Kind.FLOOR_B, Kind.FLOOR_B_DELTA)]
        floors.append(Lane(Kind.PEER, peer, None))
        report(f"one_request: filling {SIZE} messages")
        await fill(lanes, floor_a, floors, islice(conversation(seed=1), SIZE))
        await settle(url)
        report(f"one_request: {steps} steps")
        await run([*lanes, *floors], CpuMeter(data_dir), steps)
        report("one_request: waiting for the index of the search")
        await _indexed(url)
    await settle(url)
    sent = sum(len(orjson.dumps(message)) for message in islice(conversation(seed=1), SIZE))
    stored = await bytes_on_disk(url)
    lanes_of = zip(stored, (OURS, floors[:-1], floors[-1:]), strict=True)
    each = [size / len(ways) / (SIZE + WARM_UP_STEPS + steps) / 1024 for size, ways in lanes_of]
    return [*lanes, *floors], (
        f"On disk, indexes included, a message of {sent / SIZE / 1024:.2f} KiB takes {each[0]:.2f}"
        f" KiB in the service, {each[1]:.2f} in the floors, {each[2]:.2f} in the {Kind.PEER}."
    )


async def _indexed(url: str) -> None:
    connection = await asyncpg.connect(url)
    while await connection.fetchval("SELECT count(unindexed_at) FROM states"):
        await asyncio.sleep(1)
    await connection.close()


def counted(messages: Iterable[Message]) -> list[tuple[Message, int]]:
    """Count messages as the service will, for the floors to store."""
    count = LocalTokenizer().count
    return [
        (message, make_drafts(message, FormatName.OPENAI_CHAT, count, "")[0].tokens)
        for message in messages
    ]


async def fill(
    ours: Sequence[Lane], floor_a: FloorA, floors: Sequence[Lane], messages: Iterable[Message]
) -> None:
    """Append messages over HTTP in batches, with a build after each, and copy them to the floors.

    The service's conversations exist already.
    """
    for lane in floors:
        await _store(lane, floor_a).start(lane.conversation_id)
    stream = iter(messages)
    while batch := list(islice(stream, BATCH)):
        body = orjson.dumps({"messages": batch})
        answer = b""
        for lane in ours:
            answer = lane.send(request("POST", f"{lane.path}/messages", body))
            lane.build()
        tokens = [message["token_count"] for message in orjson.loads(answer)["messages"]]
        bodies = [orjson.dumps(message).decode() for message in batch]
        for lane in floors:
            await _store(lane, floor_a).preload(lane.conversation_id, tokens, bodies)


def _store(lane: Lane, floor_a: FloorA) -> FloorA:
    return lane.through if isinstance(lane.through, FloorA) else floor_a


async def run(lanes: Sequence[Lane], meter: CpuMeter, count: int, seed: int = 2) -> None:
    """Run the warm-up and `count` measured steps on every lane (rule 1)."""
    messages = counted(islice(conversation(seed=seed), WARM_UP_STEPS + count))
    leader = next(lane for lane in lanes if lane.kind is Kind.FULL)
    for lane in lanes:
        if lane.kind in (Kind.FULL, Kind.DELTA):
            lane.build()
    gc.collect()
    gc.freeze()
    for index, (message, tokens) in enumerate(messages):
        window = leader.tokens + tokens
        for place in range(len(lanes)):
            lane = lanes[(index + place) % len(lanes)]
            await _step(lane, meter, (message, tokens), window, index >= WARM_UP_STEPS)
    await _check(lanes, messages[-1], leader.tokens)


async def _step(
    lane: Lane, meter: CpuMeter, counted: tuple[Message, int], window: int, is_measured: bool
) -> None:
    body, tokens = orjson.dumps(counted[0]), counted[1]
    raw, text = _request(lane, body, tokens, window), body.decode()
    before = meter.read(lane.served)
    own, began = time.process_time(), time.perf_counter()
    if isinstance(lane.through, FloorA):
        await lane.through.append(lane.conversation_id, tokens, text)
        rows = await lane.through.window(lane.conversation_id, window)
        seconds, own = time.perf_counter() - began, time.process_time() - own
        answer = "".join(rows).encode()
    else:
        answer = lane.through.send(raw)
        seconds, own = time.perf_counter() - began, 0.0
    spent = meter.since(before, lane.served)
    match lane.kind:
        case Kind.FULL | Kind.DELTA:
            lane.note(answer)
        case Kind.FLOOR_B_DELTA:
            lane.seq = int(answer[7 : answer.index(b",")])
    if is_measured:
        lane.samples.add(seconds, own or spent.server, spent.postgres)
        lane.answer_bytes.append(len(answer))
        lane.deltas += bool(_IS_DELTA.search(answer))


def _request(lane: Lane, body: bytes, tokens: int, window: int) -> bytes:
    match lane.kind:
        case Kind.FULL:
            step = b'{"append":{"messages":[%b]}}' % body
        case Kind.DELTA:
            known = b'{"build_id":"%b"}' % lane.build_id
            step = b'{"append":{"messages":[%b]},"known":%b}' % (body, known)
        case Kind.APPEND:
            return request("POST", f"{lane.path}/messages", b'{"messages":[%b]}' % body)
        case Kind.FLOOR_A:
            return b""
        case _:
            step = b'{"message":%b,"tokens":%d,"window_tokens":%d' % (body, tokens, window)
            if lane.kind is Kind.FLOOR_B_DELTA and lane.seq:
                step += b',"known_seq":%d' % lane.seq
            return request("POST", f"/conversations/{lane.conversation_id}/step", step + b"}")
    return request("POST", f"{lane.path}/context", step)


async def _check(lanes: Sequence[Lane], last: tuple[Message, int], window: int) -> None:
    """Make sure that all lanes have what was appended last (rule 5)."""
    message, tokens = last
    for lane in lanes:
        if lane.kind is Kind.APPEND:
            continue
        if lane.kind in OURS:
            shown = lane.build()["payload"]["messages"]
        elif isinstance(lane.through, FloorA):
            rows = await lane.through.window(lane.conversation_id, window)
            shown = [orjson.loads(row) for row in rows]
        else:
            raw = _request(lane, orjson.dumps(message), tokens, window)
            shown = orjson.loads(lane.through.send(raw))["messages"]
        if not any(item.get("content") == message["content"] for item in shown[-4:]):
            raise UnexpectedAnswer(f"{lane.kind}: the last message is not shown")


def _section(lanes: Sequence[Lane], steps: int) -> Section:
    section = Section("one_request", "append one message and get the payload, in one request")
    section.add_text(
        f"{steps} steps of each at {SIZE} messages, o200k, window 128 000 tokens, defaults"
        " otherwise; times in ms, CPU in ms per step. Of floor A the server is its client."
    )
    by_kind = {str(lane.kind): lane for lane in lanes}
    full, rows = lanes[0], []
    for lane in lanes:
        deltas = f"{lane.deltas}" if "delta" in lane.kind else "-"
        ratios = (times(full.step_p50 / lane.step_p50), times(full.cpu_p50 / lane.cpu_p50))
        size = kib(p50(lane.answer_bytes))
        rows.append((lane.kind, *lane.samples.cells(), size, deltas, *ratios))
    heads = ("step", *SAMPLE_HEADS, "KiB p50", "deltas", "full / it", "of the CPU")
    section.add_table(heads, rows)
    for name, one, other, most in GOALS:
        ratio = by_kind[one].step_p50 / by_kind[other].step_p50
        goal = f"{one} against {other}, p50 ≤ {most}x"
        section.goal(name, goal, times(ratio), ratio <= most)
    return section


def _number(way: re.Pattern[bytes], answer: bytes) -> int:
    found = way.search(answer)
    if found is None:
        raise UnexpectedAnswer(f"an answer without {way.pattern!r}: {answer[:300]!r}")
    return int(found[1])
