"""Archives in PostgreSQL: the rows of a conversation leave the database and return.

1. A transaction that reads one moment writes the text of an archive, and computes checksums of the
   same rows. A second one locks the state, which every writer of these rows locks or changes, and
   deletes rows with the same checksums only.
2. The state moves from `heads` to `archived_heads` and back, so that no statement of another
   module finds an archived conversation.
3. Columns are read from the catalog: a process that runs beside a newer release archives the
   columns that it does not know.
4. A checksum depends on no setting of the session: times, floats and bytes are not compared by
   their texts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from uuid import UUID

import asyncpg

from app.adapters.postgres.common.connections import Session, Statement
from app.adapters.postgres.common.conversation_tables import ARCHIVED_TABLES
from app.adapters.postgres.common.rows import NOT_EXPIRED
from app.adapters.postgres.tenancy.retention import unchanged_since
from app.domain.conversations.archive import (
    Archive,
    ArchiveCandidate,
    ArchivedOwner,
    ArchiveReader,
    ArchiveSums,
    ArchiveWriter,
    DamagedArchive,
    Part,
    TableEnd,
    TableStart,
    TableSum,
)
from app.domain.snapshots.exports import IMPORTING_TENANT

COPY_BYTES = 2**21
"""About how many bytes one statement of a restore stores: each is short, whatever the whole."""

_CONVERSATION = "conversation_id = CAST(:conversation_id AS uuid)"


def _candidates(of: str) -> str:
    busy = " OR ".join(
        f"EXISTS (SELECT FROM {table} x WHERE x.conversation_id = {of} AND {condition} OFFSET 0)"
        for table, condition in (
            ("jobs", "x.status IN ('queued', 'running')"),
            ("compaction_leases", "x.expires_at > now()"),
            ("blob_uploads", "true"),
            ("blobs", "NOT x.attached AND x.collected_at IS NULL"),
        )
    )
    return f"""
        SELECT c.tenant_id, CAST(h.conversation_id AS text) AS conversation_id,
            {unchanged_since(of)} AS is_idle,
            h.due_at IS NOT NULL OR {busy} AS is_busy,
            h.head_seq AS messages, a.restored_at
        FROM heads h
        JOIN conversations c ON c.conversation_id = h.conversation_id
        LEFT JOIN archives a ON a.conversation_id = h.conversation_id
    """


# By id, as retention reads them.
CANDIDATES = Statement(
    f"""
        {_candidates("h.conversation_id")}
        WHERE h.conversation_id > CAST(:after AS uuid) AND {NOT_EXPIRED}
            AND c.tenant_id <> '{IMPORTING_TENANT}'
        ORDER BY h.conversation_id
        LIMIT CAST(:limit AS bigint)
        """,
    is_long=True,
)
CANDIDATE = Statement(
    f"""
        {_candidates("CAST(:conversation_id AS uuid)")}
        WHERE h.conversation_id = CAST(:conversation_id AS uuid) AND {NOT_EXPIRED}
        """,
    is_long=True,
)
LOCK_STATE = Statement(f"SELECT conversation_id FROM heads WHERE {_CONVERSATION} FOR UPDATE")
COLUMNS = Statement(
    """
        SELECT CAST(c.relname AS text) AS table_name, CAST(a.attname AS text) AS column_name,
            format_type(a.atttypid, NULL) AS type_name
        FROM pg_class c
        JOIN pg_attribute a ON a.attrelid = c.oid
        WHERE c.oid = ANY (CAST(CAST(:tables AS text[]) AS regclass[]))
            AND a.attnum > 0 AND NOT a.attisdropped
        ORDER BY a.attnum
        """
)
ADD = Statement(
    """
        INSERT INTO archives AS known (
            conversation_id, tenant_id, content_id, object_key, messages, text_bytes, object_bytes,
            last_message_at, idle_since
        )
        SELECT h.conversation_id, CAST(:tenant_id AS text), CAST(:content_id AS uuid),
            CAST(:object_key AS text), h.head_seq, CAST(:text_bytes AS bigint),
            CAST(:object_bytes AS bigint), newest.created_at,
            greatest(newest.created_at, (
                SELECT max(u.created_at) FROM usage_reports u
                WHERE u.conversation_id = CAST(:conversation_id AS uuid)
            ))
        FROM heads h
        LEFT JOIN LATERAL (
            SELECT m.created_at FROM messages m
            WHERE m.conversation_id = CAST(:conversation_id AS uuid)
            ORDER BY m.seq DESC LIMIT 1
        ) newest ON true
        WHERE h.conversation_id = CAST(:conversation_id AS uuid)
        ON CONFLICT (conversation_id) DO UPDATE
        SET content_id = excluded.content_id, object_key = excluded.object_key,
            messages = excluded.messages, text_bytes = excluded.text_bytes,
            object_bytes = excluded.object_bytes, last_message_at = excluded.last_message_at,
            idle_since = excluded.idle_since, archived_at = excluded.archived_at,
            restored_at = NULL
        """,
    is_long=True,
)
# Rows that are not in the database cannot be measured: what a tenant stores stays the same.
MEASURE = Statement(
    """
        INSERT INTO log_sizes (conversation_id, through_seq, bytes)
        SELECT m.conversation_id, max(m.seq),
            sum(octet_length(m.body) + coalesce(octet_length(m.fragment), 0))
        FROM messages m
        WHERE m.conversation_id = CAST(:conversation_id AS uuid)
        GROUP BY m.conversation_id
        ON CONFLICT (conversation_id) DO UPDATE
        SET through_seq = excluded.through_seq, bytes = excluded.bytes
        """,
    is_long=True,
)
DELETE = {
    table: Statement(f"DELETE FROM {table} WHERE {_CONVERSATION}", is_long=True)
    for table in (*ARCHIVED_TABLES, "heads", "archived_heads")
}
FIND = Statement(
    f"""
        SELECT CAST(a.content_id AS text) AS content_id, a.object_key
        FROM archives a
        JOIN conversations c ON c.conversation_id = a.conversation_id
        WHERE a.conversation_id = CAST(:conversation_id AS uuid)
            AND c.tenant_id = CAST(:tenant_id AS text) AND {NOT_EXPIRED}
        """
)
AMONG = Statement(
    """
        SELECT CAST(conversation_id AS text) AS conversation_id FROM archives
        WHERE conversation_id = ANY (CAST(:conversation_ids AS uuid[]))
            AND tenant_id = CAST(:tenant_id AS text) AND object_key IS NOT NULL
        """
)
LOCK = Statement(
    """
        SELECT h.conversation_id
        FROM archived_heads h
        JOIN archives a ON a.conversation_id = h.conversation_id
        WHERE h.conversation_id = CAST(:conversation_id AS uuid)
            AND a.content_id = CAST(:content_id AS uuid)
        FOR UPDATE OF h
        """
)
LOCK_TO_REMOVE = Statement(
    f"""
        SELECT c.agent_id
        FROM archived_heads h
        JOIN conversations c ON c.conversation_id = h.conversation_id
        WHERE h.conversation_id = CAST(:conversation_id AS uuid)
            AND c.tenant_id = CAST(:tenant_id AS text) AND {NOT_EXPIRED}
        FOR UPDATE OF h, c
        """
)
SET_RESTORED = Statement(
    f"""
        UPDATE archives
        SET content_id = NULL, object_key = NULL, idle_since = NULL, restored_at = now()
        WHERE {_CONVERSATION}
        """
)

Columns = Mapping[str, str]
"""The types of a table's columns, by name in their order."""


