"""Two API processes and two workers on one database, one of them killed in the middle (E6, A8)."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import Any

import httpx

from app.domain.formats.json_fields import compact
from tests.commands import COMMAND, environment, free_port
from tests.fake_llm import FakeLLM, answer, slow

SECONDS = 90.0
CONVERSATIONS = 6
POLICY = {"budget": {"context_window": 4_096, "max_output_tokens": 512}}


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
        started.wait(20)


def until(holds: Any, what: str) -> None:
    """Poll until `holds` is true."""
    deadline = monotonic() + SECONDS
    while not holds():
        assert monotonic() < deadline, f"Not within {SECONDS} s: {what}"
        sleep(0.05)


def is_ready(url: str) -> bool:
    """Tell whether the service answers."""
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def fill(client: httpx.Client, number: int) -> str:
    """Make a conversation that is due, and return its path."""
    created = client.post("/v1/conversations", json={"model": "gpt-4o", "policy": POLICY})
    path = f"/v1/conversations/{created.json()['conversation_id']}"
    for turn in range(14):
        text = f"conversation {number} turn {turn} " + "word " * 180
        batch = [{"role": "user", "content": text}, {"role": "assistant", "content": "Noted."}]
        client.post(f"{path}/messages", json={"messages": batch}).raise_for_status()
    return path


def receipts(client: httpx.Client, path: str) -> list[dict[str, Any]]:
    """Return the receipts of a conversation."""
    found: list[dict[str, Any]] = client.get(f"{path}/compactions").json()["data"]
    return found


def test_nothing_is_compacted_twice_and_nothing_lost(
    database_url: str, fake_llm: FakeLLM, tmp_path: Path
) -> None:
    """E6, E11, A8: a worker killed with -9 amid its model calls loses no compaction, doubles none.

    The model is held up while the worker dies; what it had begun is done by the other one.
    """
    released, arrived = Event(), Event()
    good = answer("<summary>What was said so far, in short.</summary>")
    fake_llm.always(slow(released, good, arrived))
    ports = [free_port(), free_port()]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    log = tmp_path / "log"
    with ExitStack() as running:

        def start(*arguments: str) -> subprocess.Popen[bytes]:
            return running.enter_context(process(log, database_url, fake_llm, *arguments))

        for port in ports:
            start("serve", "--no-worker", "--port", str(port))
        for url in urls:
            until(lambda url=url: is_ready(url), "both API processes answer")
        clients = [running.enter_context(httpx.Client(base_url=url, timeout=30)) for url in urls]
        doomed = start("worker")
        paths = [fill(clients[number % 2], number) for number in range(CONVERSATIONS)]
        until(arrived.is_set, "the first worker calls the model")
        start("worker")
        doomed.kill()
        doomed.wait(20)
        released.set()
        for number, path in enumerate(paths):
            client = clients[(number + 1) % 2]
            until(lambda c=client, p=path: receipts(c, p), "every conversation is compacted")
        for path in paths:
            (receipt,) = receipts(clients[0], path)
            assert (receipt["trigger"], receipt["status"]) == ("background", "active")
            types = Counter(
                line.removeprefix("event: ")
                for line in clients[1]
                .get(f"{path}/events?follow=false&last_event_id=0.0")
                .text.splitlines()
                if line.startswith("event: ")
            )
            assert types["compacted"] == 1
            built = [client.post(f"{path}/context", json={}).json() for client in clients]
            assert compact(built[0]["payload"]) == compact(built[1]["payload"])
            assert built[0]["summary_used"]
