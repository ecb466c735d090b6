"""Hostile requests to one process with 1 GB of memory, and their effect on other clients.

1. The service runs with its own PostgreSQL in a memory cgroup, where the machine lets this process
   make one. Otherwise only the peak of the process is told.
2. While a hostile request is under way, a client in a process of its own sends small requests, one
   after the other. Its worst latency tells how long the event loop stood still.
3. A request that ends the process is told as `killed`, and the service is started anew.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import psutil

from benchmarks.connection import Connection, UnexpectedAnswer, request
from benchmarks.figures import Section
from benchmarks.processes import Served, service
from benchmarks.stage import MODEL, report

LIMIT_BYTES = 10**9
BODY_BYTES = 32 * 2**20 - 4096
GOAL_SECONDS = 0.1
HALF_OPEN_CONNECTIONS = 200
HEADER_BYTES = 200 * 2**20
TIMEOUT_SECONDS = 90
_PAUSE_SECONDS = 0.005
_V1 = Path("/sys/fs/cgroup/memory")
_V2 = Path("/sys/fs/cgroup")

Send = Callable[[int, str], str]
"""Sends a hostile request to a port, of a conversation, and returns what came of it."""


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A memory cgroup of its own; without a directory there is none."""

    directory: Path | None

    @property
    def peak_bytes(self) -> int | None:
        """The most memory that all processes in it had together."""
        for name in ("memory.max_usage_in_bytes", "memory.peak"):
            if self.directory is not None and (self.directory / name).exists():
                return int((self.directory / name).read_text())
        return None

    @property
    def prefix(self) -> tuple[str, ...]:
        """What a command begins with so that it runs in the group."""
        if self.directory is None:
            return ()
        join = f'echo $$ > {self.directory}/cgroup.procs && exec "$@"'
        return ("sh", "-c", join, "sh")


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[MemoryGroup]:
    """Make a memory cgroup for the block, or none where this machine does not let us."""
    root, limit = (
        (_V1, "memory.limit_in_bytes")
        if (_V1 / "memory.limit_in_bytes").exists()
        else (_V2, "memory.max")
    )
    directory = root / f"context-hostile-{os.getpid()}"
    try:
        directory.mkdir()
        (directory / limit).write_text(str(limit_bytes))
    except OSError:
        with suppress(OSError):
            directory.rmdir()
        yield MemoryGroup(None)
        return
    try:
        yield MemoryGroup(directory)
    finally:
        with suppress(OSError):
            directory.rmdir()


@dataclass(slots=True)
class ConcurrentClient:
    """A client in its own process that sends small requests until it is stopped."""

    port: int
    worst_seconds: float = 0.0
    failures: int = 0
    _stop: Any = field(default_factory=multiprocessing.Event)
    _found: Any = field(default_factory=multiprocessing.SimpleQueue)
    _process: multiprocessing.Process | None = None

    def __enter__(self) -> ConcurrentClient:
        self._process = multiprocessing.Process(
            target=_send_until, args=(self.port, self._stop, self._found), daemon=True
        )
        self._process.start()
        time.sleep(0.3)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        time.sleep(0.2)
        self._stop.set()
        self.worst_seconds, self.failures = self._found.get()
        self._process.join()


def _send_until(port: int, stop: Any, results: Any) -> None:
    worst, failures = 0.0, 0
    raw = request("POST", "/v1/tokens/count", b'{"text":"hello"}')
    while not stop.is_set():
        try:
            with Connection(port) as connection:
                connection.send(raw)
                while not stop.is_set():
                    began = time.perf_counter()
                    connection.send(raw)
                    worst = max(worst, time.perf_counter() - began)
                    time.sleep(_PAUSE_SECONDS)
        except (OSError, UnexpectedAnswer):
            failures += 1
            time.sleep(0.2)
    results.put((worst, failures))


@dataclass(frozen=True, slots=True)
class Case:
    """A hostile request."""

    name: str
    send: Send


def measure(quick: bool) -> Section:
    """Send every hostile request once and report its effect."""
    section = Section("hostile", "hostile requests beside small ones, 1 GB of memory")
    rows: list[tuple[str, ...]] = []
    worst, killed = 0.0, 0
    with memory_group(LIMIT_BYTES) as group, tempfile.TemporaryDirectory() as folder:
        for case in _cases(quick):
            report(f"hostile: {case.name}")
            with _running(Path(folder), group) as served:
                row, stall, died = _run_case(case, served)
            rows.append(row)
            worst, killed = max(worst, stall), killed + died
            print(" | ".join(row), file=sys.stderr, flush=True)
        peak = group.peak_bytes
    told = f"its peak {peak >> 20} MiB" if peak is not None else "none could be made here"
    section.add_text(
        f"Memory cgroup of {LIMIT_BYTES / 10**9:g} GB around the service and its PostgreSQL:"
        f" {told}. Each case has a process of its own. `beside` is the worst latency of"
        " `POST /v1/tokens/count` of one word meanwhile."
    )
    section.add_table(("request", "answer", "seconds", "beside, ms", "peak memory, MiB"), rows)
    section.goal("storage.memory-bounds", "nothing killed", str(killed), killed == 0)
    section.goal(
        "quotas.fair-share",
        "worst latency beside ≤ 100 ms",
        f"{worst * 1000:.0f} ms",
        worst <= GOAL_SECONDS,
    )
    return section


