"""Imports: whether the lines of an export are a log that may be stored [exports.refused].

1. What follows from a message is computed as in an append, and so are the running values of the
   log, its turns and token sums, and the costs of summaries and of a provider's compaction items.
2. What a line says about other lines is checked: seqs, call pairing, blobs and the active
   compaction.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from app.blobs.stored_output import inline_output, stored_output_from
from app.common import json_text
from app.common.errors import UnpairedToolResult, ValidationError
from app.common.json_structure import StructureLimits
from app.conversations.messages.batch import NO_CALLS, batch_shape
from app.conversations.messages.draft import Draft, derive, require_short_text
from app.conversations.provider_items import provider_item
from app.conversations.turns import MAX_PLACEHOLDER_TOKENS
from app.conversations.views import summary_message_tokens
from app.conversations.windows.active_window import ActiveWindow, window_from
from app.formats import PROVIDERS
from app.formats.message import FormatName, Message, Role
from app.models.tokens import CountText
from app.snapshots.export_fields import checked
from app.snapshots.export_format import FORMAT, KEYS, ORDER, VERSION, Line, RecordKind


class ImportChecker:
    """Checks the lines of one export in their order; memory does not grow with their number."""

    def __init__(self, counter: Callable[[str], CountText]) -> None:
        self._counter = counter
        self._item_tokens: dict[int, int] = {}
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
        raw, message = _message(line, fields)
        self.head_seq += 1
        self.turns += message.role is Role.USER and not fields["joins"]
        draft = self._with_calls(line, fields, self._draft(raw, message, fields["format"]))
        self.tokens += draft.tokens
        fields |= {
            **draft.columns,
            "turn": self.turns,
            "total_tokens": self.tokens,
            "output": _output(fields["output"], message, draft.tokens),
        }

    def _draft(self, raw: Mapping[str, Any], message: Message, format: str) -> Draft:
        """Return what follows from a message, and note what its compaction item costs."""
        count = self._counter(self.settings["counter"])
        draft = derive(raw, message, FormatName(format), count)
        if draft.compaction is not None:
            item = provider_item(draft.compaction, self.head_seq, FormatName(format), "", count)
            self._item_tokens[self.head_seq] = item.tokens
        return draft

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
        fields["view"] = json_text.dumps(view) if view else ""
        fields["made"] = json_text.dumps(made)

    def _with_calls(self, line: Line, fields: Mapping[str, Any], draft: Draft) -> Draft:
        """Check the place of a message among calls, and return it with the ids of the log."""
        calls = self._calls
        if not fields["joins"]:
            calls = calls.ended(self.head_seq - 1)  # as by a clear, or in a fork
        try:
            shape = batch_shape([draft], calls, self.head_seq - 1)
        except UnpairedToolResult as error:
            raise line.error(error.detail, "call_ids") from error
        assert shape is not None, "the calls are known"
        if shape.drafts[0].joins != fields["joins"]:
            raise line.error("must say whether it belongs to the call group before it", "joins")
        self._calls = shape.after(calls, self.head_seq - 1)
        return shape.drafts[0]

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


def _message(line: Line, fields: Mapping[str, Any]) -> tuple[Mapping[str, Any], Message]:
    """Return a message as it is stored and as a build reads it."""
    format = FormatName(fields["format"])
    try:
        raw = json_text.loads_within(fields["body"], StructureLimits())
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


def _check_format(line: Line, fields: Mapping[str, Any]) -> None:
    if line.type != "export" or fields["format"] != FORMAT:
        raise line.error("This is not the export of a conversation")
    if fields["version"] != VERSION:
        raise line.error(f"Only version {VERSION} of the format can be imported", "version")
