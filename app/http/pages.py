"""Response schemas of lists and deletions, and pages of lists in the order of ids."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Self, TypeVar

from pydantic import ConfigDict, Field
from typing_extensions import TypeAliasType

from app.common import pages
from app.http import cursors
from app.http.fields import ResponseSchema

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
        """Return a page of `kind` whose cursor is the last id; `cursors.decode_id` reads it."""
        next_cursor = cursors.encode(kind, getattr(data[-1], id_name)) if page.has_more else None
        return cls(data=data, next_cursor=next_cursor)


class Deleted(ResponseSchema):
    """The rows that a deletion removed."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"deleted": {"conversations": 1, "messages": 42}}]}
    )

    deleted: RowCounts
    """Rows deleted, by table."""
