"""Delta builds beside full ones and beside appends alone.

1. All conversations have the same messages, appended in batches of 1000 with a build after each.
   Then each step appends one message to every conversation, in turns, and builds: the full payload,
   or a delta on the previous build, whose epoch and seq the client keeps. There is one conversation
   for each format and kind of build; one more is only appended to.
2. All have a window of 128 000 tokens. A delta whose epoch has ended comes whole, and counts.
3. Every step also requests `/healthz`: the cost of a second request that does nothing.
4. At the end each conversation with deltas is also built in full: the prefix must be the same.
"""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import orjson

from app.formats.message import FormatName
from benchmarks.connection import Connection, UnexpectedAnswer, request
from benchmarks.figures import Section, kib, ms, p50, p95, times
from benchmarks.stage import MODEL, report
from benchmarks.workload import conversation

BATCH = 1000
WINDOW = 128_000
WARM_UP_STEPS = 5
APPEND = "append alone"
FULL = "full"
DELTA = "delta"
MODELS = {FormatName.OPENAI_CHAT: MODEL, FormatName.ANTHROPIC: "claude-sonnet-4-5"}
P3_GOAL = 1.6
_EPOCH = re.compile(rb'"epoch":\s*(\d+)')
_THROUGH = re.compile(rb'"through_seq":\s*(\d+)')
_PREFIX = re.compile(rb'"prefix_hash":\s*"(\w+)"')
_IS_DELTA = re.compile(rb'"delta":\s*true')


@dataclass(frozen=True, slots=True)
class Step:
    """One timed step, in seconds; of an append alone nothing is built."""

    append: float
    build: float
    size_bytes: int
    is_delta: bool

    @property
    def total(self) -> float:
        """Append and build together."""
        return self.append + self.build


