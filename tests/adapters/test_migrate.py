"""Migrations, on a real database: once, by one process, within limits, and only when needed."""

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

from app.adapters.postgres.embedded import running
from app.adapters.postgres.migrate import MIGRATIONS, MigrationError, head, is_current, migrate

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


def test_migrates_once(url: str, migrations: Path) -> None:
    """An empty database becomes current, and stays it without a second run."""
    assert not is_current(url, migrations)
    migrate(url, migrations)
    assert is_current(url, migrations)
    migrate(url, migrations)
    assert value(url, "SELECT version_num FROM alembic_version") == "0002"
    assert value(url, "SELECT to_regclass('two')::text") == "two"


def test_only_what_is_missing_runs(url: str, migrations: Path) -> None:
    """A database of an earlier release gets the later revisions only."""
    migrate(url, migrations)
    add(migrations, 3, "CREATE TABLE three (id int)")
    assert not is_current(url, migrations)
    migrate(url, migrations)
    assert is_current(url, migrations)


def test_processes_that_start_at_once_migrate_once(url: str, migrations: Path) -> None:
    """Several processes may start together; one migrates and the others find it done."""
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(migrate, url, migrations)
        command = "import sys; from pathlib import Path; from app.adapters.postgres.migrate import"
        command += " migrate; migrate(sys.argv[1], Path(sys.argv[2]))"
        others = [
            subprocess.Popen((sys.executable, "-c", command, url, str(migrations)))
            for _ in range(2)
        ]
        assert [process.wait() for process in others] == [0, 0]
        first.result()
    assert is_current(url, migrations)


def test_newer_schema_counts_as_current(url: str, migrations: Path) -> None:
    """The previous release may start again beside a schema that is already newer."""
    migrate(url, migrations)
    (migrations / "versions" / "0002_step.py").unlink()
    assert is_current(url, migrations)
    migrate(url, migrations)


def test_failed_migration_is_rolled_back(url: str, migrations: Path) -> None:
    """A revision that fails leaves the ones before it and nothing of itself."""
    add(migrations, 3, "CREATE TABLE three (id int); SELECT 1/0")
    with pytest.raises(MigrationError, match="rolled back"):
        migrate(url, migrations)
    assert value(url, "SELECT version_num FROM alembic_version") == "0002"
    assert value(url, "SELECT to_regclass('three')") is None


def test_limits_hold_in_a_migration(url: str, migrations: Path) -> None:
    """A migration waits 4 s for a lock and 5 s for a statement at most (style: warehouse)."""
    add(
        migrations,
        3,
        "CREATE TABLE seen AS SELECT current_setting('lock_timeout') || ' '"
        " || current_setting('statement_timeout') AS limits",
    )
    migrate(url, migrations)
    assert value(url, "SELECT limits FROM seen") == "4s 5s"


def test_database_that_does_not_answer() -> None:
    """A database that is not there is one sentence."""
    with pytest.raises(MigrationError, match="does not answer"):
        is_current("postgresql://nobody@/none?host=/nowhere")


def test_head_is_alembics(url: str) -> None:
    """The real revisions are numbered as their files, and all of them run (rule 1)."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    assert ScriptDirectory.from_config(config).get_current_head() == f"{head():04}"
    migrate(url)
    assert is_current(url)
