"""Migrations, on a real database: once, by one process, within limits, and only when needed.

[operation.migrate]
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import asyncpg
import click
import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from app.adapters.postgres.common.connections import Store
from app.adapters.postgres.database import PostgresDatabase
from app.adapters.postgres.embedded import running
from app.adapters.postgres.migrate import (
    MIGRATIONS,
    MigrationError,
    is_current,
    migrate,
    newest_revision,
)
from app.cli.database import migrated
from tests.commands import environment

pytestmark = pytest.mark.one_server
GUIDE = Path(__file__).parents[3] / "docs" / "scaling.md"
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


def test_only_what_is_missing_runs(url: str, migrations: Path) -> None:
    """A database of an earlier release gets the later revisions only."""
    migrate(url, migrations)
    add(migrations, 3, "CREATE TABLE three (id int)")
    assert not is_current(url, migrations)
    migrate(url, migrations)
    assert is_current(url, migrations)


def test_concurrent_processes_migrate_once(url: str, migrations: Path) -> None:
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


def test_a_child_process_may_migrate(url: str) -> None:
    """The process that serves has neither Alembic nor SQLAlchemy in its memory then."""
    code = (
        "import sys; from app.cli.database import migrated\n"
        "if __name__ == '__main__':\n"
        "    first, second = migrated(sys.argv[1], apart=True), migrated(sys.argv[1], apart=True)\n"
        "    sys.exit((first, second) != (True, False) or 'sqlalchemy' in sys.modules)"
    )
    done = subprocess.run((sys.executable, "-c", code, url), check=False, env=environment())
    assert done.returncode == 0
    assert is_current(url)


def test_the_error_of_a_child_process_is_raised(url: str) -> None:
    """A migration that fails in the child stops the process that waits for it."""
    run(url, "CREATE TABLE conversations (id int)")
    with pytest.raises(click.ClickException, match="rolled back"):
        migrated(url, apart=True)
    assert value(url, "SELECT to_regclass('messages')") is None


def test_newer_schema_is_accepted(url: str, migrations: Path) -> None:
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


def test_timeouts_apply_in_a_migration(url: str, migrations: Path) -> None:
    """A migration waits 4 s for a lock and 5 s for a statement at most."""
    add(
        migrations,
        3,
        "CREATE TABLE seen AS SELECT current_setting('lock_timeout') || ' '"
        " || current_setting('statement_timeout') AS limits",
    )
    migrate(url, migrations)
    assert value(url, "SELECT limits FROM seen") == "4s 5s"


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


def test_a_waiting_process_blocks_nothing(url: str, migrations: Path) -> None:
    """An index is built as the guide has it while other processes wait for their turn (rule 3)."""
    migrate(url, migrations)
    concurrent = 'COMMIT"); op.execute("CREATE INDEX CONCURRENTLY one_by_id ON one (id)'
    add(migrations, 3, concurrent)
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(migrate, url, migrations) for _ in range(3)]:
            done.result(20)
    assert value(url, "SELECT to_regclass('one_by_id')::text") == "one_by_id"


# PgQueuer's tables are unused, and stay as they are until a later release drops them.
COLUMNS = """
    SELECT c.table_name, c.column_name, c.data_type, c.is_generated
    FROM information_schema.columns c
    JOIN information_schema.tables t USING (table_schema, table_name)
    WHERE c.table_schema = 'public' AND t.table_type = 'BASE TABLE'
        AND c.table_name <> 'alembic_version' AND c.table_name NOT LIKE 'pgqueuer%'
    ORDER BY c.table_name, c.ordinal_position