class ArchiveRepository:
    """Moves the rows of conversations out of the database and back."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def candidates(
        self, after: str, idle_since: datetime, limit: int
    ) -> list[ArchiveCandidate]:
        rows = await self._session.all(
            CANDIDATES, after=UUID(after), before=idle_since, limit=limit
        )
        return [ArchiveCandidate(**row) for row in rows]

    async def copy_out(
        self,
        candidate: ArchiveCandidate,
        idle_since: datetime,
        writer: ArchiveWriter,
        write: Callable[[bytes], Awaitable[None]],
    ) -> ArchiveSums | None:
        await self._session.at_one_moment()
        if not await self._is_archivable(candidate, idle_since):
            return None
        columns = await self._columns()
        await write(writer.first())
        key = UUID(candidate.conversation_id)

        async def write_rows(rows: bytes) -> None:
            await write(writer.rows(rows))

        for table, order in ARCHIVED_TABLES.items():
            await write(writer.start(table, list(columns[table])))
            query = f"SELECT {_listed(columns[table])} FROM {table}"
            await self._session.copy_out(
                f"{query} WHERE conversation_id = '{key}' ORDER BY {order}", write_rows
            )
            await write(writer.end())
        last, sums = writer.last(await self._sums(key, columns))
        await write(last)
        return sums

    async def move_out(
        self,
        candidate: ArchiveCandidate,
        idle_since: datetime,
        sums: ArchiveSums,
        archive: Archive,
        object_bytes: int,
    ) -> bool:
        key = UUID(candidate.conversation_id)
        if await self._session.first(LOCK_STATE, conversation_id=key) is None:
            return False
        columns = await self._columns()
        if (
            not await self._is_archivable(candidate, idle_since)
            or await self._sums(key, columns) != sums.tables
        ):
            return False
        await self._session.run(
            ADD,
            conversation_id=key,
            tenant_id=archive.tenant_id,
            content_id=archive.content_id,
            object_key=archive.object_key,
            text_bytes=sums.text_bytes,
            object_bytes=object_bytes,
        )
        await self._session.run(MEASURE, conversation_id=key)
        await self._session.run(
            _moved_state("heads", "archived_heads", columns["heads"]), conversation_id=key
        )
        await self._session.run(DELETE["heads"], conversation_id=key)
        for table in ARCHIVED_TABLES:
            deleted = await self._session.run(DELETE[table], conversation_id=key)
            if deleted != sums.tables[table].rows:
                return False
        return True

    async def find(self, tenant_id: str, conversation_id: str) -> Archive | None:
        row = await self._session.first(
            FIND, tenant_id=tenant_id, conversation_id=UUID(conversation_id)
        )
        return Archive(tenant_id, conversation_id, **row) if row is not None else None

    async def among(self, tenant_id: str, conversation_ids: Collection[str]) -> list[str]:
        rows = await self._session.all(
            AMONG, tenant_id=tenant_id, conversation_ids=list(conversation_ids)
        )
        return [row["conversation_id"] for row in rows]

    async def lock(self, archive: Archive) -> bool:
        row = await self._session.first(
            LOCK,
            conversation_id=UUID(archive.conversation_id),
            content_id=archive.content_id,
        )
        return row is not None

    async def lock_to_remove(self, tenant_id: str, conversation_id: str) -> ArchivedOwner | None:
        row = await self._session.first(
            LOCK_TO_REMOVE, tenant_id=tenant_id, conversation_id=UUID(conversation_id)
        )
        return ArchivedOwner(row["agent_id"]) if row is not None else None

    async def move_in(self, archive: Archive, texts: AsyncIterator[bytes]) -> None:
        key = UUID(archive.conversation_id)
        try:
            sums = await self._copy_in(_parts(texts))
        except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as error:
            raise DamagedArchive(f"its rows are refused: {type(error).__name__}") from error
        columns = await self._columns()
        found = await self._sums(key, columns)
        if sums.conversation_id != archive.conversation_id or any(
            found.get(table) != total for table, total in sums.tables.items()
        ):
            raise DamagedArchive("its rows are others than those that were archived")
        await self._session.run(
            _moved_state("archived_heads", "heads", columns["heads"]), conversation_id=key
        )
        await self._session.run(DELETE["archived_heads"], conversation_id=key)
        await self._session.run(SET_RESTORED, conversation_id=key)

    async def _copy_in(self, parts: AsyncIterator[Part]) -> ArchiveSums:
        """Store the rows of all tables, and return the last part."""
        async for part in parts:
            match part:
                case TableStart(table, columns):
                    if table not in ARCHIVED_TABLES:
                        raise DamagedArchive(f"it has a table {table!r}")
                    has_rows = True
                    while has_rows:
                        rows, has_rows = await _some_rows(parts)
                        await self._session.copy_in(table, columns, rows)
                case ArchiveSums():
                    return part
        raise DamagedArchive("it has no end")

    async def _is_archivable(self, candidate: ArchiveCandidate, idle_since: datetime) -> bool:
        row = await self._session.first(
            CANDIDATE, conversation_id=UUID(candidate.conversation_id), before=idle_since
        )
        return row is not None and ArchiveCandidate(**row).is_archivable(idle_since)

    async def _columns(self) -> Mapping[str, Columns]:
        columns: dict[str, dict[str, str]] = {table: {} for table in (*ARCHIVED_TABLES, "heads")}
        for row in await self._session.all(COLUMNS, tables=list(columns)):
            columns[row["table_name"]][row["column_name"]] = row["type_name"]
        return columns

    async def _sums(self, key: UUID, columns: Mapping[str, Columns]) -> dict[str, TableSum]:
        sums = {}
        for table in ARCHIVED_TABLES:
            row = await self._session.first(_sum(table, columns[table]), conversation_id=key)
            sums[table] = TableSum(row["rows"], row["checksum"]) if row else TableSum(0, "0")
        return sums


async def _parts(texts: AsyncIterator[bytes]) -> AsyncIterator[Part]:
    reader = ArchiveReader()
    async for text in texts:
        for part in reader.feed(text):
            yield part
    reader.finish()


async def _some_rows(parts: AsyncIterator[Part]) -> tuple[bytes, bool]:
    """Return rows of about `COPY_BYTES`, and whether the table may have more."""
    rows = bytearray()
    async for part in parts:
        match part:
            case bytes():
                rows += part
                if len(rows) >= COPY_BYTES:
                    return bytes(rows), True
            case TableEnd():
                return bytes(rows), False
            case _:
                break
    raise DamagedArchive("the rows of a table have no end")


def _listed(columns: Sequence[str] | Columns) -> str:
    return ", ".join(f'"{name}"' for name in columns)


_EXACT = {
    "timestamp with time zone": "extract(epoch FROM {})",
    "double precision": "encode(float8send({}), 'hex')",
    "bytea": "encode(sha256({}), 'hex')",
}
"""Expressions for the types whose text depends on settings."""


def _sum(table: str, columns: Columns) -> Statement:
    """Return the statement for the number and the checksum of a conversation's rows."""
    values = ", ".join(
        f"CAST({_EXACT.get(type_name, '{}').format(quoted)} AS text)"
        for quoted, type_name in ((f'"{name}"', type_name) for name, type_name in columns.items())
    )
    return Statement(
        f"""
        SELECT count(*) AS rows, CAST(coalesce(sum(CAST(
            hashtextextended(CAST(ROW({values}) AS text), 0) AS numeric)), 0) AS text) AS checksum
        FROM {table} WHERE {_CONVERSATION}
        """,
        is_long=True,
    )


def _moved_state(source: str, target: str, columns: Columns) -> Statement:
    listed = _listed(columns)
    return Statement(
        f"INSERT INTO {target} ({listed}) SELECT {listed} FROM {source} WHERE {_CONVERSATION}"
    )
