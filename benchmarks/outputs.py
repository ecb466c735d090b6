"""Tool outputs over HTTP: a large blob up and down, slices of it, searches, appends.

1. The large blob is log-like text from a file; the small one is the first megabyte of the same.
   They take turns slice by slice.
2. Memory is the peak of the server process's resident memory over what it had before the request.
3. A search matches one line or two, so that it looks at every byte; all count the same lines.
   Each runs once before the clock does. `grep` and `rg` read the file that the blob came from.
4. Rounds of appends and builds with the same messages run in turns beside nothing, beside
   searches, one of them endless for an engine that backtracks, and beside a process that is
   merely busy: that is what the search's own share of the processor costs.
5. Appends of large results alternate between a conversation that offloads and one that does not.
   No worker runs, so what appends make due stays.
"""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from http.client import HTTPResponse
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from urllib.parse import urlencode

import orjson
import zstandard

from app.blobs.blobs import CHUNK_BYTES
from app.blobs.chunks import ZSTD_LEVEL
from app.tool_output.grep import Grep
from benchmarks.connection import TIMEOUT_SECONDS, Connection, UnexpectedAnswer, request
from benchmarks.figures import Section, ms, p50, p95, times
from benchmarks.processes import PostgresProcesses, Served, service
from benchmarks.stage import MODEL, create_conversation, report
from benchmarks.workload import Message, conversation, pool

SMALL_BYTES = 2**20
MARKER_LINES = (
    b"2026-01-01T00:00:00.000Z FATAL parser.stream close needle-7f3a91"
    b" request_id=0123456789abcdef0 took=10000ms\n",
    b"2026-01-02T00:00:00.000Z Fatal queue.worker stop /srv/queue/worker_1.py took=20000ms\n",
)
"""Lines that stand once in a text: in its middle, and near its end."""
MIN_BLOCKS = 5
"""A text of fewer blocks has none of them."""
SLICE_LINES = 100
SLICE_BYTES = 4_096
SLICES_FROM, SLICES_TO = 0.25, 0.75
"""The part of a blob that slices are taken out of."""
WARM_UP = 10
RECEIVED_BYTES = 2**18
MAX_MATCHES = 1_000
LOCALES = ("C.UTF-8", "C")
BACKTRACKING = "(a+)+$"
ALONE, BUSY = "nothing", "a busy process"
MAX_STALL_SECONDS = 0.02
INITIAL_MESSAGES = 100
"""Messages of a conversation before the steps beside a search begin."""
MAX_MESSAGE_CHARS = 4_000
"""Characters; with longer ones a round would reach the compaction."""
RESULTS = ((1_000, 1), (8_000, 1), (60_000, 1), (8_000, 20))
"""Characters of a result, and how many are appended at once."""
GROWTH_GOAL_BYTES = 64 * 10**6
SLICE_GOAL = 3
_MB = 10**6

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Search:
    """A pattern to look for, and what it is called in the results."""

    name: str
    pattern: str
    ignore_case: bool = False


