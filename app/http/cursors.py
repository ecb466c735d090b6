"""Pages of lists, and opaque cursors: the last item of a page and the order of the list."""

from __future__ import annotations

import base64
from datetime import date, datetime
from functools import cache
from hashlib import blake2b
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

import orjson
from pydantic import AfterValidator, AwareDatetime, Field, TypeAdapter
from typing_extensions import TypeAliasType

from app.common import pages
from app.common.errors import ValidationError
from app.common.schema_errors import AGENT_ID_PATTERN, UUID_PATTERN
from app.common.texts import is_sendable
from app.http.fields import MAX_SEQ, ResponseSchema, examples

Item = TypeVar("Item")
RowCounts = TypeAliasType(
    "RowCounts", Annotated[dict[str, int], Field(description="Numbers of rows by table.")]
)


class Page(ResponseSchema, Generic[Item]):
    """A page of a list."""

    data: list[Item]
    """The items of this page."""
    next_cursor: str | None
    """The `cursor` of the next page; null on the last page."""

    @classmethod
    def by_id(cls, kind: str, page: pages.Page[Any], data: list[Item], id_name: str) -> Self:
        """Return a page of `kind` whose cursor is the last id; `decode_id` reads it."""
        next_cursor = encode(kind, getattr(data[-1], id_name)) if page.has_more else None
        return cls(data=data, next_cursor=next_cursor)


class Deleted(ResponseSchema):
    """The rows that a deletion removed."""

    model_config = examples({"deleted": {"conversations": 1, "messages": 42}})

    deleted: RowCounts
    """Rows deleted, by table."""


def _valid(is_valid: Any) -> AfterValidator:
    def check(value: Any) -> Any:
        if not is_valid(value):
            raise ValueError(value)
        return value

    return AfterValidator(check)


_Seq = Annotated[int, Field(strict=True, ge=0, le=MAX_SEQ)]
_Uuid = Annotated[str, Field(pattern=UUID_PATTERN)]
_AgentId = Annotated[str, Field(pattern=AGENT_ID_PATTERN)]
_Time = Annotated[AwareDatetime, _valid(lambda time: 2000 <= time.year < 9000)]
_Name = Annotated[str, _valid(is_sendable)]


def encode(*values: str | int | None) -> str:
    """Return a cursor of these values."""
    return base64.urlsafe_b64encode(orjson.dumps(values)).decode().rstrip("=")


def decode_message(cursor: str) -> tuple[str, int]:
    """Return the order and the seq of the last message of a page."""
    order, seq = _decode(cursor, "messages", Literal["asc", "desc"], _Seq)
    return order, seq


def decode_place(cursor: str, kind: str, digest: str) -> tuple[datetime, str]:
    """Return the last time and conversation of a page of `kind` with filters of this digest."""
    other, at, conversation_id = _decode(cursor, kind, str, _Time, _Uuid)
    _require_same(other, digest)
    return at, conversation_id.lower()


def decode_search(cursor: str, digest: str) -> tuple[datetime, str, int]:
    """Return where a page of a search with parameters of this digest ends."""
    other, at, conversation_id, seq = _decode(cursor, "search", str, _Time, _Uuid, _Seq)
    _require_same(other, digest)
    return at, conversation_id.lower(), seq


def decode_time(cursor: str, kind: str) -> tuple[datetime, str]:
    """Return the last creation time and id of a page of `kind`."""
    at, name = _decode(cursor, kind, _Time, _AgentId)
    return at, name


def decode_id(cursor: str | None, kind: str) -> str | None:
    """Return the last id of a page of `kind`, None without a cursor."""
    return str(*_decode(cursor, kind, _Uuid)) if cursor else None


def decode_usage(cursor: str) -> tuple[date, str]:
    """Return the last day and model of a page of usage."""
    day, model = _decode(cursor, "usage", date, _Name)
    return day, model


def decode_name(cursor: str, kind: str) -> str:
    """Return the last name of a page of `kind`."""
    return str(*_decode(cursor, kind, _Name))


def digest_of(*parameters: object) -> str:
    """Return a hash of the parameters that a cursor belongs to."""
    return blake2b(orjson.dumps(parameters), digest_size=8).hexdigest()


@cache
def _adapter(*kinds: Any) -> TypeAdapter[Any]:
    shape: Any = tuple.__class_getitem__((str, *kinds))
    return TypeAdapter(shape)


def _decode(cursor: str, kind: str, *kinds: Any) -> tuple[Any, ...]:
    """Return the values of a cursor of this kind; raises ValidationError."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        text = base64.b64decode(padded, altchars=b"-_", validate=True)
        found, *values = _adapter(*kinds).validate_json(text)
    except ValueError:  # also what is no base64, and pydantic's
        raise _invalid() from None
    if found != kind:
        raise _invalid()
    return tuple(values)


def _require_same(digest: str, expected: str) -> None:
    if digest != expected:
        detail = "belongs to a list with other filters or another order"
        raise ValidationError.at("/query/cursor", detail)


def _invalid() -> ValidationError:
    return ValidationError.at("/query/cursor", "must be a `next_cursor` of this list")
