"""What a step asks of PostgreSQL: round trips and bytes, cold and warm."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from benchmarks.connection import Connection, UnexpectedAnswer
from benchmarks.figures import Section, kib, p50, p95, times
from benchmarks.postgres_proxy import Counts, Proxy, proxied
from benchmarks.processes import service
from benchmarks.stage import create_conversation, database, report
from benchmarks.workload import Message, conversation

BATCH = 1000
_EPOCH = re.compile(rb'"epoch":\s*(\d+)')


@dataclass(slots=True)
class Lane:
    """A conversation of one length, and what its steps asked of PostgreSQL."""

    size: int
    conversation_id: str
    appends: list[Counts] = field(default_factory=list)
    warm: list[Counts] = field(default_factory=list)
    new_epochs: list[Counts] = field(default_factory=list)
    cold: list[Counts] = field(default_factory=list)
    payload_bytes: list[int] = field(default_factory=list)
    cold_payload_bytes: list[int] = field(default_factory=list)

    def path(self, what: str) -> str:
        """Return the path of the conversation's log or context."""
        return f"/v1/conversations/{self.conversation_id}/{what}"


def measure(quick: bool) -> Section:
    """Count the work of warm steps, then of the first build after a restart."""
    sizes = (1_000, 10_000)
    with database() as (data_dir, url, log), proxied(url) as proxy:
        served = ("--database-url", proxy.url)
        with service(data_dir, *served, log=log) as running, Connection(running.port) as ours:
            lanes = [_filled(size, ours) for size in sizes]
            _warm_steps(lanes, ours, proxy, 60 if quick else 200)
            before = proxy.read()
            time.sleep(2)
            idle = proxy.read().since(before)
        for _ in range(3):
            with service(data_dir, *served, log=log) as running, Connection(running.port) as ours:
                _cold_builds(lanes, ours, proxy)
    return _section(lanes, idle)


def _filled(size: int, ours: Connection) -> Lane:
    report(f"io: filling {size} messages")
    lane = Lane(size, create_conversation(ours))
    stream = conversation(seed=1)
    for _ in range(0, size, BATCH):
        ours.post(lane.path("messages"), {"messages": list(islice(stream, BATCH))})
        ours.post(lane.path("context"), {})
    return lane


def _warm_steps(lanes: Sequence[Lane], ours: Connection, proxy: Proxy, count: int) -> None:
    epochs = {lane.size: _epoch(_build(ours, lane)) for lane in lanes}
    for message in islice(conversation(seed=2), count):
        for lane in lanes:
            start = proxy.read()
            _append(ours, lane, message)
            appended = proxy.read()
            answer = _build(ours, lane)
            built = proxy.read()
            lane.appends.append(appended.since(start))
            lane.payload_bytes.append(len(answer))
            epoch = _epoch(answer)
            same = epochs[lane.size] == epoch
            (lane.warm if same else lane.new_epochs).append(built.since(appended))
            epochs[lane.size] = epoch


def _epoch(answer: bytes) -> bytes:
    found = _EPOCH.search(answer)
    if found is None:
        raise UnexpectedAnswer(f"a build without an epoch: {answer[:300]!r}")
    return found[1]


def _append(ours: Connection, lane: Lane, message: Message) -> bytes:
    return ours.post(lane.path("messages"), {"messages": [message]})


def _build(ours: Connection, lane: Lane) -> bytes:
    return ours.post(lane.path("context"), {})


def _cold_builds(lanes: Sequence[Lane], ours: Connection, proxy: Proxy) -> None:
    other = Lane(0, create_conversation(ours))
    for message in _small_talk():
        _append(ours, other, message)
        _build(ours, other)  # connects and prepares, which every process does once
    for lane in lanes:
        before = proxy.read()
        answer = _build(ours, lane)
        lane.cold.append(proxy.read().since(before))
        lane.cold_payload_bytes.append(len(answer))


def _small_talk() -> Iterator[Message]:
    for role in ("user", "assistant", "user"):
        yield {"role": role, "content": "The conversation that warms the process up."}


def _section(lanes: Sequence[Lane], idle: Counts) -> Section:
    section = Section("io", "database round trips and bytes of a step")
    section.say(
        "Counted by a proxy between the service and PostgreSQL, on connections whose statements"
        " are prepared; medians (and maxima). Warm builds are those that stay in their epoch."
    )
    rows = []
    for lane in lanes:
        for name, works, payloads in (
            ("append", lane.appends, []),
            ("build, warm", lane.warm, lane.payload_bytes),
            ("build, new epoch", lane.new_epochs, lane.payload_bytes),
            ("build, cold", lane.cold, lane.cold_payload_bytes),
        ):
            if works:
                rows.append((str(lane.size), name, *_cells(works, payloads)))
    section.table(
        ("messages", "request", "count", "round trips", "KiB read", "KiB sent", "payload KiB"),
        rows,
    )
    section.say(
        f"Idle, in 2 s: {idle.round_trips} round trips, {idle.from_server} bytes read (the"
        " service's own background work, which also falls into the rows above)."
    )
    _say_goals(section, lanes)
    return section


def _cells(works: Sequence[Counts], payloads: Sequence[int]) -> tuple[str, ...]:
    trips = [work.round_trips for work in works]
    read = [work.from_server for work in works]
    sent = [work.to_server for work in works]
    return (
        str(len(works)),
        f"{p50(trips):.0f} ({max(trips)})",
        f"{kib(p50(read))} ({kib(max(read))})",
        f"{kib(p50(sent))} ({kib(max(sent))})",
        kib(p50(payloads)) if payloads else "-",
    )


def _say_goals(section: Section, lanes: Sequence[Lane]) -> None:
    trips = max(
        p50([work.round_trips for work in lane.appends])
        + p50([work.round_trips for work in lane.warm])
        for lane in lanes
    )
    section.goal(
        "performance.round-trips", "round trips of a warm step ≤ 2", f"{trips:.0f}", trips <= 2
    )
    shares = [
        work.from_server / size
        for lane in lanes
        for work, size in zip(lane.cold, lane.cold_payload_bytes, strict=True)
    ]
    section.goal(
        "performance.round-trips",
        "cold: bytes read ≤ 1.2x the window",
        times(max(shares)),
        max(shares) <= 1.2,
    )
    read = [work.from_server for lane in lanes for work in lane.warm]
    appended = p50([work.from_server for lane in lanes for work in lane.appends])
    most = p50(read) + appended
    section.goal(
        "performance.round-trips",
        "warm: bytes read per step ≤ 5 KiB",
        f"{kib(most)} KiB (p50; the build alone {kib(p50(read))}, its p95 {kib(p95(read))})",
        most <= 5 * 1024,
    )
