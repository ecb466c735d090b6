"""Two API processes and two workers on one database, one of them killed in the middle.

[compaction.at-most-once]
"""

from __future__ import annotations

import subprocess
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import httpx

from app.formats.json_fields import compact
from tests.commands import free_port
from tests.fake_llm import FakeLLM, answer, slow
from tests.patience import PATIENCE_SECONDS
from tests.processes import is_ready, process, until

CONVERSATIONS = 6
POLICY = {"budget": {"context_window": 4_096, "max_output_tokens": 512}}


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
    """A worker killed with -9 amid its model calls loses no compaction, doubles none.

    The model is held up while the worker dies; what it had begun is done by the other one.

    [compaction.at-most-once, compaction.never-blocks]
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
        clients = [
            running.enter_context(httpx.Client(base_url=url, timeout=PATIENCE_SECONDS))
            for url in urls
        ]
        doomed = start("worker")
        paths = [fill(clients[number % 2], number) for number in range(CONVERSATIONS)]
        until(arrived.is_set, "the first worker calls the model")
        start("worker")
        doomed.kill()
        doomed.wait(PATIENCE_SECONDS)
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
