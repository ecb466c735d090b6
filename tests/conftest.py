"""A real PostgreSQL for every test, and the real app over it.

One server runs for the whole session, shared by xdist's workers. Each worker migrates one template
database, and each test works in a clone of it. With CONTEXT_TEST_POOLER=transaction in the
environment services reach their databases through PgBouncer; the tests themselves, and those marked
`direct`, do not. With CONTEXT_TEST_CITUS_URL, the URL of a database on the coordinator of a Citus
cluster, all databases are distributed on its nodes; tests marked `one_server` cannot run there.

[operation.pooler]
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager
from functools import cache, partial
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import asyncpg
import httpx
import pytest
import pytest_asyncio
import uvicorn
from fastapi import FastAPI
from hypothesis import settings as hypothesis_settings

from app.common.logs import OURS, JsonLines
from app.database.citus import place
from app.database.connections import Pooler, Session, Store
from app.database.embedded import DATABASE, running
from app.database.migrate import migrate, migration_lock
from app.main import create_app
from app.repositories import FREQUENT, Database
from app.settings import Settings
from tests.answers import described
from tests.fake_llm import FakeLLM, fake_llm
from tests.patience import PATIENCE_SECONDS
from tests.pooler import Pooled, pooling

__all__ = ["fake_llm"]

# How long an example takes says more about the machine than about the code. Every run takes the
# same examples, so that a change is judged by what it changed. With HYPOTHESIS_PROFILE=explore
# each run takes others, which finds what is rare.
hypothesis_settings.register_profile("repeatable", deadline=None, max_examples=30, derandomize=True)
hypothesis_settings.register_profile("explore", deadline=None, max_examples=30)
hypothesis_settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

LONGEST = (
    "test_all_checks_pass",
    "test_real_conversations_build_valid_payloads",
    "test_redocly_finds_nothing",
    "test_the_typescript_client_drives_a_session",
    "test_the_python_client_drives_a_session",
    "test_every_view_is_sound",
    "test_lives_stand_kills_and_cuts",
)
"""Tests that take so long that a worker which begins one at the end is waited for."""

FIRST_USER_OID = 16384
"""Types below this oid are PostgreSQL's own, and the same in every database."""

POOLER: Pooler = os.environ.get("CONTEXT_TEST_POOLER", "none")  # type: ignore[assignment]
CITUS_URL = os.environ.get("CONTEXT_TEST_CITUS_URL")

_names = count(1)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give a session of root a temporary folder of its own, and let LiteLLM download nothing.

    There PostgreSQL runs as another user. The next session of pytest to start takes the access of
    others to the folder that sessions share away, and with it the running server's files.
    """
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    is_worker = hasattr(config, "workerinput")
    if os.geteuid() == 0 and config.option.basetemp is None and not is_worker:
        config.option.basetemp = mkdtemp(prefix="context-tests-")
        config.add_cleanup(partial(shutil.rmtree, config.option.basetemp, ignore_errors=True))


@pytest.fixture(autouse=True)
def commands_undone() -> Iterator[None]:
    """Undo what a command that the test runs in this process does to environment and loggers."""
    with mock.patch.dict(os.environ):
        yield
    ours, root = logging.getLogger(OURS), logging.getLogger()
    ours.handlers, ours.propagate = [], True
    ours.setLevel(logging.NOTSET)
    root.handlers = [each for each in root.handlers if type(each.formatter) is not JsonLines]


@pytest.fixture(scope="session", autouse=True)
def all_answers_described() -> Iterator[None]:
    """Hold every answer to openapi.json."""
    with described():
        yield


@pytest.fixture(scope="session", autouse=True)
def read_once() -> Iterator[None]:
    """Read PostgreSQL's own types and the certificates once a process.

    Tests open several connections and HTTP clients each. asyncpg asks each connection what an array
    of text is, and each HTTP client parses all certificates, for 20 ms.
    """
    look_up = asyncpg.Connection._introspect_types  # type: ignore[attr-defined]
    known: dict[frozenset[int], Any] = {}

    async def cached(connection: Any, oids: Any, timeout: float | None) -> Any:
        key = frozenset(oids)
        if key not in known or max(key) >= FIRST_USER_OID:
            known[key] = await look_up(connection, oids, timeout)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncpg.Connection, "_introspect_types", cached)
        patch.setattr(ssl, "create_default_context", cache(ssl.create_default_context))
        yield


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest tests, after they were shuffled; the rest fills the workers' time."""
    items.sort(key=lambda item: not item.name.startswith(LONGEST))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Keep what is imported and collected, which stays to the end, out of garbage collections."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000, 10, 10)  # as the service does
    return collected