"""
VALUES = {
    "ARRAY": "'{{}}'",
    "bigint": "{row}",
    "boolean": "false",
    "bytea": "''",
    "date": "now()",
    "double precision": "0.5",
    "integer": "{row}",
    "text": "'{row}'",
    "timestamp with time zone": "now()",
    "tsvector": "''",
    "USER-DEFINED": "'[{row}]'",
    "uuid": "gen_random_uuid()",
}


def columns_of(url: str) -> dict[str, dict[str, str]]:
    """Return the type of each column, by table."""

    async def ask() -> dict[str, dict[str, str]]:
        connection = await asyncpg.connect(url)
        found: dict[str, dict[str, str]] = {}
        for row in await connection.fetch(COLUMNS):
            found.setdefault(row["table_name"], {})[row["column_name"]] = row["data_type"]
        await connection.close()
        return found

    return asyncio.run(ask())


def test_the_release_before_works_on_the_next_schema(url: str, tmp_path: Path) -> None:
    """Migrations only add: rows are written, read and changed with the columns of before."""
    folder = tmp_path / "migrations"
    shutil.copytree(MIGRATIONS, folder, ignore=lambda _, names: {"__pycache__"} & set(names))
    revisions = sorted((MIGRATIONS / "versions").glob("[0-9]*_*.py"))
    for file in revisions[1:]:
        (folder / "versions" / file.name).unlink()
    migrate(url, folder)
    for number, file in enumerate(revisions[1:], start=1):
        before = columns_of(url)
        shutil.copy(file, folder / "versions")
        migrate(url, folder)
        after = columns_of(url)
        statements = []
        for table, columns in before.items():
            kept = {name: after[table].get(name) for name in columns}
            assert kept == columns, f"{file.name} changes {table}"
            values = [VALUES[kind].format(row=number) for kind in columns.values()]
            names = ", ".join(f'"{name}"' for name in columns)
            statements += [
                # Triggers may have added the row already.
                f"INSERT INTO {table} ({names}) VALUES ({', '.join(values)})"
                " ON CONFLICT DO NOTHING",
                f"SELECT {names} FROM {table}",
                f"UPDATE {table} SET ({names}) = ROW({names})",
            ]
        run(url, "; ".join(statements))


def test_migrations_block_nothing_for_long() -> None:
    """An index on a table that is there is built concurrently, unless the table is new (rule 4).

    Those before the first release are exempt: nobody has rows that they would meet.
    """
    for file in sorted((MIGRATIONS / "versions").glob("[0-9]*_*.py"))[6:]:
        text = file.read_text(encoding="utf-8")
        made = set(re.findall(r"CREATE TABLE (\w+)", text))
        for index in re.finditer(r"CREATE (UNIQUE )?INDEX (CONCURRENTLY )?\w+\s+ON (\w+)", text):
            assert index[2] or index[3] in made, f"{file.name} blocks {index[3]}"


def test_database_that_does_not_answer() -> None:
    """A database that is not there is one sentence."""
    with pytest.raises(MigrationError, match="does not answer"):
        is_current("postgresql://nobody@/none?host=/nowhere")


def test_head_equals_that_of_alembic(url: str) -> None:
    """The real revisions are numbered as their files, and all of them run (rule 1)."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    assert ScriptDirectory.from_config(config).get_current_head() == f"{newest_revision():04}"
    migrate(url)
    assert is_current(url)


SHAPE = """
    SELECT string_agg(part, E'\\n' ORDER BY part) FROM (
        SELECT format('%s %s %s', table_name, column_name, data_type)
        FROM information_schema.columns WHERE table_schema = 'public'
        UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'
        UNION ALL SELECT proname FROM pg_proc p WHERE pronamespace = 'public'::regnamespace
            AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e')
        UNION ALL SELECT typname FROM pg_type
            WHERE typnamespace = 'public'::regnamespace AND typtype = 'e'
    ) AS parts(part)
"""
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


def move(url: str, revision: str, *, down: bool = False) -> None:
    """Upgrade or downgrade to a revision in this process, which is faster than a new one."""
    config = Config(str(MIGRATIONS.parent / "alembic.ini"))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CONTEXT_DIRECT_DATABASE_URL", raising=False)
        patch.setenv("CONTEXT_DATABASE_URL", url)
        (command.downgrade if down else command.upgrade)(config, revision)


