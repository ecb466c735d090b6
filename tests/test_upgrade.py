"""The private database of another major version of PostgreSQL. [operation.new-major]"""

from __future__ import annotations

import asyncio
import fcntl
from pathlib import Path

import asyncpg
import pytest
from click.testing import CliRunner, Result

from app.cli import cli
from app.database.embedded import running
from app.database.embedded_cluster import UPGRADED, programs
from app.database.embedded_upgrade import Upgrade
from app.database.migrate import migrate
from tests.other_postgres import VERSIONS, make_cluster, other_programs, other_version
from tests.test_backups import rows_of

pytestmark = pytest.mark.direct


def invoke(*arguments: str) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(cli, arguments)


async def fill(url: str) -> dict[str, list[str]]:
    """Migrate, add rows with any text, and return all rows."""
    await asyncio.to_thread(migrate, url)
    connection = await asyncpg.connect(url)
    try:
        await connection.executemany(
            "INSERT INTO tenants (tenant_id) VALUES ($1)", [("acme",), ("tab\t, \\N, 続",)]
        )
    finally:
        await connection.close()
    return await rows_of(url)


@pytest.fixture
def old(tmp_path: Path) -> tuple[Path, dict[str, list[str]]]:
    """A data directory as a release with an older PostgreSQL has left it, and its rows."""
    make_cluster(tmp_path)
    with Upgrade(tmp_path, VERSIONS[-1]).running(other_programs()) as url:
        rows = asyncio.run(fill(url))
    return tmp_path, rows


@other_version
def test_a_database_of_another_version_is_moved(old: tuple[Path, dict[str, list[str]]]) -> None:
    """Other commands name the command; it moves all rows, keeps the old database, and is done."""
    data_dir, rows = old
    here = ("--data-dir", str(data_dir))
    refused = invoke("tenants", "list", *here)
    assert refused.exit_code == 1
    assert f"PostgreSQL {VERSIONS[-1]}, and this is" in refused.stderr
    assert "run `context-service upgrade-database` once" in refused.stderr
    done = invoke("upgrade-database", *here)
    assert done.exit_code == 0, done.stderr
    kept = data_dir / f"postgres.{VERSIONS[-1]}"
    assert done.stdout.endswith(f"The old database is {kept}: delete it once all is well.\n")
    with running(data_dir) as url:
        assert asyncio.run(rows_of(url)) == rows
    assert (kept / "PG_VERSION").exists()
    assert not list(data_dir.glob("upgrade.*"))
    assert invoke("upgrade-database", *here).stdout == "The database is of this version already.\n"


@other_version
def test_a_crash_between_the_renames_loses_nothing(
    old: tuple[Path, dict[str, list[str]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The new cluster takes its place at the next start; before, the old one is still there."""
    data_dir, _ = old
    new = tmp_path_factory.mktemp("new")
    new.chmod(0o755)
    with running(new) as url:
        rows = asyncio.run(fill(url))
    (new / "postgres").rename(data_dir / UPGRADED)
    assert "upgrade-database" in invoke("tenants", "list", "--data-dir", str(data_dir)).stderr
    (data_dir / "postgres").rename(data_dir / "postgres.old")
    with running(data_dir) as url:
        assert asyncio.run(rows_of(url)) == rows


@other_version
def test_what_is_in_use_or_wrong_is_left_alone(
    old: tuple[Path, dict[str, list[str]]],
) -> None:
    """Programs of another version, a service that runs, and an earlier copy are refused."""
    data_dir, _ = old
    here = ("--data-dir", str(data_dir))
    wrong = invoke("upgrade-database", "--programs", str(programs()), *here)
    assert wrong.exit_code == 1 and f"the data is of PostgreSQL {VERSIONS[-1]}" in wrong.stderr
    (data_dir / f"postgres.{VERSIONS[-1]}").mkdir()
    assert "move it away" in invoke("upgrade-database", *here).stderr
    (data_dir / f"postgres.{VERSIONS[-1]}").rmdir()
    with (data_dir / "postgres.in-use").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        assert "stop the service" in invoke("upgrade-database", *here).stderr
    assert (data_dir / "postgres" / "PG_VERSION").read_text() == f"{VERSIONS[-1]}\n"
