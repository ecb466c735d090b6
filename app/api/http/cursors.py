"""Opaque cursors: where a page ended, and in which order (decision 2)."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import Any

import orjson

from app.api.http.fields import AGENT_ID, MAX_SEQ, UUID
from app.domain.common.errors import ValidationError
from app.domain.common.messages import is_sendable

_YEARS = range(2000, 9000)


def encode(*values: str | int) -> str:
    """Return a cursor for these values."""
    return base64.urlsafe_b64encode(orjson.dumps(values)).decode().rstrip("=")


def decode_seq(cursor: str) -> tuple[str, int]:
    """Read the order and the last seq of a page of messages."""
    match _values(cursor):
        case ["messages", "asc" | "desc" as order, int(seq)] if 0 <= seq <= MAX_SEQ:
            return order, seq
    raise _bad()


def decode_moment(cursor: str) -> tuple[str, tuple[datetime, str, int]]:
    """Read the order, and the time, conversation and seq that a page of an agent's ended with."""
    match _values(cursor):
        case ["agent_messages", "asc" | "desc" as order, str(time), str(talk), int(seq)]:
            at = _time(time)
            if at is not None and UUID.fullmatch(talk) and 0 <= seq <= MAX_SEQ:
                return order, (at, talk, seq)
    raise _bad()


def decode_time(cursor: str, kind: str) -> tuple[datetime, str]:
    """Read the creation time and the id that a page of `kind` ended with."""
    match _values(cursor):
        case [str(given), str(time), str(resource_id)] if given == kind:
            pattern = UUID if kind == "conversations" else AGENT_ID
            created = _time(time)
            if created is not None and pattern.fullmatch(resource_id):
                return created, resource_id
    raise _bad()


def decode_id(cursor: str, kind: str) -> str:
    """Read the id that a page of `kind` ended with."""
    match _values(cursor):
        case [str(given), str(resource_id)] if given == kind and UUID.fullmatch(resource_id):
            return resource_id
    raise _bad()


def decode_name(cursor: str, kind: str) -> str:
    """Read the name that a page of `kind` ended with."""
    match _values(cursor):
        case [str(given), str(name)] if given == kind and is_sendable(name):
            return name
    raise _bad()


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


def _bad() -> ValidationError:
    return ValidationError.at("/query/cursor", "This is no cursor that this list has given")
