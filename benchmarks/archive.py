"""Archiving and restoring conversations: bytes on disk, time and memory.

1. Conversations of the workload are appended over HTTP and built, and half of them are searched:
   then all their messages are in the index of words, as compacted ones are. A longer one repeats
   the messages of the shortest (`log_copies`).
2. This process archives them, as a worker does, into a folder. A request over HTTP restores them:
   its time is beside that of the same request to the restored conversation.
3. The bytes on disk are those of all tables with their indexes, after VACUUM FULL.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import uvloop

from app.adapters.blobs.archives import ArchiveObjects
from app.adapters.blobs.object_store import ObjectStore
from app.adapters.postgres.common.connections import Store
from app.adapters.postgres.database import PostgresDatabase
from app.services.conversations.archives import ArchiveService
from benchmarks.connection import Connection, UnexpectedAnswer
from benchmarks.figures import Section, ms, p50
from benchmarks.log_copies import copying, extend
from benchmarks.processes import CpuMeter, PostgresProcesses, service
from benchmarks.stage import create_conversation, database, report
from benchmarks.workload import Message, conversation

SIZES, QUICK_SIZES = (1_000, 10_000), (1_000,)
ROUNDS, QUICK_ROUNDS = 5, 2
BATCH = 100
AFTER = timedelta(days=7)
_DISK = """
    SELECT sum(pg_total_relation_size(oid)) FROM pg_class
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
"""


@dataclass(slots=True)
class Archived:
    """The measurements of one conversation."""

    conversation_id: UUID
    size: int
    is_searched: bool
    archive: list[float] = field(default_factory=list)
    archive_cpu: list[float] = field(default_factory=list)
    archive_postgres: list[float] = field(default_factory=list)
    restore: list[float] = field(default_factory=list)
    restore_cpu: list[float] = field(default_factory=list)
    restore_postgres: list[float] = field(default_factory=list)
    read: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    disk_bytes: int = 0
    left_bytes: int = 0
    text_bytes: int = 0
    object_bytes: int = 0

    @property
    def title(self) -> str:
        """The first cell of its row."""
        return f"{self.size:,}{', searched' if self.is_searched else ''}"

    @property
    def path(self) -> str:
        """The path of the conversation."""
        return f"/v1/conversations/{self.conversation_id}"


def measure(quick: bool) -> Section:
    """Archive and restore, and report it."""
    sizes, rounds = (QUICK_SIZES, QUICK_ROUNDS) if quick else (SIZES, ROUNDS)
    with database() as (data_dir, url, log):
        found = uvloop.run(_measure(data_dir, url, log, sizes, rounds))
    section = Section("archive", "conversations to the object store and back")
    section.add_text(
        f"p50 of {rounds} rounds. CPU is that of the process and, after the plus, of PostgreSQL."
        " Memory is what the archiving process took at most above what it had."
    )
    section.add_table(
        (
            *("messages", "archive, ms", "its CPU, ms", "ms per 10,000", "memory, MiB"),
            *("restore by a read, ms", "its CPU, ms", "ms per 10,000", "the read alone, ms"),
        ),
        [
            (
                *(it.title, ms(p50(it.archive))),
                f"{ms(p50(it.archive_cpu))} + {ms(p50(it.archive_postgres))}",
                *(ms(p50(it.archive) / it.size * 10_000), f"{it.peak_bytes / 2**20:.0f}"),
                ms(p50(it.restore)),
                f"{ms(p50(it.restore_cpu))} + {ms(p50(it.restore_postgres))}",
                *(ms(p50(it.restore) / it.size * 10_000), ms(p50(it.read))),
            )
            for it in found
        ],
    )
    section.add_table(
        (
            *("messages", "on disk, bytes per message", "left when archived"),
            *("text of the archive", "its object", "object against disk"),
        ),
        [
            (
                it.title,
                *(f"{total / it.size:,.0f}" for total in (it.disk_bytes, it.left_bytes)),
                *(f"{total / it.size:,.0f}" for total in (it.text_bytes, it.object_bytes)),
                f"{it.object_bytes / it.disk_bytes:.1%}",
            )
            for it in found
        ],
    )
    return section


async def _measure(
    data_dir: Path, url: str, log: Path, sizes: tuple[int, ...], rounds: int
) -> list[Archived]:
    objects = f"file://{data_dir.parent}/objects"
    store = Store(url)
    archives = ArchiveService(
        PostgresDatabase(store),
        ArchiveObjects(ObjectStore(objects)),
        lambda: str(uuid4()),
        lambda: datetime.now(UTC) + 2 * AFTER,
        AFTER,
    )
    found = []
    environ = {"CONTEXT_BLOB_STORE_URL": objects}
    with service(data_dir, "--no-worker", environ=environ, log=log) as served:
        connection = await asyncpg.connect(url, command_timeout=600)
        meter = CpuMeter(PostgresProcesses(data_dir))
        for size, is_searched in product(sizes, (False, True)):
            report(f"archive: {size:,} messages")
            empty = await _disk(connection)
            with Connection(served.port) as http:
                it = Archived(await _filled(http, url, size), size, is_searched)
                if is_searched:
                    http.get(f"{it.path}/messages?limit=1&q=server")
            it.disk_bytes = await _disk(connection) - empty
            for number in range(rounds):
                await connection.execute("UPDATE heads SET due_at = NULL")
                it.peak_bytes = max(it.peak_bytes, await _archive(archives, meter, it))
                if not number:
                    it.left_bytes = await _disk(connection) - empty
                    (sizes_of,) = await connection.fetch(
                        "SELECT text_bytes, object_bytes FROM archives WHERE conversation_id = $1",
                        it.conversation_id,
                    )
                    it.text_bytes, it.object_bytes = sizes_of
                with Connection(served.port) as http:
                    before = meter.read(served)
                    it.restore.append(_read(http, it))
                    spent = meter.since(before, served)
                    it.read.append(_read(http, it))
                it.restore_cpu.append(spent.server)
                it.restore_postgres.append(spent.postgres)
            with Connection(served.port) as http:
                http.send(f"DELETE {it.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            found.append(it)
        await connection.close()
    await store.close()
    return found


async def _filled(http: Connection, url: str, size: int) -> UUID:
    """Return a conversation of so many messages."""
    conversation_id = UUID(create_conversation(http))
    path = f"/v1/conversations/{conversation_id}"
    shortest = min(size, SIZES[0])
    messages: list[Message] = []
    for message in conversation(seed=1):
        if len(messages) >= shortest and message["role"] == "user":
            break
        messages.append(message)
    for start in range(0, len(messages), BATCH):
        http.post(f"{path}/messages", {"messages": messages[start : start + BATCH]})
    if size > shortest:
        async with copying(url) as copies:
            await extend(copies, conversation_id, 1, len(messages), size // len(messages) - 1)
    http.post(f"{path}/context", {})
    return conversation_id


async def _archive(archives: ArchiveService, meter: CpuMeter, it: Archived) -> int:
    """Archive the conversation; return the most memory that it took."""
    Path("/proc/self/clear_refs").write_text("5")  # begins the peak anew
    memory, own, before, started = _status("VmRSS"), time.process_time(), meter.read(), _now()
    if await archives.archive_all() != 1:
        raise UnexpectedAnswer("the conversation was not archived")
    it.archive.append(_now() - started)
    it.archive_cpu.append(time.process_time() - own)
    it.archive_postgres.append(meter.since(before).postgres)
    return _status("VmHWM") - memory


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


async def _disk(connection: asyncpg.Connection) -> int:
    await connection.execute("VACUUM FULL")
    return int(await connection.fetchval(_DISK))


def _read(http: Connection, it: Archived) -> float:
    started = _now()
    http.get(f"{it.path}/messages?limit=1")
    return _now() - started


_now = time.perf_counter
