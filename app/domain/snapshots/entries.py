"""Snapshot entries: messages in the JSON form of a snapshot, stored by an import.

1. An entry is the message with `ENTRY_FIELDS` beside its own fields. Fields of the message with the
   same names are in `given`; `message_of` returns the original message.
2. An imported message without an id or a conversation gets one derived from its position, so that
   a repeated restore finds its copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid5

from app.domain.common import json_text
from app.domain.common.errors import UnpairedToolResult, ValidationError
from app.domain.common.messages import FormatName, is_sendable
from app.domain.common.policy import ToolOutputPolicy
from app.domain.conversations.active_window import time_from
from app.domain.conversations.log.batch import batch_shape
from app.domain.conversations.log.draft import Draft, make_drafts
from app.domain.conversations.log.tombstones import tombstone_message
from app.domain.conversations.own_ids import RULE, public_id_from
from app.domain.formats import FORMATS, json_fields
from app.domain.snapshots.copies import NAMESPACE, SourceMessage, without_ref
from app.domain.snapshots.snapshots import SnapshotModel
from app.domain.tool_output.offloading import OffloadRules

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


_NO_OFFLOADING = OffloadRules(replace(ToolOutputPolicy(), enabled=False))


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
    """Return the message of an entry, or a bare message, which has no `given`."""
    names = {*ENTRY_FIELDS, "given"} if "given" in entry else {*ENTRY_FIELDS} - {"id"}
    bare = {key: value for key, value in entry.items() if key not in names}
    return bare | dict(entry.get("given") or {})


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


def redacted_entry(body: str) -> str:
    """Return a stored entry of an import with tombstones in place of its content."""
    entry: dict[str, Any] = json_text.loads(body)
    own = {name: entry.get(name) for name in ENTRY_FIELDS}
    own |= {"output_ref": None, "content_truncated": False, "content_collected": False}
    format = FormatName(entry["format"])
    messages = FORMATS[format].parse(message_of(entry), "")
    first, *others = (tombstone_message(message, format) for message in messages)
    for other in others:  # several results of one message, and what the user said after them
        key = "parts" if format is FormatName.GEMINI else "content"
        blocks = other[key] if isinstance(other[key], list) else [_text_block(other[key])]
        first = first | {key: [*first[key], *blocks]}
    return json_text.dumps(entry_of(first, own))


def _text_block(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def parse_import(entries: Sequence[Any], session_id: str) -> list[ImportedMessage]:
    """Validate the messages of a snapshot like an append, and return them as they are stored.

    Raises ValidationError with a pointer, also for a tool result without its call.
    """
    imported: list[ImportedMessage] = []
    ids: set[tuple[str, str]] = set()
    drafts: dict[str, list[Draft]] = {}
    answered: dict[str, dict[str, int]] = {}
    for index, value in enumerate(entries):
        pointer = f"/messages/{index}"
        entry = json_fields.object_at(value, pointer)
        own = _own_fields(entry, pointer)
        own["conversation_id"] = own["conversation_id"] or bare_source_id(session_id)
        own["id"] = own["id"] or str(uuid5(NAMESPACE, f"{session_id}/{index}"))
        source_id, format = own["conversation_id"], FormatName(own["format"])
        if (source_id, own["id"]) in ids:
            raise ValidationError.at(f"{pointer}/id", "The id is used twice in its conversation")
        ids.add((source_id, own["id"]))
        message = without_ref(message_of(entry), format)
        drafts.setdefault(source_id, []).extend(
            make_drafts(
                message, format, len, pointer, _NO_OFFLOADING, answered.setdefault(source_id, {})
            )
        )
        imported.append(ImportedMessage(source_id, json_text.dumps(entry_of(message, own))))
    for conversation in drafts.values():
        _check_pairs(conversation)
    return imported


def models_of(
    named_models: Iterable[tuple[str | None, str]],
    messages: Iterable[ImportedMessage],
    session_id: str,
) -> tuple[SnapshotModel, ...]:
    """Return the models of an import by conversation.

    An entry without a conversation belongs to the bare messages. An entry for a conversation
    without messages is dropped, and of two entries the first counts.
    """
    imported = {message.source_id for message in messages}
    models: dict[str, str] = {}
    for conversation_id, model in named_models:
        models.setdefault(conversation_id or bare_source_id(session_id), model)
    return tuple(SnapshotModel(key, model) for key, model in models.items() if key in imported)


def bare_source_id(session_id: str) -> str:
    """Return the conversation id of an import's messages without one (rule 2)."""
    return str(uuid5(NAMESPACE, session_id))


def _own_fields(entry: Mapping[str, Any], pointer: str) -> dict[str, Any]:
    own: dict[str, Any] = {name: entry.get(name) for name in ENTRY_FIELDS}
    own["format"] = own["format"] or FormatName.OPENAI_CHAT
    if own["format"] not in list(FormatName):
        raise ValidationError.at(f"{pointer}/format", f"must be one of {', '.join(FormatName)}")
    if own["id"] is not None and not _is_id(own["id"]):
        if own["format"] != FormatName.OPENAI_RESPONSES:
            raise ValidationError.at(f"{pointer}/id", "must be a string of 1 to 256 characters")
        own["id"] = None  # the provider's item id, of any length
    source = json_fields.optional_text_at(entry, "conversation_id", pointer)
    own["conversation_id"] = _public_id(source, f"{pointer}/conversation_id")
    created = json_fields.optional_text_at(entry, "created_at", pointer)
    if created is not None and time_from(created) is None:
        raise ValidationError.at(f"{pointer}/created_at", "must be a time in ISO 8601")
    seq = own["seq"]
    if seq is not None and (not isinstance(seq, int) or isinstance(seq, bool) or seq < 1):
        raise ValidationError.at(f"{pointer}/seq", "must be an integer of at least 1")
    if entry.get("given") is not None:
        json_fields.object_at(entry["given"], f"{pointer}/given")
    return own | {name: bool(own[name]) for name in ("content_truncated", "content_collected")}


def _is_id(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 256 and is_sendable(value)


def _public_id(text: str | None, pointer: str) -> str | None:
    if text is not None and (text := public_id_from(text)) is None:
        raise ValidationError.at(pointer, RULE)
    return text


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
        return not batch_shape(drafts).required_calls
    except UnpairedToolResult:
        return False