@dataclass(slots=True)
class MeasuredConversation:
    """One conversation, its kind of build, and the epoch and seq of its last build."""

    kind: str
    format: FormatName | None
    conversation_id: str
    epoch: int = 0
    through_seq: int = 0
    steps: list[Step] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of the conversation in tables."""
        return self.kind if self.format is None else f"{self.format}, {self.kind}"

    def path(self, what: str) -> str:
        """Return the path of its log or context."""
        return f"/v1/conversations/{self.conversation_id}/{what}"

    def ask(self, kind: str) -> bytes:
        """Return the request of the next build."""
        format = self.format or FormatName.OPENAI_CHAT
        body: dict[str, Any] = {"format": format}
        if kind == DELTA:
            body["known"] = {"epoch": self.epoch, "through_seq": self.through_seq}
        return request("POST", self.path("context"), orjson.dumps(body))

    def note(self, answer: bytes) -> None:
        """Store the epoch and the seq of the last build."""
        self.epoch, self.through_seq = (int(_found(way, answer)) for way in (_EPOCH, _THROUGH))


@dataclass(frozen=True, slots=True)
class Deltas:
    """The results for conversations of `size` messages; `idle` are the times of rule 3."""

    size: int
    measured_conversations: Sequence[MeasuredConversation]
    idle: Sequence[float]

    def of_kind(self, kind: str, format: FormatName | None = None) -> MeasuredConversation:
        """Return the conversation of a kind and format."""
        return next(
            measured
            for measured in self.measured_conversations
            if (measured.kind, measured.format) == (kind, format)
        )


def measure_deltas(ours: Connection, size: int, steps: int) -> Deltas:
    """Append `size` messages to each conversation, run the steps, and return the results."""
    kinds = [(kind, format) for format in MODELS for kind in (FULL, DELTA)]
    measured_conversations = [
        _filled(ours, size, kind, format) for kind, format in [(APPEND, None), *kinds]
    ]
    report(f"deltas: {steps} steps on each of {len(measured_conversations)} conversations")
    idle: list[float] = []
    nothing = request("GET", "/healthz")
    gc.collect()
    for index, message in enumerate(islice(conversation(seed=2), WARM_UP_STEPS + steps)):
        body = orjson.dumps({"messages": [message]})
        for place in range(len(measured_conversations)):
            measured = measured_conversations[(index + place) % len(measured_conversations)]
            step = _step(ours, measured, request("POST", measured.path("messages"), body))
            if index >= WARM_UP_STEPS:
                measured.steps.append(step)
        began = time.perf_counter()
        ours.send(nothing)
        idle.append(time.perf_counter() - began)
    for measured in measured_conversations:
        if measured.kind == DELTA:
            _check(ours, measured)
    return Deltas(size, measured_conversations, idle[WARM_UP_STEPS:])


def add_deltas(section: Section, deltas: Deltas) -> None:
    """Report the steps, and whether the goal of a delta step is met."""
    alone = deltas.of_kind(APPEND)
    section.add_text(
        f"Delta builds beside full ones, {deltas.size} messages and {len(alone.steps)} steps on"
        f" each conversation, window {WINDOW:,} tokens, the same messages in turns; times in ms."
        " The client keeps `epoch` and `through_seq` of the last build and sends them as `known`."
        f" A request that does nothing, `/healthz`: p50 {ms(p50(deltas.idle))} ms."
    )
    section.add_table(
        (
            "conversation",
            "append p50",
            "p95",
            "build p50",
            "p95",
            "step p50",
            "p95",
            "KiB p50",
            "p95",
            "came as deltas",
            "step / append alone, p50",
        ),
        (_row(measured, alone) for measured in deltas.measured_conversations),
    )
    for format in MODELS:
        whole, part = (
            [step.build for step in deltas.of_kind(kind, format).steps] for kind in (FULL, DELTA)
        )
        section.add_text(
            f"{format}: a delta build takes {times(p50(part) / p50(whole))} of the full one's time"
            f" at p50 and {times(p95(part) / p95(whole))} at p95."
        )
    for format in MODELS:
        ratio = _step_p50(deltas.of_kind(DELTA, format)) / _step_p50(alone)
        goal = f"{format}, step with a delta build against append alone ≤ {P3_GOAL}x"
        section.goal("performance.delta", goal, times(ratio), ratio <= P3_GOAL)


def _filled(
    ours: Connection, size: int, kind: str, format: FormatName | None
) -> MeasuredConversation:
    model = MODELS[format or FormatName.OPENAI_CHAT]
    body = {"model": model, "policy": {"budget": {"context_window": WINDOW}}}
    created = orjson.loads(ours.post("/v1/conversations", body))
    measured = MeasuredConversation(kind, format, created["conversation_id"])
    report(f"deltas: filling {size} messages, {measured.name}")
    stream = conversation(seed=1)
    for start in range(0, size, BATCH):
        batch = list(islice(stream, min(BATCH, size - start)))
        ours.post(measured.path("messages"), {"messages": batch})
        measured.note(ours.send(measured.ask(FULL)))
    return measured


def _step(ours: Connection, measured: MeasuredConversation, appending: bytes) -> Step:
    building = measured.ask(measured.kind)
    began = time.perf_counter()
    ours.send(appending)
    stored = time.perf_counter()
    if measured.kind == APPEND:
        return Step(stored - began, 0.0, 0, False)
    answer = ours.send(building)
    done = time.perf_counter()
    measured.note(answer)
    is_delta = bool(_IS_DELTA.search(answer))
    return Step(stored - began, done - stored, len(answer), is_delta)


def _check(ours: Connection, measured: MeasuredConversation) -> None:
    """Make sure that deltas went on from what a full build gives (rule 4)."""
    delta, whole = (ours.send(measured.ask(kind)) for kind in (DELTA, FULL))
    if _found(_PREFIX, delta) != _found(_PREFIX, whole):
        raise UnexpectedAnswer(f"{measured.name}: a delta has another prefix than the full build")


def _found(way: re.Pattern[bytes], answer: bytes) -> bytes:
    match = way.search(answer)
    if match is None:
        raise UnexpectedAnswer(f"a build without {way.pattern!r}: {answer[:300]!r}")
    return match[1]


def _row(measured: MeasuredConversation, alone: MeasuredConversation) -> tuple[str, ...]:
    def both(part: str) -> tuple[str, str]:
        values = [getattr(step, part) for step in measured.steps]
        return ms(p50(values)), ms(p95(values))

    if measured is alone:
        return (measured.name, *both("append"), "-", "-", *both("total"), "-", "-", "-", "1.00x")
    sizes = [step.size_bytes for step in measured.steps]
    deltas = sum(step.is_delta for step in measured.steps)
    return (
        measured.name,
        *both("append"),
        *both("build"),
        *both("total"),
        kib(p50(sizes)),
        kib(p95(sizes)),
        f"{deltas} of {len(sizes)}" if measured.kind == DELTA else "-",
        times(_step_p50(measured) / _step_p50(alone)),
    )


def _step_p50(measured: MeasuredConversation) -> float:
    return p50([step.total for step in measured.steps])
