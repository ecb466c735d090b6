"""The longest stall of the event loop while large bodies are taken or refused, over HTTP.

1. A task in the served process sleeps 1 ms again and again; the longest that it overslept is the
   stall. A `sitecustomize` starts it with uvicorn's loop, and writes what it finds to a file that
   is mapped into memory here and there. Beside the stall is the CPU time that the thread of the
   loop used in it: a stall without CPU time is a wait for a processor, or for the interpreter lock.
   The baseline is the same process without a request, for as long.
2. A message of 4 MB of every kind of text is appended, each to a conversation of its own.
3. Bodies of 32 MB: the hostile ones, most of which are refused, and some of usual content.
"""

from __future__ import annotations

import base64
import json
import mmap
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import orjson

from benchmarks.connection import Connection, request
from benchmarks.figures import Section, ms, p50
from benchmarks.hostile_bodies import BODY_BYTES, bodies
from benchmarks.processes import Served, service
from benchmarks.stage import create_conversation, database, report
from benchmarks.workload import pool

SIZE_BYTES = 4_000_000
MESSAGE_SECONDS, BODY_SECONDS = 0.020, 0.150
QUICK_TEXTS = ("English", "one letter", "emoji", "base64")
QUICK_BODIES = (
    "32 MB of `[]`",
    "32 MB of digits",
    "100,000 unknown keys",
    "1,000 messages taken",
    "an image taken",
)
_APPEND = "/v1/conversations/{id}/messages"
TICK_SECONDS, TICKS_SECONDS = 0.001, 10
_FIGURES = struct.Struct("ddd")
_SITE = """
import asyncio, mmap, struct, time

figures = struct.Struct("ddd")

async def tick():
    with open({file!r}, "r+b") as file:
        shared = mmap.mmap(file.fileno(), figures.size)
    before, cpu_before = time.perf_counter(), time.thread_time()
    while True:
        await asyncio.sleep({tick})
        now, cpu = time.perf_counter(), time.thread_time()
        longest, spent, ticks = figures.unpack(shared[:])
        stall = now - before - {tick}
        if stall > longest:
            longest, spent = stall, cpu - cpu_before
        shared[:] = figures.pack(longest, spent, ticks + 1)
        before, cpu_before = time.perf_counter(), time.thread_time()

try:
    from uvicorn.server import Server
except ImportError:
    pass
else:
    serve = Server.main_loop

    async def main_loop(self):
        ticker = asyncio.create_task(tick())
        try:
            await serve(self)
        finally:
            ticker.cancel()

    Server.main_loop = main_loop
"""

Stall = tuple[float, float]
"""Its seconds, and the CPU time in it."""
Row = tuple[str, str, list[Stall], list[Stall], list[float]]
"""Name, answer, stalls, baselines and times."""


@dataclass(frozen=True, slots=True)
class Stalls:
    """The stalls of a served process that runs with `environ` (rule 1)."""

    environ: Mapping[str, str]
    _shared: mmap.mmap

    def reset(self) -> None:
        """Forget the stalls so far, and wait until the task has run again."""
        time.sleep(0.02)
        self._shared[:] = _FIGURES.pack(0, 0, 0)
        self._wait(1)

    def read(self) -> tuple[float, float]:
        """Return the longest stall and its CPU time, after the loop has run once more."""
        self._wait(_FIGURES.unpack(self._shared[:])[2] + 2)
        longest, spent, _ = _FIGURES.unpack(self._shared[:])
        return longest, spent

    def _wait(self, ticks: float) -> None:
        deadline = time.monotonic() + TICKS_SECONDS
        while _FIGURES.unpack(self._shared[:])[2] < ticks:
            if time.monotonic() > deadline:
                raise RuntimeError("no task measures the stalls of the served event loop")
            time.sleep(0.002)


@contextmanager
def _stalls() -> Iterator[Stalls]:
    with TemporaryDirectory(prefix="bench-stalls-") as folder:
        file = Path(folder, "figures")
        file.write_bytes(bytes(_FIGURES.size))
        site = _SITE.format(file=str(file), tick=TICK_SECONDS)
        Path(folder, "sitecustomize.py").write_text(site, encoding="utf-8")
        with file.open("r+b") as opened, mmap.mmap(opened.fileno(), _FIGURES.size) as shared:
            yield Stalls({"PYTHONPATH": folder}, shared)


def measure(quick: bool) -> Section:
    """Send each text and each body several times and report the longest stalls."""
    section = Section("stall", "longest stall of the event loop with large bodies")
    rounds = 1 if quick else 3
    texts = {
        name: b'{"messages":[{"role":"user","content":%b}]}' % text
        for name, text in _texts().items()
        if not quick or name in QUICK_TEXTS
    }
    large = {
        name: body
        for name, body in (_usual() | bodies()).items()
        if not quick or name in QUICK_BODIES
    }
    with (
        _stalls() as stalls,
        database() as (data_dir, _, log),
        service(data_dir, "--no-worker", environ=stalls.environ, log=log) as served,
    ):
        _send(served, _APPEND, b'{"messages":[{"role":"user","content":"Hello."}]}')
        paths = {name: (_APPEND, body) for name, body in texts.items()}
        messages = _rows(served, stalls, paths, rounds)
        refused = _rows(served, stalls, large, rounds)
    section.add_text(
        f"One message of {SIZE_BYTES // 10**6} MB of text; {rounds} rounds, times in ms. Of the"
        " longest stall also the CPU time that the thread of the loop used in it."
    )
    _add_table(section, messages)
    section.add_text(f"Bodies of up to {BODY_BYTES >> 20} MiB:")
    _add_table(section, refused)
    for rows, goal, most in (
        (messages, "a message of 4 MB of any text", MESSAGE_SECONDS),
        (refused, "any body of 32 MB", BODY_SECONDS),
    ):
        worst = max(p50([stall[0] for stall in row[2]]) for row in rows)
        section.goal(
            "performance.no-stall",
            f"{goal}: longest stall, median of the rounds ≤ {ms(most)} ms",
            f"{ms(worst)} ms",
            worst <= most,
        )
    return section


