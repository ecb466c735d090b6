"""Exports: a conversation as lines of JSON [exports.format].

1. The first line names the format and the conversation; the last line, `end`, has the numbers of
   messages, blobs and lines, and the SHA-256 of the lines between the two. Exports of
   conversations with equal content have equal lines between the two, and so an equal SHA-256.
2. Every other line is one record: a JSON object whose `type` is its kind. Kinds are in the order
   of `RecordKind`, and the records of a kind ascend by their keys.
3. A record whose text is longer than `PIECE_CHARS` is cut into lines of the type `part`. So no line
   is longer than `MAX_LINE_BYTES`. Its text is written and cut piece by piece: no single call of
   the writer takes long, in which no other thread runs.
4. A blob is followed by `blob_piece` lines with its bytes, unless it was collected.
5. What follows from a message (its tokens, its chat item, the names of its calls) is not in its
   record: an import computes it, and does not read it where a record has it.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from io import BytesIO
from typing import Any

from app.common import json_text
from app.common.errors import PayloadTooLarge, Problem, ValidationError
from app.common.json_text import StructureLimits
from app.conversations.compaction_receipt import FACTS
from app.database.tables import TABLES

FORMAT = "context-service.conversation"
VERSION = 1
MEDIA_TYPE = "application/x-ndjson"
PIECE_CHARS = 65_536
"""Characters of a record in one line (rule 3)."""
_BLOB_PIECE_BYTES = 32_768
"""Bytes of a blob in one line, which is shorter than a part."""
MAX_LINE_BYTES = 512 * 1024
"""The longest line: every character of a part takes at most six bytes, and nearly all take one."""
IMPORTING_TENANT = "!importing"
"""The tenant of a conversation while it is imported; no tenant of a key has such an id."""


class RecordKind(StrEnum):
    """The kinds of records between the first and the last line, in their order."""

    SETTINGS = "settings"
    STATE = "state"
    VERSION = "version"
    BLOB = "blob"
    MESSAGE = "message"
    BLOB_USE = "blob_use"
    PIN = "pin"
    REDACTION = "redaction"
    COMPACTION = "compaction"


RECORD_TABLES: Mapping[RecordKind, str] = {
    RecordKind.VERSION: "conversation_versions",
    RecordKind.BLOB: "blobs",
    RecordKind.MESSAGE: "messages",
    RecordKind.BLOB_USE: "blob_uses",
    RecordKind.PIN: "pins",
    RecordKind.REDACTION: "redactions",
    RecordKind.COMPACTION: "compactions",
}
COMPUTED = (
    *("tokens", "reasoning_tokens", "call_names", "has_media", "turn", "total_tokens", "fragment"),
)
"""The columns of a message that an import computes (rule 5)."""
_LEFT_OUT = {"blobs": ("created_at",), "messages": COMPUTED}
COLUMNS: Mapping[RecordKind, Mapping[str, str]] = {
    kind: TABLES[table].without("conversation_id", *_LEFT_OUT.get(table, ()))
    for kind, table in RECORD_TABLES.items()
}
"""The columns of a kind's rows with their types."""
SETTINGS = (
    *("agent_id", "model", "policy", "sections", "tools", "metadata", "sections_version"),
    *("tools_version", "rolling_window_seconds", "expires_at"),
)
"""The columns of the conversation in the record of its settings, which has its counter as well."""
STATE = (
    *("head_seq", "open_calls", "resume_at", "promoted", "promoted_turn", "since", "parts"),
    *("window_seconds", "cleared_at", "cleared_seq", "oldest_at", "newest_at", "mentions"),
    *("compaction_id", "kept"),
)
FIELDS: Mapping[RecordKind, tuple[str, ...]] = {
    **{kind: tuple(columns) for kind, columns in COLUMNS.items()},
    RecordKind.SETTINGS: (*SETTINGS, "counter"),
    RecordKind.STATE: STATE,
    RecordKind.COMPACTION: (
        *(name for name in COLUMNS[RecordKind.COMPACTION] if name != "receipt"),
        *FACTS,
    ),
    RecordKind.BLOB: (
        *TABLES["blobs"].without(
            *("conversation_id", "content_id", "object_key", "collected_at", "created_at")
        ),
        "is_collected",
    ),
}
"""The fields of records: columns, the facts of a receipt, and whether a blob was collected."""
KEYS: Mapping[RecordKind, tuple[str, ...]] = {
    kind: TABLES[table].key[1:] for kind, table in RECORD_TABLES.items()
}
"""The fields by which the records of a kind ascend; a kind without keys has one record."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of an export, with its number from 1."""

    number: int
    type: str
    fields: dict[str, Any]

    def error(self, detail: str, field: str = "") -> ValidationError:
        """Return the error for this line, or for one of its fields; nothing is imported."""
        pointer = f"/{self.number}/{field}" if field else f"/{self.number}"
        text = f"{field}: {detail}" if field else detail
        return ValidationError(
            f"Line {self.number}: {text}. Nothing was imported",
            {"line": self.number},
            (Problem(pointer, detail),),
        )