SEARCHES = (
    Search("a rare literal", "needle-7f3a91"),
    Search("a class behind a literal", "took=[0-9]{5,}ms"),
    Search("a class alone", "[0-9a-f]{17}"),
    Search("a word, case ignored", r"\bfatal\b", ignore_case=True),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """How large the blob is, and how often each thing is done."""

    large_bytes: int
    slices: int
    searches: int
    rounds: int
    steps: int
    appends: int


FULL = Plan(2**30, slices=400, searches=3, rounds=4, steps=60, appends=150)
QUICK = Plan(2**26, slices=100, searches=3, rounds=2, steps=40, appends=40)


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of an operation: seconds, CPU seconds of both servers, bytes of memory (rule 2)."""

    seconds: float
    server_cpu: float
    postgres_cpu: float
    grown_bytes: int


@dataclass(frozen=True, slots=True)
class Blob:
    """An uploaded blob."""

    path: str
    byte_size: int
    line_count: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Bench:
    """The running service, and the file that the large blob comes from."""

    served: Served
    postgres: PostgresProcesses
    file: Path
    plan: Plan

    def cost(self, work: Callable[[], Result]) -> tuple[Result, Cost]:
        """Run an operation, and return its result and its cost."""
        before = self.served.memory_bytes
        cpu = self.served.cpu_seconds, self.postgres.cpu_seconds
        status = Path(f"/proc/{self.served.process.pid}")
        (status / "clear_refs").write_text("5")  # the peak begins anew
        began = time.perf_counter()
        result = work()
        seconds = time.perf_counter() - began
        [peak] = (
            int(line.split()[1]) * 1024
            for line in (status / "status").read_text().splitlines()
            if line.startswith("VmHWM:")
        )
        return result, Cost(
            seconds,
            self.served.cpu_seconds - cpu[0],
            self.postgres.cpu_seconds - cpu[1],
            peak - before,
        )


def log_text(size: int) -> Iterator[bytes]:
    """Yield so many bytes of log-like text in large pieces; a large text has MARKER_LINES."""
    block = f"{pool('log')}\n".encode()
    blocks = size // len(block)
    marks = (
        {blocks // 2: MARKER_LINES[0], blocks - 2: MARKER_LINES[1]} if blocks >= MIN_BLOCKS else {}
    )
    left, number = size, 0
    while left > 0:
        head = f"block {number:06} begins\n".encode()
        piece = (head + marks.get(number, b"") + block)[:left]
        yield piece
        left -= len(piece)
        number += 1


def measure(quick: bool) -> Section:
    """Measure everything over one large blob and report it."""
    plan = QUICK if quick else FULL
    size = f"{plan.large_bytes >> 20:,} MiB"
    section = Section("outputs", f"a tool output of {size}, slices, searches, large results")
    with tempfile.TemporaryDirectory(prefix="context-service-bench-") as folder:
        file, data_dir = Path(folder, "large.log"), Path(folder, "data")
        with file.open("wb") as output:
            output.writelines(log_text(plan.large_bytes))
        with service(data_dir, "--no-worker", log=Path(folder, "processes.log")) as served:
            bench = Bench(served, PostgresProcesses(data_dir), file, plan)
            large, small = _transfers(section, bench)
            _slices(section, bench, large, small)
            _searches(section, bench, large)
            _beside_a_search(section, bench, large)
            _appends(section, bench)
    return section


# --- up and down -------------------------------------------------------------------------------


def _transfers(section: Section, bench: Bench) -> tuple[Blob, Blob]:
    """Upload the large blob and the small one, download the large one, and return both."""
    report("outputs: up and down")
    size = bench.plan.large_bytes
    digest, alone = _hashed_and_compressed(bench.file)
    path = _blobs_path(bench)
    # The tokeniser, which the service loads when it starts, is there by now.
    fresh = bench.served.memory_bytes
    large, up = bench.cost(lambda: _upload(bench, path, size))
    small = _upload(bench, path, SMALL_BYTES)
    received, down = bench.cost(lambda: _downloaded(bench, large))
    section.add_text(
        f"Log-like text of {large.line_count:,} lines, streamed in one request each way; CPU in"
        f" seconds. Before the upload the service had made one conversation and was"
        f" {fresh / _MB:.0f} MB large. To hash and compress the same bytes alone takes"
        f" {alone:.1f} s of a process, {size / alone / _MB:.0f} MB/s."
    )
    section.add_table(
        ("", "seconds", "MB/s", "server CPU", "PostgreSQL CPU", "memory grew by, MB"),
        (
            (name, *_cost_cells(cost, size), f"{cost.grown_bytes / _MB:.1f}")
            for name, cost in (("upload", up), ("download", down))
        ),
    )
    for name, cost in (("upload", up), ("download", down)):
        section.goal(
            "tool-output.upload",
            f"{name}: memory of the server process grows by less than 64 MB",
            f"{cost.grown_bytes / _MB:.1f} MB",
            cost.grown_bytes < GROWTH_GOAL_BYTES,
        )
    same = large.sha256 == received == digest
    said = "equal" if same else "other bytes came back"
    section.goal(
        "tool-output.upload", "SHA-256 sent, answered and of the bytes downloaded", said, same
    )
    return large, small


def _cost_cells(cost: Cost, size: int) -> tuple[str, ...]:
    return (
        f"{cost.seconds:.2f}",
        f"{size / cost.seconds / _MB:.0f}",
        f"{cost.server_cpu:.2f}",
        f"{cost.postgres_cpu:.2f}",
    )


def _blobs_path(bench: Bench) -> str:
    """Make a conversation, and return the path of its blobs."""
    with Connection(bench.served.port) as connection:
        return f"/v1/conversations/{create_conversation(connection)}/blobs"


def _hashed_and_compressed(file: Path) -> tuple[str, float]:
    """Return the SHA-256 of a file, and the time to make it and to compress every chunk."""
    digest, compressor = hashlib.sha256(), zstandard.ZstdCompressor(level=ZSTD_LEVEL)
    seconds = 0.0
    for chunk in _chunks(file):
        began = time.perf_counter()
        digest.update(chunk)
        compressor.compress(chunk)
        seconds += time.perf_counter() - began
    return digest.hexdigest(), seconds


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            yield chunk


def _upload(bench: Bench, path: str, size: int) -> Blob:
    """Send the file's first bytes as they lie there, and return the blob that they became."""
    head = (
        f"POST {path}?tool_name=shell HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: text/plain\r\nContent-Length: {size}\r\n\r\n"
    )
    with bench.file.open("rb") as source, _socket(bench.served.port) as server:
        server.sendall(head.encode())
        server.sendfile(source, 0, size)
        answer = HTTPResponse(server)
        answer.begin()
        body = orjson.loads(answer.read())
    if answer.status != 201 or body["byte_size"] != size:
        raise UnexpectedAnswer(f"upload: {answer.status} {body}")
    return Blob(f"{path}/{body['id']}", size, body["line_count"], body["sha256"])


def _downloaded(bench: Bench, blob: Blob) -> str:
    """Return the SHA-256 of a blob's content, hashed as it comes."""
    digest, room = hashlib.sha256(), memoryview(bytearray(RECEIVED_BYTES))
    with _socket(bench.served.port) as server:
        server.sendall(request("GET", f"{blob.path}/content"))
        answer = HTTPResponse(server)
        answer.begin()
        while count := answer.readinto(room):
            digest.update(room[:count])
    return digest.hexdigest()


def _socket(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS)


# --- slices ------------------------------------------------------------------------------------


def _slices(section: Section, bench: Bench, large: Blob, small: Blob) -> None:
    """Read slices out of the middle of both blobs in turns, and report what they cost."""
    report("outputs: slices")
    rng = Random(7)
    blobs = (large, small)
    lines: dict[Blob, list[float]] = {blob: [] for blob in blobs}
    pieces: dict[Blob, list[float]] = {blob: [] for blob in blobs}
    with Connection(bench.served.port) as connection:
        for number in range(-WARM_UP, bench.plan.slices):
            share = rng.uniform(SLICES_FROM, SLICES_TO)
            for blob in blobs if number % 2 else reversed(blobs):
                at = int(share * blob.line_count)
                what = f"/lines?offset={at}&limit={SLICE_LINES}"
                taken = _timed(connection, request("GET", blob.path + what))
                what = f"/bytes?offset={int(share * blob.byte_size)}&limit={SLICE_BYTES}"
                read = _timed(connection, request("GET", blob.path + what))
                if number >= 0:
                    lines[blob].append(taken)
                    pieces[blob].append(read)
    section.add_text(
        f"Slices from {bench.plan.slices} places in the middle half, of the large blob and of one"
        f" of 1 MiB in turns; times in ms."
    )
    kinds = ((f"{SLICE_LINES} lines", lines), (f"{SLICE_BYTES:,} bytes", pieces))
    section.add_table(
        ("slice", "large p50", "p95", "1 MiB p50", "p95", "ratio p50", "ratio p95"),
        (
            (
                name,
                *(ms(figure(found[blob])) for blob in blobs for figure in (p50, p95)),
                *(times(figure(found[large]) / figure(found[small])) for figure in (p50, p95)),
            )
            for name, found in kinds
        ),
    )
    for name, found in kinds:
        ratio = p50(found[large]) / p50(found[small])
        goal = f"{name} of the large blob against the same of 1 MiB ≤ {SLICE_GOAL}x"
        section.goal("tool-output.slice-cost", goal, times(ratio), ratio <= SLICE_GOAL)


def _timed(connection: Connection, raw: bytes) -> float:
    began = time.perf_counter()
    connection.send(raw)
    return time.perf_counter() - began


# --- searches ----------------------------------------------------------------------------------


def _searches(section: Section, bench: Bench, large: Blob) -> None:
    """Search the large blob and its file, and report how fast that goes."""
    rivals: dict[str, Callable[[Search], int]] = {
        f"grep, {name}": partial(_grep, bench.file, name) for name in LOCALES
    }
    if shutil.which("rg"):
        rivals["rg"] = partial(_rg, bench.file)
    rows = [_searched(search, bench, large, list(rivals.values())) for search in SEARCHES]
    section.add_text(
        f"Searches through the whole blob, ours the median of {bench.plan.searches} after one more,"
        " the others once, from the page cache; CPU in seconds of one search. Engine alone: RE2 fed"
        " with the same chunks in a process of its own. `grep -E -c` reads the uncompressed file."
        " All columns from the engine on are MB/s; the ratio is of speeds."
    )
    header = ("pattern", "seconds", "MB/s", "server CPU", "PostgreSQL CPU", "memory grew by, MB")
    section.add_table((*header, "engine alone", *rivals, f"ours / {next(iter(rivals))}"), rows)


def _searched(
    search: Search, bench: Bench, large: Blob, rivals: Sequence[Callable[[Search], int]]
) -> tuple[str, ...]:
    """Search with every system, and return the row that tells how fast each was."""
    report(f"outputs: searching for {search.name}")
    look = partial(_found, bench.served.port, large, search)
    found, runs = zip(*(bench.cost(look) for _ in range(bench.plan.searches + 1)), strict=True)
    timed = sorted(runs[1:], key=lambda cost: cost.seconds)
    ours = timed[len(timed) // 2]
    counts, others = zip(*(_timed_result(partial(rival, search)) for rival in rivals), strict=True)
    if {*found, *counts} != {found[0]}:
        raise UnexpectedAnswer(f"{search.name}: {found} lines found, {counts} by others")
    rates = (
        large.byte_size / seconds / _MB
        for seconds in (_engine_seconds(bench.file, search), *others)
    )
    return (
        f"{search.name}, `{search.pattern}`",
        *_cost_cells(ours, large.byte_size),
        f"{max(cost.grown_bytes for cost in runs) / _MB:.1f}",
        *(f"{rate:.0f}" for rate in rates),
        times(others[0] / ours.seconds),
    )


def _found(port: int, blob: Blob, search: Search) -> int:
    """Return the number of matching lines that the service returns."""
    asked = {"pattern": search.pattern, "limit": MAX_MATCHES}
    if search.ignore_case:
        asked["ignore_case"] = "true"
    # A connection that is idle while another system searches is closed by the server.
    with Connection(port) as connection:
        answer = orjson.loads(connection.get(f"{blob.path}/grep?{urlencode(asked)}"))
    return len(answer["matches"])


def _grep(file: Path, locale: str, search: Search) -> int:
    command = ["grep", "-E", "-c", *(["-i"] if search.ignore_case else []), search.pattern]
    return _counted([*command, str(file)], {**os.environ, "LC_ALL": locale})


def _rg(file: Path, search: Search) -> int:
    command = ["rg", "-c", *(["-i"] if search.ignore_case else []), search.pattern]
    return _counted([*command, str(file)], os.environ)


def _counted(command: Sequence[str], environ: Mapping[str, str]) -> int:
    ran = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
    return int(ran.stdout)


def _timed_result(work: Callable[[], Result]) -> tuple[Result, float]:
    began = time.perf_counter()
    result = work()
    return result, time.perf_counter() - began


def _engine_seconds(file: Path, search: Search) -> float:
    """Return the time that the search itself takes, without storage and transport."""
    grep = Grep(
        search.pattern, ignore_case=search.ignore_case, limit=MAX_MATCHES, max_line_length=2_000
    )
    seconds = 0.0
    for chunk in _chunks(file):
        began = time.perf_counter()
        grep.feed(chunk)
        seconds += time.perf_counter() - began
    return seconds


# --- beside a search ---------------------------------------------------------------------------


def _beside_a_search(section: Section, bench: Bench, large: Blob) -> None:
    """Append and build beside searches and without them, and report what they cost others."""
    report("outputs: beside a search")
    bench.file.write_bytes(b"a" * (SMALL_BYTES - 1) + b"b")
    port = bench.served.port
    blob = _upload(bench, _blobs_path(bench), SMALL_BYTES)
    endless = partial(_found, port, blob, Search("", BACKTRACKING))
    long = partial(_found, port, large, SEARCHES[-1])
    alone = [_timed_result(endless)[1] for _ in range(bench.plan.searches)]
    beside: list[float] = []
    kinds: dict[str, Callable[[], AbstractContextManager[None]]] = {
        ALONE: nullcontext,
        f"`{BACKTRACKING}`": partial(_searching, endless, beside),
        "a search of the large blob": partial(_searching, long, []),
        BUSY: _busy,
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    for number in range(bench.plan.rounds):
        for name in list(kinds) if number % 2 else reversed(kinds):
            with Connection(port) as connection, kinds[name]():
                found[name] += islice(_steps(connection, seed=number), bench.plan.steps)
    section.add_text(
        f"`{BACKTRACKING}` on one line of 1 MiB, all `a` but for the last letter:"
        f" {ms(p50(alone))} ms."
        f" Then {bench.plan.rounds} rounds of {bench.plan.steps} steps of a second client, which"
        " appends a message and builds the payload, beside each of these: the pattern again and"
        f" again ({len(beside)} times, p50 {ms(p50(beside))} ms), a search of the large blob, a"
        " process of its own that keeps one core busy and sends nothing. Times in ms; ratios to"
        f" the first row."
    )
    section.add_table(
        ("request", "beside", "p50", "p95", "longest", "ratio p50", "ratio p95"),
        (
            row
            for place, what in enumerate(("append", "build"))
            for row in _rows(what, place, found)
        ),
    )
    longest = {name: max(map(max, steps)) for name, steps in found.items()}
    beside_it, alone_longest = longest[f"`{BACKTRACKING}`"], longest[ALONE]
    section.goal(
        "tool-output.grep-linear",
        f"`{BACKTRACKING}` finishes and stalls no other request: the longest append or build"
        " beside it ≤ 20 ms (P7) over the longest beside nothing",
        f"{ms(beside_it)} ms and {ms(alone_longest)} ms",
        beside_it - alone_longest <= MAX_STALL_SECONDS,
    )


def _rows(
    what: str, place: int, found: Mapping[str, Sequence[tuple[float, float]]]
) -> Iterator[tuple[str, ...]]:
    alone = [step[place] for step in found[ALONE]]
    for name, steps in found.items():
        values = [step[place] for step in steps]
        ratios = (figure(values) / figure(alone) for figure in (p50, p95))
        figures = (figure(values) for figure in (p50, p95, max))
        yield (what, name, *map(ms, figures), *map(times, ratios))


@contextmanager
def _busy() -> Iterator[None]:
    """Keep one core busy beside the block."""
    process = subprocess.Popen((sys.executable, "-c", "while True: pass"))
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def _searching(search: Callable[[], object], seconds: list[float]) -> Iterator[None]:
    """Search again and again beside the block, one search at a time, and note each one's time."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            seconds.append(_timed_result(search)[1])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _steps(connection: Connection, seed: int) -> Iterator[tuple[float, float]]:
    """Yield the seconds of an append and of a build, step by step, in a new conversation."""
    path = f"/v1/conversations/{create_conversation(connection)}"
    stream = map(_shortened, conversation(seed))
    connection.post(f"{path}/messages", {"messages": list(islice(stream, INITIAL_MESSAGES))})
    build = request("POST", f"{path}/context", b"{}")
    connection.send(build)
    for message in stream:
        body = orjson.dumps({"messages": [message]})
        yield (
            _timed(connection, request("POST", f"{path}/messages", body)),
            _timed(connection, build),
        )


def _shortened(message: Message) -> Message:
    return {**message, "content": message["content"][:MAX_MESSAGE_CHARS]}


# --- appends -----------------------------------------------------------------------------------


def _appends(section: Section, bench: Bench) -> None:
    """Append large results with offloading and without, in turns, and report both."""
    report("outputs: appends")
    section.add_text(
        f"Appends of tool results, {bench.plan.appends} of each kind in turns, with defaults and"
        " with `tool_output.enabled` false; times in ms."
    )
    rows = []
    for size, count in RESULTS:
        with Connection(bench.served.port) as connection:
            seconds = _appended(connection, size, count, bench.plan.appends)
        figures = [figure(seconds[enabled]) for enabled in (True, False) for figure in (p50, p95)]
        ratios = (figures[0] / figures[2], figures[1] / figures[3])
        name = f"{count} of {size:,} characters" if count > 1 else f"{size:,} characters"
        rows.append((name, *map(ms, figures), *map(times, ratios)))
    header = ("results", "offloading p50", "p95", "not so p50", "p95", "ratio p50", "ratio p95")
    section.add_table(header, rows)


def _appended(
    connection: Connection, size: int, count: int, appends: int
) -> dict[bool, list[float]]:
    """Return the seconds of appends, of the same results with offloading and without."""
    paths = {
        enabled: _conversation(connection, {"tool_output": {"enabled": enabled}})
        for enabled in (True, False)
    }
    rng = Random(8)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    gc.collect()
    for number in range(-WARM_UP, appends):
        call, results = _call_and_results(rng, size, count)
        body = orjson.dumps({"messages": results})
        for enabled in (True, False) if number % 2 else (False, True):
            path = f"{paths[enabled]}/messages"
            connection.post(path, {"messages": [call]})
            taken = _timed(connection, request("POST", path, body))
            if number >= 0:
                seconds[enabled].append(taken)
    return seconds


def _conversation(connection: Connection, policy: Mapping[str, Any]) -> str:
    """Make a conversation of the measured model with a policy, and return its path."""
    created = orjson.loads(connection.post("/v1/conversations", {"model": MODEL, "policy": policy}))
    return f"/v1/conversations/{created['conversation_id']}"


def _call_and_results(rng: Random, size: int, count: int) -> tuple[Message, list[Message]]:
    """Return an assistant's message with so many calls, and a result of this size for each."""
    ids = [f"call_{rng.getrandbits(96):024x}" for _ in range(count)]
    function = {"name": "shell_exec", "arguments": "{}"}
    calls = [{"id": call_id, "type": "function", "function": function} for call_id in ids]
    results = []
    for call_id in ids:
        text = pool(rng.choice(("code", "log", "json", "prose")))
        start = rng.randrange(len(text) - size)
        content = text[start : start + size]
        results.append({"role": "tool", "tool_call_id": call_id, "content": content})
    return {"role": "assistant", "content": None, "tool_calls": calls}, results