def _rows(
    served: Served, stalls: Stalls, sent: Mapping[str, tuple[str, bytes]], rounds: int
) -> list[Row]:
    rows: list[Row] = []
    for name, (path, body) in sent.items():
        report(f"stall: {name}")
        found: list[Stall] = []
        idle: list[Stall] = []
        spent: list[float] = []
        answer = ""
        for _ in range(rounds):
            stalls.reset()
            began = time.perf_counter()
            answer = _send(served, path, body)
            spent.append(time.perf_counter() - began)
            found.append(stalls.read())
            stalls.reset()
            time.sleep(min(spent[-1], 1.0))
            idle.append(stalls.read())
        rows.append((name, answer, found, idle, spent))
    return rows


def _send(served: Served, path: str, body: bytes) -> str:
    """Send a body for a new conversation, and return the status of the answer."""
    with Connection(served.port) as connection:
        where = path.format(id=create_conversation(connection))
    with Connection(served.port) as connection:
        try:
            return str(connection.exchange(request("POST", where, body))[0])
        except OSError as error:  # refused before the whole body was read
            return type(error).__name__


def _add_table(section: Section, rows: Sequence[Row]) -> None:
    heads = ("body", "answer", "stall, median", "worst round", "CPU in it", "baseline", "request")
    cells = []
    for name, answer, found, idle, spent in rows:
        usual, waited = (p50([stall[0] for stall in stalls]) for stalls in (found, idle))
        figures = (usual, *max(found), waited, p50(spent))
        cells.append((name, answer, *map(ms, figures)))
    section.add_table(heads, cells)


def _texts() -> dict[str, bytes]:
    """Return each kind of text as a JSON string."""
    rng = Random(7)

    def letters(first: int, last: int) -> str:
        return "".join(chr(rng.randrange(first, last)) for _ in range(100_000))

    repeated = {
        "English": pool("prose"),
        "code": pool("code"),
        "log lines": pool("log"),
        "JSON": pool("json"),
        "spaces": " ",
        "line breaks": "\n",
        "one letter": "a",
        "one digit": "7",
        "punctuation": "!?.,;:-",
        "one word without end": letters(0x61, 0x7B),
        "capitals and digits": letters(0x30, 0x5B),
        "emoji": "😀",
        "emoji of families": "👩‍👩‍👧‍👦",
        "combining marks": "é̂̃",
        "Chinese": letters(0x4E00, 0x9FA5),
        "Thai": letters(0x0E01, 0x0E2F),
        "Arabic": letters(0x0627, 0x064A),
        "Cyrillic": letters(0x0430, 0x0450),
        "control characters": "\x01\x02",
    }
    texts = {}
    for name, text in repeated.items():
        size = len(text.encode())
        whole = (text * (SIZE_BYTES // size + 1))[: SIZE_BYTES * len(text) // size]
        texts[name] = orjson.dumps(whole)
    random = rng.randbytes(SIZE_BYTES * 3 // 4)
    texts["base64"] = orjson.dumps(base64.b64encode(random).decode())
    texts["hexadecimal"] = orjson.dumps(random[: SIZE_BYTES // 2].hex())
    texts["emoji, escaped"] = json.dumps("😀" * (SIZE_BYTES // 12)).encode()
    return texts


def _usual() -> dict[str, tuple[str, bytes]]:
    """Return bodies of 32 MB of usual content, with their paths."""
    prose = pool("prose").replace("\n", " ")
    most = BODY_BYTES - 1000

    def of(size: int) -> str:
        return (prose * (size // len(prose) + 1))[:size]

    call = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    result = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": of(most - 500)},
    ]
    url = "data:image/png;base64," + "A" * (most // 4 * 4)
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
    many = [{"role": "user", "content": of(most // 1000 - 60)} for _ in range(1000)]
    return {
        "one message refused": (
            _APPEND,
            orjson.dumps({"messages": [{"role": "user", "content": of(most)}]}),
        ),
        "an image taken": (_APPEND, orjson.dumps({"messages": [image]})),
        "1,000 messages taken": (_APPEND, orjson.dumps({"messages": many})),
        "a tool result refused": (_APPEND, orjson.dumps({"messages": result})),
        "text to count": ("/v1/tokens/count", orjson.dumps({"text": of(most)})),
        "1,000 messages to count": ("/v1/tokens/count", orjson.dumps({"messages": many})),
        "a step": (
            "/v1/conversations/{id}/context",
            orjson.dumps({"append": {"messages": [image]}}),
        ),
    }
