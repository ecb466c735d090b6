"""What lists and reads of large messages take of a served process, at most 1 GB where cgroups work.

The service runs in a process of its own over a PostgreSQL of its own. Its peak of resident memory
(`VmHWM`) is set back before each case and read after it. A process that the kernel kills is
started again for the next case.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.connection import Connection, request
from benchmarks.figures import Section
from benchmarks.processes import Served, service
from benchmarks.stage import database, report

LIMIT_BYTES = 2**30
MESSAGES = 100
MESSAGE_BYTES = 4_000_000
CONCURRENT_READS = 16
PAGES_PER_READ = 6
"""How far those at once read, since the client is most of the work."""
STALLED_CONNECTIONS = 100
STALLED_SECONDS = 3.0
_CGROUPS = Path("/sys/fs/cgroup/memory")
_TIMEOUT_SECONDS = 900


def measure(quick: bool) -> Section:
    """Store large messages, read them in every way, and report the peaks."""
    section = Section("page_memory", "memory of a process whose lists hold large messages")
    messages = MESSAGES // 4 if quick else MESSAGES
    rows: list[tuple[str, str, str, str]] = []
    with database() as (data_dir, url, log), limited() as group:
        environ = {"CONTEXT_DATABASE_URL": url}
        with service(data_dir, "--no-worker", environ=environ, log=log) as served:
            agent_id, conversation_id, snapshot_id = _stored(served.port, messages)
        for name, work in _cases(agent_id, conversation_id, snapshot_id).items():
            report(f"page_memory: {name}")
            with service(data_dir, "--no-worker", environ=environ, log=log) as served:
                if group is not None:
                    (group / "cgroup.procs").write_text(str(served.process.pid))
                rows.append((name, *_peak(served, work)))
    limit = "1 GB by a cgroup" if group is not None else "none, cgroups cannot be written here"
    section.add_text(
        f"{messages} messages of {MESSAGE_BYTES / 1e6:.1f} MB in one conversation of an agent;"
        f" limit of memory: {limit}. Each case has a fresh process; those at once are"
        f" {CONCURRENT_READS}."
    )
    section.add_table(("case", "peak of resident memory", "answer", "time"), rows)
    killed = [name for name, _, answer, _ in rows if answer == "killed"]
    section.goal(
        "storage.memory-bounds", "no process is killed", ", ".join(killed) or "none", not killed
    )
    return section


@contextmanager
def limited() -> Iterator[Path | None]:
    """Make a memory cgroup of 1 GB, and yield its directory; None where that is not possible."""
    group = _CGROUPS / "context-service-bench"
    try:
        group.mkdir(exist_ok=True)
        (group / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES))
    except OSError:
        yield None
        return
    try:
        yield group
    finally:
        with suppress(OSError):
            group.rmdir()


def _stored(port: int, messages: int) -> tuple[str, str, str]:
    with Connection(port) as connection:
        agent = json.loads(connection.post("/v1/agents", {"name": "large"}))["agent_id"]
        made = connection.post("/v1/conversations", {"model": "gpt-4o", "agent_id": agent})
        conversation = json.loads(made)["conversation_id"]
        text = "all work and no play " * (MESSAGE_BYTES // 21)
        for number in range(messages):
            message = {"role": "user", "content": f"{number} {text}"}
            connection.post(f"/v1/conversations/{conversation}/messages", {"messages": [message]})
        saved = connection.post(f"/v1/conversations/{conversation}/snapshots", {})
    return agent, conversation, json.loads(saved)["session_id"]


def _cases(agent: str, conversation: str, snapshot: str) -> dict[str, Callable[[int], str]]:
    log = f"/v1/conversations/{conversation}/messages?limit=1000"
    saved = f"/v1/snapshots/{snapshot}?download=true"
    return {
        "transcript": lambda port: _pages(port, log),
        "transcript, at once": lambda port: _at_once(port, log),
        "search": lambda port: _pages(port, f"{log}&q=play"),
        "snapshot": lambda port: _read_answer(port, saved),
        "snapshot, at once": lambda port: _at_once(port, saved),
        f"{STALLED_CONNECTIONS} readers that stop": lambda port: _stalled(port, log),
    }


def _peak(served: Served, work: Callable[[int], str]) -> tuple[str, str, str]:
    status = Path(f"/proc/{served.process.pid}")
    (status / "clear_refs").write_text("5")
    began = time.monotonic()
    try:
        answer = work(served.port)
    except (OSError, http.client.HTTPException) as error:
        answer = type(error).__name__
    seconds = f"{time.monotonic() - began:.1f} s"
    with suppress(OSError, StopIteration):
        lines = (status / "status").read_text().splitlines()
        peak = next(line for line in lines if line.startswith("VmHWM")).split()[1]
        if served.process.poll() is None:
            return f"{int(peak) / 1024:.0f} MiB", answer, seconds
    return "over 1 GB", "killed", seconds


def _read_answer(port: int, path: str) -> str:
    """Read an answer to its end in pieces, without keeping it."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_SECONDS)
    client.request("GET", path)
    answer = client.getresponse()
    size = 0
    while piece := answer.read(2**20):
        size += len(piece)
    client.close()
    return f"{answer.status}, {size / 2**20:.0f} MiB"


def _pages(port: int, path: str, most: int = 10_000) -> str:
    """Follow the cursors of a list to its end, or for so many pages."""
    pages, items, cursor, largest = 0, 0, "", 0
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_SECONDS)
    while True:
        client.request("GET", f"{path}&cursor={cursor}" if cursor else path)
        answer = client.getresponse()
        body = answer.read()
        if answer.status == http.HTTPStatus.SERVICE_UNAVAILABLE:
            time.sleep(1)
            continue
        if answer.status != http.HTTPStatus.OK:
            return f"{answer.status} after {pages} pages"
        page = json.loads(body)
        pages, items, largest = pages + 1, items + len(page["data"]), max(largest, len(body))
        cursor = page["next_cursor"]
        if not cursor or pages == most:
            client.close()
            return f"{items} items on {pages} pages of at most {largest / 2**20:.1f} MiB"


def _at_once(port: int, path: str) -> str:
    def read(_: int) -> str:
        return _pages(port, path, PAGES_PER_READ) if "limit" in path else _read_answer(port, path)

    with ThreadPoolExecutor(CONCURRENT_READS) as pool:
        return "; ".join(sorted(set(pool.map(read, range(CONCURRENT_READS)))))


def _stalled(port: int, path: str) -> str:
    """Ask for pages on many connections, and read nothing."""
    asking = [socket.create_connection(("127.0.0.1", port)) for _ in range(STALLED_CONNECTIONS)]
    for connection in asking:
        connection.sendall(request("GET", path))
    time.sleep(STALLED_SECONDS)
    answered = _read_answer(port, "/healthz")
    for connection in asking:
        connection.close()
    return f"/healthz beside them: {answered}"
