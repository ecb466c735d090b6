"""Steps of one request: append a message and get the next payload, beside both floors.

1. Every lane is one conversation of one system. Steps alternate between the lanes, one by one and
   in changing order, so that noise on the machine is the same for all.
2. The service answers `POST …/context` with `append`: with the full payload, or with a delta on the
   build before (`known`). Floor A runs its two statements. Floor B answers one request, from the
   window that its process caches: with the full array, or with the messages after the last one.
3. Floors show as many tokens as the service's full payload does: the same messages.
4. The clock runs from the request to the whole answer. CPU times are read outside of it.
5. After the steps every lane must show the message that was appended last.
"""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any
from uuid import UUID, uuid4

import orjson

from app.conversations.messages.draft import make_drafts
from app.formats.message import FormatName
from app.models.tokenizer import LocalTokenizer
from benchmarks.connection import Connection, UnexpectedAnswer, request
from benchmarks.figures import SAMPLE_HEADS, Samples, Section, kib, p50, times
from benchmarks.floors import FloorA
from benchmarks.processes import CpuMeter, Served
from benchmarks.workload import Message, conversation

WARM_UP_STEPS = 5
BATCH = 1000
_TOKENS_USED = re.compile(rb'"tokens_used":\s*(\d+)')
_EPOCH = re.compile(rb'"epoch":\s*(\d+)')
_THROUGH = re.compile(rb'"through_seq":\s*(\d+)')
_IS_DELTA = re.compile(rb'"delta":\s*true')


class Kind(StrEnum):
    """What a lane sends."""

    FULL = "full payload"
    DELTA = "delta"
    APPEND = "append alone"
    FLOOR_A = "floor A"
    FLOOR_B = "floor B, cached"
    FLOOR_B_DELTA = "floor B, cached, delta"


OURS = (Kind.FULL, Kind.DELTA, Kind.APPEND)


@dataclass(slots=True)
class Lane:
    """One conversation of one system, and its steps."""

    kind: Kind
    size: int
    through: Connection | FloorA
    served: Served | None
    conversation_id: UUID = field(default_factory=uuid4)
    epoch: int = 0
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

    def note(self, answer: bytes) -> None:
        """Remember what the next request refers to."""
        self.epoch, self.seq, self.tokens = (
            _number(way, answer) for way in (_EPOCH, _THROUGH, _TOKENS_USED)
        )

    def build(self) -> dict[str, Any]:
        """Build the full payload, without an append; only of the service."""
        answer = self.send(request("POST", f"{self.path}/context", b"{}"))
        self.note(answer)
        built: dict[str, Any] = orjson.loads(answer)
        return built


def counted(messages: Iterable[Message]) -> list[tuple[Message, int]]:
    """Count messages as the service will, for the floors to store."""
    count = LocalTokenizer().count
    return [
        (message, make_drafts(message, FormatName.OPENAI_CHAT, count, "")[0].tokens)
        for message in messages
    ]


async def fill(
    ours: Lane, floor_a: FloorA, floors: Sequence[Lane], messages: Iterable[Message]
) -> None:
    """Append messages over HTTP in batches, with a build after each, and copy them to the floors.

    All conversations exist already.
    """
    stream = iter(messages)
    while batch := list(islice(stream, BATCH)):
        body = orjson.dumps({"messages": batch})
        answer = orjson.loads(ours.send(request("POST", f"{ours.path}/messages", body)))
        tokens = [message["token_count"] for message in answer["messages"]]
        bodies = [orjson.dumps(message).decode() for message in batch]
        for lane in floors:
            await floor_a.preload(lane.conversation_id, tokens, bodies)
        ours.build()


async def run(lanes: Sequence[Lane], meter: CpuMeter, count: int, seed: int = 2) -> None:
    """Run the warm-up and `count` measured steps on every lane (rule 1)."""
    messages = counted(islice(conversation(seed=seed), WARM_UP_STEPS + count))
    leaders = {lane.size: lane for lane in lanes if lane.kind is Kind.FULL}
    for lane in lanes:
        if lane.kind in (Kind.FULL, Kind.DELTA):
            lane.build()
    gc.collect()
    gc.freeze()
    for index, (message, tokens) in enumerate(messages):
        window = {size: leader.tokens + tokens for size, leader in leaders.items()}
        for place in range(len(lanes)):
            lane = lanes[(index + place) % len(lanes)]
            await _step(
                lane, meter, message, tokens, window[lane.size], is_measured=index >= WARM_UP_STEPS
            )
    await _check(lanes, messages[-1], leaders)


async def _step(
    lane: Lane,
    meter: CpuMeter,
    message: Message,
    tokens: int,
    window: int,
    *,
    is_measured: bool,
) -> bytes:
    body = orjson.dumps(message)
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
    return answer


def _request(lane: Lane, body: bytes, tokens: int, window: int) -> bytes:
    match lane.kind:
        case Kind.FULL:
            step = b'{"append":{"messages":[%b]}}' % body
        case Kind.DELTA:
            known = b'{"epoch":%d,"through_seq":%d}' % (lane.epoch, lane.seq)
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


async def _check(
    lanes: Sequence[Lane], last: tuple[Message, int], leaders: dict[int, Lane]
) -> None:
    """Make sure that all lanes have what was appended last (rule 5)."""
    message, tokens = last
    for lane in lanes:
        if lane.kind is Kind.APPEND:
            continue
        if lane.kind in OURS:
            shown = lane.build()["payload"]["messages"]
        elif isinstance(lane.through, FloorA):
            window = leaders[lane.size].tokens
            rows = await lane.through.window(lane.conversation_id, window)
            shown = [orjson.loads(row) for row in rows]
        else:
            raw = _request(lane, orjson.dumps(message), tokens, leaders[lane.size].tokens)
            shown = orjson.loads(lane.through.send(raw))["messages"]
        if not any(item.get("content") == message["content"] for item in shown[-4:]):
            raise UnexpectedAnswer(f"{lane.kind}: the last message is not shown")


def add_table(section: Section, lanes: Sequence[Lane], note: str = "") -> None:
    """Report the steps of each lane; ratios are those of the full payload of the same size."""
    full = {lane.size: lane for lane in lanes if lane.kind is Kind.FULL}
    heads = ("messages", "step", *SAMPLE_HEADS, "KiB p50", "deltas", "full / it", "of the CPU")
    rows = []
    for lane in lanes:
        ours = full[lane.size]
        deltas = f"{lane.deltas}" if "delta" in lane.kind else "-"
        ratios = (times(ours.step_p50 / lane.step_p50), times(ours.cpu_p50 / lane.cpu_p50))
        size = kib(p50(lane.answer_bytes))
        rows.append((f"{lane.size}", lane.kind, *lane.samples.cells(), size, deltas, *ratios))
    if note:
        section.add_text(note)
    section.add_table(heads, rows)


def _number(way: re.Pattern[bytes], answer: bytes) -> int:
    found = way.search(answer)
    if found is None:
        raise UnexpectedAnswer(f"an answer without {way.pattern!r}: {answer[:300]!r}")
    return int(found[1])
