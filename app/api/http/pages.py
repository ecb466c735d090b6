"""Response schemas of lists and deletions."""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

from pydantic import ConfigDict, Field
from typing_extensions import TypeAliasType

from app.api.http.fields import ResponseSchema

Item = TypeVar("Item")

RowCounts = TypeAliasType(
    "RowCounts", Annotated[dict[str, int], Field(description="Numbers of rows by table.")]
)


class Page(ResponseSchema, Generic[Item]):
    """A page of a list."""

    data: list[Item] = Field(description="The items of this page.")
    next_cursor: str | None = Field(
        description="The `cursor` of the next page; null on the last page."
    )


class Deleted(ResponseSchema):
    """The rows that a deletion removed."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"deleted": {"conversations": 1, "messages": 42}}]}
    )

    deleted: RowCounts = Field(description="Rows deleted, by table.")