def test_every_version_can_be_left_and_reached_again(url: str) -> None:
    """Each revision goes down to what the one before it had, and up again to what it had."""
    shapes: dict[str, object] = {}
    revisions = [f"{number:04}" for number in range(1, newest_revision() + 1)]
    for revision in revisions:
        move(url, revision)
        shapes[revision] = value(url, SHAPE)
    for before in [*revisions[-2::-1], "base"]:
        move(url, before, down=True)
        if before == "base":
            assert value(url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 1
        else:
            assert value(url, SHAPE) == shapes[before], before
    move(url, "head")
    assert value(url, SHAPE) == shapes[revisions[-1]]


HAS_EMBEDDINGS = """
    SELECT count(*) FROM information_schema.columns
    WHERE table_name = 'message_vectors' AND column_name = 'embedding'
"""


def test_a_database_gets_pgvector_later(url: str, server: str) -> None:
    """A user who may not create the extension migrates without it; the next run finds it."""
    name = url.partition("?")[0].rpartition("/")[2]
    value(server, "DROP ROLE IF EXISTS plain_owner")
    value(server, "CREATE ROLE plain_owner LOGIN")
    value(server, f"ALTER DATABASE {name} OWNER TO plain_owner")
    plain = url.replace("//postgres@", "//plain_owner@")
    assert plain != url
    try:
        migrate(plain)
        assert is_current(plain)
        assert value(url, HAS_EMBEDDINGS) == 0
        value(url, "CREATE EXTENSION vector")
        assert not is_current(plain)
        migrate(plain)
        assert is_current(plain)
        assert value(plain, HAS_EMBEDDINGS) == 1
        # What is left of vectors that were dropped is embedded again.
        done = "INSERT INTO embedding_progress VALUES (gen_random_uuid(), 'm', 5, 5)"
        value(plain, done)
        value(url, "DROP EXTENSION vector CASCADE")
        value(url, "CREATE EXTENSION vector")
        migrate(plain)
        assert value(plain, HAS_EMBEDDINGS) == 1
        assert value(plain, "SELECT count(*) FROM embedding_progress") == 0
    finally:
        value(url, "REASSIGN OWNED BY plain_owner TO postgres")
        value(server, f"ALTER DATABASE {name} OWNER TO postgres")
        value(url, "DROP OWNED BY plain_owner")
        value(server, "DROP ROLE plain_owner")


def test_the_tables_of_the_service_are_those_of_its_migrations(url: str) -> None:
    """`alembic check` finds nothing to change, and leaves PgQueuer's tables alone."""
    migrate(url)
    assert "No new upgrade operations" in alembic(url, "check")


AT_0010 = """
    INSERT INTO conversations (conversation_id, tenant_id)
    SELECT CAST(lpad(n::text, 32, '0') AS uuid), 't' FROM generate_series(1, 6) AS n;
    INSERT INTO heads (conversation_id, counter, due_at)
    SELECT conversation_id, 'bytes_4', NULL FROM conversations;
    UPDATE heads SET due_at = now() WHERE right(conversation_id::text, 1) = '1';
    UPDATE heads SET due_at = now() + interval '1 h', failures = 1
    WHERE right(conversation_id::text, 1) = '5';
    INSERT INTO jobs (conversation_id, job_id, tenant_id, kind, status)
    SELECT conversation_id, conversation_id, 't', 'compact', 'running' FROM conversations
    WHERE right(conversation_id::text, 1) = '3';
    INSERT INTO pgqueuer (priority, status, entrypoint, dedupe_key)
    SELECT 0, CAST(status AS pgqueuer_status), 'compact',
        kind || ':' || CAST(lpad(n, 32, '0') AS uuid)
    FROM (VALUES
        ('1', 'compact', 'queued'), ('2', 'compact', 'picked'), ('3', 'job', 'picked'),
        ('4', 'compact', 'successful'), ('5', 'compact', 'queued'), ('7', 'compact', 'queued')
    ) AS entry (n, kind, status)
"""
"""Work as the release with PgQueuer leaves it.

1 waits, 2 is worked on, 3 has a job that is worked on, 4 is done, 5 rests after a failure, 6 was
never due, and 7 was deleted.
"""
GIVEN_BACK = """
    INSERT INTO pgqueuer (priority, status, entrypoint, dedupe_key) VALUES
        (0, 'picked', 'compact', 'compact:00000000-0000-0000-0000-000000000006');
    UPDATE pgqueuer SET status = 'queued' WHERE dedupe_key LIKE '%6'
"""


def test_work_in_pgqueuers_tables_is_claimed_after_the_upgrade(url: str) -> None:
    """0011: what waits and what is worked on is due, and so is what an old worker gives back."""

    async def claimed() -> set[tuple[str, bool]]:
        store, found = Store(url), set()
        async with PostgresDatabase(store).session() as session:
            while claim := await session.jobs.claim(str(uuid4()), 60):
                found.add((claim.conversation_id[-1], claim.job_id is not None))
        await store.close()
        return found

    move(url, "0010")
    run(url, AT_0010)
    move(url, "head")
    assert asyncio.run(claimed()) == {("1", False), ("2", False), ("3", True)}
    run(url, GIVEN_BACK)
    assert asyncio.run(claimed()) == {("6", False)}


AT_0011 = """
    INSERT INTO conversations (conversation_id, tenant_id, metadata, created_at)
    SELECT CAST(lpad(n::text, 32, '0') AS uuid), 't',
        CASE n WHEN 1 THEN '{"a":"x","b":[1],"c":1.50,"d":null,"e":"\\u0000","f":"\\ud83d"}'
            WHEN 2 THEN '{"' || repeat('k', 65) || '":1,"v":"' || repeat('v', 513) || '"}'
            WHEN 3 THEN '[1]' ELSE '{"n":' || n || '}' END,
        TIMESTAMPTZ '2026-01-01Z' + n * interval '1 s'
    FROM generate_series(1, 1500) AS n;
    INSERT INTO heads (conversation_id, counter) SELECT conversation_id, 'b' FROM conversations;
    INSERT INTO messages (conversation_id, seq, message_id, turn, role, format, tokens,
        reasoning_tokens, total_tokens, has_media, continues, body, created_at)
    SELECT CAST(lpad('7', 32, '0') AS uuid), n, n::text, 1, 'user', 'f', 1, 0, 1, false, false, '',
        TIMESTAMPTZ '2026-02-01Z' + n * interval '1 s'
    FROM generate_series(1, 2) AS n
"""
"""Conversations of the release before lists had filters; the seventh has messages."""
LABELS = "SELECT string_agg(key || '=' || value, ' ' ORDER BY key) FROM conversation_labels"
OLD_APPEND = "UPDATE heads SET head_seq = head_seq + 1 WHERE right(conversation_id::text, 1) = '5'"
OLD_PATCH = """
    UPDATE conversations SET metadata = '{"a":true}' WHERE conversation_id::text LIKE '%0001'
"""


def test_earlier_conversations_are_in_filtered_lists(url: str) -> None:
    """0013: they get labels and a time of activity, and what the release before writes does too."""
    move(url, "0011")
    run(url, AT_0011)
    move(url, "head")
    first = f"{LABELS} WHERE conversation_id = CAST(lpad('1', 32, '0') AS uuid)"
    assert value(url, first) == "a=x c=1.50"
    assert value(url, "SELECT count(*) FROM conversation_labels") == 2 + 1497
    active = "SELECT count(*) FROM conversation_activity a JOIN conversations c"
    active += " USING (conversation_id) WHERE a.active_at"
    assert value(url, f"{active} = c.created_at") == 1499
    assert value(url, f"{active} = TIMESTAMPTZ '2026-02-01 00:00:02Z'") == 1
    run(url, f"{OLD_PATCH}; {OLD_APPEND}")
    assert value(url, first) == "a=true"
    assert value(url, f"{active} > TIMESTAMPTZ '2026-03-01Z'") == 150