@contextmanager
def _running(folder: Path, group: MemoryGroup) -> Iterator[Served]:
    log = folder / "service.log"
    with service(folder / "data", "--no-worker", prefix=group.prefix, log=log) as served:
        yield served


def _run_case(case: Case, served: Served) -> tuple[tuple[str, ...], float, bool]:
    with Connection(served.port) as connection:
        made = orjson.loads(connection.post("/v1/conversations", {"model": MODEL}))
        connection.post("/v1/tokens/count", {"text": "hello"})
    with ConcurrentClient(served.port) as beside:
        began = time.perf_counter()
        try:
            answer = case.send(served.port, made["conversation_id"])
        except (OSError, UnexpectedAnswer) as error:
            answer = f"connection ended: {type(error).__name__}"
        seconds = time.perf_counter() - began
    died = served.process.poll() is not None
    peak = "-" if died else f"{_peak_bytes(served.process.pid) >> 20}"
    row = (
        case.name,
        "killed" if died else answer,
        f"{seconds:.2f}",
        f"{beside.worst_seconds * 1000:.0f}" + (" (cut off)" if beside.failures else ""),
        peak,
    )
    return row, beside.worst_seconds, died


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return int(psutil.Process(pid).memory_info().rss)


# --- bodies -------------------------------------------------------------------------------


def _filled(begin: bytes, item: bytes, end: bytes, size: int = BODY_BYTES) -> bytes:
    """Return a body of about this size that repeats an item, with commas between."""
    count = (size - len(begin) - len(end)) // (len(item) + 1)
    return begin + b",".join([item] * count) + end


def _keys(count: int, value: bytes = b"0") -> bytes:
    return b",".join(b'"k%d":%s' % (place, value) for place in range(count))


def _message(extra: bytes) -> bytes:
    return b'{"messages":[{"role":"user","content":"hi","x":' + extra + b"}]}"


