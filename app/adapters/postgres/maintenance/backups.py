"""A backup: one ZIP file with the rows of every table, in the text format of COPY.

1. The text format does not depend on the major version of PostgreSQL. So a backup moves a database
   to another version, and needs no program of PostgreSQL.
2. All rows are read in one transaction (REPEATABLE READ): they are those of one moment, while the
   service runs. On Citus that holds for each node by itself, so for each conversation.
3. `manifest.json` is the last entry: a file that was cut off has neither it nor the directory of a
   ZIP file. Each entry has a checksum, and the manifest has the number of its rows.
4. A restore needs a database without rows. It creates the schema of the backup, and loads the rows
   in one transaction. The caller migrates to the schema of this version.
5. The triggers of the service do not run while rows are loaded: the rows that they write are in the
   backup.
"""

from __future__ import annotations

import asyncio
import json
import zipfile
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import IO, Protocol

import asyncpg

from app.adapters.postgres.maintenance.connection import connected, snapshot
from app.adapters.postgres.migrate import migrate, newest_revision, revision_of

FORMAT = 1
"""The version of the layout of a file."""
_MANIFEST = "manifest.json"
_COMPRESSION_LEVEL = 1
"""Higher levels take several times as long for a tenth of the size."""
_PIECE = 1_048_576
"""Bytes that are read at once."""
_OBJECT_FOLDER = "objects/"

_TABLES = """
    SELECT c.relname AS name, array_agg(a.attname::text ORDER BY a.attnum) AS columns
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p')
        AND c.relname <> 'alembic_version'
        AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
    GROUP BY c.relname ORDER BY c.relname
"""
_SEQUENCES = """
    SELECT sequencename::text AS name, last_value FROM pg_sequences
    WHERE schemaname = current_schema() AND last_value IS NOT NULL
"""
_OBJECTS = {
    "blobs": """
        SELECT DISTINCT object_key FROM blobs
        WHERE object_key IS NOT NULL AND collected_at IS NULL
    """,
}
"""The objects that rows name, by table; a schema of an earlier release may lack one."""


class BackupError(Exception):
    """A backup cannot be read or restored, for the reason in the text."""


