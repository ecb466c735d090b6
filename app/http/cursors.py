"""Pages of lists, and opaque cursors: the last item of a page and the order of the list."""

from __future__ import annotations

import base64
from datetime import date
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
    def up_to(
        cls, kind: str, page: pages.Page[Any], *names: str, data: list[Item] | None = None
    ) -> Self:
        """Return a page of `kind` that ends with these fields of the last item."""
        return cls(data=page if data is None else data, next_cursor=after(kind, page, *names))


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
_Uuid = Annotated[str, Field(pattern=UUID_PATTERN), AfterValidator(str.lower)]
_AgentId = Annotated[str, Field(pattern=AGENT_ID_PATTERN)]
_Time = Annotated[AwareDatetime, _valid(lambda time: 2000 <= time.year < 9000)]
_Name = Annotated[str, _valid(is_sendable)]
_KINDS: dict[str, tuple[Any, ...]] = {
    "messages": (Literal["asc", "desc"], _Seq),
    "conversations": (str, _Time, _Uuid),
    "search": (str, _Time, _Uuid, _Seq),
    **dict.fromkeys(("agents", "snapshots"), (_Time, _AgentId)),
    **dict.fromkeys(("compactions", "epochs", "usage_reports"), (_Uuid,)),
    **dict.fromkeys(("blobs", "models"), (_Name,)),
    "usage": (date, _Name),
}
"""The lists, and what their cursors have: where a page ends, after a digest of its parameters."""


def after(kind: str, page: pages.Page[Any], *names: str) -> str | None:
    """Return the cursor of what follows a page: these fields of its last item."""
    return encode(kind, *(getattr(page[-1], name) for name in names)) if page.has_more else None


def encode(kind: str, *values: object) -> str:
    """Return the cursor of a list with these values."""
    return base64.urlsafe_b64encode(orjson.dumps((kind, *values))).decode().rstrip("=")


def decode(cursor: str | None, kind: str, digest: str | None = None) -> Any:
    """Return the values of a list's cursor, a single one as it is; None without a cursor.

    Raises ValidationError for one of another list, or of parameters with another digest.
    """
    if not cursor:
        return None
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        text = base64.b64decode(padded, altchars=b"-_", validate=True)
        _, *values = _adapter(kind).validate_json(text)
    except ValueError:  # also what is no base64, and pydantic's
        raise ValidationError.at("/query/cursor", "must be a `next_cursor` of this list") from None
    if digest is not None and values.pop(0) != digest:
        detail = "belongs to a list with other filters or another order"
        raise ValidationError.at("/query/cursor", detail)
    return tuple(values) if len(values) > 1 else values[0]


def digest_of(*parameters: object) -> str:
    """Return a hash of the parameters that a cursor belongs to."""
    return blake2b(orjson.dumps(parameters), digest_size=8).hexdigest()


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    shape: Any = tuple.__class_getitem__((Literal[kind], *_KINDS[kind]))
    return TypeAdapter(shape)