SCHEMA = """
    SELECT md5(string_agg(part, ' ' ORDER BY part)) FROM (
        SELECT oid || relname FROM pg_class WHERE relnamespace = 'public'::regnamespace
        UNION ALL SELECT oid || tgname FROM pg_trigger
        UNION ALL SELECT oid || extname FROM pg_extension
        UNION ALL SELECT version_num FROM alembic_version
    ) AS parts(part)
"""
"""What no test changes in a database that the next one may have."""

OTHERS = """
    SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""

EMPTIED = """
    DO $$ DECLARE used record; BEGIN
        SET LOCAL session_replication_role = replica;
        FOR used IN
            SELECT relname, reltuples < 0 AND pg_relation_size(oid) <= 2 * 8192 AND NOT EXISTS (
                SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
                JOIN pg_am a ON a.oid = c.relam AND a.amname = 'btree'
                WHERE i.indrelid = pg_class.oid
                    AND pg_relation_size(indexrelid) > 2 * 8192
            ) AS is_small
            FROM pg_class
            WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
                AND relname <> 'alembic_version' AND pg_relation_size(oid) > 0
        LOOP
            IF used.is_small
                THEN EXECUTE format('DELETE FROM %I', used.relname);
                ELSE EXECUTE format('TRUNCATE %I CASCADE', used.relname);
            END IF;
        END LOOP;
        PERFORM setval(oid, 1, false) FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind = 'S';
    END $$
