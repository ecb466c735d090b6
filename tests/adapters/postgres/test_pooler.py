"""The store through a real PgBouncer in transaction mode, as `deploy/pgbouncer.ini` has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from app.common.errors import ServiceUnavailable
from app.database.connections import Statement, Store
from tests.conftest import Server, execute
from tests.pooler import DATABASE, PROGRAM, Pooled, pooling

pytestmark = [
    pytest.mark.one_server,  # the pooler is in front of the socket of a server
    pytest.mark.skipif(PROGRAM is None, reason="PgBouncer is not installed here"),
]

ECHO = Statement("SELECT CAST(:text AS text) AS said, pg_backend_pid() AS pid")
COUNT = Statement("SELECT count(*) AS n, CAST(:number AS bigint) AS number FROM models")
WRITE = Statement("INSERT INTO models (tenant_id, model, info) VALUES (:tenant, :model, '{}')")
READ = Statement("SELECT * FROM models WHERE tenant_id = CAST(:tenant AS text)")
SETTING = Statement("SELECT current_setting(CAST(:name AS text)) AS found")


@pytest.fixture(scope="session")
def through(server: Server) -> Iterator[Pooled]:
    """A pooler of these tests' own, however the rest of the session connects."""
    with pooling(server.url_of(DATABASE)) as pooled:
        yield pooled


@pytest_asyncio.fixture
async def pooled_store(database_url: str, through: Pooled) -> AsyncIterator[Store]:
    """A store on this test's database, with more connections than the pooler has to the server."""
    store = Store(through(database_url), max_size=12, pooler="transaction")
    yield store
    await store.close()


async def test_servers_begin_with_the_settings(pooled_store: Store) -> None:
    """Plans and limits are the same through the pooler as without it. [operation.pooler]"""
    wanted = {"jit": "off", "enable_seqscan": "off", "plan_cache_mode": "force_generic_plan"}
    wanted |= {"statement_timeout": "5s", "lock_timeout": "5s"}
    async with pooled_store.session() as session:
        for name, value in wanted.items():
            row = await session.first(SETTING, name=name)
            assert row is not None and row["found"] == value


async def test_no_answer_goes_to_another(pooled_store: Store) -> None:
    """Statements of many clients on few servers are never taken for each other."""
    servers = set()

    async def talk(client: int) -> None:
        for number in range(40):
            async with pooled_store.session() as session:
                row = await session.first(ECHO, text=f"{client}.{number}")
                assert row is not None and row["said"] == f"{client}.{number}"
                servers.add(row["pid"])
                row = await session.first(COUNT, number=number)
                assert row is not None and row["number"] == number
            async with pooled_store.transaction() as session:
                await session.run(WRITE, tenant=f"{client}", model=f"{number}")
                assert len(await session.all(READ, tenant=f"{client}")) == number + 1

    await asyncio.gather(*map(talk, range(12)))
    assert 1 < len(servers) <= 5


async def test_a_migration_meanwhile_costs_one_answer(
    pooled_store: Store, database_url: str
) -> None:
    """Architecture, storage: a column that is added while clients read is a 503 at most once."""
    everything = Statement("SELECT * FROM things")
    await execute(database_url, "CREATE TABLE things AS SELECT 1 AS id")
    async with pooled_store.session() as session:
        assert len(await session.all(everything)) == 1
    await execute(database_url, "ALTER TABLE things ADD COLUMN added text DEFAULT 'new'")
    with pytest.raises(ServiceUnavailable):
        async with pooled_store.session() as session:
            await session.all(everything)
    async with pooled_store.session() as session:
        assert [row["added"] for row in await session.all(everything)] == ["new"]


async def test_without_the_setting_a_pooler_refuses(database_url: str, through: Pooled) -> None:
    """Session settings are refused by a pooler, which is a 503 and no hang. [operation.pooler]"""
    store = Store(through(database_url))
    with pytest.raises(ServiceUnavailable):
        await store.open()
    await store.close()
