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
from app.conversations.compaction_receipt import FACTS
from app.conversations.settings import SettingsList
from app.conversations.view import ENDLESS, ShortenedMessage, Span, summary_from, view_from
from app.conversations.windows.active_window import window_from
from app.formats.message import FormatName, Role
from app.policy.policy import CounterName
from app.snapshots.export_format import Line, RecordKind

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
_null_or_name = partial(_or_null, _name)
_null_or_time = partial(_or_null, _time)
_null_or_text = partial(_or_null, _text)
_null_or_uuid = partial(_or_null, _uuid)
_object, _array = partial(_json, dict), partial(_json, list)


_OF_TYPE: Mapping[str, Check] = {
    "str": _name,
    "str | None": _null_or_name,
    "int": _small,
    "int | None": partial(_or_null, _small),
    "float | None": partial(_or_null, _number),
    "tuple[str, ...]": _names,
}


def _is_receipt(raw: Any) -> bool:
    return {*raw} == {*FACTS} and all(_OF_TYPE[FACTS[name]](raw[name]) for name in FACTS)


def _is_texts_json(value: Any) -> bool:
    return value is None or _reads(_texts, value)


FIELDS: Mapping[str, Mapping[str, Check]] = {
    "export": {
        "format": _name,
        "version": _small,
        "conversation_id": _name,
        "created_at": _time,
        "exported_at": _time,
    },
    RecordKind.SETTINGS: {
        "agent_id": _null_or_name,
        "model": _null_or_name,
        "policy": _object,
        "sections": _array,
        "tools": _array,
        "metadata": _object,
        "sections_version": _integer,
        "tools_version": _integer,
        "rolling_window_seconds": partial(_or_null, _integer),
        "expires_at": _null_or_time,
        "counter": partial(_one_of, CounterName),
    },
    RecordKind.STATE: {
        "head_seq": _integer,
        "open_calls": _texts,
        "resume_at": _integer,
        "promoted": _names,
        "promoted_turn": _integer,
        "since": _seq,
        "parts": _are_parts,
        "window_seconds": partial(_or_null, partial(_integer, least=-1)),
        "cleared_at": _null_or_time,
        "cleared_seq": _integer,
        "oldest_at": _null_or_time,
        "newest_at": _null_or_time,
        "mentions": _names,
        "compaction_id": _null_or_uuid,
        "kept": partial(_list_of, _seq),
    },
    RecordKind.VERSION: {
        "kind": partial(_one_of, SettingsList),
        "version": _integer,
        "body": _array,
        "created_at": _time,
    },
    RecordKind.BLOB: {
        "blob_id": _name,
        "byte_size": _integer,
        "line_count": _integer,
        "sha256": partial(_matching, _SHA256),
        "media_type": _name,
        "tool_name": _null_or_name,
        "tool_call_id": _null_or_text,
        "attached": _is_boolean,
        "is_collected": _is_boolean,
    },
    "blob_piece": {"data": _text},
    RecordKind.MESSAGE: {
        "seq": _seq,
        "message_id": _name,
        "role": partial(_one_of, Role),
        "format": partial(_one_of, FormatName),
        "call_ids": _is_texts_json,
        "joins": _is_boolean,
        "body": _text,
        "timestamp": _null_or_text,
        "created_at": _time,
        "output": partial(_or_null, _is_output),
        "at": _null_or_time,
        "late_at": _null_or_time,
    },
    RecordKind.BLOB_USE: {"blob_id": _name, "seq": _seq},
    RecordKind.PIN: {"seq": _seq, "created_at": _time},
    RecordKind.REDACTION: {
        "seq": _seq,
        "message_id": _name,
        "reason": _null_or_text,
        "key_id": _null_or_text,
        "created_at": _time,
    },
    RecordKind.COMPACTION: {
        "compaction_id": _uuid,
        "parent_id": _null_or_uuid,
        "trigger": _name,
        "policy_strategy": _name,
        "span_start": _integer,
        "span_end": _integer,
        "summary": _text,
        "view": _is_view_text,
        "made": partial(_reads, _are_summaries),
        "receipt": partial(_reads, _is_receipt),
        "undone_at": _null_or_time,
        "created_at": _time,
    },
    "end": {
        "messages": _integer,
        "blobs": _integer,
        "lines": _integer,
        "sha256": partial(_matching, _SHA256),
    },
}
"""The fields of every type of line; none may be missing, and there are no others."""
_COMPUTED = frozenset(
    ("tokens", "reasoning_tokens", "call_names", "has_media", "fragment", "turn", "total_tokens")
)
"""What an import computes of a message; a record may have it."""


def checked(line: Line) -> dict[str, Any]:
    """Return the fields of a line; raises ValidationError."""
    known = FIELDS.get(line.type)
    if known is None:
        raise line.error(f"The type {line.type[:40]!r} is unknown", "type")
    fields = dict(line.fields)
    if line.type == RecordKind.MESSAGE:
        fields = {name: value for name, value in fields.items() if name not in _COMPUTED}
    for name in fields:
        if name not in known:
            raise line.error("is not a field of this record", name[:80])
    for name, check in known.items():
        if name not in fields:
            raise line.error("is missing", name)
        if not check(fields[name]):
            raise line.error("has a value that is not allowed", name)
    return fields
