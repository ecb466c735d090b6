"""Backup and restore of a whole database, with the commands and real servers.

[operation.backup]
"""

from __future__ import annotations

import asyncio
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest

from app.database.embedded import DATABASE
from app.main import create_app
from app.settings import Settings
from tests.api.talk import append, new_conversation, talk, user
from tests.commands import COMMAND, environment
from tests.conftest import Server, execute, in_thread, started

pytestmark = [pytest.mark.direct, pytest.mark.one_server]

TABLES = """
    SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
"""
"""How many logs are not dense, or have other sums than their head."""


async def act(client: httpx.AsyncClient) -> None:
    """Fill most tables: an agent, a conversation with outputs, forks, snapshots, a compaction."""
    agent = {"name": "A", "agent_id": "a", "sections": [{"name": "s", "content": "x"}]}
    await post(client, "/v1/agents", agent)
    path = await new_conversation(client, agent_id="a")
    await append(client, path, *talk(60, "some words of a talk that goes on "))
    await post(client, f"{path}/context", {"format": "openai_chat"})
    uploaded = await client.post(f"{path}/blobs", content=b"one\ntwo\n")
    assert uploaded.is_success, uploaded.text
    for url in (f"{path}/fork", "/v1/agents/a/snapshots", f"{path}/snapshots"):
        await post(client, url)
    assert (await post(client, f"{path}/compact"))["compacted"]
    model = await client.put("/v1/models/mine/own", json={"context_window": 9_000})
    assert model.is_success, model.text


async def post(client: httpx.AsyncClient, url: str, body: object = None) -> Any:
    """Return the body of a successful answer."""
    answer = await client.post(url, json=body or {})
    assert answer.is_success, answer.text
    return answer.json()


async def rows_of(url: str) -> dict[str, list[str]]:
    """Return the rows of every table as text, in one order."""
    connection = await asyncpg.connect(url)
    try:
        rows = {}
        for (name,) in await connection.fetch(TABLES):
            found = await connection.fetch(f"SELECT t::text FROM {name} t ORDER BY 1")
            rows[name] = [text for (text,) in found]
        return rows
    finally:
        await connection.close()


async def command(
    *arguments: Any, url: str | None = None, sent: bytes | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run a command of the command line in a process, with bytes for its standard input."""
    environ = environment(**({"CONTEXT_DATABASE_URL": url} if url else {}))
    line = (*COMMAND, *map(str, arguments))
    return await asyncio.to_thread(
        lambda: subprocess.run(line, input=sent, env=environ, capture_output=True, check=False)
    )


async def succeed(*arguments: Any, url: str, sent: bytes | None = None) -> bytes:
    """Run a command that must succeed, and return its output."""
    done = await command(*arguments, url=url, sent=sent)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def empty(server: Server) -> Iterator[str]:
    """Yield the URL of a new database, which has no tables."""
    name = f"empty_{uuid4().hex}"
    in_thread(execute, server.url_of(DATABASE), f'CREATE DATABASE "{name}"')
    try:
        yield server.url_of(name)
    finally:
        in_thread(execute, server.url_of(DATABASE), f'DROP DATABASE "{name}" WITH (FORCE)')


async def test_a_restored_database_has_every_row(
    settings: Settings, database_url: str, server: Server, tmp_path: Path
) -> None:
    """Every table is the same, and the service goes on with it."""
    settings = settings.model_copy(update={"default_model": "gpt-4o"})
    async with started(create_app(settings)) as client:
        await act(client)
    file = tmp_path / "all.dump"
    await succeed("backup", file, url=database_url)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    rows = await rows_of(database_url)
    assert sum(map(bool, rows.values())) >= 15
    with empty(server) as target:
        await succeed("restore", file, url=target)
        assert await rows_of(target) == rows
        own = settings.model_copy(update={"database_url": target, "direct_database_url": None})
        async with started(create_app(own)) as client:
            listed = (await client.get("/v1/conversations")).json()["data"]
            path = f"/v1/conversations/{listed[0]['conversation_id']}"
            await append(client, path, user("One more."))
            body = {"format": "openai_chat"}
            built = await client.post(f"{path}/context", json=body)
            assert "One more." in built.text


async def test_only_an_empty_database_is_restored_to(
    client: httpx.AsyncClient, database_url: str, tmp_path: Path
) -> None:
    """Nothing is overwritten: neither tables nor files."""
    await new_conversation(client)
    file = tmp_path / "b.dump"
    await succeed("backup", file, url=database_url)
    before, written = await rows_of(database_url), file.read_bytes()
    refused = await command("restore", file, url=database_url)
    assert refused.returncode == 1 and b"already exists" in refused.stderr
    again = await command("backup", file, url=database_url)
    assert again.returncode == 1 and b"exists: name a new file" in again.stderr
    assert file.read_bytes() == written
    assert await rows_of(database_url) == before


async def test_a_damaged_file_leaves_the_database_empty(
    client: httpx.AsyncClient, database_url: str, server: Server, tmp_path: Path
) -> None:
    """A file that was cut off, or is no dump, is an error of one line, and nothing is loaded."""
    await append(client, await new_conversation(client), *talk(3))
    whole = await succeed("backup", "-", url=database_url)
    with empty(server) as target:
        for cut in (b"", b"no dump", whole[:4000], whole[: len(whole) // 2], whole[:-2000]):
            refused = await command("restore", "-", url=target, sent=cut)
            assert refused.returncode == 1 and refused.stderr.count(b"\n") == 1, refused.stderr
            assert not await rows_of(target)
