"""The fields of the records of an export, and the checks of their values [exports.refused].

What follows from a message (its tokens, its chat item, the names of its calls) is not in its
record: an import computes it, and does not read it where a record has it. The checks ensure that
every stored value can be read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

from app.blobs.stored_output import stored_output_from
from app.common import json_text
from app.common.json_structure import StructureLimits
from app.common.sendable import is_sendable
from app.common.times import time_from
from app.conversations.compaction_receipt import FACTS, Trigger
from app.conversations.settings import SettingsList
from app.conversations.view import ENDLESS, ShortenedMessage, Span, summary_from, view_from
from app.conversations.windows.active_window import window_from
from app.database.tables import TABLES
from app.formats.message import FormatName, Role
from app.policy.policy import CounterName, StrategyName, SummaryInput
from app.snapshots.export_format import (
    BLOB_FIELDS,
    COLUMNS,
    COMPUTED,
    RECORD_TABLES,
    SETTINGS,
    STATE,
    Line,
    RecordKind,
)

Check = Callable[[Any], bool]

_MAX_INT = 2**31 - 1
_MAX_BIGINT = ENDLESS
_MAX_NAME = 512
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def _integer(value: Any, least: int = 0, most: int = _MAX_BIGINT) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15


def _text(value: Any, most: int | None = None) -> bool:
    return isinstance(value, str) and (most is None or len(value) <= most) and is_sendable(value)


def _is_boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _time(value: Any) -> bool:
    time = time_from(value) if _text(value, 64) else None
    return time is not None and time.isoformat() == value


def _matching(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _one_of(values: type[Any], value: Any) -> bool:
    return isinstance(value, str) and value in {str(item) for item in values}


def _or_null(check: Check, value: Any) -> bool:
    return value is None or check(value)


def _list_of(check: Check, value: Any) -> bool:
    return isinstance(value, list) and all(map(check, value))


def _json(kind: type[Any], value: Any) -> bool:
    """Whether a text is the JSON of a value of this kind."""
    if not _text(value):
        return False
    try:
        return isinstance(json_text.loads_within(value, StructureLimits()), kind)
    except ValueError:
        return False


def _reads(read: Callable[[Any], bool], value: Any) -> bool:
    """Whether a stored JSON text can be read."""
    if not _text(value):
        return False
    try:
        return read(json_text.loads_within(value, StructureLimits()))
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def _is_span(span: Span) -> bool:
    return _integer(span.start, 1) and _integer(span.end, span.start)


def _is_summary(raw: Any) -> bool:
    summary = summary_from(raw)
    return (
        _is_span(summary.span)
        and _text(summary.text)
        and _text(summary.unlisted)
        and _integer(summary.tokens, most=_MAX_INT)
        and _integer(summary.level, 1, 1000)
        and all(map(_is_span, summary.sources))
    )


def _is_view(raw: Any) -> bool:
    view = view_from(raw)
    cut = view.media_cut
    numbers = (
        *(view.results_cleared_through, view.reasoning_after, *view.uncleared_results),
        *((cut.seq, cut.count) if cut is not None else ()),
    )
    shortened = [
        getattr(item, field.name) for item in view.shortened for field in fields(ShortenedMessage)
    ]
    return (
        all(map(_is_span, (*view.spans, *view.window)))
        and bool(view.window)
        and all(map(_is_summary, raw.get("summaries", ())))
        and all(map(_integer, (*numbers, *shortened)))
        and all(isinstance(item, str) for item in view.reasoning_of)
        and all(item is None or isinstance(item, str) for item in (view.retain, view.note))
        and isinstance(view.summary_as_system, bool)
    )


def _is_view_text(value: Any) -> bool:
    return value == "" or _reads(_is_view, value)


def _are_summaries(raw: Any) -> bool:
    return isinstance(raw, list) and all(map(_is_summary, raw))


def _are_parts(value: Any) -> bool:
    """Whether a text describes the gaps and restored ranges of an active window."""
    if value == "":
        return True

    def read(_raw: Any) -> bool:
        window = window_from(1, value)
        spans = (*window.gaps, *(item.span for item in window.restored))
        times = (item.at for item in window.restored)
        return all(map(_is_span, spans)) and all(at.tzinfo is not None for at in times)

    return _reads(read, value)


def _is_output(value: Any) -> bool:
    def read(_raw: Any) -> bool:
        output = stored_output_from(value)
        numbers = (output.byte_size, output.line_count, *(n for pair in output.texts for n in pair))
        texts = (output.note, output.plain_note, *output.mentions)
        return (
            all(map(_integer, numbers))
            and all(map(_text, texts))
            and _or_null(_name, output.ref)
            and isinstance(output.is_object, bool)
        )

    return _reads(read, value)


_name = partial(_text, most=_MAX_NAME)
_names = partial(_list_of, _name)
_texts = partial(_list_of, _text)
_small = partial(_integer, most=_MAX_INT)
_seq = partial(_integer, least=1)
_uuid = partial(_matching, _UUID)
_object, _array = partial(_json, dict), partial(_json, list)


_OF_FACT: Mapping[str, Check] = {
    "str": _name,
    "str | None": partial(_or_null, _name),
    "int": _integer,
    "int | None": partial(_or_null, _integer),
    "float | None": partial(_or_null, _number),
    "tuple[str, ...]": _names,
}


def _is_receipt(raw: Any) -> bool:
    return (
        {*raw} == {*FACTS}
        and all(_OF_FACT[FACTS[name]](raw[name]) for name in FACTS)
        and _one_of(StrategyName, raw["strategy"])
        and _or_null(partial(_one_of, SummaryInput), raw["summary_input"])
    )


_OF_TYPE: Mapping[str, Check] = {
    "text": _text,
    "bigint": _integer,
    "integer": _small,
    "boolean": _is_boolean,
    "timestamptz": _time,
    "uuid": _uuid,
    "double precision": _number,
    "text[]": _names,
    "bigint[]": partial(_list_of, _seq),
}
_OF_COLUMN: Mapping[str, Check] = {
    **dict.fromkeys(("agent_id", "blob_id", "media_type", "message_id", "model"), _name),
    **dict.fromkeys(("policy_strategy", "tool_name"), _name),
    **dict.fromkeys(("metadata", "policy"), _object),
    **dict.fromkeys(("sections", "tools"), _array),
    **dict.fromkeys(("seq", "since"), _seq),
    "call_ids": partial(_reads, _texts),
    "counter": partial(_one_of, CounterName),
    "format": partial(_one_of, FormatName),
    "kind": partial(_one_of, SettingsList),
    "made": partial(_reads, _are_summaries),
    "open_calls": _texts,
    "output": _is_output,
    "parts": _are_parts,
    "trigger": partial(_one_of, Trigger),
    "receipt": partial(_reads, _is_receipt),
    "role": partial(_one_of, Role),
    "sha256": partial(_matching, _SHA256),
    "view": _is_view_text,
    "window_seconds": partial(_integer, least=-1),
}
"""The checks of columns of which not every value of the type is allowed."""


def _checks(table: str, *names: str, **others: Check) -> dict[str, Check]:
    """Return the checks of columns, and those of other fields or other checks of columns."""
    columns, nullable = TABLES[table].columns, TABLES[table].nullable
    found = {name: _OF_COLUMN.get(name, _OF_TYPE[columns[name]]) for name in names}
    return {
        name: partial(_or_null, check) if name in nullable else check
        for name, check in found.items()
    } | others


FIELDS: Mapping[str, Mapping[str, Check]] = {
    "export": {
        "format": _name,
        "version": _small,
        "conversation_id": _name,
        "created_at": _time,
        "exported_at": _time,
    },
    RecordKind.SETTINGS: _checks("conversations", *SETTINGS) | _checks("heads", "counter"),
    RecordKind.STATE: _checks("heads", *STATE),
    **{
        kind: _checks(table, *COLUMNS[kind])
        for kind, table in RECORD_TABLES.items()
        if kind not in (RecordKind.VERSION, RecordKind.BLOB)
    },
    RecordKind.VERSION: _checks("conversation_versions", *COLUMNS[RecordKind.VERSION], body=_array),
    RecordKind.BLOB: _checks("blobs", *BLOB_FIELDS, is_collected=_is_boolean),
    "blob_piece": {"data": _text},
    "end": {
        "messages": _integer,
        "blobs": _integer,
        "lines": _integer,
        "sha256": partial(_matching, _SHA256),
    },
}
"""The fields of every type of line; none may be missing, and there are no others."""


def checked(line: Line) -> dict[str, Any]:
    """Return the fields of a line; raises ValidationError."""
    known = FIELDS.get(line.type)
    if known is None:
        raise line.error(f"The type {line.type[:40]!r} is unknown", "type")
    fields = dict(line.fields)
    if line.type == RecordKind.MESSAGE:
        fields = {name: value for name, value in fields.items() if name not in COMPUTED}
    for name in fields:
        if name not in known:
            raise line.error("is not a field of this record", name[:80])
    for name, check in known.items():
        if name not in fields:
            raise line.error("is missing", name)
        if not check(fields[name]):
            raise line.error("has a value that is not allowed", name)
    return fields
