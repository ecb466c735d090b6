"""The checks of an import: every value can be read, and the lines are a log [exports.refused].

1. What follows from a message is computed as in an append, and so are the running values of the
   log, its turns and token sums, and the costs of summaries and of a provider's compaction items.
2. What a line says about other lines is checked: seqs, call pairing, blobs and the active
   compaction.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import cache, partial
from typing import Any, get_args, get_origin, get_type_hints

from app.blobs.stored_output import StoredOutput, inline_output, stored_output_from
from app.common import json_text
from app.common.errors import UnpairedToolResult, ValidationError
from app.common.json_text import StructureLimits
from app.common.texts import is_sendable, time_from
from app.conversations.compaction_receipt import FACTS, CompactionFacts, Trigger
from app.conversations.conversation import SettingsList
from app.conversations.messages.draft import Draft, derive, require_short_text
from app.conversations.messages.row import NO_CALLS, batch_shape
from app.conversations.turns import MAX_PLACEHOLDER_TOKENS
from app.conversations.view import ENDLESS, Span, Summary, View, summary_from, view_from
from app.conversations.views import provider_item, summary_message_tokens
from app.conversations.windows.active_window import ActiveWindow, window_from
from app.database.tables import TABLES
from app.formats import PROVIDERS
from app.formats.message import FormatName, Message, Role
from app.models.tokens import CountText
from app.policy.policy import CounterName, StrategyName
from app.snapshots.export_format import (
    FIELDS,
    FORMAT,
    KEYS,
    RECORD_TABLES,
    VERSION,
    Line,
    RecordKind,
)

Check = Callable[[Any], bool]

_MAX_INT = 2**31 - 1
_MAX_NAME = 512
_ORDER = {kind: position for position, kind in enumerate(RecordKind)}


_RULES: Mapping[Any, Check] = {
    Span: lambda it: 0 < it.start <= it.end,
    Summary: lambda it: 0 < it.level <= 1000,
    View: lambda it: bool(it.window),
}
"""What values of these types must be as well."""

# --- values -------------------------------------------------------------------------------------


def conforms(kind: Any, value: Any) -> bool:
    """Whether a value is of a type, with all its parts, and a row can hold them.

    Integers are not negative, texts can be stored, and spans are not empty before their start.
    """
    arguments = get_args(kind)
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            return False
        kinds = arguments[:1] * len(value) if arguments[-1] is ... else arguments
        return len(kinds) == len(value) and all(map(conforms, kinds, value))
    if arguments:  # a union
        return any(conforms(each, value) for each in arguments)
    if isinstance(kind, type) and is_dataclass(kind):
        parts, rule = _hints(kind).items(), _RULES.get(kind, lambda _: True)
        is_one = isinstance(value, kind)
        is_one = is_one and all(conforms(each, getattr(value, name)) for name, each in parts)
        return is_one and rule(value)
    if kind is int:
        return type(value) is int and 0 <= value <= ENDLESS
    if kind is float:
        return type(value) in (int, float) and 0 <= value < 1e15
    if kind is str:
        return isinstance(value, str) and is_sendable(value)
    if kind is datetime:
        return isinstance(value, datetime) and value.tzinfo is not None
    if issubclass(kind, StrEnum):
        return isinstance(value, str) and value in {str(item) for item in kind}
    return type(value) is kind


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _is(kind: Any) -> Check:
    return partial(conforms, kind)


def _between(least: int, most: int = ENDLESS) -> Check:
    return lambda value: type(value) is int and least <= value <= most


def _matching(pattern: str) -> Check:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _is_name(value: Any) -> bool:
    return conforms(str, value) and len(value) <= _MAX_NAME


def _is_time(value: Any) -> bool:
    time = time_from(value) if isinstance(value, str) and len(value) <= 64 else None
    return time is not None and time.isoformat() == value


def _loads(text: str) -> Any:
    return json_text.loads_within(text, StructureLimits())


def _json(kind: Any, read: Callable[[str], Any] = _loads) -> Check:
    """Return the check of a JSON text that is read as a value of this type."""

    def check(text: Any) -> bool:
        if not conforms(str, text):
            return False
        try:
            _loads(text)
            return conforms(kind, read(text))
        except (ValueError, KeyError, TypeError, AttributeError):
            return False

    return check


_is_view = _json(View, lambda text: view_from(_loads(text)))
_are_parts = _json(ActiveWindow, lambda text: window_from(1, text))

_OF_TYPE: Mapping[str, Check] = {
    "text": _is(str),
    "bigint": _is(int),
    "integer": _between(0, _MAX_INT),
    "boolean": _is(bool),
    "timestamptz": _is_time,
    "uuid": _matching(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    "double precision": _is(float),
    "text[]": _is(tuple[str, ...]),
    "bigint[]": lambda value: isinstance(value, list) and all(map(_between(1), value)),
}
_OF_COLUMN: Mapping[str, Check] = {
    **dict.fromkeys(("agent_id", "blob_id", "media_type", "message_id", "model"), _is_name),
    **dict.fromkeys(("policy_strategy", "tool_name"), _is_name),
    **dict.fromkeys(("metadata", "policy"), _json(dict)),
    **dict.fromkeys(("sections", "tools"), _json(list)),
    **dict.fromkeys(("seq", "since"), _between(1)),
    "call_ids": _json(tuple[str, ...]),
    "counter": _is(CounterName),
    "format": _is(FormatName),
    "is_collected": _is(bool),
    "kind": _is(SettingsList),
    "made": _json(tuple[Summary, ...], lambda text: tuple(map(summary_from, _loads(text)))),
    "output": _json(StoredOutput, stored_output_from),
    "parts": lambda value: value == "" or _are_parts(value),
    "trigger": _is(Trigger),
    "role": _is(Role),
    "sha256": _matching("[0-9a-f]{64}"),
    "view": lambda value: value == "" or _is_view(value),
    "window_seconds": _between(-1),
}
"""The checks of fields of which not every value of the column's type is allowed."""
_FACTS = {
    **_hints(CompactionFacts),
    "strategy": StrategyName,
}
_DEFAULTS = {
    field.name: field.default
    for field in dataclass_fields(CompactionFacts)
    if field.name not in ("strategy", "strategies_run")
}
"""A fact that a receipt of an earlier version lacks has its default."""
_TABLES = {**RECORD_TABLES, RecordKind.SETTINGS: "conversations", RecordKind.STATE: "heads"}


