"""What a node of a Citus cluster that is down or hangs takes with it: its conversations only.

The nodes have to be those of `deploy/citus/cluster.py` on this machine. No other test may use the
cluster meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

import httpx
import psutil
import pytest
import pytest_asyncio

from app.database.citus import uuid_hash
from tests.api.talk import append, new_conversation, user
from tests.conftest import CITUS, CITUS_URL, execute

pytestmark = pytest.mark.skipif(CITUS_URL is None, reason="they need a Citus cluster")

STATUS = {"status_preamble": "auto"}


@dataclass(frozen=True)
class Worker:
    """A worker node, and a conversation of an agent that is stored there."""

    folder: Path
    conversation: str

    @contextmanager
    def down(self) -> Iterator[None]:
        """Stop the node for the block."""
        script = [sys.executable, str(CITUS / "cluster.py")]
        cluster = str(self.folder.parent)
        subprocess.run([*script, "stop", cluster, "--node", self.folder.name], check=True)
        try:
            yield
        finally:
            subprocess.run([*script, "start", cluster], check=True, stdout=subprocess.DEVNULL)

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Let the node's processes answer nothing during the block."""
        pid = int((self.folder / "postmaster.pid").read_text(encoding="ascii").split()[0])
        server = psutil.Process(pid)
        held = [server, *server.children()]
        for process in held:
            process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in held:
                os.kill(process.pid, signal.SIGCONT)


@pytest_asyncio.fixture
async def workers(client: httpx.AsyncClient, database_url: str) -> AsyncIterator[list[Worker]]:
    """Two nodes, each with a conversation of the same agent, which was built."""
    folders = {
        row["nodeid"]: Path(row["result"])
        for row in await execute(
            database_url,
            "SELECT nodeid, result FROM run_command_on_workers('SHOW data_directory')"
            " JOIN pg_dist_node USING (nodename, nodeport)",
        )
    }
    if len(folders) < 2 or not all(
        (folder / "postmaster.pid").exists() for folder in folders.values()
    ):
        pytest.skip("the nodes of the cluster are on other machines")
    agent = await client.post("/v1/agents", json={"agent_id": "a", "name": "A", "policy": STATUS})
    assert agent.status_code == 201, agent.text
    found: dict[int, Worker] = {}
    while len(found) < 2:
        key = str(uuid4())
        (row,) = await execute(
            database_url,
            "SELECT nodeid FROM pg_dist_placement JOIN pg_dist_node USING (groupid)"
            " WHERE shardid = get_shard_id_for_distribution_column('conversations', $1::uuid)",
            key,
        )
        if row["nodeid"] not in found:
            path = await new_conversation(client, conversation_id=key, agent_id="a")
            await append(client, path, user("hello"))
            assert (await client.post(f"{path}/context", json={})).status_code == 200
            found[row["nodeid"]] = Worker(folders[row["nodeid"]], path)
    yield list(found.values())


async def test_a_node_that_is_down_takes_only_its_conversations(
    client: httpx.AsyncClient, workers: list[Worker]
) -> None:
    """Another conversation of the same agent is appended to, built and deleted as before."""
    lost, kept = workers
    with lost.down():
        await append(client, kept.conversation, user("still there?"))
        built = await client.post(f"{kept.conversation}/context", json={})
        assert built.status_code == 200, built.text
        deleted = await client.delete(kept.conversation)
        assert deleted.status_code == 200, deleted.text
        refused = await client.post(f"{lost.conversation}/context", json={})
        assert refused.status_code == 503, refused.text
    again = await client.post(f"{lost.conversation}/context", json={})
    assert again.status_code == 200, again.text


async def test_a_node_that_hangs_takes_only_its_conversations(
    client: httpx.AsyncClient, workers: list[Worker]
) -> None:
    """As many requests as wait for it, those for another node are answered meanwhile."""
    lost, kept = workers
    with lost.hanging():
        waiting = [
            asyncio.create_task(client.post(f"{lost.conversation}/context", json={}))
            for _ in range(30)
        ]
        for number in range(5):
            begun = time.monotonic()
            await append(client, kept.conversation, user(f"still there? {number}"))
            built = await client.post(f"{kept.conversation}/context", json={})
            assert built.status_code == 200, built.text
            assert time.monotonic() - begun < 4
        refused = await asyncio.gather(*waiting)
        assert {each.status_code for each in refused} == {503}
    assert (await client.post(f"{lost.conversation}/context", json={})).status_code == 200


async def test_keys_are_hashed_as_citus_does(database_url: str) -> None:
    """The node of a conversation is known without a question to the database."""
    for key in [UUID(int=0), *(uuid4() for _ in range(20))]:
        (row,) = await execute(database_url, "SELECT uuid_hash($1)", key)
        assert row[0] == uuid_hash(key.bytes)
