"""Imports: whether the lines of an export are a log that may be stored [exports.refused].

The running values of the log, its turns and token sums, are computed again. What a line says about
other lines is checked: seqs, call pairing, blobs and the active compaction.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.domain.common import json_text
from app.domain.common.errors import UnpairedToolResult, ValidationError
from app.domain.common.json_structure import MAX_MESSAGE_VALUES, has_more_values
from app.domain.common.messages import FormatName, Message, Role
from app.domain.conversations.active_window import ActiveWindow, window_from
from app.domain.conversations.log.batch import NO_CALLS, batch_shape
from app.domain.conversations.log.draft import Draft
from app.domain.formats import FORMATS
from app.domain.formats.provider_calls import waiting_calls
from app.domain.snapshots.export_fields import checked
from app.domain.snapshots.exports import FORMAT, KEYS, ORDER, VERSION, Line, RecordKind


class ImportChecker:
    """Checks the lines of one export in their order; memory does not grow with their number."""

    def __init__(self) -> None:
        self._kind: RecordKind | None = None
        self._key: tuple[Any, ...] = ()
        self._has_begun = False
        self._seen: set[RecordKind] = set()
        self._calls = NO_CALLS
        self._missing_bytes = 0
        self.settings: Mapping[str, Any] = {}
        self.state: Mapping[str, Any] = {}
        self.head_seq = 0
        self.turns = 0
        self.tokens = 0
        self.blobs = 0

    def check(self, line: Line) -> dict[str, Any]:
        """Return the fields of a line as they are stored; raises ValidationError."""
        fields = checked(line)
        if self._missing_bytes and line.type != "blob_piece":
            raise line.error(f"The blob before it lacks {self._missing_bytes:,} bytes")
        if not self._has_begun:
            _check_format(line, fields)
            self._has_begun = True
        elif line.type == "end":
            self._check_end(line, fields)
        elif line.type == "blob_piece":
            fields["data"] = self._blob_piece(line, fields["data"])
        elif line.type == "export":
            raise line.error("This is the first line of another export")
        else:
            self._check_record(line, RecordKind(line.type), fields)
        return fields

    def _check_record(self, line: Line, kind: RecordKind, fields: dict[str, Any]) -> None:
        self._check_order(line, kind, fields)
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
                end = self.head_seq + 1
                if not 0 <= fields["span_start"] <= fields["span_end"] <= end:
                    raise line.error("is beyond the log", "span_end")

    def _blob_piece(self, line: Line, data: str) -> bytes:
        try:
            piece = b64decode(data, validate=True)
        except ValueError as error:
            raise line.error("is not base64", "data") from error
        if not 0 < len(piece) <= self._missing_bytes:
            raise line.error("The blob before it has no such bytes", "data")
        self._missing_bytes -= len(piece)
        return piece

    def _check_order(self, line: Line, kind: RecordKind, fields: Mapping[str, Any]) -> None:
        key = tuple(fields[name] for name in KEYS[kind])
        if self._kind is not None and ORDER[kind] < ORDER[self._kind]:
            raise line.error(f"A {kind} does not stand after a {self._kind}")
        if kind is self._kind and (not key or key <= self._key):
            raise line.error(f"This {kind} stands twice, or not in order")
        if kind not in (RecordKind.SETTINGS, RecordKind.STATE):
            self._require_beginning(line)
        self._kind, self._key = kind, key
        self._seen.add(kind)

    def _require_beginning(self, line: Line) -> None:
        for kind in (RecordKind.SETTINGS, RecordKind.STATE):
            if kind not in self._seen:
                raise line.error(f"The line with the {kind} is missing")

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
        call_ids = tuple(json_text.loads(fields["call_ids"] or "[]"))
        message = self._check_body(line, fields)
        self._check_calls(line, fields, call_ids, message)
        self.head_seq += 1
        self.turns += fields["role"] == Role.USER and not fields["joins"]
        self.tokens += fields["tokens"]
        fields |= {"turn": self.turns, "total_tokens": self.tokens}

    def _check_body(self, line: Line, fields: Mapping[str, Any]) -> Message:
        """Check that a build can read the message, and return it."""
        formats = {"fragment": FormatName.OPENAI_CHAT, "body": fields["format"]}
        messages: tuple[Message, ...] = ()
        for name, format in formats.items():
            if fields[name] is None:
                continue
            raw = json_text.loads(fields[name])
            if has_more_values(raw, MAX_MESSAGE_VALUES):
                raise line.error(f"has more than {MAX_MESSAGE_VALUES:,} JSON values", name)
            try:
                messages = FORMATS[FormatName(format)].parse(raw, "")
            except ValidationError as error:
                raise line.error(error.detail, name) from error
            if len(messages) != 1 or messages[0].role != fields["role"]:
                raise line.error(f"is not one {fields['role']} message", name)
        return messages[0]

    def _check_calls(
        self, line: Line, fields: Mapping[str, Any], call_ids: tuple[str, ...], message: Message
    ) -> None:
        """Check that a result answers an open call, and that a message joins a group that waits."""
        role, calls = Role(fields["role"]), self._calls
        if role is Role.TOOL and len(call_ids) != 1:
            raise line.error("must have one id for a result", "call_ids")
        if role is not Role.TOOL and not fields["joins"]:
            calls = replace(calls, provider=(), is_answering=False)  # as in a fork
        draft = Draft(None, role, b"", None, 0, 0, call_ids, False, None)
        waiting, resolves = waiting_calls(message)
        draft = replace(draft, provider_calls=waiting, resolves=resolves)
        try:
            shape = batch_shape([draft], calls, self.head_seq)
        except UnpairedToolResult as error:
            raise line.error(error.detail, "call_ids") from error
        assert shape is not None, "the calls are known"
        if shape.drafts[0].joins != fields["joins"]:
            raise line.error("does not join the call group before it", "joins")
        self._calls = shape.after(calls, self.head_seq)

    def _check_end(self, line: Line, fields: Mapping[str, Any]) -> None:
        self._require_beginning(line)
        if (fields["messages"], fields["blobs"]) != (self.head_seq, self.blobs):
            raise line.error(f"The export had {fields['messages']} messages", "messages")
        if self.state["head_seq"] != self.head_seq:
            raise line.error(f"The log had {self.state['head_seq']} messages", "messages")
        if not {*self.state["open_calls"]} <= self._calls.open.keys():
            raise line.error("The open calls of the state are not those of the log")

    @property
    def call_state(self) -> dict[str, Any]:
        """The calls that wait, as the state has them."""
        calls = self._calls
        opened = {id: seq for id, seq in calls.open.items() if id in self.state["open_calls"]}
        return {
            "open_calls": list(opened),
            "open_seqs": list(opened.values()),
            "group_seq": calls.group_seq,
            "provider_calls": list(calls.provider),
            "is_answering": calls.is_answering,
        }

    @property
    def window(self) -> ActiveWindow:
        """The active window of the export."""
        return window_from(self.state["since"], self.state["parts"])


def _check_format(line: Line, fields: Mapping[str, Any]) -> None:
    if line.type != "export" or fields["format"] != FORMAT:
        raise line.error("This is not the export of a conversation")
    if fields["version"] != VERSION:
        raise line.error(f"Only version {VERSION} of the format can be imported", "version")