def _checks(kind: RecordKind) -> dict[str, Check]:
    """Return the checks of the fields of a record."""
    columns, nullable = TABLES[_TABLES[kind]].columns, TABLES[_TABLES[kind]].nullable
    checks = {}
    for name in FIELDS[kind]:
        if kind is RecordKind.COMPACTION and name in FACTS:
            checks[name] = _is(_FACTS[name])
            continue
        check = _OF_COLUMN[name] if name in _OF_COLUMN else _OF_TYPE[columns[name]]
        checks[name] = partial(_or_null, check) if name in nullable else check
    return checks | ({"body": _json(list)} if kind is RecordKind.VERSION else {})


def _or_null(check: Check, value: Any) -> bool:
    return value is None or check(value)


_CHECKS: Mapping[str, Mapping[str, Check]] = {
    "export": {
        **dict.fromkeys(("format", "conversation_id"), _is_name),
        **dict.fromkeys(("created_at", "exported_at"), _is_time),
        "version": _is(int),
    },
    **{kind: _checks(kind) for kind in RecordKind},
    "blob_piece": {"data": _is(str)},
    "end": {
        **dict.fromkeys(("messages", "blobs", "lines"), _is(int)),
        "sha256": _OF_COLUMN["sha256"],
    },
}
"""The fields of every type of line; none may be missing, and others are not read."""


def _checked(line: Line) -> dict[str, Any]:
    """Return the known fields of a line; raises ValidationError."""
    known = _CHECKS.get(line.type)
    if known is None:
        raise line.error(f"The type {line.type[:40]!r} is unknown", "type")
    given = _DEFAULTS | line.fields if line.type == RecordKind.COMPACTION else line.fields
    for name, check in known.items():
        if name not in given:
            raise line.error("is missing", name)
        if not check(given[name]):
            raise line.error("has a value that is not allowed", name)
    return {name: given[name] for name in known}


# --- lines --------------------------------------------------------------------------------------