@dataclass(frozen=True, slots=True)
class TableRows:
    """The columns and the number of rows of a table."""

    columns: list[str]
    rows: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup has.

    `objects` is the number of objects of the object store in it, and `objects_outside` the number
    of those that its rows name and that are not in it.
    """

    created_at: str
    service_version: str
    server_version: str
    revision: int
    tables: dict[str, TableRows] = field(default_factory=dict)
    sequences: dict[str, int] = field(default_factory=dict)
    objects: int = 0
    objects_outside: int = 0
    format: int = FORMAT

    @property
    def rows(self) -> int:
        """The number of rows of all tables."""
        return sum(table.rows for table in self.tables.values())


class Objects(Protocol):
    """An object store; raises ServiceUnavailable."""

    def pieces(self, object_key: str) -> AsyncIterator[bytes | memoryview]:
        """Yield the bytes of an object."""

    async def put(self, object_key: str, pieces: AsyncIterator[bytes | memoryview]) -> None:
        """Write an object, whole or not at all."""

    async def flush(self, object_key: str) -> None:
        """Make an object durable."""


async def write_backup(
    url: str, file: IO[bytes], now: datetime, service_version: str, objects: Objects | None = None
) -> Manifest:
    """Write the rows of the database at `url`, and the objects that they name.

    Without `objects`, a backup has no objects. Raises MigrationError and ServiceUnavailable.
    """
    with zipfile.ZipFile(
        file, "w", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESSION_LEVEL
    ) as archive:
        async with snapshot(url) as connection:
            manifest = Manifest(
                created_at=now.isoformat(),
                service_version=service_version,
                server_version=await connection.fetchval("SHOW server_version"),
                revision=await revision_of(connection),
                tables=await _copy_tables(connection, archive),
                sequences={name: value for name, value in await connection.fetch(_SEQUENCES)},
            )
            keys = [
                row["object_key"]
                for table, statement in _OBJECTS.items()
                if table in manifest.tables
                for row in await connection.fetch(statement)
            ]
        if objects is None:
            manifest = replace(manifest, objects_outside=len(keys))
        else:
            for key in keys:
                await _copy_object(objects, key, archive)
            manifest = replace(manifest, objects=len(keys))
        archive.writestr(_MANIFEST, json.dumps(asdict(manifest), indent=1))
    return manifest


async def _copy_tables(
    connection: asyncpg.Connection, archive: zipfile.ZipFile
) -> dict[str, TableRows]:
    copied = {}
    for name, columns in await connection.fetch(_TABLES):
        with archive.open(_table_entry(name), "w", force_zip64=True) as entry:

            async def write(data: bytes, entry: IO[bytes] = entry) -> None:
                entry.write(data)

            listed = ", ".join(f'"{column}"' for column in columns)
            # Of a table, Citus would read each part in a transaction of its own.
            result = await connection.copy_from_query(
                f'SELECT {listed} FROM "{name}"', output=write
            )
        copied[name] = TableRows(columns, int(result.removeprefix("COPY ")))
    return copied


async def _copy_object(objects: Objects, key: str, archive: zipfile.ZipFile) -> None:
    info = zipfile.ZipInfo(_OBJECT_FOLDER + key)
    info.compress_type = zipfile.ZIP_STORED  # it is compressed already
    with archive.open(info, "w", force_zip64=True) as entry:
        async for piece in objects.pieces(key):
            entry.write(piece)


def verify(file: IO[bytes]) -> Manifest:
    """Read a whole backup and return its manifest.

    Raises BackupError where it is not as it was written.
    """
    with _opened(file) as (archive, manifest):
        found = {entry.filename for entry in archive.infolist()}
        objects = {name for name in found if name.startswith(_OBJECT_FOLDER)}
        tables = {_table_entry(name): table.rows for name, table in manifest.tables.items()}
        if found - objects != {*tables, _MANIFEST} or len(objects) != manifest.objects:
            raise BackupError("Its entries are not those of its manifest")
        for name in found:
            with archive.open(name) as entry:
                rows = sum(piece.count(b"\n") for piece in iter(partial(entry.read, _PIECE), b""))
            if rows != tables.get(name, rows):
                raise BackupError(f"{name} has {rows} rows, and {tables[name]} were written")
    return manifest


async def restore_backup(url: str, file: IO[bytes], objects: Objects | None = None) -> Manifest:
    """Load a verified backup into the database at `url`, which has no rows yet (rule 4).

    Raises BackupError and MigrationError. The rows are loaded all or not at all.
    """
    with _opened(file) as (archive, manifest):
        if manifest.objects and objects is None:
            raise BackupError(
                f"It has {manifest.objects} objects of an object store, and none is configured"
            )
        async with connected(url) as connection:
            await _require_empty(connection, manifest.revision)
        await asyncio.to_thread(migrate, url, revision=manifest.revision)
        async with connected(url) as connection, connection.transaction():
            await _load_tables(connection, archive, manifest.tables)
            for name, value in manifest.sequences.items():
                await connection.execute("SELECT setval($1::text::regclass, $2)", name, value)
            if objects is not None:
                # Before the commit: no row may name an object that is not there.
                await _put_objects(archive, objects)
        async with connected(url) as connection:
            await connection.execute("ANALYZE")
    return manifest


async def _require_empty(connection: asyncpg.Connection, revision: int) -> None:
    """Raise BackupError unless a backup of this revision can be loaded."""
    if revision > newest_revision():
        raise BackupError(f"A newer version wrote it: its schema is {revision:04d}")
    for name, _ in await connection.fetch(_TABLES):
        if await connection.fetchval(f'SELECT 1 FROM "{name}" LIMIT 1'):
            raise BackupError(f"The database is not empty: {name} has rows")
    existing = await revision_of(connection)
    if existing > revision:
        raise BackupError(
            f"The database has the schema {existing:04d}, and the backup {revision:04d}:"
            " restore into a new database"
        )


async def _load_tables(
    connection: asyncpg.Connection, archive: zipfile.ZipFile, tables: Mapping[str, TableRows]
) -> None:
    existing = {name: set(columns) for name, columns in await connection.fetch(_TABLES)}
    for name, table in tables.items():
        if not table.rows:
            continue
        if not existing.get(name, set()) >= set(table.columns):
            raise BackupError(f"The schema {name} ({', '.join(table.columns)}) is unknown")
        await connection.execute(f'ALTER TABLE "{name}" DISABLE TRIGGER USER')
        with archive.open(_table_entry(name)) as entry:
            result = await connection.copy_to_table(
                name, columns=table.columns, source=_pieces(entry)
            )
        await connection.execute(f'ALTER TABLE "{name}" ENABLE TRIGGER USER')
        if result != f"COPY {table.rows}":
            raise BackupError(f"{name} has {table.rows} rows, and PostgreSQL loaded: {result}")


async def _put_objects(archive: zipfile.ZipFile, objects: Objects) -> None:
    for entry in archive.infolist():
        if entry.filename.startswith(_OBJECT_FOLDER):
            with archive.open(entry) as source:
                key = entry.filename.removeprefix(_OBJECT_FOLDER)
                await objects.put(key, _pieces(source))
                await objects.flush(key)


async def _pieces(source: IO[bytes]) -> AsyncIterator[bytes]:
    while piece := source.read(_PIECE):
        yield piece


@contextmanager
def _opened(file: IO[bytes]) -> Iterator[tuple[zipfile.ZipFile, Manifest]]:
    """Open a backup; raises BackupError where its bytes are not those that were written."""
    try:
        with zipfile.ZipFile(file) as archive:
            yield archive, _manifest(archive)
    except (zipfile.BadZipFile, zlib.error, EOFError) as exc:
        raise BackupError(f"It is no backup, or is damaged: {exc}") from exc


def _manifest(archive: zipfile.ZipFile) -> Manifest:
    try:
        values = json.loads(archive.read(_MANIFEST))
        if values["format"] != FORMAT:
            raise BackupError(f"Its format {values['format']} is not {FORMAT}")
        tables = {name: TableRows(**rows) for name, rows in values.pop("tables").items()}
        return Manifest(tables=tables, **values)
    except (KeyError, TypeError, AttributeError, ValueError) as exc:
        raise BackupError("It has no manifest of a backup") from exc


def _table_entry(name: str) -> str:
    return f"tables/{name}"
