"""Opaque cursors: the last item of a page and the order of the list."""

from __future__ import annotations

import base64
import binascii
from datetime import date, datetime
from hashlib import blake2b
from typing import Any

import orjson

from app.common.errors import ValidationError
from app.common.sendable import is_sendable
from app.http.fields import AGENT_ID, MAX_SEQ, UUID
from app.models.usage_totals import GroupBy

_YEARS = range(2000, 9000)


def encode(*values: str | int | None) -> str:
    """Return a cursor of these values."""
    return base64.urlsafe_b64encode(orjson.dumps(values)).decode().rstrip("=")


def decode_message(cursor: str) -> tuple[str, int]:
    """Return the order and the seq of the last message of a page."""
    match _values(cursor):
        case ["messages", "asc" | "desc" as order, int(seq)] if 0 <= seq <= MAX_SEQ:
            return order, seq
    raise _invalid()


def decode_place(cursor: str, kind: str, digest: str) -> tuple[datetime, str]:
    """Return the last time and conversation of a page of `kind` with filters of this digest."""
    match _values(cursor):
        case [str(cursor_kind), str(other), str(time), str(conversation_id)] if cursor_kind == kind:
            at = _time(time)
            if at is not None and UUID.fullmatch(conversation_id):
                _require_same(other, digest)
                return at, conversation_id.lower()
    raise _invalid()


def decode_search(cursor: str, digest: str) -> tuple[datetime, str, int]:
    """Return where a page of a search with parameters of this digest ends."""
    match _values(cursor):
        case ["search", str(other), str(time), str(conversation_id), int(seq)]:
            at = _time(time)
            if at is not None and UUID.fullmatch(conversation_id) and 0 <= seq <= MAX_SEQ:
                _require_same(other, digest)
                return at, conversation_id.lower(), seq
    raise _invalid()


def decode_time(cursor: str, kind: str) -> tuple[datetime, str]:
    """Return the last creation time and id of a page of `kind`."""
    match _values(cursor):
        case [str(cursor_kind), str(time), str(resource_id)] if cursor_kind == kind:
            created = _time(time)
            if created is not None and AGENT_ID.fullmatch(resource_id):
                return created, resource_id
    raise _invalid()


def decode_id(cursor: str | None, kind: str) -> str | None:
    """Return the last id of a page of `kind`, None without a cursor."""
    if not cursor:
        return None
    match _values(cursor):
        case [str(cursor_kind), str(resource_id)] if cursor_kind == kind and UUID.fullmatch(
            resource_id
        ):
            return resource_id
    raise _invalid()


def decode_usage(cursor: str, group_by: GroupBy) -> tuple[date | None, str | None]:
    """Return the last day and model of a page of usage; None for what it is not grouped by."""
    match _values(cursor):
        case ["usage", str(cursor_group_by), day, model] if cursor_group_by == group_by:
            has_model = isinstance(model, str) and is_sendable(model)
            last = _day(day) if isinstance(day, str) else None
            if has_model == group_by.has_model and (last is not None) == group_by.has_day:
                return last, model if has_model else None
    raise _invalid()


def decode_name(cursor: str, kind: str) -> str:
    """Return the last name of a page of `kind`."""
    match _values(cursor):
        case [str(cursor_kind), str(name)] if cursor_kind == kind and is_sendable(name):
            return name
    raise _invalid()


def _values(cursor: str) -> Any:
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        return orjson.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, binascii.Error):
        return None


def _time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None and time.year in _YEARS else None


def digest_of(*parameters: object) -> str:
    """Return a hash of the parameters that a cursor belongs to."""
    return blake2b(orjson.dumps(parameters), digest_size=8).hexdigest()


def _require_same(digest: str, expected: str) -> None:
    if digest != expected:
        detail = "belongs to a list with other filters or another order"
        raise ValidationError.at("/query/cursor", detail)


def _day(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _invalid() -> ValidationError:
    return ValidationError.at("/query/cursor", "must be a `next_cursor` of this list")