"""
"""Removes all rows. A truncation makes new files for each table and index, so that deleting the few
rows of a small table takes a third of its time. Dead rows in two pages change no plan: the planner
takes a table that was never analysed to have ten pages at least.
A larger index could change one."""


CITUS = Path(__file__).parents[1] / "deploy" / "citus"


class Server:
    """The session's PostgreSQL: clones of a migrated template, which tests have one after another.

    A clone costs ten times what it costs to empty one, so one is dropped only where a test has
    changed its schema or taken it away. The connections that empty them stay open, in a loop of
    their own: with a new one it takes five times as long.
    """

    def __init__(self, url: str, worker: str) -> None:
        self._url = url
        self._worker = worker
        self._thread, self._loop = ThreadPoolExecutor(1), asyncio.Runner()
        self._emptying: dict[str, asyncpg.Connection] = {}
        self._template = f"template_{worker}"
        self._run(f'DROP DATABASE IF EXISTS "{self._template}" WITH (FORCE)')
        self._run(f'CREATE DATABASE "{self._template}"')
        in_thread(_migrated, self.url_of(self._template))
        ((self._schema,),) = in_thread(execute, self.url_of(self._template), SCHEMA)
        self._empty: list[str] = []

    def url_of(self, name: str) -> str:
        """Return the URL of one of its databases."""
        return self._url.replace(f"/{DATABASE}?", f"/{name}?")

    @contextmanager
    def clone(self) -> Iterator[str]:
        """Yield the URL of a migrated database without rows, of this caller alone meanwhile."""
        name = self._empty.pop() if self._empty else self._new()
        try:
            yield self.url_of(name)
        finally:
            if self._in_loop(self._is_emptied(name)):
                self._empty.append(name)
            else:
                self._in_loop(self._disconnect(name))
                self._run(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def close(self) -> None:
        """Close all connections."""
        for name in tuple(self._emptying):
            self._in_loop(self._disconnect(name))
        self._thread.submit(self._loop.close).result()
        self._thread.shutdown()

    def _new(self) -> str:
        name = f"test_{self._worker}_{next(_names)}"
        self._run(f'CREATE DATABASE "{name}" TEMPLATE "{self._template}" STRATEGY FILE_COPY')
        return name

    async def _is_emptied(self, name: str) -> bool:
        try:
            if name not in self._emptying:
                self._emptying[name] = await asyncpg.connect(self.url_of(name))
            connection = self._emptying[name]
            await connection.execute(OTHERS)
            await connection.execute(EMPTIED)
            return bool(await connection.fetchval(SCHEMA) == self._schema)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            return False

    async def _disconnect(self, name: str) -> None:
        if name in self._emptying:
            await self._emptying.pop(name).close(timeout=PATIENCE_SECONDS)

    def _in_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._thread.submit(self._loop.run, work).result()

    def _run(self, sql: str) -> None:
        in_thread(execute, self._url, sql)


class Cluster(Server):
    """The distributed database of a worker on the nodes of a Citus cluster, which tests share.

    A database that is distributed cannot be a template of others.
    """

    def __init__(self, url: str, worker: str) -> None:
        self._url = url
        self._name = f"context_test_{worker}"
        in_thread(self._create)
        migrate(self.url_of(self._name))
        in_thread(self._distribute)

    def url_of(self, name: str) -> str:
        """Return the URL of one of its databases, on the coordinator."""
        return urlsplit(self._url)._replace(path=f"/{name}").geturl()

    @contextmanager
    def clone(self) -> Iterator[str]:
        """Yield the URL of the database without rows, of this caller alone meanwhile."""
        in_thread(self._remove_rows)
        yield self.url_of(self._name)

    def _node_url(self, node: Any, name: str) -> str:
        parts = urlsplit(self.url_of(name))
        user = parts.netloc.rpartition("@")[0]
        netloc = f"{user}@{node['nodename']}:{node['nodeport']}"
        return parts._replace(netloc=netloc).geturl()

    async def _create(self) -> None:
        nodes = await execute(self._url, "SELECT * FROM pg_dist_node ORDER BY groupid = 0")
        for node in nodes:
            own = self._node_url(node, urlsplit(self._url).path.strip("/"))
            await execute(own, f"DROP DATABASE IF EXISTS {self._name} WITH (FORCE)")
            await execute(own, f"CREATE DATABASE {self._name}")
            script = (CITUS / "node.sql").read_text(encoding="utf-8")
            emptied = "citus.enable_manual_changes_to_shards = on"  # so that they can be
            script += f"; ALTER DATABASE {self._name} SET {emptied}"
            await run_script(self._node_url(node, self._name), script)
        for node in nodes:
            call = "add_node" if node["groupid"] else "set_coordinator_host"
            place = (node["nodename"], node["nodeport"])
            await execute(self.url_of(self._name), f"SELECT citus_{call}($1, $2)", *place)

    async def _distribute(self) -> None:
        script = (CITUS / "distribute.sql").read_text(encoding="utf-8")
        await run_script(self.url_of(self._name), "SET citus.shard_count = 4;" + script)
        async with migration_lock(self.url_of(self._name)) as connection:
            await place(connection, FREQUENT)

    async def _remove_rows(self) -> None:
        url = self.url_of(self._name)
        await execute(url, f"{OTHERS} AND backend_type = 'client backend'")
        rows = await execute(url, "SELECT * FROM run_command_on_all_nodes($1)", EMPTIED)
        assert all(row["success"] for row in rows), rows


def in_thread(work: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Any:
    """Run a coroutine in a loop and a thread of its own, whatever runs here."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(work(*arguments))).result()


async def execute(url: str, sql: str, *arguments: Any) -> list[Any]:
    """Run one statement on a connection of its own and return its rows."""
    connection = await asyncpg.connect(url)
    try:
        return list(await connection.fetch(sql, *arguments))
    finally:
        await connection.close()


