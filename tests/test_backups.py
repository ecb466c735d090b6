"""Backup and restore of a whole database, with the commands and real servers.

[operation.backup]
"""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from app.adapters.postgres.embedded import running
from app.adapters.postgres.maintenance.backups import BackupError, restore_backup, verify
from app.adapters.postgres.migrate import is_current, migrate, newest_revision
from app.main import create_app
from app.settings import Settings
from tests.api.http.test_links import Caller, act
from tests.api.talk import append, calling, new_conversation, result, talk, user
from tests.commands import COMMAND, environment
from tests.conftest import Server, started

pytestmark = pytest.mark.direct

TABLES = """
    SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
"""


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


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    output: bytes
    stderr: str

    @property
    def stdout(self) -> str:
        """The output as text."""
        return self.output.decode()


async def command(*arguments: Any, url: str | None = None, sent: bytes | None = None) -> Done:
    """Run a command of the command line in a process, with bytes for its standard input."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *map(str, arguments),
        env=environment(**({"CONTEXT_DATABASE_URL": url} if url else {})),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    stdout, stderr = await process.communicate(sent)
    return Done(process.returncode or 0, stdout, stderr.decode())


async def succeed(*arguments: Any, url: str | None = None, sent: bytes | None = None) -> Done:
    """Run a command that must succeed."""
    done = await command(*arguments, url=url, sent=sent)
    assert done.code == 0, done.stderr
    return done


@pytest.mark.one_server  # it reads the catalog, with the parts of tables
async def test_a_restored_database_has_every_row(
    settings: Settings, database_url: str, server: Server, tmp_path: Path
) -> None:
    """Every table is the same, and the service goes on with it."""
    settings = settings.model_copy(update={"default_model": "gpt-4o"})
    async with started(create_app(settings)) as client:
        await act(Caller(client))
    file = tmp_path / "all.zip"
    done = json.loads((await succeed("backup", file, "--json", url=database_url)).stdout)
    rows = await rows_of(database_url)
    assert {name: table["rows"] > 0 for name, table in done["tables"].items()} == {
        name: bool(text) for name, text in rows.items() if name != "alembic_version"
    }
    assert sum(table["rows"] > 0 for table in done["tables"].values()) >= 19
    with server.clone() as target:
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


async def test_a_backup_is_of_one_moment(
    client: httpx.AsyncClient, database_url: str, server: Server, tmp_path: Path
) -> None:
    """Appends go on meanwhile; each log in the backup is dense and has the sums of its head."""
    paths = [await new_conversation(client) for _ in range(4)]
    stopping = asyncio.Event()

    async def appending(path: str) -> None:
        while not stopping.is_set():
            await append(client, path, *talk(3))

    tasks = [asyncio.create_task(appending(path)) for path in paths]
    done = await succeed("backup", "-", url=database_url)
    stopping.set()
    await asyncio.gather(*tasks)
    assert "rows of" in done.stderr
    file = tmp_path / "b.zip"
    file.write_bytes(done.output)
    with server.clone() as target:
        await succeed("restore", file, url=target)
        checked = await succeed("check", "--json", url=target)
        assert json.loads(checked.stdout)["problems"] == []


async def test_objects_are_restored_before_their_rows(
    settings: Settings, database_url: str, server: Server, tmp_path: Path
) -> None:
    """With `--objects` a backup has the tool outputs of the object store; else it says how many."""
    stores = [f"file://{tmp_path / name}" for name in ("old", "new")]
    own = settings.model_copy(update={"blob_store_url": stores[0]})
    text = "line of a long output\n" * 20_000
    async with started(create_app(own)) as client:
        path = await new_conversation(client)
        await append(client, path, user("Go."), calling("c"), result("c", text))
    without, whole = tmp_path / "without.zip", tmp_path / "whole.zip"
    said = await succeed("backup", without, url=database_url)
    assert "Not in it: 1 objects" in said.stderr
    await succeed("backup", whole, "--objects", "--blob-store-url", stores[0], url=database_url)
    with server.clone() as target:
        refused = await command("restore", whole, url=target)
        assert refused.code == 1
        assert "1 objects of an object store" in refused.stderr
        await succeed("restore", whole, "--blob-store-url", stores[1], url=target)
        own = own.model_copy(update={"database_url": target, "blob_store_url": stores[1]})
        async with started(create_app(own)) as client:
            (blob,) = (await client.get(f"{path}/blobs")).json()["data"]
            read = await client.get(f"{path}/blobs/{blob['id']}/content")
            assert read.text == text


async def test_only_an_empty_database_is_restored_to(
    client: httpx.AsyncClient, database_url: str, tmp_path: Path
) -> None:
    """Nothing is overwritten: neither rows nor files."""
    await new_conversation(client)
    file = tmp_path / "b.zip"
    await succeed("backup", file, url=database_url)
    before = await rows_of(database_url)
    refused = await command("restore", file, url=database_url)
    assert refused.code == 1 and "is not empty" in refused.stderr
    again = await command("backup", file, url=database_url)
    assert again.code == 1 and "exists" in again.stderr
    assert await rows_of(database_url) == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["b.zip"]


async def test_private_databases_are_restored_to(tmp_path: Path, database_url: str) -> None:
    """A private database that does not exist is created, and one of an older schema migrated."""
    with running(tmp_path / "old") as old:
        await asyncio.to_thread(migrate, old, revision=newest_revision() - 1)
        connection = await asyncpg.connect(old)
        await connection.execute("INSERT INTO tenants (tenant_id, created_at) VALUES ('t', now())")
        await connection.close()
        file = tmp_path / "b.zip"
        done = await succeed("backup", file, "--json", url=old)
        assert json.loads(done.stdout)["revision"] == newest_revision() - 1
    await succeed("restore", "-", "--data-dir", tmp_path / "new", sent=file.read_bytes())
    with running(tmp_path / "new") as new:
        assert await asyncio.to_thread(is_current, new)
        assert "t" in str((await rows_of(new))["tenants"])
    refused = await command("restore", file, url=database_url)
    assert refused.code == 1 and "restore into a new database" in refused.stderr


LINES = "".join(f"tenant {n}\n" for n in range(300)).encode()


@pytest.fixture(scope="module")
def written() -> bytes:
    """A small backup, as bytes."""
    file = io.BytesIO()
    manifest = {
        "created_at": "2026-01-01T00:00:00+00:00",
        "service_version": "1",
        "server_version": "18",
        "revision": 1,
        "tables": {"tenants": {"columns": ["tenant_id"], "rows": 300}},
    }
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tables/tenants", LINES)
        archive.writestr(
            "manifest.json", json.dumps(manifest | {"sequences": {}, "objects": 0, "format": 1})
        )
    assert verify(file).rows == 300
    return file.getvalue()


@examples(max_examples=150)
@given(st.data())
def test_damage_is_found(written: bytes, data: st.DataObject) -> None:
    """A backup that is cut off is refused, and so are other rows than those written."""
    if data.draw(st.booleans()):
        damaged = written[: data.draw(st.integers(0, len(written) - 1))]
    else:
        start = written.index(b"tables/tenants") + len("tables/tenants")
        at = data.draw(st.integers(start, written.index(b"PK", start) - 1))
        changed = data.draw(st.integers(1, 255))
        damaged = written[:at] + bytes([written[at] ^ changed]) + written[at + 1 :]
    try:
        verify(io.BytesIO(damaged))
    except BackupError:
        return
    # The bits after the end of compressed bytes mean nothing.
    with zipfile.ZipFile(io.BytesIO(damaged)) as archive:
        assert archive.read("tables/tenants") == LINES


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ({"format": 2}, "format 2"),
        ({"revision": 9999}, "newer version"),
        ({"tables": {"tenants; DROP": {"columns": ["x"], "rows": 300}}}, "entries"),
        ({"tables": {"tenants": {"columns": ["x"], "rows": 299}}}, "300 rows"),
        ({"tables": {"tenants": {"columns": ["x"], "rows": 300}}}, "unknown"),
        ({"tables": []}, "manifest"),
        ({"more": 1}, "manifest"),
    ],
)
async def test_what_is_no_backup_is_refused(
    written: bytes, database_url: str, manifest: dict[str, Any], said: str
) -> None:
    """Files of other versions and of other programs change nothing."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(written)) as old, zipfile.ZipFile(file, "w") as new:
        new.writestr("tables/tenants", old.read("tables/tenants"))
        given = json.loads(old.read("manifest.json")) | {"revision": newest_revision()} | manifest
        new.writestr("manifest.json", json.dumps(given))
    before = await rows_of(database_url)
    with pytest.raises(BackupError, match=said):
        verify(file)
        await restore_backup(database_url, file)
    assert await rows_of(database_url) == before