def bodies() -> dict[str, tuple[str, bytes]]:
    """Return the hostile bodies by name, each with its path."""
    append = "/v1/conversations/{id}/messages"
    size = BODY_BYTES
    results = {
        f"32 MB of `{item.decode()}`": (append, _filled(b'{"messages":[', item, b"]}"))
        for item in (b"[]", b"{}", b"0", b'""')
    }
    payload = _filled(b'{"payload":{"messages":[', b"[]", b"]}}")
    results |= {
        "32 MB of `[]` to MCP": ("/mcp", _filled(b'{"x":[', b"[]", b"]}")),
        "32 MB of `[]` to usage": ("/v1/conversations/{id}/usage", payload),
        "32 MB of `[]` to import": ("/v1/snapshots", payload),
        "32 MB of nesting": (append, b"[" * (size // 2) + b"]" * (size // 2)),
        "2.3 million unknown keys": (append, b'{"messages":[],' + _keys(2_300_000) + b"}"),
        "100,000 unknown keys": (append, b'{"messages":[],' + _keys(100_000) + b"}"),
        "100,000 unknown keys to count": ("/v1/tokens/count", b"{" + _keys(100_000) + b"}"),
        "100,000 wrong messages": (
            "/v1/tokens/count",
            b'{"messages":[' + b",".join([b"0"] * 100_000) + b"]}",
        ),
        "100,000 equal keys": (append, b'{"messages":[],' + b",".join([b'"k":0'] * 10**5) + b"}"),
        "one unknown key of 1 MB": (append, b'{"' + b"k" * 10**6 + b'":0}'),
        "a number of 10^6 digits": (append, _message(b"1" * 10**6)),
        "a fraction of 10^6 digits": (append, _message(b"0." + b"1" * 10**6)),
        "32 MB of digits": (append, _message(b"1" * (size - 100))),
        "32 MB of `\\n`": (append, _message(b'"' + b"\\n" * (size // 2 - 50) + b'"')),
        '32 MB of `\\"`': (append, _message(b'"' + b'\\"' * (size // 2 - 50) + b'"')),
        "32 MB of lone surrogates": (append, _message(b'"' + b"\\ud800" * (size // 6 - 50) + b'"')),
        "32 MB that are not UTF-8": (append, _message(b'"' + b"a" * (size - 200) + b'\xff"')),
        "32 MB cut off": (append, _message(b'"' + b"a" * (size - 100))[:-10]),
        "32 MB of `[]` beside a message": (append, _message(_filled(b"[", b"[]", b"]", size - 99))),
        "190,000 values beside a message": (
            append,
            _message(b"[" + b",".join([b"[]"] * 190_000) + b"]"),
        ),
    }
    return results


def _posted(path: str, body: bytes) -> Send:
    def send(port: int, conversation_id: str) -> str:
        with Connection(port) as connection:
            raw = request("POST", path.format(id=conversation_id), body)
            status, answer = connection.exchange(raw)
        return f"{status}, {len(answer):,} bytes"

    return send


def _stored_then_read(port: int, conversation_id: str) -> str:
    """Append messages with as many values as a message may have, then read and build them."""
    path = f"/v1/conversations/{conversation_id}"
    extra: list[list[int]] = [[]] * 9_000
    statuses = []
    with Connection(port) as connection:
        for _ in range(10):
            batch = [{"role": "user", "content": "hi", "x": extra} for _ in range(20)]
            raw = request("POST", f"{path}/messages", orjson.dumps({"messages": batch}))
            statuses.append(connection.exchange(raw)[0])
        for raw in (
            request("GET", f"{path}/messages?limit=100"),
            request("POST", f"{path}/context", b"{}"),
        ):
            statuses.append(connection.exchange(raw)[0])
    return ", ".join(str(status) for status in dict.fromkeys(statuses))


# --- what is no whole request -------------------------------------------------------------


def _opened(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS)


def _answer_of(opened: socket.socket) -> str:
    """Return the status line that comes, or what became of the connection."""
    try:
        line = opened.recv(65_536).partition(b"\r\n")[0].decode(errors="replace")
    except TimeoutError:
        return f"still open after {TIMEOUT_SECONDS} s"
    except OSError:
        return "closed"
    return line.removeprefix("HTTP/1.1 ") or "closed"


def _endless(begin: bytes, piece: bytes, size: int = HEADER_BYTES) -> Send:
    """Send a beginning, and then a piece repeatedly until the server has enough."""

    def send(port: int, _conversation_id: str) -> str:
        sent = 0
        with _opened(port) as opened:
            opened.sendall(begin)
            many = piece * max(1, 65_536 // len(piece))
            opened.settimeout(5)
            with suppress(OSError):
                while sent < size:
                    opened.sendall(many)
                    sent += len(many)
            return f"{_answer_of(opened)} after {sent >> 10:,} KiB"

    return send


def _half_open(begin: bytes) -> Send:
    """Open connections that begin a request and never end it; wait until they are closed."""

    def send(port: int, _conversation_id: str) -> str:
        began = time.perf_counter()
        opened = [_opened(port) for _ in range(HALF_OPEN_CONNECTIONS)]
        for each in opened:
            each.sendall(begin)
        deadline = began + TIMEOUT_SECONDS
        left = len(opened)
        for each in opened:
            each.settimeout(max(0.01, deadline - time.perf_counter()))
            with suppress(TimeoutError):
                try:
                    while each.recv(65_536):
                        pass
                except ConnectionError:
                    pass
                left -= 1
            each.close()
        return f"{left} of {len(opened)} open after {time.perf_counter() - began:.0f} s"

    return send


_HEAD = b"POST /v1/tokens/count HTTP/1.1\r\nHost: 127.0.0.1\r\n"
_CHUNKED = _HEAD + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


def _head_of(*lines: bytes) -> Send:
    def send(port: int, _conversation_id: str) -> str:
        with _opened(port) as opened:
            opened.sendall(
                b"\r\n".join((b"GET /healthz HTTP/1.1", *lines, b"Connection: close")) + b"\r\n\r\n"
            )
            return _answer_of(opened)

    return send


def _cases(quick: bool) -> Sequence[Case]:
    cases = [Case(name, _posted(path, body)) for name, (path, body) in bodies().items()]
    cases += [
        Case("200 messages of 9,000 values, read", _stored_then_read),
        Case("200 MB of one header", _endless(_HEAD + b"X: ", b"a")),
        Case("200 MB of headers", _endless(_HEAD, b"X: y\r\n")),
        Case("200 MB of request line", _endless(b"GET /", b"a")),
        Case("200 MB of chunk extension", _endless(_CHUNKED + b"1;", b"a")),
        Case("200 MB of trailers", _endless(_CHUNKED + b"0\r\n", b"X: y\r\n")),
        Case("32 MB in chunks of a byte", _endless(_CHUNKED, b"1\r\n \r\n")),
        Case("no Host", _head_of()),
        Case("two Hosts", _head_of(b"Host: a", b"Host: b")),
    ]
    if not quick:
        cases += [
            Case(f"{HALF_OPEN_CONNECTIONS} connections without a byte", _half_open(b"")),
            Case(f"{HALF_OPEN_CONNECTIONS} half heads", _half_open(_HEAD)),
            Case(f"{HALF_OPEN_CONNECTIONS} half bodies", _half_open(_CHUNKED + b"1\r\n{\r\n")),
        ]
    return cases
