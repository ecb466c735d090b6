"""Processes of the service, started by the command line and ended by the test."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx

from tests.commands import COMMAND, environment
from tests.fake_llm import FakeLLM
from tests.patience import PATIENCE_SECONDS


@contextmanager
def process(
    log: Path, url: str, fake_llm: FakeLLM, *arguments: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command line in a process of its own, which is gone after the block."""
    environ = environment(
        CONTEXT_DATABASE_URL=url,
        CONTEXT_SUMMARIZER_MODEL="openai/fake",
        CONTEXT_SUMMARIZER_API_BASE=fake_llm.api_base,
        CONTEXT_SUMMARIZER_API_KEY="test",
        CONTEXT_WORKER_CONCURRENCY="2",
        CONTEXT_POOL_MAX_SIZE="4",
    )
    with log.open("ab") as out:
        started = subprocess.Popen((*COMMAND, *arguments), env=environ, stdout=out, stderr=out)
    try:
        yield started
    finally:
        started.kill()
        started.wait(PATIENCE_SECONDS)


def until(holds: Any, what: str) -> None:
    """Poll until `holds` is true."""
    deadline = monotonic() + PATIENCE_SECONDS
    while not holds():
        assert monotonic() < deadline, f"Not within {PATIENCE_SECONDS} s: {what}"
        sleep(0.05)


def is_ready(url: str) -> bool:
    """Tell whether the service answers."""
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.TransportError:
        return False
