"""Bytes and CPU per message: on disk, in the WAL, and for a dump and its restoration.

1. Messages of 1 KB are appended one by one, with a build after every 20, as an agent does. Then
   every conversation is compacted, and its words are indexed by a first search.
2. Sizes are those of all tables with their indexes and TOAST, after VACUUM. A conversation that is
   never compacted or searched has no words.
3. The WAL includes the whole pages that PostgreSQL writes after a checkpoint, and the VACUUM.
4. The dump is that of `pg_dump --format=custom`, restored into an empty database by one job.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote, urlsplit

import uvloop

from app.database.embedded_cluster import programs
from benchmarks.connection import Connection
from benchmarks.figures import Section, times
from benchmarks.log_copies import copying, settle
from benchmarks.processes import PostgresProcesses, service
from benchmarks.stage import create_conversation, database, report
from benchmarks.workload import plain_message

CONVERSATIONS, QUICK_CONVERSATIONS = 100, 20
MESSAGES_EACH = 200
MESSAGE_CHARS = 1_000
BUILD_EVERY = 20
BACKEND_SECONDS = 0.5
"""After so long the backend of a closed connection has ended."""
RESTORED = "restored"
_SIZES = """
    SELECT relname, pg_relation_size(oid), pg_indexes_size(oid), pg_total_relation_size(oid)
    FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
    ORDER BY pg_total_relation_size(oid) DESC
"""
_WAL = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint"
_CPU = ("CPU of the service, ms", "of PostgreSQL")
_SHOWN_BYTES = 20
"""Tables with fewer bytes per message are one row of the table."""


@dataclass(frozen=True, slots=True)
class Table:
    """Bytes of a table: its rows, its indexes, and all with TOAST."""

    name: str
    rows: int
    indexes: int
    total: int


@dataclass(frozen=True, slots=True)
class State:
    """Sizes of all tables, the position of the WAL, and CPU times before and after its VACUUM.

    CPU times are those of the service and of PostgreSQL.
    """

    tables: Sequence[Table]
    wal: int
    before: tuple[float, float]
    after: tuple[float, float]

    @property
    def total(self) -> int:
        """The bytes of all tables."""
        return sum(table.total for table in self.tables)


def measure(quick: bool) -> Section:
    """Fill, compact and index conversations and report what they take."""
    count = QUICK_CONVERSATIONS if quick else CONVERSATIONS
    with (
        database() as (data_dir, url, log),
        service(data_dir, "--no-worker", log=log) as served,
        Connection(served.port) as ours,
    ):

        def cpu() -> tuple[float, float]:
            return served.cpu_seconds, PostgresProcesses(data_dir).cpu_seconds

        def state() -> State:
            before = cpu()
            tables, wal = uvloop.run(_settled(url))
            time.sleep(BACKEND_SECONDS)
            return State(tables, wal, before, cpu())

        empty = state()
        paths = [f"/v1/conversations/{create_conversation(ours)}" for _ in range(count)]
        report(f"disk: appending {count * MESSAGES_EACH:,} messages")
        _append(ours, paths)
        appended = state()
        report("disk: compacting and indexing")
        for path in paths:
            ours.post(f"{path}/compact", {})
        compacted = state()
        for path in paths:
            ours.get(f"{path}/messages?q=index")
        indexed = state()
        report("disk: dumping")
        dump = _dump(url, data_dir.parent)
    section = _section(count * MESSAGES_EACH, (empty, appended, compacted, indexed))
    section.add_text(dump)
    return section


def _append(ours: Connection, paths: Sequence[str]) -> None:
    """Append to all conversations in turns, so that their rows are mixed as in real use."""
    rng = Random(9)
    for place in range(MESSAGES_EACH):
        role = "user" if place % 2 == 0 else "assistant"
        for path in paths:
            message = plain_message(rng, role, MESSAGE_CHARS)
            ours.post(f"{path}/messages", {"messages": [message]})
            if place % BUILD_EVERY == BUILD_EVERY - 1:
                ours.post(f"{path}/context", {})


async def _settled(url: str) -> tuple[list[Table], int]:
    """Vacuum; return the tables and the position of the WAL."""
    async with copying(url) as connection:
        await settle(connection)
        wal: int = await connection.fetchval(_WAL)
        rows: Sequence[Any] = await connection.fetch(_SIZES)
        return [Table(*row) for row in rows], wal


async def _size(url: str) -> int:
    async with copying(url) as connection:
        rows: Sequence[Any] = await connection.fetch(_SIZES)
        return sum(row[3] for row in rows)


def _dump(url: str, folder: Path) -> str:
    """Dump and restore the database, and tell sizes and times."""
    target, into = folder / "dump", _named(url, RESTORED)
    began = time.perf_counter()
    _run("pg_dump", "--format=custom", f"--file={target}", url)
    dumped = time.perf_counter()
    _run("createdb", f"--maintenance-db={url}", RESTORED)
    _run("pg_restore", "--no-owner", f"--dbname={into}", str(target))
    restored = time.perf_counter()
    whole, again = (uvloop.run(_size(each)) for each in (url, into))
    size = target.stat().st_size
    return (
        f"The dump has {size / 2**20:.1f} MiB, {times(size / whole)} of the tables, and took"
        f" {dumped - began:.1f} s ({whole / 2**20 / (dumped - began):.0f} MiB of tables per"
        f" second); the restoration took {restored - dumped:.1f} s"
        f" ({whole / 2**20 / (restored - dumped):.0f} MiB/s), and has {times(again / whole)} of the"
        " bytes."
    )


def _named(url: str, name: str) -> str:
    """Return the URL of another database of the same server."""
    parts = urlsplit(url)
    return parts._replace(path=f"/{quote(name)}").geturl()


def _run(program: str, *arguments: str) -> None:
    subprocess.run((str(programs() / program), *arguments), check=True, stdout=subprocess.DEVNULL)


def _section(messages: int, states: Sequence[State]) -> Section:
    empty, appended, compacted, indexed = states
    section = Section("disk", "bytes per message, with all indexes")
    section.add_text(
        f"{messages:,} messages of {MESSAGE_CHARS} characters in {messages // MESSAGES_EACH}"
        f" conversations, appended one by one, with a build after every {BUILD_EVERY}; after"
        " VACUUM; bytes per message. The worker indexes the words of compacted conversations; here"
        " a search does it."
    )

    def each(size: int) -> str:
        return f"{size / messages:,.0f}"

    section.add_table(
        ("state", "tables and indexes", "WAL since the state before", *_CPU),
        (
            (
                name,
                each(state.total - empty.total),
                each(state.wal - last.wal),
                *(
                    f"{(now - then) * 1000 / messages:.2f}"
                    for now, then in zip(state.before, last.after, strict=True)
                ),
            )
            for name, state, last in (
                ("appended and built", appended, empty),
                ("compacted", compacted, appended),
                ("words indexed", indexed, compacted),
            )
        ),
    )
    large = [table for table in indexed.tables if table.total / messages >= _SHOWN_BYTES]
    rest = [table for table in indexed.tables if table not in large]
    other = Table(
        f"{len(rest)} others",
        sum(table.rows for table in rest),
        sum(table.indexes for table in rest),
        sum(table.total for table in rest),
    )
    section.add_table(
        ("table, in the end", "rows", "indexes", "total, with TOAST"),
        (
            (table.name, each(table.rows), each(table.indexes), each(table.total))
            for table in (*large, other)
        ),
    )
    return section
