"""What most measurements need: a PostgreSQL with the floors' database, and a conversation."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson

from app.database.embedded import running
from benchmarks import floors
from benchmarks.connection import Connection

MODEL = "gpt-4o"
"""A model with a window of 128 000 tokens, counted by o200k."""


@contextmanager
def database() -> Iterator[tuple[Path, str, Path]]:
    """Run the service's own PostgreSQL in a fresh directory; yield directory, URL and log."""
    with tempfile.TemporaryDirectory(prefix="context-service-bench-") as folder:
        data_dir, log = Path(folder, "data"), Path(folder, "processes.log")
        with running(data_dir) as url:
            asyncio.run(floors.create(url))
            yield data_dir, url, log


def create_conversation(connection: Connection) -> str:
    """Make a conversation of the measured model and return its id."""
    answer = orjson.loads(connection.post("/v1/conversations", {"model": MODEL}))
    return str(answer["conversation_id"])


def report(text: str) -> None:
    """Print what is happening."""
    print(text, file=sys.stderr, flush=True)
