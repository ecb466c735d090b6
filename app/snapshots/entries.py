"""Snapshot entries: messages in the JSON form of a snapshot, stored by an import.

1. An entry is the message with `ENTRY_FIELDS` beside its own fields. Fields of the message with the
   same names are in `given`; `message_of` returns the original message.
2. An import accepts the entries of a download: each has all fields of an entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.blobs.offloading import OffloadRules
from app.common import json_text
from app.common.errors import UnpairedToolResult, ValidationError
from app.common.public_ids import RULE, public_id_from
from app.common.times import time_from
from app.conversations.messages.batch import NO_CALLS, batch_shape
from app.conversations.messages.draft import Draft, is_message_id, make_drafts
from app.formats import json_fields
from app.formats.message import FormatName
from app.policy.policy import ToolOutputPolicy
from app.snapshots.copies import SourceMessage, without_ref

ENTRY_FIELDS = (
    "id",
    "conversation_id",
    "seq",
    "format",
    "created_at",
    "output_ref",
    "content_truncated",
    "content_collected",
)
"""The fields that an entry adds to its message."""


_NO_OFFLOADING = OffloadRules(ToolOutputPolicy(enabled=False))


@dataclass(frozen=True, slots=True)
class ImportedMessage:
    """A message of an imported snapshot; `body` is the JSON text of its entry."""

    source_id: str
    body: str


def entry_of(message: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as an entry (rule 1)."""
    replaced = {name: message[name] for name in (*own, "given") if name in message}
    return {**message, **own, "given": replaced or None}


def message_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message of an entry."""
    bare = {key: value for key, value in entry.items() if key not in (*ENTRY_FIELDS, "given")}
    return bare | dict(entry["given"] or {})


def source_of(body: str) -> SourceMessage:
    """Return a stored entry of an import as a message to restore."""
    entry: dict[str, Any] = json_text.loads(body)
    return SourceMessage(
        entry["conversation_id"],
        entry["id"],
        FormatName(entry["format"]),
        message_of(entry),
        len(body),
    )


def parse_import(entries: Sequence[Any]) -> list[ImportedMessage]:
    """Validate the entries of a download like an append, and return them as they are stored.

    Raises ValidationError with a pointer, also for a tool result without its call.
    """
    imported: list[ImportedMessage] = []
    ids: set[tuple[str, str]] = set()
    drafts: dict[str, list[Draft]] = {}
    for index, value in enumerate(entries):
        pointer = f"/messages/{index}"
        entry = json_fields.object_at(value, pointer)
        _check_fields(entry, pointer)
        source_id, format = entry["conversation_id"], FormatName(entry["format"])
        if (source_id, entry["id"]) in ids:
            raise ValidationError.at(f"{pointer}/id", "The id is used twice in its conversation")
        ids.add((source_id, entry["id"]))
        message = without_ref(message_of(entry), format)
        drafts.setdefault(source_id, []).extend(
            make_drafts(message, format, len, pointer, _NO_OFFLOADING)
        )
        own = {name: entry[name] for name in ENTRY_FIELDS}
        imported.append(ImportedMessage(source_id, json_text.dumps(entry_of(message, own))))
    for conversation in drafts.values():
        _check_pairs(conversation)
    return imported


def _check_fields(entry: Mapping[str, Any], pointer: str) -> None:
    for name, (is_valid, rule) in _FIELDS.items():
        if name not in entry:
            raise ValidationError.at(f"{pointer}/{name}", "is missing")
        if not is_valid(entry[name]):
            raise ValidationError.at(f"{pointer}/{name}", rule)


def _is_public_id(value: object) -> bool:
    return isinstance(value, str) and public_id_from(value) == value


def _is_seq(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_format(value: object) -> bool:
    return isinstance(value, str) and value in list(FormatName)


def _is_time(value: object) -> bool:
    return isinstance(value, str) and time_from(value) is not None


def _is_object_or_null(value: object) -> bool:
    return value is None or isinstance(value, dict)


def _is_boolean(value: object) -> bool:
    return isinstance(value, bool)


_FIELDS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "id": (is_message_id, "must be a string of 1 to 256 characters"),
    "conversation_id": (_is_public_id, RULE),
    "seq": (_is_seq, "must be an integer of at least 1"),
    "format": (_is_format, f"must be one of {', '.join(FormatName)}"),
    "created_at": (_is_time, "must be a time in ISO 8601"),
    "output_ref": (_is_object_or_null, "must be an object or null"),
    "content_truncated": (_is_boolean, "must be true or false"),
    "content_collected": (_is_boolean, "must be true or false"),
    "given": (_is_object_or_null, "must be an object or null"),
}
"""The check of each field of an entry, and what it demands."""


def _check_pairs(drafts: Sequence[Draft]) -> None:
    """Raise ValidationError for the first result that answers no open call of its conversation."""
    if _pairs(drafts):
        return
    low, high = 0, len(drafts)
    while low + 1 < high:  # drafts[:low] pair, drafts[:high] do not
        middle = (low + high) // 2
        low, high = (middle, high) if _pairs(drafts[:middle]) else (low, middle)
    unpaired = drafts[high - 1]
    (call_id,) = unpaired.call_ids
    detail = f"Tool result for call {call_id!r} answers no open call of its conversation"
    raise ValidationError.at(unpaired.pointer, detail)


def _pairs(drafts: Sequence[Draft]) -> bool:
    try:
        return batch_shape(drafts, NO_CALLS) is not None
    except UnpairedToolResult:
        return False
