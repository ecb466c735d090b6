"""Migrations, on a real database: once, by one process, within limits, and only when needed.

[operation.migrate]
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from app.database.embedded import running
from app.database.migrate import MIGRATIONS, MigrationError, is_current, migrate, newest_revision
from tests.commands import environment

pytestmark = pytest.mark.one_server
REVISION = """
from alembic import op

revision = "{number:04}"
down_revision = {before!r}


def upgrade() -> None:
    op.execute("{statement}")
"""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server of these tests' own."""
    with running(tmp_path_factory.mktemp("migrate")) as url:
        yield url


@pytest.fixture
def url(server: str, request: pytest.FixtureRequest) -> str:
    """The URL of a new, empty database."""
    name = f"test_{abs(hash(request.node.nodeid))}"
    value(server, f"DROP DATABASE IF EXISTS {name}")
    value(server, f"CREATE DATABASE {name}")
    return server.replace("/context_service?", f"/{name}?")


@pytest.fixture
def migrations(tmp_path: Path) -> Path:
    """A folder like the real one, with two small revisions."""
    folder = tmp_path / "100% own migrations"
    (folder / "versions").mkdir(parents=True)
    shutil.copy(MIGRATIONS / "env.py", folder)
    add(folder, 1, "CREATE TABLE one (id int)")
    add(folder, 2, "CREATE TABLE two (id int)")
    return folder


def add(folder: Path, number: int, statement: str) -> None:
    """Write a revision of one statement."""
    before = f"{number - 1:04}" if number > 1 else None
    text = REVISION.format(number=number, before=before, statement=statement)
    (folder / "versions" / f"{number:04}_step.py").write_text(text)


def value(url: str, statement: str) -> object:
    """Run one statement and return its first value."""

    async def ask() -> object:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    return asyncio.run(ask())


def run(url: str, statements: str) -> None:
    """Run several statements."""

    async def ask() -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(statements)
        await connection.close()

    asyncio.run(ask())


def test_migrates_once(url: str, migrations: Path) -> None:
    """An empty database becomes current, and a second run changes nothing."""
    assert not is_current(url, migrations)
    migrate(url, migrations)
    assert is_current(url, migrations)
    migrate(url, migrations)
    assert value(url, "SELECT version_num FROM alembic_version") == "0002"
    assert value(url, "SELECT to_regclass('two')::text") == "two"


def test_concurrent_processes_migrate_once(url: str, migrations: Path) -> None:
    """Several processes may start together; one migrates and the others find it done."""
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(migrate, url, migrations)
        command = "import sys; from pathlib import Path; from app.database.migrate import"
        command += " migrate; migrate(sys.argv[1], Path(sys.argv[2]))"
        others = [
            subprocess.Popen((sys.executable, "-c", command, url, str(migrations)))
            for _ in range(2)
        ]
        assert [process.wait() for process in others] == [0, 0]
        first.result()
    assert is_current(url, migrations)


def test_failed_migration_is_rolled_back(url: str, migrations: Path) -> None:
    """A revision that fails leaves the ones before it and nothing of itself."""
    add(migrations, 3, "CREATE TABLE three (id int); SELECT 1/0")
    with pytest.raises(MigrationError, match="rolled back"):
        migrate(url, migrations)
    assert value(url, "SELECT version_num FROM alembic_version") == "0002"
    assert value(url, "SELECT to_regclass('three')") is None


WAITING = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE wait_event_type = 'Lock' AND datname = current_database()"
)


def test_a_lock_timeout_is_retried(url: str, migrations: Path) -> None:
    """A migration that gets no lock in time lets others go first, and is tried again (rule 4)."""
    migrate(url, migrations)
    impatient = (
        "SET LOCAL lock_timeout = '50ms'\"); op.execute(\"ALTER TABLE one ADD COLUMN two int"
    )
    add(migrations, 3, impatient)

    async def held() -> None:
        holder = await asyncpg.connect(url)
        async with holder.transaction():
            await holder.execute("LOCK TABLE one IN ACCESS SHARE MODE")
            migrating = asyncio.create_task(asyncio.to_thread(migrate, url, migrations))
            for is_waiting in (True, False):  # it waits, and gives up
                while bool(await asyncio.to_thread(value, url, WAITING)) is not is_waiting:
                    assert not migrating.done()
        await holder.close()
        await migrating

    asyncio.run(held())
    assert is_current(url, migrations)


def test_head_equals_that_of_alembic(url: str) -> None:
    """The real revisions are numbered as their files, and all of them run (rule 1)."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    assert ScriptDirectory.from_config(config).get_current_head() == f"{newest_revision():04}"
    migrate(url)
    assert is_current(url)


"""What a schema consists of."""


def alembic(url: str, *arguments: str) -> str:
    """Run Alembic's command line as a developer does, and return what it prints."""
    done = subprocess.run(
        (sys.executable, "-m", "alembic", *arguments),
        env=environment(CONTEXT_DATABASE_URL=url),
        cwd=MIGRATIONS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
