"""The work of a step in PostgreSQL: round trips and bytes, cold and warm."""

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
class MeasuredConversation:
    """A conversation of one length, and the work of its steps in PostgreSQL."""

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
            measured_conversations = [_filled(size, ours) for size in sizes]
            _warm_steps(measured_conversations, ours, proxy, 60 if quick else 200)
            before = proxy.read()
            time.sleep(2)
            idle = proxy.read().since(before)
        for _ in range(3):
            with service(data_dir, *served, log=log) as running, Connection(running.port) as ours:
                _cold_builds(measured_conversations, ours, proxy)
    return _section(measured_conversations, idle)


def _filled(size: int, ours: Connection) -> MeasuredConversation:
    report(f"io: filling {size} messages")
    measured = MeasuredConversation(size, create_conversation(ours))
    stream = conversation(seed=1)
    for _ in range(0, size, BATCH):
        ours.post(measured.path("messages"), {"messages": list(islice(stream, BATCH))})
        ours.post(measured.path("context"), {})
    return measured


def _warm_steps(
    measured_conversations: Sequence[MeasuredConversation],
    ours: Connection,
    proxy: Proxy,
    count: int,
) -> None:
    epochs = {measured.size: _epoch(_build(ours, measured)) for measured in measured_conversations}
    for message in islice(conversation(seed=2), count):
        for measured in measured_conversations:
            start = proxy.read()
            _append(ours, measured, message)
            appended = proxy.read()
            answer = _build(ours, measured)
            built = proxy.read()
            measured.appends.append(appended.since(start))
            measured.payload_bytes.append(len(answer))
            epoch = _epoch(answer)
            same = epochs[measured.size] == epoch
            (measured.warm if same else measured.new_epochs).append(built.since(appended))
            epochs[measured.size] = epoch


def _epoch(answer: bytes) -> bytes:
    found = _EPOCH.search(answer)
    if found is None:
        raise UnexpectedAnswer(f"a build without an epoch: {answer[:300]!r}")
    return found[1]


def _append(ours: Connection, measured: MeasuredConversation, message: Message) -> bytes:
    return ours.post(measured.path("messages"), {"messages": [message]})


def _build(ours: Connection, measured: MeasuredConversation) -> bytes:
    return ours.post(measured.path("context"), {})


def _cold_builds(
    measured_conversations: Sequence[MeasuredConversation], ours: Connection, proxy: Proxy
) -> None:
    other = MeasuredConversation(0, create_conversation(ours))
    for message in _small_talk():
        _append(ours, other, message)
        _build(ours, other)  # connects and prepares, which every process does once
    for measured in measured_conversations:
        before = proxy.read()
        answer = _build(ours, measured)
        measured.cold.append(proxy.read().since(before))
        measured.cold_payload_bytes.append(len(answer))


def _small_talk() -> Iterator[Message]:
    for role in ("user", "assistant", "user"):
        yield {"role": role, "content": "The conversation that warms the process up."}


def _section(measured_conversations: Sequence[MeasuredConversation], idle: Counts) -> Section:
    section = Section("io", "database round trips and bytes of a step")
    section.add_text(
        "Counted by a proxy between the service and PostgreSQL, on connections whose statements"
        " are prepared; medians (and maxima). Warm builds are those that stay in their epoch."
    )
    rows = []
    for measured in measured_conversations:
        for name, works, payloads in (
            ("append", measured.appends, []),
            ("build, warm", measured.warm, measured.payload_bytes),
            ("build, new epoch", measured.new_epochs, measured.payload_bytes),
            ("build, cold", measured.cold, measured.cold_payload_bytes),
        ):
            if works:
                trips = p50([work.round_trips for work in works])
                section.ratio(f"{name} at {measured.size:,} messages, round trips", trips)
                rows.append((str(measured.size), name, *_cells(works, payloads)))
    section.add_table(
        ("messages", "request", "count", "round trips", "KiB read", "KiB sent", "payload KiB"),
        rows,
    )
    section.add_text(
        f"Idle, in 2 s: {idle.round_trips} round trips, {idle.from_server} bytes read (the"
        " service's own background work, which also falls into the rows above)."
    )
    _add_goals(section, measured_conversations)
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


def _add_goals(section: Section, measured_conversations: Sequence[MeasuredConversation]) -> None:
    trips = max(
        p50([work.round_trips for work in measured.appends])
        + p50([work.round_trips for work in measured.warm])
        for measured in measured_conversations
    )
    section.goal(
        "performance.round-trips", "round trips of a warm step ≤ 2", f"{trips:.0f}", trips <= 2
    )
    shares = [
        work.from_server / size
        for measured in measured_conversations
        for work, size in zip(measured.cold, measured.cold_payload_bytes, strict=True)
    ]
    section.ratio("build, cold, bytes read / payload", max(shares))
    section.goal(
        "performance.round-trips",
        "cold: bytes read ≤ 1.2x the window",
        times(max(shares)),
        max(shares) <= 1.2,
    )
    read = [work.from_server for measured in measured_conversations for work in measured.warm]
    appended = p50(
        [work.from_server for measured in measured_conversations for work in measured.appends]
    )
    most = p50(read) + appended
    section.ratio("warm step, bytes read", most)
    section.goal(
        "performance.round-trips",
        "warm: bytes read per step ≤ 5 KiB",
        f"{kib(most)} KiB (p50; the build alone {kib(p50(read))}, its p95 {kib(p95(read))})",
        most <= 5 * 1024,
    )