class ImportChecker:
    """Checks the lines of one export in their order; memory does not grow with their number."""

    def __init__(self, counter: Callable[[str], CountText]) -> None:
        self._counter = counter
        self._item_tokens: dict[int, int] = {}
        self._last: tuple[int, tuple[Any, ...]] | None = None
        self._has_begun = False
        self._calls = NO_CALLS
        self._missing_bytes = 0
        self.settings: Mapping[str, Any] = {}
        self.state: Mapping[str, Any] = {}
        self.head_seq = 0
        self.blobs = 0
        self._turns = 0
        self._tokens = 0

    def check(self, line: Line) -> Line:
        """Return a line with its fields as they are stored; raises ValidationError."""
        fields = _checked(line)
        if self._missing_bytes and line.type != "blob_piece":
            raise line.error(f"The blob before it lacks {self._missing_bytes:,} bytes")
        if not self._has_begun:
            if line.type != "export" or fields["format"] != FORMAT:
                raise line.error("This is not the export of a conversation")
            if fields["version"] != VERSION:
                raise line.error(f"Only version {VERSION} of the format can be imported", "version")
            self._has_begun = True
        elif line.type == "end":
            self._check_end(line, fields)
        elif line.type == "blob_piece":
            fields["data"] = self._blob_piece(line, fields["data"])
        elif line.type == "export":
            raise line.error("This is the first line of another export")
        else:
            self._check_record(line, RecordKind(line.type), fields)
        return replace(line, fields=fields)

    def _check_record(self, line: Line, kind: RecordKind, fields: dict[str, Any]) -> None:
        place = _ORDER[kind], tuple(fields[name] for name in KEYS.get(kind, ()))
        if self._last is not None and place <= self._last:
            raise line.error(f"This {kind} stands twice, or not in order")
        self._last = place
        if kind not in (RecordKind.SETTINGS, RecordKind.STATE):
            self._require_beginning(line)
        match kind:
            case RecordKind.SETTINGS:
                self.settings = fields
            case RecordKind.STATE:
                self._check_state(line, fields)
            case RecordKind.BLOB:
                self.blobs += 1
                self._missing_bytes = 0 if fields["is_collected"] else fields["byte_size"]
            case RecordKind.MESSAGE:
                self._check_message(line, fields)
            case RecordKind.BLOB_USE | RecordKind.PIN | RecordKind.REDACTION:
                if fields["seq"] > self.head_seq:
                    raise line.error("There is no message with this seq", "seq")
            case RecordKind.COMPACTION:
                self._check_compaction(line, fields)

    def _blob_piece(self, line: Line, data: str) -> bytes:
        try:
            piece = b64decode(data, validate=True)
        except ValueError as error:
            raise line.error("is not base64", "data") from error
        if not 0 < len(piece) <= self._missing_bytes:
            raise line.error("The blob before it has no such bytes", "data")
        self._missing_bytes -= len(piece)
        return piece

    def _require_beginning(self, line: Line) -> None:
        if not self.settings or not self.state:
            raise line.error("The line with the settings or with the state is missing")

    def _check_state(self, line: Line, fields: dict[str, Any]) -> None:
        end = fields["head_seq"] + 1
        window = window_from(fields["since"], fields["parts"])
        spans = (*window.gaps, *(item.span for item in window.restored))
        if window.since > end or any(span.end > end for span in spans):
            raise line.error("is beyond the log", "since")
        if fields["cleared_seq"] >= end or any(seq >= end for seq in fields["kept"]):
            raise line.error("is beyond the log", "kept")
        self.state = fields

    def _check_message(self, line: Line, fields: dict[str, Any]) -> None:
        """Check a message with those before it, and add its turn and its token sum."""
        if fields["seq"] != self.head_seq + 1:
            raise line.error(f"Expected the message with seq {self.head_seq + 1}", "seq")
        raw, message = _message(line, fields)
        self.head_seq += 1
        self._turns += message.role is Role.USER and not fields["joins"]
        format, count = FormatName(fields["format"]), self._counter(self.settings["counter"])
        draft = derive(raw, message, format, count)
        if draft.compaction is not None:
            item = provider_item(draft.compaction, self.head_seq, format, "", count)
            self._item_tokens[self.head_seq] = item.tokens
        draft = self._with_calls(line, fields, draft)
        self._tokens += draft.tokens
        fields |= {
            **draft.columns,
            "turn": self._turns,
            "total_tokens": self._tokens,
            "output": _output(fields["output"], message, draft.tokens),
        }

    def _with_calls(self, line: Line, fields: Mapping[str, Any], draft: Draft) -> Draft:
        """Check the place of a message among calls, and return it with the ids of the log."""
        before, calls = self.head_seq - 1, self._calls
        if not fields["joins"]:
            calls = calls.ended(before)  # as by a clear, or in a fork
        try:
            shape = batch_shape([draft], calls, before)
        except UnpairedToolResult as error:
            raise line.error(error.detail, "call_ids") from error
        assert shape is not None, "the calls are known"
        if shape.drafts[0].joins != fields["joins"]:
            raise line.error("must say whether it belongs to the call group before it", "joins")
        self._calls = shape.after(calls, before)
        return shape.drafts[0]

    def _check_compaction(self, line: Line, fields: dict[str, Any]) -> None:
        """Check the range of a receipt, and count what its view has."""
        if not 0 <= fields["span_start"] <= fields["span_end"] <= self.head_seq + 1:
            raise line.error("is beyond the log", "span_end")
        count = self._counter(self.settings["counter"])
        view = json_text.loads(fields["view"]) if fields["view"] else {}
        made = json_text.loads(fields["made"])
        for summary in (*view.get("summaries", ()), *made):
            summary["tokens"] = summary_message_tokens(summary["text"], count)
        if (item := view.get("provider_item")) is not None:
            if item["seq"] not in self._item_tokens:
                raise line.error("There is no compaction item in the message that it names", "view")
            item["tokens"] = self._item_tokens[item["seq"]]
        fields["receipt"] = json_text.dumps({name: fields.pop(name) for name in FACTS})
        fields["view"] = json_text.dumps(view) if view else ""
        fields["made"] = json_text.dumps(made)

    def _check_end(self, line: Line, fields: Mapping[str, Any]) -> None:
        self._require_beginning(line)
        counts = (fields["messages"], fields["blobs"], self.state["head_seq"])
        if counts != (self.head_seq, self.blobs, self.head_seq):
            raise line.error(
                f"There are {self.head_seq} messages and {self.blobs} blobs", "messages"
            )
        if not {*self.state["open_calls"]} <= self._calls.open.keys():
            raise line.error("The open calls of the state are not those of the log")

    @property
    def head(self) -> dict[str, Any]:
        """The head of the log, with the calls that wait."""
        calls = self._calls
        opened = {id: seq for id, seq in calls.open.items() if id in self.state["open_calls"]}
        return {
            **self.state,
            "counter": self.settings["counter"],
            "open_calls": list(opened),
            "open_seqs": list(opened.values()),
            "group_seq": calls.group_seq,
            "provider_calls": list(calls.provider),
            "is_answering": calls.is_answering,
        }