class ExportWriter:
    """Writes the lines of one export, and counts and hashes them."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._lines = 1
        self._counts = {RecordKind.MESSAGE: 0, RecordKind.BLOB: 0}

    def first(self, conversation_id: str, created_at: str, exported_at: str) -> bytes:
        """Return the first line."""
        return _line(
            type="export",
            format=FORMAT,
            version=VERSION,
            conversation_id=conversation_id,
            created_at=created_at,
            exported_at=exported_at,
        )

    def record(self, kind: str, fields: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the lines of a record."""
        if kind in self._counts:
            self._counts[RecordKind(kind)] += 1
        for line in _lines({"type": kind, **fields}):
            self._lines += 1
            self._hash.update(line)
            yield line

    def last(self) -> bytes:
        """Return the last line."""
        return _line(
            type="end",
            messages=self._counts[RecordKind.MESSAGE],
            blobs=self._counts[RecordKind.BLOB],
            lines=self._lines + 1,
            sha256=self._hash.hexdigest(),
        )


def blob_pieces(data: bytes) -> Iterator[dict[str, str]]:
    """Yield the fields of the `blob_piece` lines for some bytes of a blob."""
    for start in range(0, len(data), _BLOB_PIECE_BYTES):
        yield {"data": b64encode(data[start : start + _BLOB_PIECE_BYTES]).decode()}


def _line(**record: Any) -> bytes:
    return json_text.dump_stored(record) + b"\n"


def _lines(record: Mapping[str, Any]) -> Iterator[bytes]:
    pending, is_cut = "", False
    for piece in _json_pieces(record):
        pending += piece
        while len(pending) > PIECE_CHARS:
            yield _line(type="part", is_last=False, text=pending[:PIECE_CHARS])
            pending, is_cut = pending[PIECE_CHARS:], True
    if is_cut:
        yield _line(type="part", is_last=True, text=pending)
    else:
        yield pending.encode() + b"\n"


def _json_pieces(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the JSON of a record, with a long text in pieces; a stored text has no surrogates."""
    opening = "{"
    for name, value in record.items():
        yield f'{opening}"{name}":'
        opening = ","
        if isinstance(value, str) and len(value) > PIECE_CHARS:
            yield '"'
            for start in range(0, len(value), PIECE_CHARS):
                yield json_text.dumps(value[start : start + PIECE_CHARS])[1:-1]
            yield '"'
        else:
            yield json_text.dumps(value)
    yield "}"


class ExportReader:
    """Reads the lines of one export from pieces of its bytes.

    Memory holds one record and one piece. Raises ValidationError or PayloadTooLarge with the number
    of the line.
    """

    def __init__(self, max_record_bytes: int) -> None:
        self._max_record_bytes = max_record_bytes
        self._pending = bytearray()
        self._parts = BytesIO()
        self._hash = hashlib.sha256()
        self._number = 0
        self._has_ended = False

    def feed(self, piece: bytes) -> Iterator[Line]:
        """Add bytes, and yield the lines that they complete; consume all before the next call."""
        self._pending += piece
        start = 0
        while (end := self._pending.find(b"\n", start)) >= 0:
            raw = bytes(self._pending[start:end])
            start = end + 1
            self._number += 1
            self._require_short(len(raw), MAX_LINE_BYTES)
            line = self._read(raw)
            if line is not None:
                yield line
        del self._pending[:start]
        if len(self._pending) > MAX_LINE_BYTES:
            self._number += 1
            self._require_short(len(self._pending), MAX_LINE_BYTES)

    def finish(self) -> None:
        """Raise ValidationError unless the last line was complete and was an `end`."""
        if self._pending or not self._has_ended:
            self._number += 1
            raise self._error("The export is cut off: it has no complete last line")

    def _read(self, raw: bytes) -> Line | None:
        if self._has_ended:
            raise self._error("There is a line after the end of the export")
        line = self._parsed(raw)
        if line.type == "end":
            self._has_ended = True
            if line.fields.get("lines") != self._number:
                raise line.error(f"The export had {line.fields.get('lines')} lines", "lines")
            if line.fields.get("sha256") != self._hash.hexdigest():
                raise line.error("The lines before differ from those exported", "sha256")
        elif self._number > 1:
            self._hash.update(raw + b"\n")
        if line.type == "part":
            return self._joined(line)
        if self._parts.tell():
            raise line.error("A part of the record before it is missing")
        return line

    def _joined(self, part: Line) -> Line | None:
        """Add a part, and return the record of the last one."""
        text, is_last = part.fields.get("text"), part.fields.get("is_last")
        if not isinstance(text, str) or not isinstance(is_last, bool) or len(part.fields) != 2:
            raise part.error("A part has a text, and is_last")
        self._parts.write(text.encode("utf-8", "surrogatepass"))
        self._require_short(self._parts.tell(), self._max_record_bytes)
        if not is_last:
            return None
        whole, self._parts = self._parts.getvalue(), BytesIO()
        line = self._parsed(whole)
        if line.type in ("part", "end", "export"):
            raise line.error("A part holds no record")
        return line

    def _parsed(self, raw: bytes) -> Line:
        try:
            record = json_text.loads_within(raw, StructureLimits())
        except ValueError as error:
            raise self._error(f"The line is not JSON: {error}") from error
        if not isinstance(record, dict) or not isinstance(kind := record.pop("type", None), str):
            raise self._error("A line is a JSON object with a type")
        return Line(self._number, kind, record)

    def _error(self, detail: str) -> ValidationError:
        return Line(self._number, "", {}).error(detail)

    def _require_short(self, size: int, limit: int) -> None:
        if size > limit:
            raise PayloadTooLarge(
                f"Line {self._number} or its record has more than {limit:,} bytes. "
                "Nothing was imported",
                {"line": self._number, "limit": limit},
            )