async def run_script(url: str, script: str) -> None:
    """Run several statements on a connection of their own."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(script)
    finally:
        await connection.close()


async def _migrated(url: str) -> None:
    await asyncio.to_thread(migrate, url)


@pytest.fixture(scope="session")
def server(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Server]:
    """The session's PostgreSQL, which need not survive a crash of the machine."""
    worker = getattr(request.config, "workerinput", {}).get("workerid", "main")
    if CITUS_URL is not None:
        yield Cluster(CITUS_URL, worker)
        return
    base = tmp_path_factory.getbasetemp()
    data_dir = base / "data" if worker == "main" else base.parent / "data"
    with running(Path(data_dir)) as url:
        # Without autovacuum no plan depends on the tests that had the database before.
        for setting in ("fsync", "full_page_writes", "synchronous_commit", "autovacuum"):
            in_thread(execute, url, f"ALTER SYSTEM SET {setting} = off")
        in_thread(execute, url, "SELECT pg_reload_conf()")
        with closing(Server(url, worker)) as server:
            yield server


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory whose database is migrated and stopped."""
    data_dir = tmp_path_factory.mktemp("prepared") / "data"
    with running(data_dir) as url:
        migrate(url)
    return data_dir


@pytest.fixture
def data_dir(prepared: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of it for one test, whose server is stopped afterwards whatever happened."""
    copy = tmp_path / "data"
    shutil.copytree(prepared, copy)
    yield copy
    if (copy / "postgres" / "postmaster.pid").exists():
        with running(copy):
            pass


@pytest.fixture
def database_url(server: Server) -> Iterator[str]:
    """The URL of a migrated database that is this test's own, without rows."""
    with server.clone() as url:
        yield url


@pytest.fixture(scope="session")
def pooled(server: Server) -> Iterator[Pooled]:
    """What turns a database's URL into the one by which services reach it in this session."""
    if POOLER == "none":
        yield lambda url: url
        return
    with pooling(server.url_of(DATABASE)) as through:

        def reached(url: str) -> str:
            in_thread(_reached, through(url))
            return through(url)

        yield reached


async def _reached(url: str) -> None:
    """Return once the pooler reaches a database.

    The test before may have ended while it made a connection. It then answers the next client
    that it has failed to, and tries again.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            connection = await asyncpg.connect(url, statement_cache_size=0)
            try:
                await connection.execute("SELECT 1")
                return
            finally:
                connection.terminate()
        except (asyncpg.PostgresConnectionError, ConnectionError):
            await asyncio.sleep(0.05)
    raise TimeoutError("The pooler does not reach the database")


@pytest_asyncio.fixture
async def store(database_url: str, pooled: Pooled) -> AsyncIterator[Store]:
    """An open store on this test's database."""
    opened = Store(pooled(database_url), max_size=4, pooler=POOLER)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The SQL of every statement that sessions run, in order."""
    statements: list[str] = []
    execute = Session._execute

    async def noting(self: Session, run: Any, statement: Any, values: Any) -> Any:
        statements.append(statement.sql)
        return await execute(self, run, statement, values)

    monkeypatch.setattr(Session, "_execute", noting)
    return statements


@pytest.fixture
def database(store: Store) -> Database:
    """The database of this test as the services see it."""
    return Database(store, "gpt-4o")


@pytest.fixture
def settings(database_url: str, pooled: Pooled) -> Settings:
    """Settings on this test's database; override the fixture for others."""
    return Settings(
        database_url=pooled(database_url),
        direct_database_url=database_url,
        database_pooler=POOLER,
        default_model="gpt-4o",
    )


@asynccontextmanager
async def started(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of the app, which is started and stopped around it."""
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=transport, base_url="http://test", timeout=PATIENCE_SECONDS
        ) as client,
    ):
        yield client


@pytest_asyncio.fixture
async def client(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the app on this test's database."""
    async with started(create_app(settings)) as opened:
        yield opened


@pytest.fixture
def with_model(settings: Settings, fake_llm: FakeLLM) -> Settings:
    """The same settings with the scriptable model as the summariser."""
    return settings.model_copy(
        update={
            "summarizer_model": "openai/fake",
            "summarizer_allowed_models": ("openai/fake",),
            "summarizer_api_base": fake_llm.api_base,
            "summarizer_api_key": "test",
            "summarizer_timeout_seconds": 20.0,
        }
    )


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """Serve the app on a free port from a thread, and yield its address."""
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="on", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="served", daemon=True)
    thread.start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not server.started:
        assert thread.is_alive() and time.monotonic() < deadline, "the server did not start"
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE_SECONDS)


@pytest.fixture
def served(settings: Settings) -> Iterator[str]:
    """The address of the app as it is really served."""
    with serving(create_app(settings)) as url:
        yield url