def _message(line: Line, fields: Mapping[str, Any]) -> tuple[Mapping[str, Any], Message]:
    """Return a message as it is stored and as a build reads it."""
    format = FormatName(fields["format"])
    try:
        raw = _loads(fields["body"])
        messages = PROVIDERS[format].parse(raw, "")
    except ValidationError as error:
        raise line.error(error.detail, "body") from error
    except ValueError as error:
        raise line.error(f"is not a message: {error}", "body") from error
    if len(messages) != 1 or messages[0].role != fields["role"]:
        raise line.error(f"is not one {fields['role']} message", "body")
    (message,) = messages
    require_short_text(message, f"/{line.number}/body")
    call_ids = json_text.loads(fields["call_ids"] or "[]")
    if PROVIDERS[format].derives_ids and message.role is Role.TOOL and len(call_ids) == 1:
        message = replace(message, tool_call_id=call_ids[0])  # stored by its position
    return raw, message


def _output(given: str | None, message: Message, tokens: int) -> str | None:
    """Return the stored output of a result; one that its row holds as a whole is measured."""
    stored = stored_output_from(given) if given is not None else None
    if message.role is Role.TOOL and (stored is None or stored.ref is None):
        return inline_output(message).as_json() if tokens > MAX_PLACEHOLDER_TOKENS else None
    return stored.as_json() if stored is not None else None
