"""What most measurements need: one PostgreSQL, and on it the service and both floors."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson

from app.database.embedded import running
from benchmarks import floors
from benchmarks.connection import Connection
from benchmarks.processes import PostgresProcesses, Served, floor_b, service

MODEL = "gpt-4o"
"""A model with a window of 128 000 tokens, counted by o200k."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The running parts: all of them on loopback, all over the same PostgreSQL server."""

    data_dir: Path
    url: str
    log: Path
    service: Served
    floor_b: Served

    @property
    def postgres(self) -> PostgresProcesses:
        """The processes of the PostgreSQL that all of them share."""
        return PostgresProcesses(self.data_dir)


@contextmanager
def database() -> Iterator[tuple[Path, str, Path]]:
    """Run the service's own PostgreSQL in a fresh directory; yield directory, URL and log."""
    with tempfile.TemporaryDirectory(prefix="context-service-bench-") as folder:
        data_dir, log = Path(folder, "data"), Path(folder, "processes.log")
        with running(data_dir) as url:
            asyncio.run(floors.create(url))
            yield data_dir, url, log


@contextmanager
def stage() -> Iterator[Stage]:
    """Run everything for one measurement; without a worker."""
    with (
        database() as (data_dir, url, log),
        service(data_dir, "--no-worker", log=log) as served,
        floor_b(url, log) as floor,
    ):
        yield Stage(data_dir, url, log, served, floor)


def create_conversation(connection: Connection) -> str:
    """Make a conversation of the measured model and return its id."""
    answer = orjson.loads(connection.post("/v1/conversations", {"model": MODEL}))
    return str(answer["conversation_id"])


def report(text: str) -> None:
    """Print what is happening."""
    print(text, file=sys.stderr, flush=True)
