"""Archives: which conversations are archived, and the text that holds their rows.

1. A conversation is archived when nothing has been appended or changed for some time, no work on it
   is open, and it was not restored in that time.
2. The text is UTF-8: a first line, the rows of each table, a last line. The rows are in the text
   format of PostgreSQL's COPY, below a line with the table and its columns, and end with a line
   `\\.`. The first, the table's and the last line are JSON.
3. The last line has the SHA-256 of all lines before it, and of each table the number of rows and a
   checksum that the database computes of its rows. A text that differs from them, ends early or
   goes on raises DamagedArchive.

An archive of an older `VERSION` must stay readable. A table's columns are named in it, so that a
column that is added with a default needs no new version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from app.domain.common import json_text

FORMAT = "context-service.archive"
VERSION = 1
MAX_MESSAGES = 200_000
"""Messages of the longest conversation that is archived: a restore of it takes a minute or more."""
_END_OF_ROWS = b"\\.\n"


class DamagedArchive(ValueError):
    """The text of an archive is not what was written."""


@dataclass(frozen=True, slots=True)
class ArchiveCandidate:
    """What decides whether a conversation is archived.

    `is_idle` is whether nothing was appended or changed since a time. `is_busy` is whether there is
    open work: a due compaction, a job or an upload. `restored_at` is when it was
    last restored from an archive.
    """

    tenant_id: str
    conversation_id: str
    is_idle: bool
    is_busy: bool
    messages: int
    restored_at: datetime | None = None

    def is_archivable(self, idle_since: datetime) -> bool:
        """Whether to archive it, if `is_idle` is about this time (rule 1)."""
        return (
            self.is_idle
            and not self.is_busy
            and 0 < self.messages <= MAX_MESSAGES
            and (self.restored_at is None or self.restored_at < idle_since)
        )


@dataclass(frozen=True, slots=True)
class Archive:
    """A conversation that is archived, or was: then it has no object."""

    tenant_id: str
    conversation_id: str
    content_id: str | None
    object_key: str | None


@dataclass(frozen=True, slots=True)
class ArchivedOwner:
    """What a deletion needs to know of an archived conversation."""

    agent_id: str | None


@dataclass(frozen=True, slots=True)
class TableSum:
    """The number of a table's rows, and a checksum of them that ignores their order."""

    rows: int
    checksum: str


@dataclass(frozen=True, slots=True)
class ArchiveSums:
    """What an archive holds of each table, and its size and SHA-256."""

    conversation_id: str
    tables: Mapping[str, TableSum]
    text_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class TableStart:
    """The rows of a table follow, with these columns."""

    table: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableEnd:
    """The rows of a table have ended."""


Part = TableStart | bytes | TableEnd | ArchiveSums
"""A part of an archive's text; bytes are whole rows of the table that was named last."""


class ArchiveWriter:
    """Writes the text of an archive; the caller writes each returned piece in order."""

    def __init__(self, conversation_id: str) -> None:
        self._conversation_id = conversation_id
        self._sha256 = hashlib.sha256()
        self._size = 0

    def first(self) -> bytes:
        """Return the first line."""
        head = {"format": FORMAT, "version": VERSION, "conversation_id": self._conversation_id}
        return self.rows(_line(head))

    def start(self, table: str, columns: Sequence[str]) -> bytes:
        """Return the line before the rows of a table."""
        return self.rows(_line({"table": table, "columns": list(columns)}))

    def rows(self, data: bytes) -> bytes:
        """Return rows of the table in the text format of COPY, in pieces of any size."""
        self._sha256.update(data)
        self._size += len(data)
        return data

    def end(self) -> bytes:
        """Return the line after the rows of a table."""
        return self.rows(_END_OF_ROWS)

    def last(self, tables: Mapping[str, TableSum]) -> tuple[bytes, ArchiveSums]:
        """Return the last line, and what the archive holds."""
        digest = self._sha256.hexdigest()
        sums = {name: [item.rows, item.checksum] for name, item in tables.items()}
        line = _line({"tables": sums, "sha256": digest})
        size = self._size + len(line)
        return line, ArchiveSums(self._conversation_id, dict(tables), size, digest)


class ArchiveReader:
    """Reads the text of an archive from pieces of any size (rule 3)."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._rest = b""
        self._size = 0
        self._conversation_id: str | None = None
        self._table: str | None = None
        self._rows: dict[str, int] = {}
        self._is_complete = False

    def feed(self, piece: bytes) -> Iterator[Part]:
        """Yield the parts that a piece completes; raises DamagedArchive."""
        text = self._rest + piece
        at, end = 0, text.rfind(b"\n") + 1
        while at < end:
            if self._is_complete:
                raise DamagedArchive("it goes on after its last line")
            if self._table is None:
                stop = text.index(b"\n", at) + 1
                part = self._line(text[at:stop])
                if part is not None:
                    yield part
            else:
                stop = _end_of_rows(text, at, end)
                if stop > at:
                    yield self._rows_of(text[at:stop])
                if stop < end:
                    self._count(_END_OF_ROWS)
                    self._table = None
                    stop += len(_END_OF_ROWS)
                    yield TableEnd()
            at = stop
        self._rest = text[end:]

    def finish(self) -> None:
        """Raise DamagedArchive unless the text was complete."""
        if self._rest or not self._is_complete:
            raise DamagedArchive("it ends early")

    def _rows_of(self, rows: bytes) -> bytes:
        self._count(rows)
        self._rows[self._table or ""] += rows.count(b"\n")
        return rows

    def _count(self, data: bytes) -> None:
        self._sha256.update(data)
        self._size += len(data)

    def _line(self, line: bytes) -> Part | None:
        try:
            value = json_text.loads(line)
            if self._conversation_id is None:
                self._conversation_id = _conversation_of(value)
            elif "table" in value:
                self._table = str(value["table"])
                self._rows[self._table] = 0
                self._count(line)
                return TableStart(self._table, tuple(map(str, value["columns"])))
            else:
                return self._last(line, value)
        except DamagedArchive:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DamagedArchive(f"a line is not as it was written: {error}") from error
        self._count(line)
        return None

    def _last(self, line: bytes, value: Mapping[str, Any]) -> ArchiveSums:
        tables = {name: TableSum(*item) for name, item in value["tables"].items()}
        if value["sha256"] != self._sha256.hexdigest():
            raise DamagedArchive("its checksum is another one")
        if {name: item.rows for name, item in tables.items()} != self._rows:
            raise DamagedArchive("its number of rows is another one")
        self._is_complete = True
        size = self._size + len(line)
        return ArchiveSums(self._conversation_id or "", tables, size, value["sha256"])


def _conversation_of(head: Mapping[str, Any]) -> str:
    if head["format"] != FORMAT or head["version"] != VERSION:
        raise DamagedArchive(f"its version is {head['version']!r}, not {VERSION}")
    return str(head["conversation_id"])


def _end_of_rows(text: bytes, start: int, end: int) -> int:
    """Return where the rows that begin at `start` stop: at the line that ends them, or at `end`."""
    if text.startswith(_END_OF_ROWS, start):
        return start
    found = text.find(b"\n" + _END_OF_ROWS, start, end)
    return found + 1 if found >= 0 else end


def _line(value: Mapping[str, Any]) -> bytes:
    return json_text.dump_stored(value) + b"\n"
