"""The lines of an export, and the checks of an import [exports.format, exports.refused].

1. The first line names the format and the conversation; the last line, `end`, has the numbers of
   messages, blobs and lines, and the SHA-256 of the lines between the two.
2. Every other line is one record: a JSON object whose `type` is its kind. Kinds are in the order
   of `FIELDS`, and the records of a kind ascend by their keys. A blob is followed by `blob_piece`
   lines with its bytes, unless it was collected.
3. What follows from a message is computed as in an append, and so are the turns and token sums of
   the log. The database checks the types of what is stored.
4. What a line says about other lines is checked: seqs, call pairing, blobs and the active
   compaction.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import IO, Any

from pydantic import TypeAdapter

from app.common import json_text
from app.common.errors import PayloadTooLarge, Problem, UnpairedToolResult, ValidationError
from app.common.json_text import StructureLimits
from app.conversations.from_rows import summaries_from, view_from
from app.conversations.messages.draft import Draft, derive, require_short_text
from app.conversations.messages.row import NO_CALLS, batch_shape
from app.conversations.receipt import FACTS, CompactionFacts, Trigger
from app.conversations.view import View, window_from
from app.formats import PROVIDERS
from app.formats.message import FormatName, Message, Role
from app.models.tokens import CountText
from app.policy.policy import StrategyName
from app.snapshots.copied_rows import FIELDS, KEYS

FORMAT = "context-service.conversation"
VERSION = 1
_ORDER = {kind: position for position, kind in enumerate(FIELDS)}
LINES: Mapping[str, Sequence[str]] = {
    **FIELDS,
    "export": ("format", "version", "conversation_id", "created_at", "exported_at"),
    "blob_piece": ("data",),
    "end": ("messages", "blobs", "lines", "sha256"),
}
"""The fields of every type of line; others are not read."""
_FACTS, _VIEW = TypeAdapter(CompactionFacts), TypeAdapter(View)


# --- lines --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """A line of an export, with its number from 1."""

    number: int = 0
    type: str = ""
    fields: dict[str, Any] = field(default_factory=dict)

    def error(self, detail: str, field: str = "") -> ValidationError:
        """Return the error for this line, or for one of its fields; nothing is imported."""
        text = f"Line {self.number}: {field and f'{field}: '}{detail}. Nothing was imported"
        problem = Problem(f"/{self.number}{field and f'/{field}'}", detail)
        return ValidationError(text, {"line": self.number}, (problem,))

    def too_large(self, what: str, limit: int) -> PayloadTooLarge:
        """Return the error for a line with too many bytes."""
        detail = f"Line {self.number}: {what} at most {limit:,} bytes. Nothing was imported"
        return PayloadTooLarge(detail, {"line": self.number, "limit": limit})

    def read(self, raw: bytes) -> Line:
        """Return the line with the record that it is."""
        try:
            record = _loads(raw)
        except ValueError as error:
            raise self.error(f"The line is not JSON: {error}") from error
        if not isinstance(record, dict) or not isinstance(kind := record.pop("type", None), str):
            raise self.error("A line is a JSON object with a type")
        return replace(self, type=kind, fields=record)


def read_lines(file: IO[bytes], max_bytes: int) -> Iterator[Line]:
    """Yield the lines of an export, and check that it is whole; memory holds one line.

    Raises ValidationError or PayloadTooLarge with the number of the line.
    """
    sha256, line = hashlib.sha256(), Line()
    while raw := file.readline(max_bytes + 1):
        is_over, line = line.type == "end", Line(line.number + 1)
        if len(raw) > max_bytes:
            raise line.too_large("a line has", max_bytes)
        if is_over:
            raise line.error("There is a line after the end of the export")
        if not raw.endswith(b"\n"):
            raise line.error("The export is cut off: it has no complete last line")
        line = line.read(raw)
        if line.type == "end":
            if line.fields.get("lines") != line.number:
                raise line.error(f"The export had {line.fields.get('lines')} lines", "lines")
            if line.fields.get("sha256") != sha256.hexdigest():
                raise line.error("The lines before differ from those exported", "sha256")
        elif line.number > 1:
            sha256.update(raw)
        yield line
    if line.type != "end":
        raise Line(line.number + 1).error("The export is cut off: it has no last line")


# --- the log ------------------------------------------------------------------------------------


class ImportChecker:
    """Checks the lines of one export in their order; memory does not grow with their number."""

    def __init__(self, counter: Callable[[str], CountText]) -> None:
        self._counter = counter
        self.line = Line()
        self._last: tuple[int, tuple[Any, ...]] = (-1, ())
        self._calls = NO_CALLS
        self._missing_bytes = 0
        self.settings: Mapping[str, Any] = {}
        self.state: Mapping[str, Any] = {}
        self.head_seq = self._blobs = self._turns = self._tokens = 0

    def check(self, line: Line) -> Line:
        """Return a line with its fields as they are stored; raises ValidationError."""
        self.line, kind = line, line.type
        if kind not in LINES:
            raise line.error(f"The type {kind[:40]!r} is unknown", "type")
        for name in LINES[kind]:
            if name not in line.fields:
                raise line.error("is missing", name)
        fields: dict[str, Any] = {name: line.fields[name] for name in LINES[kind]}
        if self._missing_bytes and kind != "blob_piece":
            raise line.error(f"The blob before it lacks {self._missing_bytes:,} bytes")
        if (line.number == 1) != (kind == "export"):
            raise line.error("The first line, and no other, names the export of a conversation")
        if kind != "export" and self._last[0] < min(_ORDER.get(kind, 2), 2) - 1:
            raise line.error("The line with the settings or with the state is missing")
        match kind:
            case "export":
                if fields["format"] != FORMAT:
                    raise line.error("This is not the export of a conversation", "format")
                if fields["version"] != VERSION:
                    detail = f"Only version {VERSION} of the format can be imported"
                    raise line.error(detail, "version")
            case "end":
                self._check_end(line, fields)
            case "blob_piece":
                fields["data"] = self._blob_piece(line, fields["data"] or "")
            case "compaction":
                facts = {name: fields[name] for name in FACTS}
                checked = asdict(_FACTS.validate_json(json_text.dump_stored(facts), strict=True))
                fields["receipt"] = json_text.dumps(checked)
                self._check_record(line, fields | checked)
            case _:
                self._check_record(line, fields)
        return replace(line, fields=fields)

    def _check_record(self, line: Line, fields: dict[str, Any]) -> None:
        kind = line.type
        place = _ORDER[kind], tuple(fields[name] for name in KEYS.get(kind, ()))
        if place <= self._last:
            raise line.error(f"This {kind} stands twice, or not in order")
        self._last = place
        match kind:
            case "settings":
                self.settings = fields
            case "state":
                self._check_state(line, fields)
            case "blob":
                self._blobs += 1
                self._missing_bytes = 0 if fields["is_collected"] else fields["byte_size"]
            case "message":
                self._check_message(line, fields)
            case "blob_use" | "pin" | "redaction":
                if not 0 < fields["seq"] <= self.head_seq:
                    raise line.error("There is no message with this seq", "seq")
            case "compaction":
                if not 0 <= fields["hidden_start"] <= fields["hidden_end"] <= self.head_seq + 1:
                    raise line.error("is beyond the log", "hidden_end")
                if Trigger(fields["trigger"]) is not Trigger.REWIND:
                    StrategyName(fields["strategy"])
                if fields["view"]:
                    _loads(fields["view"])
                    view = view_from(fields["view"])
                    _VIEW.validate_json(_VIEW.dump_json(view, warnings=False), strict=True)
                _loads(fields["made"])
                summaries_from(fields["made"])

    def _blob_piece(self, line: Line, data: str) -> bytes:
        try:
            piece = b64decode(data, validate=True)
        except ValueError as error:
            raise line.error("is not base64", "data") from error
        if not 0 < len(piece) <= self._missing_bytes:
            raise line.error("The blob before it has no such bytes", "data")
        self._missing_bytes -= len(piece)
        return piece

    def _check_state(self, line: Line, fields: dict[str, Any]) -> None:
        end = fields["head_seq"] + 1
        window = window_from(fields["since"], fields["window_parts"])
        apart = [*(it.span for it in window.restored), *(it.span for it in window.rewound)]
        spans = (*window.gaps, *apart)
        if not 0 < window.since <= end or any(span.end > end for span in spans):
            raise line.error("is beyond the log", "since")
        if not 0 < (fields["group_seq"] or 1) <= end:
            raise line.error("is beyond the log", "group_seq")
        if any(seq >= end for seq in (fields["cleared_seq"], *fields["protected_seqs"])):
            raise line.error("is beyond the log", "protected_seqs")
        self.state = fields

    def _check_message(self, line: Line, fields: dict[str, Any]) -> None:
        """Check a message with those before it, and add its turn and its token sum."""
        before, calls = self.head_seq, self._calls
        if fields["seq"] != before + 1:
            raise line.error(f"Expected the message with seq {before + 1}", "seq")
        raw, message = _message(line, fields)
        count = self._counter(self.settings["counter"])
        draft: Draft = derive(raw, message, FormatName(fields["format"]), count)
        if not fields["joins"]:
            calls = calls.ended(before)  # as by a clear, or in a fork
        try:
            shape = batch_shape([draft], calls, before)
        except UnpairedToolResult as error:
            raise line.error(error.detail, "call_ids") from error
        assert shape is not None, "the calls are known"
        (draft,) = shape.drafts
        if draft.joins != fields["joins"]:
            raise line.error("must say whether it belongs to the call group before it", "joins")
        self._calls = shape.after(calls, before)
        self.head_seq += 1
        self._turns += draft.starts_turn
        self._tokens += draft.tokens
        fields |= {**draft.columns, "turn": self._turns, "total_tokens": self._tokens}

    def _check_end(self, line: Line, fields: Mapping[str, Any]) -> None:
        counts = (fields["messages"], fields["blobs"], self.state["head_seq"])
        if counts != (self.head_seq, self._blobs, self.head_seq):
            detail = f"There are {self.head_seq} messages and {self._blobs} blobs"
            raise line.error(detail, "messages")
        if not {*self.state["open_calls"]} <= self._calls.open.keys():
            raise line.error("The open calls of the state are not those of the log")

    @property
    def full_state(self) -> dict[str, Any]:
        """The state of the log, with the calls that wait."""
        calls = self._calls
        if (self.state["group_seq"] or 0) > self.head_seq:
            calls = calls.ended(self.head_seq)  # by a clear, or in a fork
        opened = {id: seq for id, seq in calls.open.items() if id in self.state["open_calls"]}
        return {
            **self.state,
            "open_calls": list(opened),
            "open_seqs": list(opened.values()),
            "group_seq": calls.group_seq,
            "provider_calls": list(calls.provider),
            "is_answering": calls.is_answering,
        }


def _loads(text: str | bytes) -> Any:
    return json_text.loads_within(text, StructureLimits())


def _message(line: Line, fields: Mapping[str, Any]) -> tuple[Mapping[str, Any], Message]:
    """Return a message as it is stored and as a build reads it."""
    provider = PROVIDERS[FormatName(fields["format"])]
    try:
        raw = _loads(fields["body"])
        messages = provider.parse(raw, "")
    except ValidationError as error:
        raise line.error(error.detail, "body") from error
    except ValueError as error:
        raise line.error(f"is not a message: {error}", "body") from error
    if len(messages) != 1 or messages[0].role != fields["role"]:
        raise line.error(f"is not one {fields['role']} message", "body")
    (message,) = messages
    require_short_text(message, f"/{line.number}/body")
    call_ids = json_text.loads(fields["call_ids"] or "[]")
    if provider.derives_ids and message.role is Role.TOOL and len(call_ids) == 1:
        message = replace(message, tool_call_id=call_ids[0])  # stored by its position
    return raw, message
