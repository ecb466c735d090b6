"""The store while its database is away: bounded, told as one error, and healed by itself.

[operation.database-away]
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import pytest_asyncio

from app.common.errors import ServiceUnavailable
from app.database import embedded
from app.database.connections import Statement, Store, Timeouts
from app.database.migrate import READY_SECONDS, is_ready
from app.repositories import FREQUENT
from tests.conftest import Server, execute
from tests.database_proxy import DatabaseProxy, proxied

pytestmark = pytest.mark.one_server

QUICK = Timeouts(connection=0.3, statement=0.3, long_statement=5.0, grace=0.2)
SLACK_SECONDS = 60.0
"""What a bound may be missed by on a machine that has other work."""

PID = Statement("SELECT pg_backend_pid() AS pid")
WRITE = Statement("INSERT INTO models (tenant_id, model, info) VALUES (:tenant, 'm', '{}')")


@pytest_asyncio.fixture
async def proxy(database_url: str) -> AsyncIterator[DatabaseProxy]:
    """A proxy in front of this test's database."""
    async with proxied(database_url) as opened:
        yield opened


@asynccontextmanager
async def store_of(url: str, size: int = 1, timeouts: Timeouts = QUICK) -> AsyncIterator[Store]:
    """Yield a store that has short patience and connects when it is asked."""
    store = Store(url, max_size=size, timeouts=timeouts)
    try:
        yield store
    finally:
        await store.close()


async def pid_of(store: Store) -> int:
    """Return which of the server's processes answers."""
    async with store.session() as session:
        row = await session.first(PID)
    assert row is not None
    return int(row["pid"])


async def fails(work: Awaitable[Any], within: float, reason: str = "") -> ServiceUnavailable:
    """Return the error that ends some work, which must be within so many seconds."""
    began = monotonic()
    with pytest.raises(ServiceUnavailable) as failure:
        await work
    assert monotonic() - began < within + SLACK_SECONDS
    assert failure.value.facts["retry_after"] == 1
    assert not reason or failure.value.facts["reason"] == reason
    return failure.value


async def in_transaction(store: Store, *statements: Statement, **values: Any) -> None:
    """Run statements in one transaction."""
    async with store.transaction() as session:
        for statement in statements:
            await session.run(statement, **values)


# --- a database that takes what it is sent, and never answers ---------------------------------


async def test_a_statement_without_an_answer_is_given_up(proxy: DatabaseProxy) -> None:
    """A blackholed statement is a 503 in time, and its connection is never used again."""
    async with store_of(proxy.url) as store:
        before = await pid_of(store)
        proxy.blackhole()
        await fails(pid_of(store), QUICK.statement + QUICK.grace, "TimeoutError")
        await proxy.heal()
        assert await pid_of(store) != before


async def test_readiness_does_not_wait(proxy: DatabaseProxy) -> None:
    """A probe of a silent database is answered within twice its second."""
    async with store_of(proxy.url, timeouts=Timeouts()) as store:
        assert await is_ready(store)
        proxy.blackhole()
        await fails(is_ready(store), READY_SECONDS)  # on a connection it had
        await fails(is_ready(store), 2 * READY_SECONDS)  # on none
        await proxy.heal()
        assert await is_ready(store)


# --- a database that is gone ------------------------------------------------------------------


async def test_frequent_statements_are_planned_at_the_start(database_url: str) -> None:
    """The first connection has run them, and nothing was written.

    [performance.first-build]
    """
    planned = Statement("""
        SELECT pg_backend_pid() AS pid,
            ARRAY(SELECT statement FROM pg_prepared_statements WHERE generic_plans > 0) AS plans,
            (SELECT count(*) FROM messages) + (SELECT count(*) FROM conversations) AS rows
    """)
    async with store_of(database_url, timeouts=Timeouts()) as store:
        await store.open(FREQUENT)
        async with store.session() as session:
            row = await session.first(planned)
    assert row is not None and row["rows"] == 0
    assert {statement.sql for statement in FREQUENT} <= set(row["plans"])


@pytest.mark.parametrize(
    "state",
    [
        *("08006", "25006", "25P03", "40001", "40P01", "42703", "42P01", "53100", "53200", "53300"),
        *("55P03", "57014", "57P01", "57P02", "57P03", "58000", "58030", "58P01"),
    ],
)
async def test_what_a_failing_database_says(database_url: str, state: str) -> None:
    """Shut down, read-only, out of memory and the like are all one error."""
    raising = Statement(f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END $$")
    async with store_of(database_url) as store:
        await fails(in_transaction(store, raising), 0)
        assert await pid_of(store)


# --- a database that takes its time -----------------------------------------------------------


# --- a database that can only be read ---------------------------------------------------------


async def test_a_read_only_database(server: Server, database_url: str) -> None:
    """A database that was made read-only is a 503 for writers, and heals without a restart."""
    name = database_url.partition("?")[0].rpartition("/")[2]
    change = f'ALTER DATABASE "{name}" {{}} default_transaction_read_only'
    async with store_of(database_url, size=2) as store:
        try:
            await execute(database_url, change.format("SET") + " = on")
            await fails(is_ready(store), 0, "read_only")
            assert await pid_of(store)
            await fails(in_transaction(store, WRITE, tenant="t"), 0, "ReadOnlySQLTransactionError")
        finally:
            await execute(server.url_of("postgres"), change.format("RESET"))
        await in_transaction(store, WRITE, tenant="t")
        assert await is_ready(store)


@pytest.fixture
def standby(database_url: str, tmp_path: Path) -> Iterator[str]:
    """The URL of this test's database on a hot standby of the server."""
    place = urlsplit(database_url)
    (host,), (port,) = (parse_qs(place.query)[name] for name in ("host", "port"))
    account = pwd.getpwuid(os.stat(f"{host}/.s.PGSQL.{port}").st_uid)
    folder = tmp_path / "standby"
    folder.mkdir(mode=0o700)
    os.chown(folder, account.pw_uid, account.pw_gid)
    embedded._let_through(folder, account.pw_uid)
    switched: dict[str, Any] = {}
    if os.geteuid() == 0:
        switched = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}

    def run(program: str, *arguments: str) -> None:
        command = (str(embedded.programs() / program), *arguments)
        with (tmp_path / "said").open("ab") as said:
            subprocess.run(command, check=True, cwd=folder, stdout=said, stderr=said, **switched)

    run(
        "pg_basebackup",
        "-D",
        str(folder),
        "-h",
        host,
        "-p",
        port,
        "-U",
        "postgres",
        "-R",
        "-c",
        "fast",
    )
    (folder / f".s.PGSQL.{port}.lock").unlink()  # copied from the server's own directory
    options = f"-k {folder} -c hot_standby=on"
    run("pg_ctl", "start", "-w", "-D", str(folder), "-l", str(folder / "log"), "-o", options)
    try:
        yield database_url.replace(f"host={host}", f"host={folder}")
    finally:
        run("pg_ctl", "stop", "-w", "-m", "immediate", "-D", str(folder))


async def test_a_standby_is_not_ready_until_it_is_promoted(standby: str) -> None:
    """In recovery a database is not ready and writers get a 503; promoted, it serves them."""
    async with store_of(standby, timeouts=Timeouts()) as store:
        await fails(is_ready(store), READY_SECONDS, "read_only")
        await fails(in_transaction(store, WRITE, tenant="t"), 0, "ReadOnlySQLTransactionError")
        await execute(standby, "SELECT pg_promote()")
        assert await is_ready(store)
        await in_transaction(store, WRITE, tenant="t")
